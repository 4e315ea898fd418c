//! Builds everything and lays it out as it is installed: optimised for users, or compiled
//! quickly for tests, which wait for guests most of the time.
//!
//! ```text
//! target/dist/bin/{forkyard,forkyardd,forkyard-pager,forkyard-blockd,forkyard-dispatcher,forkyard-friendly,forkyard-frontend,forkyard-gateway,forkyard-porter,forkyard-unpack}
//! target/dist/share/forkyard/libforkyard_track.so
//! target/dist/share/forkyard/guest/{bin,lib,include,python}/…
//! target/dist/share/forkyard/images/*.toml
//! target/dist/share/forkyard/generalise.toml
//! target/test-dist/…          the same for tests
//! target/fake/…               and with a daemon whose machines are made up
//! ```

use crate::{
    header, lints,
    run::{Run, cargo, program},
    space,
};
use anyhow::{Context, Result};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Guests are of this kind. Named so that the flags for the agent reach the
/// agent alone, not the build scripts of what it depends on.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// A profile of cargo's that hosts' programs are built by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For users.
    Release,
    /// For tests.
    Quick,
}

impl Profile {
    /// Name of the profile, which is that of its folder below `target/`, too.
    pub fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Quick => "quick",
        }
    }

    /// The cargo that builds by it.
    pub fn cargo(self, root: &Path) -> Run {
        match self {
            Self::Release => cargo(root),
            Self::Quick => lints::cargo(root),
        }
    }

    /// Folder below `target/` in which what is built by it is laid out.
    fn dist(self) -> &'static str {
        match self {
            Self::Release => "dist",
            Self::Quick => "test-dist",
        }
    }
}

/// Programs of hosts, and their places in what is laid out.
const HOSTS: [(&str, &str); 10] = [
    ("forkyard", "bin/forkyard"),
    ("forkyardd", "bin/forkyardd"),
    ("forkyard-pager", "bin/forkyard-pager"),
    ("forkyard-blockd", "bin/forkyard-blockd"),
    ("forkyard-dispatcher", "bin/forkyard-dispatcher"),
    ("forkyard-frontend", "bin/forkyard-frontend"),
    ("forkyard-gateway", "bin/forkyard-gateway"),
    ("forkyard-friendly", "bin/forkyard-friendly"),
    ("forkyard-porter", "bin/forkyard-porter"),
    ("forkyard-unpack", "bin/forkyard-unpack"),
];

/// Programs that guests are given, from `target/`, and its place likewise.
const GUESTS: [(&str, &str); 6] = [
    (
        "guest/libforkyard_track.so",
        "share/forkyard/libforkyard_track.so",
    ),
    (
        "x86_64-unknown-linux-gnu/guest/forkyard-guest",
        "share/forkyard/guest/bin/forkyard-guest",
    ),
    (
        "x86_64-unknown-linux-gnu/guest/forkyard-friendly",
        "share/forkyard/guest/bin/forkyard-friendly",
    ),
    (
        "guest/libforkyard.so",
        "share/forkyard/guest/lib/libforkyard.so",
    ),
    (
        "guest/libforkyard.a",
        "share/forkyard/guest/lib/libforkyard.a",
    ),
    (
        "guest/libforkyard-reseed.so",
        "share/forkyard/guest/lib/libforkyard-reseed.so",
    ),
];

/// Programs of a host whose machines are made up, and their places in `target/fake/`.
const FAKE: [(&str, &str); 9] = [
    ("forkyard", "bin/forkyard"),
    ("forkyardd-fake", "bin/forkyardd"),
    ("forkyard-fake-machine", "bin/forkyard-fake-machine"),
    ("forkyard-pager", "bin/forkyard-pager"),
    ("forkyard-blockd", "bin/forkyard-blockd"),
    ("forkyard-frontend", "bin/forkyard-frontend"),
    ("forkyard-gateway", "bin/forkyard-gateway"),
    ("forkyard-porter", "bin/forkyard-porter"),
    ("forkyard-unpack", "bin/forkyard-unpack"),
];

/// Files that are written, from the tree, and its place in what is laid out.
const WRITTEN: [(&str, &str); 5] = [
    (header::PLACE, "share/forkyard/guest/include/forkyard.h"),
    (
        "lib/substrate/generalise.toml",
        "share/forkyard/generalise.toml",
    ),
    (
        "sdk/python/forkyard.py",
        "share/forkyard/guest/python/forkyard.py",
    ),
    (
        "sdk/python/forkyard_reseed.py",
        "share/forkyard/guest/python/forkyard_reseed.py",
    ),
    (
        "sdk/python/forkyard_reseed.pth",
        "share/forkyard/guest/python/forkyard_reseed.pth",
    ),
];

/// Builds and lays out, if there is space; returns where.
pub fn build(root: &Path, profile: Profile) -> Result<PathBuf> {
    space::DIST.check(root)?;
    // Of the whole workspace, for then dependencies have the features they
    // have in tests and are compiled once for both.
    profile
        .cargo(root)
        .args([
            "build",
            "--profile",
            profile.name(),
            "--workspace",
            "--bins",
        ])
        .done()?;
    for_guests(root)?;
    lay_out(root, profile)
}

