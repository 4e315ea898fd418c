//! Detection of a stop of this process itself, with its group: while a VM is forked
//! all user code is stopped. Then it was not the host that held it up.

use crate::group;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::{
    fs::File,
    io::{Read, Seek},
    os::fd::AsFd,
    path::Path,
};

/// Watches over it, where cgroup v2 tells.
#[derive(Debug)]
pub struct Standstill {
    /// `cgroup.events` of its group.
    events: Option<File>,
}

impl Standstill {
    /// Of the group that this process is in now.
    pub fn watch() -> Self {
        let events = group::own_events();
        events.map_or(Self { events: None }, |path| Self::of(&path))
    }

    fn of(events: &Path) -> Self {
        let mut watch = Self {
            events: File::open(events).ok(),
        };
        watch.heard();
        watch
    }

    /// Tells whether it was stopped, since the last call. It may be told when the group
    /// gets its first process or loses its last one as well.
    pub fn was(&mut self) -> bool {
        let Some(events) = &self.events else {
            return false;
        };
        let mut polled = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
        let told = poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0);
        if told {
            self.heard();
        }
        told
    }

    /// Reads the event, so that it is not reported again.
    fn heard(&mut self) {
        if let Some(events) = &mut self.events {
            let mut text = String::new();
            let _ = events.rewind();
            let _ = events.read_to_string(&mut text);
        }
    }
}
