//! forkyard-store
