//! The daemon of users on machines that are made up: what tests of whole hosts run that
//! need no guest.

use std::process::ExitCode;

fn main() -> ExitCode {
    forkyardd::main(forkyard_fake_engine::engine)
}
