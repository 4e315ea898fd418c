//! What a measurement ran on.

use serde::Serialize;
use std::{fs, process::Command, thread};

/// What a measurement ran on.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Facts {
    /// Cores.
    pub cores: usize,
    /// The processor.
    pub processor: String,
    /// The host's kernel.
    pub kernel: String,
    /// QEMU's version.
    pub qemu: String,
    /// Private memory of the parent when measuring began, in MiB.
    pub private_mib: u64,
}

/// Looks around.
pub fn facts() -> Facts {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let qemu = Command::new("qemu-system-x86_64").arg("--version").output();
    let qemu = qemu
        .map(|said| String::from_utf8_lossy(&said.stdout).into_owned())
        .unwrap_or_default();
    Facts {
        cores: thread::available_parallelism().map_or(0, |cores| cores.get()),
        processor: model.map(|(_, name)| name.to_owned()).unwrap_or_default(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim()
            .to_owned(),
        qemu: qemu.lines().next().unwrap_or_default().to_owned(),
        private_mib: 0,
    }
}
