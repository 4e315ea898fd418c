//! The official SDKs of E2B, as they come from PyPI and, if it is asked for (`make test-e2b-js`), from npm, against a real host.

use forkyard_e2e::{Host, pypi};
use forkyard_types::TokenGrant;
use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Versions of the SDK and of what it depends on.
const PINS: &str = "e2e/e2b/requirements.txt";
const PROGRAM: &str = "e2e/e2b/sdk.py";
/// Folder of the JavaScript program and of its lock file.
const JS: &str = "e2e/e2b/js";
/// Server of a code interpreter.
const SERVER: &str = "e2e/e2b/interpreter.sh";
const URL: &str = "http://127.0.0.1:3000";

/// The JavaScript program beside the packages that it takes, if it is asked for.
fn javascript(tree: &Path) -> Option<PathBuf> {
    if env::var_os("FORKYARD_E2B_JS").is_none() {
        println!("\nskipped: the JavaScript SDK, which takes Node and npm: `make test-e2b-js`");
        return None;
    }
    let place = tree.join("target/e2b-js");
    fs::create_dir_all(&place).expect("a folder");
    for name in ["package.json", "package-lock.json", "sdk.mjs"] {
        fs::copy(tree.join(JS).join(name), place.join(name)).expect("copied");
    }
    let installed = Command::new("npm")
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
        .current_dir(&place)
        .output()
        .expect("npm");
    let said = String::from_utf8_lossy(&installed.stderr);
    assert!(installed.status.success(), "{said}");
    Some(place.join("sdk.mjs"))
}

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
    let server = tree.join(SERVER);
    let words = [OsStr::new("-"), OsStr::new(URL), server.as_os_str()];
    let said = host.program(Command::new(python).args(words).envs(variables), &program);
    assert!(said.ends_with("all of it works"), "{said}");
    println!("{said}");
    if let Some(program) = javascript(&tree) {
        let mut node = Command::new("node");
        node.arg(program).arg(URL).arg(server).envs(variables);
        let said = host.program(&mut node, "");
        assert!(said.ends_with("all of it works"), "{said}");
    }
    host.end();
}
