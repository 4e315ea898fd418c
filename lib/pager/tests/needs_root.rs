//! The pager as VMs meet it: real FUSE mounts, real processes, real mappings.
//! Needs to be root and `/dev/fuse`.

#[path = "harness/mod.rs"]
mod harness;
#[path = "../../capture/tests/puppet/mod.rs"]
mod puppet;

#[path = "needs_root/arriving.rs"]
mod arriving;
#[path = "needs_root/learning.rs"]
mod learning;
#[path = "needs_root/lifecycle.rs"]
mod lifecycle;
#[path = "needs_root/prefetch.rs"]
mod prefetch;
#[path = "needs_root/sharing.rs"]
mod sharing;
#[path = "needs_root/speed.rs"]
mod speed;
#[path = "needs_root/takeover.rs"]
mod takeover;
#[path = "needs_root/tidying.rs"]
mod tidying;
#[path = "needs_root/waiting.rs"]
mod waiting;
