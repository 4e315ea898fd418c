//! Names of what lies in a VM's directory.

/// Where QEMU takes commands.
pub const QMP: &str = "qmp.sock";
/// Where the guest's agent is reached.
pub const AGENT: &str = "agent.sock";
/// Where the guest's serial console is reached.
pub const CONSOLE_SOCKET: &str = "console.sock";
/// The last the guest wrote on it.
pub const CONSOLE: &str = "console.log";
/// Older output of the console.
pub const CONSOLE_OLDER: &str = "console.log.1";
/// Where QEMU says what it has to say.
pub const LOG_PIPE: &str = "qemu.pipe";
/// The last that QEMU said on its standard output and error.
pub const LOG: &str = "qemu.log";
/// Older messages of QEMU.
pub const LOG_OLDER: &str = "qemu.log.1";
