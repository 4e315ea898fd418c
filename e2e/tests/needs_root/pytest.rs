//! The pytest plug-in, installed as users install it: its own tests, against a real host.

use forkyard_e2e::{Host, pypi};
use std::{path::Path, process::Command};

#[test]
fn the_pytest_plug_in_gives_each_test_a_clone_and_leaves_nothing() {
    let pins = "e2e/pytest/requirements.txt";
    let Some(python) = pypi::environment("pytest-forkyard", pins) else {
        return;
    };
    pypi::install_ours(&python, &["sdk/python", "sdk/pytest-forkyard"]);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sdk/pytest-forkyard/tests");
    // A VM that stays, so that one daemon is there throughout.
    let host = Host::with_woken_p([]);
    let scratch = tempfile::tempdir().expect("a folder");
    let said = host.program(
        Command::new(python)
            .args(["-m", "pytest", "-p", "no:cacheprovider", "--durations=0"])
            .arg(tests)
            // Of a run that is killed the folders of pytest stay, as they do elsewhere.
            .env("TMPDIR", scratch.path()),
        "",
    );
    println!("{said}");
    host.end();
}
