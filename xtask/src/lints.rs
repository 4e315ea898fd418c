//! Clippy's lints, given by the compiler that builds what is tested.
//!
//! Clippy's compiler gives its lints and then compiles like any other. `cargo clippy` has it
//! stop after the lints: a build of its own, of dependencies and all, which took a quarter as long
//! as the one that tests need.

use crate::{
    dist::Profile,
    run::{self, Run},
};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;

/// The cargo that runs us; crates of the workspace are compiled by Clippy's compiler.
pub fn cargo(root: &Path) -> Run {
    run::cargo(root).env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
}

/// Builds every target and prints what the compiler complains of, as far as that has been
/// built before: cargo keeps complaints. One is enough to fail.
pub fn check(root: &Path) -> Result<()> {
    let mut complaints = 0;
    let mut wrong = None;
    let built = cargo(root)
        .args(["build", "--profile", Profile::Quick.name()])
        .args(["--workspace", "--all-targets", "--keep-going"])
        .arg("--message-format=json")
        .each_line(|line| match complaint(line) {
            Ok(Some(text)) => {
                complaints += 1;
                println!("{text}");
            }
            Ok(None) => {}
            Err(error) => wrong = Some(error.context(line.to_owned())),
        });
    built?;
    if let Some(error) = wrong {
        return Err(error);
    }
    if complaints > 0 {
        bail!("the compiler complains {complaints} times: see above");
    }
    Ok(())
}

/// Reads a line that cargo prints: a complaint of the compiler as a person is to see it, or
/// nothing of interest.
fn complaint(line: &str) -> Result<Option<String>> {
    let read: Value = serde_json::from_str(line)?;
    let complains = read["reason"] == "compiler-message"
        && ["warning", "error", "error: internal compiler error"]
            .iter()
            .any(|level| read["message"]["level"] == *level);
    if !complains {
        return Ok(None);
    }
    let text = read["message"]["rendered"].as_str();
    Ok(Some(text.context("a message without text")?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_and_errors_are_complaints_and_nothing_else_is() {
        let message = |level: &str| {
            format!(
                r#"{{"reason":"compiler-message","message":{{"level":"{level}","rendered":"no"}}}}"#
            )
        };
        for level in ["warning", "error"] {
            let read = complaint(&message(level)).expect("read");
            assert_eq!(read.as_deref(), Some("no"), "{level}");
        }
        let artifact = r#"{"reason":"compiler-artifact","fresh":true}"#;
        for other in [message("note").as_str(), artifact] {
            assert_eq!(complaint(other).expect("read"), None, "{other}");
        }
        complaint(r#"{"reason":"compiler-message","message":{"level":"error"}}"#)
            .expect_err("it has no text");
        complaint("warning: not cargo's").expect_err("no JSON");
    }
}
