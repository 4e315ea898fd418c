//! forkyard-pager
