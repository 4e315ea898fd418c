//! C programs for guests: compiled statically, for a guest has no compiler and
//! the smallest has no libraries.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Compiles `guest/NAME.c` of this crate; `dist` adds libforkyard from there.
pub fn compile(name: &str, to: &Path, dist: Option<&Path>) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("guest")
        .join(name)
        .with_extension("c");
    let program = to.join(name);
    let mut gcc = Command::new("gcc");
    gcc.args([
        "-std=gnu11",
        "-O1",
        "-static",
        "-Wall",
        "-Wextra",
        "-Werror",
    ]);
    gcc.arg("-o").arg(&program).arg(source);
    if let Some(dist) = dist {
        let sdk = dist.join("share/forkyard/guest");
        gcc.arg("-I").arg(sdk.join("include"));
        gcc.arg(sdk.join("lib/libforkyard.a"));
        // As its header says.
        gcc.args(["-lpthread", "-ldl", "-lm"]);
    }
    // The linker's warnings of what a static libc cannot do are not for us.
    let gcc = gcc.output().expect("gcc");
    assert!(
        gcc.status.success(),
        "{}",
        String::from_utf8_lossy(&gcc.stderr)
    );
    program
}
