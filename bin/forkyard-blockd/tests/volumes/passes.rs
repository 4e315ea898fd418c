//! Clients of other users, which are not trusted. Needs root, to act as them.

use crate::place::Place;
use std::{
    fs::{self, Permissions},
    io::Read,
    os::unix::{fs::PermissionsExt, net::UnixStream, process::CommandExt},
    process::{Command, Output},
    time::Duration,
};

const GUEST: u32 = 65_000;
const STRANGER: u32 = 65_100;

fn place() -> Place {
    let place = Place::with(&["--users", "65000-65010"]);
    let passable = Permissions::from_mode(0o711);
    fs::set_permissions(place.folder.path(), passable).expect("root's own");
    place
}

/// Carries out a command of qemu-io on an export, as another user.
fn qemu_io(place: &Place, user: u32, export: &str, command: &str) -> Output {
    let mut program = Command::new("qemu-io");
    program.args(["-f", "raw", "-c", command]);
    if command.starts_with("read") {
        program.arg("-r");
    }
    let program = program.arg(place.uri(export)).current_dir("/");
    program.uid(user).gid(user).output().expect("as root")
}

#[test]
fn clients_of_other_users_open_what_they_have_a_pass_for_and_strangers_nothing() {
    let mut place = place();
    place.ok(&["create", "d", "1M"]);
    let export = place.ok(&["open", "d"]);
    let pass = place.ok(&["pass", &export]);
    let does = |place: &Place, user, export: &str, command| {
        let output = qemu_io(place, user, export, command);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success() && !said.contains("failed")
    };
    assert!(does(&place, GUEST, &pass, "write -P 7 0 4k"));
    assert!(!does(&place, GUEST, &export, "read 0 4k"), "without a code");
    assert!(!does(&place, STRANGER, &pass, "read 0 4k"), "a stranger");
    let other = place.ok(&["pass", "e:1"]);
    let (_, code) = other.split_once('~').expect("a code");
    let forged = format!("{export}~{code}");
    assert!(!does(&place, GUEST, &forged, "read 0 4k"), "another's code");
    // For a snapshot that is yet to be taken: open, and read once it is there.
    let coming = place.ok(&["pass", "d@s"]);
    assert!(!does(&place, GUEST, &coming, "read -P 7 0 4k"), "not taken");
    place.ok(&["snapshot", "d", "s"]);
    assert!(does(&place, GUEST, &pass, "write -P 8 0 4k"));
    assert!(does(&place, GUEST, &coming, "read -P 7 0 4k"));
    assert!(
        !does(&place, GUEST, &coming, "write 0 4k"),
        "it is read-only"
    );
    // A pass outlives the server, and ends with the writer.
    place.kill();
    place.start(&["--users", "65000-65010"]);
    assert!(does(&place, GUEST, &pass, "read -P 8 0 4k"));
    place.ok(&["close", "d"]);
    assert!(!does(&place, GUEST, &pass, "read 0 4k"), "closed");
    // Only its own user manages, and reads the files.
    let segment = place.path("v/d/0000000001.seg");
    assert!(segment.exists());
    let mut reader = Command::new("cat");
    let read = reader.arg(&segment).uid(STRANGER).gid(STRANGER).output();
    assert!(
        !read.expect("as root").status.success(),
        "a stranger reads it"
    );
    // The program itself may lie where only root gets to.
    let program = place.path("program");
    fs::copy(place.program().get_program(), &program).expect("copied");
    let manager = |user: u32| {
        let mut manager = Command::new(&program);
        manager.arg("--socket").arg(place.path("c.sock")).arg("ls");
        let ran = manager.current_dir("/").uid(user).gid(user).output();
        ran.expect("as root").status.success()
    };
    assert!(manager(0), "its own user");
    assert!(!manager(GUEST), "a guest's");
}

#[test]
fn one_user_cannot_take_all_connections() {
    let place = place();
    place.ok(&["create", "d", "1M"]);
    // This process is trusted, so that another holds them.
    let socket = place.path("n.sock");
    let mut holder = Command::new("python3");
    holder.args([
        "-c",
        "import socket, sys, time\nheld = []\nfor n in range(200):\n    s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); held.append(s)\nopen_ones = 0\nfor s in held:\n    s.settimeout(5)\n    open_ones += len(s.recv(8)) == 8\nprint(open_ones, flush=True)\ntime.sleep(60)",
    ]);
    let mut holder = holder
        .arg(&socket)
        .uid(GUEST)
        .gid(GUEST)
        .current_dir("/")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("as root");
    let mut said = [0; 2];
    let out = holder.stdout.as_mut().expect("piped");
    out.read_exact(&mut said).expect("a number");
    let held: usize = String::from_utf8_lossy(&said)
        .trim()
        .parse()
        .expect("a number");
    assert_eq!(held, 8);
    let mut greeting = [0; 8];
    let mut other = UnixStream::connect(&socket).expect("room for others");
    let patience = Some(Duration::from_secs(10));
    other.set_read_timeout(patience).expect("set");
    other.read_exact(&mut greeting).expect("greeted");
    holder.kill().expect("killed");
    holder.wait().expect("ended");
}
