//! Programs that are root of their own files, and of nothing else: builders of container images,
//! and what they run.
//!
//! ```text
//! Users::mapped: a user namespace, its users a range of the host's
//! contain: jail -> /proc and /dev of its own -> those users, as their root -> mounts of its own
//! ```
//!
//! Files of such a program belong to users of the range; it may mount, in its jail alone, and make no
//! device. The network is the caller's.

use crate::{
    jail::Jail,
    process::{
        Bounds, Lifespan, bound, check, die_as_others_do, end_with, join_own_keyring, keep_only,
    },
};
use std::{
    fs::{self, File},
    io,
    ops::Range,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::{Command, Stdio},
    sync::Arc,
};

/// Folders that programs expect.
const PROC: &std::ffi::CStr = c"/proc";
const SYS: &std::ffi::CStr = c"/sys";
const DEV: &std::ffi::CStr = c"/dev";
const MODE: libc::mode_t = 0o555;

/// A user namespace. It goes with the last process in it and this descriptor.
#[derive(Debug)]
pub struct UserNamespace(Arc<OwnedFd>);

impl UserNamespace {
    /// Makes one whose users and groups, from root on, are these of the host, for programs in this
    /// jail, which has `cat`. Needs root. Blocks for some milliseconds.
    pub fn mapped(to: &Range<u32>, jail: &Jail) -> io::Result<Self> {
        // A process of its own: a thread cannot enter one. It reads until this end is closed. Made from
        // within the jail: a process in a chroot, as the caller may be, can make none.
        let jail = jail.as_raw_fd();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // SAFETY: between fork and exec the closure makes two system calls, which take integers; the
        // descriptor is the jail's, which outlives the start of the process.
        unsafe {
            command.pre_exec(move || {
                check(libc::setns(jail, libc::CLONE_NEWNS))?;
                check(libc::unshare(libc::CLONE_NEWUSER))
            });
        }
        let mut child = command.spawn()?;
        let map = || -> io::Result<OwnedFd> {
            let own = format!("/proc/{}", child.id());
            let line = format!("0 {} {}\n", to.start, to.end.saturating_sub(to.start));
            for map in ["uid_map", "gid_map"] {
                fs::write(format!("{own}/{map}"), &line)?;
            }
            File::open(format!("{own}/ns/user")).map(OwnedFd::from)
        };
        let mapped = map();
        drop(child.stdin.take());
        child.wait()?;
        Ok(Self(Arc::new(mapped?)))
    }
}

/// Surroundings of a contained program.
#[derive(Debug)]
pub struct Contained {
    /// Users that there are.
    pub users: UserNamespace,
    /// The only files there are.
    pub jail: Jail,
    /// Bounds of each of its processes.
    pub bounds: Bounds,
    /// Event that ends it at the latest.
    pub ends: Lifespan,
}

/// Makes `command` start as root of those users, in that jail. To be started by
/// [`spawn_first_and_stay`](crate::process::spawn_first_and_stay): what it starts ends with it.
pub fn contain(command: &mut Command, to: Contained) {
    let Contained {
        users,
        jail,
        bounds,
        ends,
    } = to;
    // SAFETY: between fork and exec the closure makes system calls alone: it
    // neither allocates nor takes a lock, whatever the other threads of this
    // process held when it was forked.
    unsafe {
        command.pre_exec(move || {
            check(libc::setsid())?;
            die_as_others_do();
            check(libc::setns(jail.as_raw_fd(), libc::CLONE_NEWNS))?;
            for place in [PROC, SYS] {
                // It is the jail's own, and there already if something else was put below it.
                libc::mkdir(place.as_ptr(), MODE);
            }
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            let none = std::ptr::null();
            let proc = c"proc".as_ptr();
            check(libc::mount(proc, PROC.as_ptr(), proc, flags, none))?;
            // A mount of its own, in which devices are devices: the mounts that are made of it
            // inside must not be less than it is.
            let of_itself = libc::MS_BIND | libc::MS_REC;
            check(libc::mount(
                DEV.as_ptr(),
                DEV.as_ptr(),
                none.cast(),
                of_itself,
                none,
            ))?;
            let again = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_NOSUID | libc::MS_NOEXEC;
            check(libc::mount(
                none.cast(),
                DEV.as_ptr(),
                none.cast(),
                again,
                none,
            ))?;
            check(libc::unshare(libc::CLONE_NEWCGROUP))?;
            join_own_keyring();
            bound(bounds)?;
            check(libc::setgroups(0, std::ptr::null()))?;
            check(libc::setns(users.0.as_raw_fd(), libc::CLONE_NEWUSER))?;
            check(libc::setresgid(0, 0, 0))?;
            check(libc::setresuid(0, 0, 0))?;
            // Made by those users, so that they may mount in it.
            let own = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
            check(libc::unshare(own))?;
            check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))?;
            keep_only(&[])?;
            end_with(ends)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        jail::{JailPiece, Use, programs},
        process::spawn_first_and_stay,
    };
    use std::os::unix::fs::{MetadataExt, chown};

    const IDS: Range<u32> = 1_900_300_000..1_900_365_536;

    #[test]
    fn a_contained_program_is_root_of_its_own_files_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let own = dir.path().join("own");
        fs::create_dir(&own).expect("made");
        chown(&own, Some(IDS.start), Some(IDS.start)).expect("root");
        let (mut pieces, links) = programs().expect("root");
        pieces.push(JailPiece::of(&own, Use::Tree).expect("there"));
        pieces.push(JailPiece::of("/etc/shadow".as_ref(), Use::Program).expect("there"));
        let jail = Jail::build(pieces, links).expect("root");
        let contained = Contained {
            users: UserNamespace::mapped(&IDS, &jail).expect("root"),
            jail,
            bounds: Bounds::default(),
            ends: Lifespan::WithStarter,
        };
        let script = "id -u; echo $$; cat /proc/self/uid_map; cd $0; touch made; chown 33 made; \
            mount -t tmpfs none . && echo mounted; cat /etc/shadow || echo closed; \
            mknod x c 1 3 || echo no device; mkdir /x || echo no place; [ -e /root ] || echo homeless";
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .arg(&own)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        contain(&mut command, contained);
        let output = spawn_first_and_stay(&mut command, |child| child.wait_with_output());
        let output = output.expect("started").expect("told");
        let said = String::from_utf8(output.stdout).expect("text");
        let lines: Vec<_> = said.lines().map(str::trim).collect();
        let map = format!("0 {} 65536", IDS.start);
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(lines[..2], ["0", "1"], "{said}");
        assert_eq!(words(lines[2]), map);
        let rest = ["mounted", "closed", "no device", "no place", "homeless"];
        assert_eq!(lines[3..], rest, "{said}");
        let made = fs::metadata(own.join("made")).expect("there");
        assert_eq!(made.uid(), IDS.start + 33);
        let mounts = fs::read_to_string("/proc/self/mounts").expect("read");
        assert!(!mounts.contains(&own.display().to_string()), "{mounts}");
    }
}
