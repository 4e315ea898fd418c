//! forkyard-fork