/// Lays out what is built; returns where. What has not changed is not touched.
pub fn lay_out(root: &Path, profile: Profile) -> Result<PathBuf> {
    let target = root.join("target");
    let built = target.join(profile.name());
    let dist = target.join(profile.dist());
    for (from, to) in HOSTS {
        place(&built.join(from), &dist.join(to))?;
    }
    for (from, to) in GUESTS {
        place(&target.join(from), &dist.join(to))?;
    }
    for (from, to) in WRITTEN {
        place(&root.join(from), &dist.join(to))?;
    }
    let images = dist.join("share/forkyard/images");
    let recipes = files_of(&root.join("images"))?;
    for name in &recipes {
        place(&root.join("images").join(name), &images.join(name))?;
    }
    // A recipe of an earlier tree would still be one.
    for gone in files_of(&images)?.iter().filter(|it| !recipes.contains(it)) {
        fs::remove_file(images.join(gone)).with_context(|| gone.display().to_string())?;
    }
    if profile == Profile::Quick {
        let fake = target.join("fake");
        for (from, to) in FAKE {
            place(&built.join(from), &fake.join(to))?;
        }
        let share = fake.join("share");
        let real = Path::new("..").join(profile.dist()).join("share");
        if fs::read_link(&share).ok().as_ref() != Some(&real) {
            // That of an earlier tree.
            if fs::symlink_metadata(&share).is_ok() {
                fs::remove_file(&share)?;
            }
            std::os::unix::fs::symlink(real, &share)?;
        }
    }
    Ok(dist)
}

/// Builds what guests are given, in folders of its own: another cargo may build at the same time.
pub fn for_guests(root: &Path) -> Result<()> {
    cargo(root)
        .args(["build", "--profile", "guest", "--target", TARGET])
        .args(["--package", "forkyard-guest"])
        .args(["--package", "forkyard-friendly-bin"])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .done()?;
    cargo(root)
        .args(["build", "--profile", "guest", "--package", "forkyard-sdk"])
        .args(["--package", "forkyard-sys-track"])
        .done()?;
    compile_reseed(root)
}

/// In C: every program of a guest loads it, and it needs nothing but libc.
fn compile_reseed(root: &Path) -> Result<()> {
    program(Path::new("cc"), root)
        .args(["-std=gnu11", "-O2", "-fPIC", "-shared", "-s"])
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .args(["target/guest/libforkyard-reseed.so", "sdk/reseed/reseed.c"])
        .done()
}

/// Copies a file and its mode, unless the same is there already. It appears
/// whole: a daemon may be running the one that it replaces.
fn place(from: &Path, to: &Path) -> Result<()> {
    let read = |path: &Path| fs::read(path).with_context(|| path.display().to_string());
    let content = read(from)?;
    let mode = fs::metadata(from)
        .with_context(|| from.display().to_string())?
        .permissions()
        .mode();
    let same_mode = |m: fs::Metadata| m.permissions().mode() == mode;
    if to.metadata().is_ok_and(same_mode) && read(to)? == content {
        return Ok(());
    }
    let write = || {
        fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
        let new = to.with_extension("new");
        fs::write(&new, &content)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
        fs::rename(new, to)
    };
    write().with_context(|| to.display().to_string())
}

/// Names of the files in a directory.
fn files_of(dir: &Path) -> Result<Vec<PathBuf>> {
    let list = || {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(entry.file_name().into());
            }
        }
        Ok::<_, std::io::Error>(names)
    };
    list().with_context(|| dir.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn unchanged_file_is_not_touched_and_a_changed_one_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let (from, to) = (dir.path().join("from"), dir.path().join("a/b/to"));
        let inode = || fs::metadata(&to).expect("there").ino();
        fs::write(&from, "one").expect("written");
        fs::set_permissions(&from, fs::Permissions::from_mode(0o755)).expect("set");
        place(&from, &to).expect("placed");
        let first = fs::File::open(&to).expect("there");
        let before = inode();
        place(&from, &to).expect("placed");
        assert_eq!(inode(), before);

        fs::write(&from, "two").expect("written");
        place(&from, &to).expect("placed");
        assert_ne!(inode(), before, "the old one may be running");
        assert_eq!(fs::read(&to).expect("there"), b"two");
        assert_eq!(fs::metadata(&to).expect("there").mode() & 0o777, 0o755);
        drop(first);

        fs::set_permissions(&from, fs::Permissions::from_mode(0o700)).expect("set");
        place(&from, &to).expect("placed");
        assert_eq!(fs::metadata(&to).expect("there").mode() & 0o777, 0o700);
    }

    #[test]
    fn missing_file_is_named() {
        let error = place(Path::new("/nowhere/at/all"), Path::new("/x")).expect_err("none");
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
