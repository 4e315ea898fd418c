//! Unpacks an archive of a container image for forkyardd, which has it run with the right to
//! nothing but that archive and the tree that it makes.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    match (words.next(), words.next()) {
        (Some(order), None) => forkyard_guest_image::unpack_as_told(&order),
        _ => {
            eprintln!("forkyard-unpack: forkyardd starts this program, and tells it what to do");
            ExitCode::from(2)
        }
    }
}
