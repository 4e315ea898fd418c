//! Place of a guest's memory among the addresses of its machine.

use forkyard_types::{ByteCount, PAGE_SIZE, PageCount, PageNo};
use forkyard_vmm::page_of_frames;
use std::process::{Command, Stdio};

/// First and last address of each part of memory, and where in memory it begins.
fn parts(mib: u64) -> Vec<(u64, u64, u64)> {
    let words = format!(
        "-nodefaults -display none -S -accel tcg -M q35,memory-backend=ram0 -m {mib}M \
         -object memory-backend-ram,id=ram0,size={mib}M -monitor stdio"
    );
    let mut qemu = Command::new("qemu-system-x86_64")
        .args(words.split(' '))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("qemu");
    let mut monitor = qemu.stdin.take().expect("a monitor");
    std::io::Write::write_all(&mut monitor, b"info mtree -f\nquit\n").expect("asked");
    let told = qemu.wait_with_output().expect("it ends").stdout;
    let told = String::from_utf8_lossy(&told).into_owned();
    let hex = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
    let lines = told.lines().filter_map(|line| {
        let (range, what) = line.trim().split_once(" (prio 0, ram): ram0")?;
        let (first, last) = range.split_once('-')?;
        let offset = what.trim().strip_prefix('@').map_or(Some(0), hex)?;
        Some((hex(first)?, hex(last)?, offset))
    });
    lines.collect()
}

#[test]
fn each_frame_of_qemus_machine_is_the_page_we_take_it_for() {
    let page = PAGE_SIZE as u64;
    for mib in [256, 2815, 2816, 4096] {
        let parts = parts(mib);
        assert!(parts.len() > 1, "{mib} MiB: {parts:x?}");
        let memory = ByteCount::from_mib(mib).expect("little");
        for (first, last, offset) in parts {
            let count = PageCount((last + 1 - first) / page);
            let found = page_of_frames(memory, memory, first / page, count);
            let want = Some(PageNo(offset / page));
            assert_eq!(found, want, "{mib} MiB: {first:x} to {last:x}");
        }
    }
}
