//! The image's root disk becomes the root.

use super::{Outcome, copy_tree, doing, mount_at, say};
use crate::agent::identity::generators::{EPOCH, GENERATORS, PAGE};
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
/// empty folder, links into it, and an empty file to mount another on; so that
/// whoever reads it elsewhere finds it as it was made.
fn our_folder(new: &Path) -> Outcome {
    let ours = new.join("opt/forkyard");
    mount_at("tmpfs", &ours)?;
    copy_tree(Path::new("/forkyard"), &ours).map_err(doing("copy the guest's programs"))?;
    for page in [EPOCH, GENERATORS] {
        fs::write(ours.join(page), [0; PAGE]).map_err(doing("make the generators' pages"))?;
    }
    // An image may have its own of that name, or no such folder.
    link(new, "usr/local/bin", "vmfork", "/opt/forkyard/bin/vmfork");
    for folder in python_folders(new) {
        for name in ["forkyard.py", "forkyard_reseed.py", "forkyard_reseed.pth"] {
            link(new, &folder, name, &format!("/opt/forkyard/python/{name}"));
        }
    }
    if let Err(why) = preload(new) {
        say(&format!("forkyard: OpenSSL is not told of forks: {why}"));
    }
    Ok(())
}

fn link(new: &Path, folder: &str, name: &str, target: &str) {
    let folder = new.join(folder);
    if folder.is_dir() {
        let _ = symlink(target, folder.join(name));
    }
}

/// Where Python looks for what every program of it starts with.
fn python_folders(new: &Path) -> Vec<String> {
    let mut folders = vec!["usr/lib/python3/dist-packages".to_owned()];
    for above in ["usr/lib", "usr/local/lib"] {
        let names = fs::read_dir(new.join(above)).into_iter().flatten();
        let names = names
            .flatten()
            .filter_map(|e| e.file_name().into_string().ok());
        let pythons = names.filter(|name| name.starts_with("python3."));
        folders.extend(pythons.map(|name| format!("{above}/{name}/site-packages")));
    }
    folders
}

/// Has every dynamic program of a glibc image load the library that tells
/// OpenSSL of forks, unless the image has a list of its own.
fn preload(new: &Path) -> Outcome {
    let list = new.join("etc/ld.so.preload");
    let own = fs::metadata(&list).is_ok_and(|facts| facts.len() > 0);
    // A link that leads to the right place only once this is the root.
    let loader = new.join("lib64/ld-linux-x86-64.so.2");
    if own || loader.symlink_metadata().is_err() {
        return Ok(());
    }
    let ours = new.join("opt/forkyard/ld.so.preload");
    fs::write(&ours, "/opt/forkyard/lib/libforkyard-reseed.so\n")
        .and_then(|()| fs::write(&list, ""))
        .map_err(doing("write ld.so.preload"))?;
    mount(
        Some(&ours),
        &list,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(doing("mount ld.so.preload"))
}
