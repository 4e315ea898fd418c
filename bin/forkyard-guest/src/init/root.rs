//! The image's root disk becomes the root.

use super::{Outcome, copy_tree, doing, mount_at};
use nix::{
    mount::{MsFlags, mount},
    unistd::{chdir, chroot},
};
use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

const NEW: &str = "/newroot";
/// A disk may come up a little after its driver.
const DISK: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// Mounts the disk, puts our folder on it, and makes it the root. What the
/// initramfs held is freed.
pub fn enter(disk: &str) -> Outcome {
    let begun = Instant::now();
    while !Path::new(disk).exists() {
        if begun.elapsed() > DISK {
            return Err(format!("there is no root disk {disk}"));
        }
        sleep(LOOK);
    }
    let new = Path::new(NEW);
    fs::create_dir_all(new).map_err(doing("create /newroot"))?;
    mount(
        Some(disk),
        new,
        Some("ext4"),
        MsFlags::MS_NOATIME,
        None::<&str>,
    )
    .map_err(doing(format!("mount {disk}")))?;
    our_folder(new)?;
    for place in ["proc", "sys", "dev"] {
        let to = new.join(place);
        fs::create_dir_all(&to).map_err(doing(format!("create /{place}")))?;
        mount(
            Some(&Path::new("/").join(place)),
            &to,
            None::<&str>,
            MsFlags::MS_MOVE,
            None::<&str>,
        )
        .map_err(doing(format!("move /{place}")))?;
    }
    for gone in ["/forkyard", "/lib"] {
        // What is not freed costs memory, no more.
        let _ = fs::remove_dir_all(gone);
    }
    chdir(new).map_err(doing("enter the new root"))?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .map_err(doing("move the new root"))?;
    chroot(".")
        .and_then(|()| chdir("/"))
        .map_err(doing("enter the new root"))
}

/// `/opt/forkyard`, in memory: the image's disk holds nothing of ours but the
/// empty folder and two links, so that whoever reads it elsewhere finds it as
/// it was made.
fn our_folder(new: &Path) -> Outcome {
    let ours = new.join("opt/forkyard");
    mount_at("tmpfs", &ours)?;
    copy_tree(Path::new("/forkyard"), &ours).map_err(doing("copy the guest's programs"))?;
    let python = new.join("usr/lib/python3/dist-packages");
    for (folder, name, target) in [
        (
            new.join("usr/local/bin"),
            "vmfork",
            "/opt/forkyard/bin/vmfork",
        ),
        (python, "forkyard.py", "/opt/forkyard/python/forkyard.py"),
    ] {
        // An image may have its own of that name, or no such folder.
        if folder.is_dir() {
            let _ = symlink(target, folder.join(name));
        }
    }
    Ok(())
}
