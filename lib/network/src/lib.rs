//! forkyard-network
