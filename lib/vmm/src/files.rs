//! Names of what lies in a VM's directory.

/// Where QEMU takes commands.
pub const QMP: &str = "qmp.sock";
/// Where the guest's agent is reached.
pub const AGENT: &str = "agent.sock";
/// What the guest wrote on its serial console.
pub const CONSOLE: &str = "console.log";
/// What QEMU said on its standard output and error.
pub const LOG: &str = "qemu.log";
