//! forkyard-vmm
