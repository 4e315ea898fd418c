//! forkyard-disk
