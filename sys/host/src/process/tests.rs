use super::*;
use crate::jail::{JailPiece, Use};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    fs::File,
    io::Read,
    process::{Child, Stdio},
};

fn ended(process: &PidFd, timeout: PollTimeout) -> bool {
    let mut fds = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, timeout).expect("poll") == 1
}

fn sleeper() -> Child {
    Command::new("sleep").arg("600").spawn().expect("sleep")
}

#[test]
fn a_killed_process_is_seen_to_end() {
    let mut child = sleeper();
    let process = PidFd::open(child.id()).expect("alive");
    assert!(!ended(&process, PollTimeout::ZERO));
    process.kill().expect("killed");
    assert!(ended(&process, PollTimeout::NONE));
    child.wait().expect("reaped");
    process.kill().expect("killing the dead is no error");
}

#[tokio::test]
async fn the_end_of_a_process_wakes_who_waits_for_it() {
    let mut child = sleeper();
    let process = Arc::new(PidFd::open(child.id()).expect("alive"));
    let ending = Ending::of(process.clone()).expect("watched");
    let waiting = tokio::spawn(async move { ending.wait().await });
    process.kill().expect("killed");
    waiting.await.expect("no panic").expect("ended");
    assert!(child.try_wait().expect("ours").is_some());
}

#[test]
fn a_number_no_process_has_cannot_be_opened() {
    let mut child = sleeper();
    let pid = child.id();
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let error = PidFd::open(pid).expect_err("gone");
    assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
}

#[test]
fn only_what_is_meant_to_is_inherited() {
    let (reader, writer) = std::io::pipe().expect("pipe");
    let leak = File::open("/dev/zero").expect("device");
    // Without this the standard library's own flag would close it anyway.
    nix::fcntl::fcntl(&leak, nix::fcntl::F_SETFD(nix::fcntl::FdFlag::empty())).expect("flags");
    let given = writer.as_raw_fd();
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("ls -l /proc/self/fd >&{given}; id -u >&{given}; id -G >&{given}; for of in c p d f; do ulimit -H -$of >&{given}; done; grep -E '^(Cap|NoNew)' /proc/self/status >&{given}; tail -n +2 /proc/net/route | grep -q . || echo alone >&{given}; [ -e /etc ] || echo homeless >&{given}; set -- $(cat /proc/self/stat); [ $4 = $6 ] && echo leader of $$ >&{given}; cat /proc/self/oom_score_adj >&{given}; uname -n >&{given}"))
        .stdin(Stdio::null());
    // Upwards, which takes no right.
    std::fs::write("/proc/self/oom_score_adj", "1").expect("written");
    let nobody = Credentials {
        uid: 65534,
        gid: 65534,
        groups: vec![4242],
    };
    let pieces = ["/usr", "/proc"].map(|path| JailPiece::of(path.as_ref(), Use::Program));
    let links = ["/bin", "/lib", "/lib64"].map(|at| (at.into(), format!("usr{at}").into()));
    let pieces = pieces.into_iter().collect::<Result<_, _>>().expect("root");
    let surroundings = Surroundings {
        network: Arc::new(empty_network().expect("root")),
        jail: Jail::build(pieces, links.into()).expect("root"),
        bounds: Bounds {
            threads: Some(400),
            private: Some(3 << 30),
            file: Some(1 << 20),
            processor: None,
        },
        calls: None,
        capabilities: Vec::new(),
        ends: Lifespan::ByItself,
    };
    isolate(&mut command, nobody, surroundings, vec![writer.into()]);
    let mut child = spawn_first(&mut command).expect("spawned as root");
    drop(command);
    let mut told = String::new();
    { reader }.read_to_string(&mut told).expect("told");
    assert!(child.wait().expect("reaped").success());
    assert!(told.contains(&format!(" {given} -> pipe:")), "{told}");
    assert!(!told.contains("/dev/zero"), "{told}");
    let nothing = "0".repeat(16);
    let capabilities: String = ["Inh", "Prm", "Eff", "Bnd", "Amb"]
        .map(|set| format!("Cap{set}:\t{nothing}\n"))
        .concat();
    let wanted = format!(
        "\n65534\n65534 4242\n0\n400\n3145728\n2048\n{capabilities}NoNewPrivs:\t1\nalone\nhomeless\nleader of 1\n0\nvm\n"
    );
    assert!(told.ends_with(&wanted), "{told}");
}
