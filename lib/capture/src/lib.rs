//! forkyard-capture
