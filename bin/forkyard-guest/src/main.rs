//! forkyard-guest
fn main() {}
