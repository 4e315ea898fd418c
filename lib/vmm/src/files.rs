//! Names of what lies in a VM's directory.

/// Socket at which QEMU takes commands.
pub const QMP: &str = "qmp.sock";
/// Socket of the guest's agent.
pub const AGENT: &str = "agent.sock";
/// Socket of the guest's serial console.
pub const CONSOLE_SOCKET: &str = "console.sock";
/// The last the guest wrote on it.
pub const CONSOLE: &str = "console.log";
/// Older output of the console.
pub const CONSOLE_OLDER: &str = "console.log.1";
/// Pipe that takes what QEMU has to say.
pub const LOG_PIPE: &str = "qemu.pipe";
/// The last that QEMU said on its standard output and error.
pub const LOG: &str = "qemu.log";
/// Older messages of QEMU.
pub const LOG_OLDER: &str = "qemu.log.1";
