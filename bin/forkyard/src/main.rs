//! forkyard
fn main() {}
