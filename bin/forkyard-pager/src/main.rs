//! forkyard-pager-bin
fn main() {}
