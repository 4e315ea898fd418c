//! The Python package's own tests: framing and cancellation, against a server of their own.

use std::{path::Path, process::Command};

#[test]
fn the_asynchronous_client_reads_every_framing_and_hangs_up_when_it_is_cancelled() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/python/tests/test_aio.py");
    let ran = Command::new("python3")
        .arg(tests)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python");
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
}
