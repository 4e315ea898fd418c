//! The official SDK of E2B, as it comes from PyPI, against a real host.

use forkyard_e2e::{Host, pypi};
use forkyard_types::TokenGrant;
use std::{fs, path::Path, process::Command};

/// Versions of the SDK and of what it depends on.
const PINS: &str = "e2e/e2b/requirements.txt";
const PROGRAM: &str = "e2e/e2b/sdk.py";
const URL: &str = "http://127.0.0.1:3000";

#[test]
fn the_unmodified_sdk_of_e2b_does_what_it_does_elsewhere() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let Some(python) = pypi::environment("e2b-sdk", PINS) else {
        return;
    };
    // Sandboxes are made as they are elsewhere: not each by a boot of its own.
    let host = Host::waking()
        .telling("FORKYARD_E2B", "127.0.0.1:3000")
        .telling("FORKYARD_E2B_BASE", "tiny")
        .telling("FORKYARD_E2B_MEMORY", "256");
    host.with_loopback();
    host.ok(["run", "tiny", "--name", "p"]);
    let at = "127.0.0.1:8083";
    host.ok([
        "exec", "-d", "p", "--", "httpd", "-f", "-p", at, "-h", "/run",
    ]);
    let grant: TokenGrant = host.json(["token", "create", "sdk"]);
    let program = fs::read_to_string(tree.join(PROGRAM)).expect("a program");
    let variables = [
        ("E2B_API_KEY", grant.token.0.as_str()),
        ("E2B_API_URL", URL),
        ("E2B_SANDBOX_URL", URL),
    ];
    let said = host.program(
        Command::new(python).args(["-", URL]).envs(variables),
        &program,
    );
    assert!(said.ends_with("all of it works"), "{said}");
    println!("{said}");
    host.end();
}
