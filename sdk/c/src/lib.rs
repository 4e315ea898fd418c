//! forkyard-sdk
