//! Numbers of the protocol, and big-endian fields.

/// Longest option that is read, in bytes; longer ones are refused and skipped.
pub const MAX_OPTION: u32 = 64 << 10;
/// Longest payload of a request or reply, in bytes: the protocol's customary maximum.
pub const MAX_PAYLOAD: u32 = 32 << 20;
/// Longest string, in bytes.
pub const MAX_STRING: usize = 4096;

pub const NBD_MAGIC: &[u8; 8] = b"NBDMAGIC";
pub const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Length of an option's header.
pub const OPTION_HEADER: usize = 16;
/// Length of a request's header.
pub const REQUEST_HEADER: usize = 28;

/// Handshake flags, the same bits in both directions.
pub mod hello {
    pub const FIXED_NEWSTYLE: u16 = 1;
    pub const NO_ZEROES: u16 = 2;
}

pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of replies to options.
pub mod answer {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub const UNSUPPORTED: u32 = ERROR + 1;
    pub const POLICY: u32 = ERROR + 2;
    pub const INVALID: u32 = ERROR + 3;
    pub const UNKNOWN: u32 = ERROR + 6;
    pub const SHUTDOWN: u32 = ERROR + 7;
    pub const TOO_BIG: u32 = ERROR + 9;
}

pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod export_flag {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const DF: u16 = 1 << 7;
    pub const MULTI_CONN: u16 = 1 << 8;
    pub const CACHE: u16 = 1 << 10;
    pub const FAST_ZERO: u16 = 1 << 11;
}

pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

pub mod command_flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

pub mod chunk {
    pub const DONE: u16 = 1;
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Error that a reply carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NbdError {
    /// Writing what is read-only, or by a writer that another has replaced.
    Permission,
    /// Failed input or output.
    Io,
    /// Out of memory.
    Memory,
    /// Nonsense, or beyond the end.
    Invalid,
    /// No room left, or a write beyond the end.
    NoSpace,
    /// More than a reply holds.
    Overflow,
    /// Nothing that can be done fast.
    Unsupported,
    /// The server is about to end.
    Shutdown,
}

impl NbdError {
    /// Number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Self::Permission => 1,
            Self::Io => 5,
            Self::Memory => 12,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::Overflow => 75,
            Self::Unsupported => 95,
            Self::Shutdown => 108,
        }
    }
}

/// Fields of a message, read from its start.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Takes so many bytes, if there are as many.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Takes a string with its length in front; `None` if it is too long, cut or no UTF-8.
    pub fn string(&mut self) -> Option<&'a str> {
        let length = usize::try_from(self.u32()?).ok()?;
        if length > MAX_STRING {
            return None;
        }
        std::str::from_utf8(self.bytes(length)?).ok()
    }
}
