//! The official SDK of E2B, as it comes from PyPI, against a real host.

use forkyard_e2e::Host;
use forkyard_types::TokenGrant;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Versions of the SDK and of what it depends on.
const PINS: &str = "e2e/e2b/requirements.txt";
const PROGRAM: &str = "e2e/e2b/sdk.py";
const URL: &str = "http://127.0.0.1:3000";

/// The interpreter that has the SDK; the error says why it cannot be installed.
fn sdk(tree: &Path) -> Result<PathBuf, String> {
    let place = tree.join("target/e2b-sdk");
    let pins = fs::read_to_string(tree.join(PINS)).expect("pins");
    let (installed, python) = (place.join("installed.txt"), place.join("bin/python"));
    if fs::read_to_string(&installed).is_ok_and(|there| there == pins) {
        return Ok(python);
    }
    let run = |command: &mut Command| {
        let ran = command.output().map_err(|error| error.to_string())?;
        match ran.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&ran.stderr).trim().to_owned()),
        }
    };
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&place))?;
    let pip = ["install", "--quiet", "--disable-pip-version-check", "-r"];
    run(Command::new(place.join("bin/pip"))
        .args(pip)
        .arg(tree.join(PINS)))?;
    fs::write(&installed, pins).expect("noted");
    Ok(python)
}

#[test]
fn the_unmodified_sdk_of_e2b_does_what_it_does_elsewhere() {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = match sdk(&tree) {
        Ok(python) => python,
        Err(why) if std::env::var_os("CI").is_none() => {
            let why = why.lines().last().unwrap_or_default();
            println!("\nskipped: e2b: the SDK cannot be had from PyPI: {why}");
            return;
        }
        Err(why) => panic!("the SDK cannot be had from PyPI: {why}"),
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
