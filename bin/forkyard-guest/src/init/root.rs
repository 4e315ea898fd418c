//! The image's root disk becomes the root.

use super::{Outcome, copy_tree, doing, mount_with, say};
use crate::{
    agent::identity::generators::{EPOCH, GENERATORS, PAGE},
    foreign,
};
use forkyard_files::inside;
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
const OURS: &str = "/opt/forkyard";
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
    // An image may have links in these places. They mean what they mean in the
    // guest: followed by the kernel from here, they would lead out of the image.
    for place in ["/proc", "/sys", "/dev"] {
        let to =
            inside::directory(new, Path::new(place)).map_err(doing(format!("create {place}")))?;
        mount(
            Some(place),
            &to,
            None::<&str>,
            MsFlags::MS_MOVE,
            None::<&str>,
        )
        .map_err(doing(format!("move {place}")))?;
    }
    our_folder(new)?;
    for gone in ["/forkyard", "/lib"] {
        // What is not freed costs memory, no more.
        let _ = fs::remove_dir_all(gone);
    }
    chdir(new).map_err(doing("enter the new root"))?;
    mount(Some("."), "/", None::<&str>, MsFlags::MS_MOVE, None::<&str>)
        .map_err(doing("move the new root"))?;
    chroot(".")
        .and_then(|()| chdir("/"))
        .map_err(doing("enter the new root"))?;
    // From here on every path is the image's own.
    furnish();
    Ok(())
}

/// Mounts `/opt/forkyard`, in memory: the image's disk holds nothing of ours but the
/// empty folder, links into it, and an empty file to mount another on; so that
/// a reader elsewhere finds it as it was made.
fn our_folder(new: &Path) -> Outcome {
    let find = || {
        inside::directory(new, Path::new(OURS))
            .map_err(doing(format!("create {OURS} in the image")))
    };
    let mut ours = find()?;
    if let Some((place, mode)) = hidden_later(new, &ours) {
        // An init mounts nothing where something is mounted.
        mount_with("tmpfs", &new.join(place), mode)?;
        ours = find()?;
    }
    // The file system's own default is a folder that every user may write to.
    mount_with("tmpfs", &ours, "mode=0755")?;
    copy_tree(Path::new("/forkyard"), &ours).map_err(doing("copy the guest's programs"))?;
    for page in [EPOCH, GENERATORS] {
        fs::write(ours.join(page), [0; PAGE]).map_err(doing("make the generators' pages"))?;
    }
    Ok(())
}

/// Returns the folder that the image's init mounts something over, and its mode, if
/// our folder lies in it by a link.
fn hidden_later(new: &Path, ours: &Path) -> Option<(&'static str, &'static str)> {
    let mut folders = [("run", "mode=0755"), ("tmp", "mode=1777")].into_iter();
    folders.find(|(name, _)| ours.starts_with(new.join(name)))
}

/// Puts links to our folder where programs look, as far as the image lets us.
fn furnish() {
    // An image may have its own of that name, or no such folder.
    link("/usr/local/bin", "vmfork", "bin/vmfork");
    for folder in python_folders() {
        for name in ["forkyard.py", "forkyard_reseed.py", "forkyard_reseed.pth"] {
            link(&folder, name, &format!("python/{name}"));
        }
    }
    if let Err(why) = preload() {
        say(&format!("forkyard: OpenSSL is not told of forks: {why}"));
    }
}

fn link(folder: &str, name: &str, ours: &str) {
    let folder = Path::new(folder);
    if folder.is_dir() {
        let _ = symlink(Path::new(OURS).join(ours), folder.join(name));
    }
}

/// Lists the folders in which Python looks for what every program of it starts with.
fn python_folders() -> Vec<String> {
    let mut folders = vec!["/usr/lib/python3/dist-packages".to_owned()];
    for above in ["/usr/lib", "/usr/local/lib"] {
        let names = fs::read_dir(above).into_iter().flatten();
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
fn preload() -> Outcome {
    let list = Path::new("/etc/ld.so.preload");
    let own = fs::metadata(list).is_ok_and(|facts| facts.len() > 0);
    if own || !Path::new("/lib64/ld-linux-x86-64.so.2").exists() {
        return Ok(());
    }
    let ours = Path::new(OURS).join("ld.so.preload");
    let library = Path::new(OURS).join("lib/libforkyard-reseed.so");
    fs::write(&ours, format!("{}\n", library.display()))
        // Made, if it is not there: it is empty.
        .and_then(|()| foreign::put(list, ""))
        .map_err(doing("write ld.so.preload"))?;
    mount(
        Some(&ours),
        list,
        None::<&str>,
        MsFlags::MS_BIND,
        None::<&str>,
    )
    .map_err(doing("mount ld.so.preload"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_folder_is_known_to_lie_where_an_init_would_hide_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let new = folder.path();
        let hidden = |target: &str| {
            let opt = new.join("opt");
            let _ = fs::remove_file(&opt);
            symlink(target, &opt).expect("linked");
            let ours = inside::directory(new, Path::new(OURS)).expect("a place inside");
            assert!(ours.starts_with(new), "{target}");
            hidden_later(new, &ours)
        };
        assert_eq!(hidden("var/opt"), None);
        assert_eq!(hidden("../../running"), None);
        assert_eq!(hidden("/run/opt"), Some(("run", "mode=0755")));
        assert_eq!(hidden("var/../tmp"), Some(("tmp", "mode=1777")));
    }
}
