//! Interface to the devices that a server exports.

use crate::wire::{answer, export_flag};

/// Disk that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Permission to write.
    pub access: ExportAccess,
    /// Number of connections that may have it open.
    pub sharing: Sharing,
}

/// Permission to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExportAccess {
    /// Reads and writes.
    ReadWrite,
    /// Reads alone.
    ReadOnly,
}

/// Number of connections that may have an export open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// One connection.
    One,
    /// Any number. A flush on one covers writes answered on all (`CAN_MULTI_CONN`).
    Many,
}

/// Refusal to describe or open an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportDenied {
    /// No export has this name.
    Unknown(String),
    /// Refused for now, or to this client. Carries the reason.
    Policy(String),
    /// The server is about to end.
    Shutdown,
}

/// Source of exports.
pub trait Exports {
    /// Names to list.
    fn names(&mut self) -> Vec<String>;
    /// Describes an export without opening it.
    fn describe(&mut self, name: &str) -> Result<Export, ExportDenied>;
    /// Opens an export. Called once a connection at most.
    fn open(&mut self, name: &str) -> Result<Export, ExportDenied>;
}

impl Export {
    /// Transmission flags.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        use export_flag as flag;
        let mut flags = flag::HAS_FLAGS | flag::FLUSH | flag::CACHE;
        flags |= match self.access {
            ExportAccess::ReadWrite => {
                flag::FUA | flag::TRIM | flag::WRITE_ZEROES | flag::FAST_ZERO
            }
            ExportAccess::ReadOnly => flag::READ_ONLY,
        };
        flags |= match self.sharing {
            Sharing::One => 0,
            Sharing::Many => flag::MULTI_CONN,
        };
        if structured {
            flags |= flag::DF;
        }
        flags
    }
}

impl ExportDenied {
    /// Type of the reply, and its message.
    pub(crate) fn reply(&self) -> (u32, &str) {
        match self {
            Self::Unknown(why) => (answer::UNKNOWN, why),
            Self::Policy(why) => (answer::POLICY, why),
            Self::Shutdown => (answer::SHUTDOWN, "the server is about to end: reconnect"),
        }
    }
}
