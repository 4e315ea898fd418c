//! forkyard-e2e
