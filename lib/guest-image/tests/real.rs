//! The real thing: packages from Debian's archive, its kernel, QEMU.
//!
//! Takes root, a network and some seconds.

use forkyard_guest_image::{BuildEvent, Cache, GuestFiles, ImageFile, KernelChoice, Recipe};
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

/// Message of busybox when it is started as `/init` in a tree without a script.
const BUSYBOX_RUNS: &str = "can't run '/etc/init.d/rcS'";
/// A boot takes two seconds; nothing but a boot that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

fn tiny() -> Recipe {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images");
    Recipe::load(&images.join("tiny.toml")).expect("loads")
}

/// Returns the output of a program about an image.
fn ask(program: &str, args: &[&str], image: &ImageFile) -> String {
    let output = Command::new(program).args(args).arg(&image.path).output();
    let output = output.expect(program);
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn tiny_is_a_sound_file_system_and_boots_with_the_fetched_kernel() {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().join("cache"));
    let image = cache.image(&tiny(), |_| {}).expect("built");

    ask("e2fsck", &["-f", "-n"], &image);
    let show = |request: &str| ask("debugfs", &["-R", request], &image);
    assert!(show("cat /etc/passwd").starts_with("root:x:0:0:"));
    assert_eq!(show("cat /etc/hostname"), "tiny\n");
    assert!(show("stat /sbin/init").contains("Fast link dest: \"/bin/busybox\""));
    assert!(show("stat /etc/passwd").contains("Mode:  0644"));
    let meta = fs::metadata(&image.path).expect("there");
    assert_eq!(meta.len(), image.size.0);

    let again = cache.image(&tiny(), |event| panic!("built twice: {event:?}"));
    assert_eq!(again.expect("found"), image);
    assert_eq!(
        cache.images().expect("listed"),
        std::slice::from_ref(&image)
    );

    // Busybox, static as the agent is, stands in for it.
    let agent = dir.path().join("busybox");
    fs::write(&agent, "").expect("written");
    show(&format!("dump /bin/busybox {}", agent.display()));
    let guest = GuestFiles {
        agent,
        library: None,
        header: None,
        python: None,
        reseed: None,
    };
    let mut steps = 0;
    let kernel = cache.kernel(&KernelChoice::Debian, |e| {
        steps += u32::from(matches!(e, BuildEvent::Step(_)));
    });
    let kernel = kernel.expect("fetched");
    assert!(steps > 0, "fetched without a word");
    assert!(kernel.modules.len() >= 14, "{kernel:?}");
    let initramfs = cache.initramfs(&kernel, &guest).expect("written");
    assert!(boots(&kernel.image, &initramfs), "no word from /init");
}

/// Set in a process that is to build, and be killed: where.
const VICTIM: &str = "FORKYARD_TEST_VICTIM";

#[test]
fn builder_killed_midway_leaves_nothing_that_stops_the_next() {
    if let Some(dir) = std::env::var_os(VICTIM) {
        let dir = Path::new(&dir);
        let recipe = Recipe::load(&dir.join("victim.toml")).expect("loads");
        let built = Cache::new(dir.join("cache")).image(&recipe, |_| {});
        panic!("was to be killed: {built:?}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let recipe = dir.path().join("victim.toml");
    // A whole Debian, for which mmdebstrap mounts /proc and /sys in the tree.
    let write = |variant, packages| {
        let text = format!(
            "description = \"victim\"\nsuite = \"bookworm\"\nvariant = \"{variant}\"\n\
             packages = [{packages}]\nsize_mib = 64\n"
        );
        fs::write(&recipe, text).expect("written");
    };
    write("minbase", "");
    let mut victim = Command::new(std::env::current_exe().expect("known"))
        .args([
            "--exact",
            "builder_killed_midway_leaves_nothing_that_stops_the_next",
        ])
        .env(VICTIM, dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let tree = dir.path().join("cache/tmp/image-victim/root");
    let deadline = Instant::now() + PATIENCE;
    // Its presence means that packages are being installed in the tree.
    while !tree.join("var/lib/dpkg/info/bash.list").exists() {
        assert!(Instant::now() < deadline, "no package was installed");
        assert_eq!(victim.try_wait().expect("running"), None, "ended by itself");
        std::thread::sleep(Duration::from_millis(50));
    }
    victim.kill().expect("killed");
    victim.wait().expect("reaped");
    let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
    assert!(!mounts.contains("image-victim"), "{mounts}");

    write("extract", "\"busybox-static\"");
    let recipe = Recipe::load(&recipe).expect("loads");
    let cache = Cache::new(dir.path().join("cache"));
    let image = cache.image(&recipe, |_| {}).expect("built");
    ask("e2fsck", &["-f", "-n"], &image);
    assert!(!tree.exists());
}

/// Tells whether this kernel runs this initramfs's `/init`.
fn boots(kernel: &Path, initramfs: &Path) -> bool {
    let mut qemu = Command::new("qemu-system-x86_64")
        .args("-M q35 -accel tcg -m 128 -nodefaults -display none -no-reboot".split(' '))
        .args(["-serial", "stdio", "-append", "console=ttyS0 panic=-1"])
        .args([Path::new("-kernel"), kernel])
        .args([Path::new("-initrd"), initramfs])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("qemu-system-x86_64 is installed");
    let heard = hears(&mut qemu, BUSYBOX_RUNS);
    qemu.kill().expect("killed");
    qemu.wait().expect("reaped");
    heard
}

fn hears(qemu: &mut Child, wanted: &'static str) -> bool {
    let console = BufReader::new(qemu.stdout.take().expect("piped"));
    let (tell, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut lines = console.split(b'\n').map_while(Result::ok);
        let found = lines.any(|line| {
            let line = String::from_utf8_lossy(&line);
            println!("{line}");
            line.contains(wanted)
        });
        // No reader is left after PATIENCE.
        let _ = tell.send(found);
    });
    heard.recv_timeout(PATIENCE).unwrap_or(false)
}
