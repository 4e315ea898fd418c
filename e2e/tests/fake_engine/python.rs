//! The Python package's own tests, against a server of their own.

use std::{path::Path, process::Command};

#[test]
fn the_asynchronous_client_reads_every_framing_and_hangs_up_when_it_is_cancelled() {
    passes("test_aio.py");
}

#[test]
fn neither_client_waits_for_ever_on_input_that_fails_or_cannot_be_sent() {
    passes("test_input.py");
}

fn passes(file: &str) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/python/tests");
    let ran = Command::new("python3")
        .arg(tests.join(file))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
}
