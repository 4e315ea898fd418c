use super::*;
use crate::import::{Cache, tests::cache};
use std::process::Command;

/// A disk as a guest leaves it.
fn disk(root: &Path) -> Vec<u8> {
    let put = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    };
    put("etc/machine-id", "0123\n");
    put("etc/ssh/ssh_host_rsa_key", "a secret that is a key");
    put("etc/ssh/ssh_host_rsa_key.pub", "public");
    put("etc/ssh/sshd_config", "kept");
    put("home/a/.bash_history", "typed");
    put("home/a b\nrm /etc/kept/.bash_history", "typed");
    put("var/lib/cloud/data/deep/er/file", "x");
    put("var/lib/cloud/kept", "kept");
    put("usr/home/b/.bash_history", "typed");
    std::os::unix::fs::symlink("/usr/home/b", root.join("home/b")).expect("linked");
    put("etc/kept", "kept");
    std::os::unix::fs::symlink("/etc/kept", root.join("etc/ssh/ssh_host_x_key")).expect("linked");
    let path = root.join("../disk.raw");
    let made = Command::new("mke2fs")
        .args(["-q", "-t", "ext4", "-d"])
        .arg(root)
        .arg(&path)
        .arg("16M")
        .output();
    assert!(made.expect("installed").status.success());
    fs::read(path).expect("read")
}

fn lists() -> Scrub {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Scrub {
        remove: words(&[
            "/etc/ssh/ssh_host_*_key",
            "/etc/ssh/ssh_host_*_key.pub",
            "/home/*/.bash_history",
            "/var/lib/cloud/data",
            "/none/at/all",
        ]),
        empty: words(&["/etc/machine-id", "/var/log/*.log"]),
    }
}

fn said(disk: &Path, word: &str) -> String {
    let said = Command::new("debugfs")
        .args(["-R", word])
        .arg(disk)
        .output();
    let said = said.expect("installed");
    String::from_utf8_lossy(&said.stdout).into_owned()
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes
        .windows(text.len())
        .any(|part| part == text.as_bytes())
}

fn commit(cache: &Cache, disk: &[u8]) -> Result<crate::Imported, ImportError> {
    let name = "kept".parse().expect("a name");
    cache.commit(&name, ("p", None), disk, &lists(), |_| {})
}

#[test]
fn what_was_one_vms_alone_is_gone_from_every_block_and_the_rest_is_there() {
    let (dir, cache) = cache();
    let before = disk(&dir.path().join("root"));
    assert!(has(&before, "a secret that is a key"));
    let image = commit(&cache, &before).expect("made");
    let path = &image.file.path;
    assert_eq!(said(path, "cat /etc/machine-id"), "");
    assert!(said(path, "stat /etc/machine-id").contains("Size: 0"));
    let keys = said(path, "ls -p /etc/ssh");
    assert!(
        !keys.contains("_key") && keys.contains("sshd_config"),
        "{keys}"
    );
    assert_eq!(said(path, "cat /etc/kept"), "kept");
    assert!(!said(path, "ls -p /home/a").contains("history"));
    assert!(!said(path, "ls -p /usr/home/b").contains("history"));
    let cloud = said(path, "ls -p /var/lib/cloud");
    assert!(!cloud.contains("data") && cloud.contains("kept"), "{cloud}");
    assert!(!has(
        &fs::read(path).expect("read"),
        "a secret that is a key"
    ));
    let checked = Command::new("e2fsck").args(["-f", "-n"]).arg(path).output();
    assert!(checked.expect("installed").status.success());
    assert!(image.summary.contains("the VM p"), "{}", image.summary);
}

#[test]
fn what_is_no_file_system_is_no_image() {
    let (_dir, cache) = cache();
    commit(&cache, &vec![7; 1 << 20]).expect_err("no ext4");
    assert!(cache.imported().expect("listed").is_empty());
    assert_eq!(
        fs::read_dir(cache.dir.join("tmp")).expect("there").count(),
        0
    );
}

#[test]
fn a_file_that_cannot_be_named_is_not_left_there_in_silence() {
    let (dir, cache) = cache();
    let before = disk(&dir.path().join("root"));
    let mut what = lists();
    what.remove.push("/srv/my secret".to_owned());
    let name = "kept".parse().expect("a name");
    let error = cache.commit(&name, ("p", None), &before[..], &what, |_| {});
    assert!(
        matches!(
            error,
            Err(ImportError::Disk(DiskImportError::NotScrubbed { .. }))
        ),
        "{error:?}"
    );
}

#[test]
fn names_that_are_words_to_debugfs_are_not_repeated_to_it() {
    let said = "debugfs: ls -p /home/\n/2/040755/0/0/..//\n/9/040755/0/0/a//\n/9/100644/0/0/a b/3/\n/9/040755/0/0/\"x//\n/9/04x/0/0/y//\nrm /etc\ndebugfs: ls -p /none/\n/none/: File not found\n";
    let read = read(said);
    let names: Vec<_> = read["/home"].keys().collect();
    assert_eq!(names, ["a"]);
    assert!(!read.contains_key("/none"));
}
