//! `forkyardd`: one daemon per host. It may die at any moment: VMs run on,
//! and the next one takes them over.

use std::process::ExitCode;

fn main() -> ExitCode {
    forkyardd::main(forkyard_fork::qemu)
}
