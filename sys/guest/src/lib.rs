//! forkyard-sys-guest
