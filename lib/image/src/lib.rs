//! forkyard-image
