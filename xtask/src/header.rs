//! The C library's header, generated from its code and kept in the tree, so
//! that a reader of the tree or of a change sees what C programs see.

use anyhow::{Context, Result, bail};
use std::{fs, path::Path};

/// Path in the tree.
pub const PLACE: &str = "sdk/c/include/forkyard.h";
/// The library's crate, with `cbindgen.toml` in it.
const CRATE: &str = "sdk/c";

/// Writes the header that the code calls for.
pub fn write(root: &Path) -> Result<()> {
    let place = root.join(PLACE);
    let dir = place.parent().unwrap_or(root);
    fs::create_dir_all(dir)
        .and_then(|()| fs::write(&place, generate(root)?))
        .context(PLACE)
}

/// Compares the header kept with the one that the code calls for.
pub fn check(root: &Path) -> Result<()> {
    let kept = fs::read_to_string(root.join(PLACE)).context(PLACE)?;
    if kept != generate(root).context(CRATE)? {
        bail!("{PLACE} is not what the code says: run `cargo xtask header`");
    }
    Ok(())
}

fn generate(root: &Path) -> std::io::Result<String> {
    let dir = root.join(CRATE);
    let config = cbindgen::Config::from_file(dir.join("cbindgen.toml"));
    let config = config.map_err(std::io::Error::other)?;
    let bindings = cbindgen::Builder::new()
        .with_crate(dir)
        .with_config(config)
        .generate()
        .map_err(std::io::Error::other)?;
    let mut text = Vec::new();
    bindings.write(&mut text);
    String::from_utf8(text).map_err(std::io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str =
        "/// Forks.\n#[unsafe(no_mangle)]\npub extern \"C\" fn fy_fork() -> i32 { 0 }\n";
    const MANIFEST: &str = "[package]\nname = \"sample\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
        [lib]\npath = \"lib.rs\"\n[workspace]\n";

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join(CRATE);
        fs::create_dir_all(&dir).expect("made");
        fs::write(dir.join("Cargo.toml"), MANIFEST).expect("written");
        fs::write(dir.join("cbindgen.toml"), "language = \"C\"\n").expect("written");
        fs::write(dir.join("lib.rs"), CODE).expect("written");
        root
    }

    #[test]
    fn header_that_was_written_passes_until_the_code_changes() {
        let root = tree();
        check(root.path()).expect_err("there is no header yet");
        write(root.path()).expect("written");
        check(root.path()).expect("it was just written");
        let header = fs::read_to_string(root.path().join(PLACE)).expect("there");
        assert!(header.contains("int32_t fy_fork(void);"), "{header}");

        let code = root.path().join(CRATE).join("lib.rs");
        fs::write(code, CODE.replace("i32", "i64")).expect("written");
        check(root.path()).expect_err("the code returns something else now");
    }
}
