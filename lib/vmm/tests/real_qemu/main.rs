//! The engine against a real QEMU. Needs root, QEMU and cgroup v2.

mod bounds;
mod guest;
mod layout;
mod machine;
mod support;
