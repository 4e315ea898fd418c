//! forkyard-guestlink
