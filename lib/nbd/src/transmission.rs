//! Requests, once an export is open.

use crate::{
    Agreed, Broken, ExportAccess, NbdError, Replies, ReplyEncoder,
    wire::{Fields, MAX_PAYLOAD, REQUEST_HEADER, REQUEST_MAGIC, command, command_flag as flag},
};

/// Requests of one connection.
#[derive(Debug)]
pub struct Transmission {
    agreed: Agreed,
}

/// Client's name of a request, repeated in its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cookie(pub u64);

/// Bytes of an export, within its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

/// Request to carry out. Every request is to be answered once, in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Name to answer by.
    pub cookie: Cookie,
    /// Command to carry out.
    pub command: NbdCommand<'a>,
}

/// Command of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand<'a> {
    /// Read bytes.
    Read {
        /// Range of bytes.
        range: ByteRange,
        /// Form of the reply.
        fragments: Fragments,
    },
    /// Write bytes.
    Write {
        /// First byte.
        offset: u64,
        /// Content.
        data: &'a [u8],
        /// Durability before which no answer is given.
        durability: Durability,
    },
    /// Make durable every write answered so far.
    Flush,
    /// Discard bytes; they may read as anything, and here as zero.
    Trim {
        /// Range of bytes.
        range: ByteRange,
        /// Durability before which no answer is given.
        durability: Durability,
    },
    /// Have bytes read as zero.
    WriteZeroes {
        /// Range of bytes.
        range: ByteRange,
        /// Durability before which no answer is given.
        durability: Durability,
        /// Limits on how.
        zeroing: Zeroing,
    },
    /// Read bytes that are going to be asked for.
    Cache(ByteRange),
    /// Tell which bytes are allocated.
    BlockStatus {
        /// Range of bytes.
        range: ByteRange,
        /// Extents to report of it.
        extents: Extents,
    },
}

/// Moment at which a write may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// As soon as later reads see it.
    Cached,
    /// Once it is durable (`FUA`).
    Durable,
}

/// Form of the reply to a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragments {
    /// Any.
    Allowed,
    /// One chunk (`DF`).
    Forbidden,
}

/// Limits on how zeroes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zeroing {
    /// Room is to be kept for the bytes (`NO_HOLE`).
    pub keep_room: bool,
    /// Fail rather than take as long as a write would (`FAST_ZERO`).
    pub fast: bool,
}

/// Extents that a block status reply may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extents {
    /// Any number.
    Any,
    /// One (`REQ_ONE`).
    One,
}

/// Outcome of looking at what has been received.
#[derive(Debug, PartialEq, Eq)]
pub enum DecodeOutcome<'a> {
    /// No whole request before so many bytes are there, those given counted.
    Need(usize),
    /// A request. So many bytes are used once it is carried out.
    Request {
        /// Bytes of input used.
        used: usize,
        /// Request to carry out.
        request: Request<'a>,
    },
    /// A request that is refused. Send [`Transmission::reply`]'s error.
    Refused {
        /// Bytes of input used.
        used: usize,
        /// Name to answer by.
        cookie: Cookie,
        /// Reason.
        error: NbdError,
    },
    /// The client wants no more.
    Ended,
}

struct Header {
    flags: u16,
    kind: u16,
    cookie: Cookie,
    offset: u64,
    length: u32,
}

impl Header {
    fn parse(input: &[u8]) -> Option<(u32, Self)> {
        let mut fields = Fields(input);
        let magic = fields.u32()?;
        let header = Self {
            flags: fields.u16()?,
            kind: fields.u16()?,
            cookie: Cookie(fields.u64()?),
            offset: fields.u64()?,
            length: fields.u32()?,
        };
        Some((magic, header))
    }
}

impl Transmission {
    /// Begins with what a negotiation has agreed on.
    pub fn new(agreed: Agreed) -> Self {
        Self { agreed }
    }

    /// Encoder of replies.
    pub fn reply(&self) -> ReplyEncoder {
        ReplyEncoder(self.agreed.replies)
    }

    /// Finds the first request in what has been received and not been used.
    pub fn step<'a>(&self, input: &'a [u8]) -> Result<DecodeOutcome<'a>, Broken> {
        let Some((magic, header)) = Header::parse(input) else {
            return Ok(DecodeOutcome::Need(REQUEST_HEADER));
        };
        if magic != REQUEST_MAGIC {
            return Err(Broken::Magic);
        }
        let payload = match header.kind {
            command::DISC => return Ok(DecodeOutcome::Ended),
            command::WRITE if header.length > MAX_PAYLOAD => {
                return Err(Broken::PayloadTooLong(header.length));
            }
            command::WRITE => {
                usize::try_from(header.length).map_err(|_| Broken::PayloadTooLong(header.length))?
            }
            _ => 0,
        };
        let used = REQUEST_HEADER + payload;
        let Some(data) = input.get(REQUEST_HEADER..used) else {
            return Ok(DecodeOutcome::Need(used));
        };
        let cookie = header.cookie;
        Ok(match self.command(&header, data) {
            Ok(command) => DecodeOutcome::Request {
                used,
                request: Request { cookie, command },
            },
            Err(error) => DecodeOutcome::Refused {
                used,
                cookie,
                error,
            },
        })
    }

    fn command<'a>(&self, header: &Header, data: &'a [u8]) -> Result<NbdCommand<'a>, NbdError> {
        let durability = match header.flags & flag::FUA {
            0 => Durability::Cached,
            _ => Durability::Durable,
        };
        match header.kind {
            command::READ => {
                header.allow(flag::FUA | flag::DF)?;
                let range = self.within(header, NbdError::Invalid)?;
                if range.length > MAX_PAYLOAD {
                    return Err(NbdError::Overflow);
                }
                let fragments = match header.flags & flag::DF {
                    0 => Fragments::Allowed,
                    _ if self.agreed.replies == Replies::Simple => return Err(NbdError::Invalid),
                    _ => Fragments::Forbidden,
                };
                Ok(NbdCommand::Read { range, fragments })
            }
            command::WRITE => {
                header.allow(flag::FUA)?;
                self.writable()?;
                let range = self.within(header, NbdError::NoSpace)?;
                Ok(NbdCommand::Write {
                    offset: range.offset,
                    data,
                    durability,
                })
            }
            command::FLUSH => {
                // Offset and length have no meaning, and some clients send them.
                header.allow(flag::FUA)?;
                Ok(NbdCommand::Flush)
            }
            command::TRIM => {
                header.allow(flag::FUA)?;
                self.writable()?;
                let range = self.within(header, NbdError::Invalid)?;
                Ok(NbdCommand::Trim { range, durability })
            }
            command::WRITE_ZEROES => {
                header.allow(flag::FUA | flag::NO_HOLE | flag::FAST_ZERO)?;
                self.writable()?;
                let range = self.within(header, NbdError::NoSpace)?;
                let zeroing = Zeroing {
                    keep_room: header.flags & flag::NO_HOLE != 0,
                    fast: header.flags & flag::FAST_ZERO != 0,
                };
                Ok(NbdCommand::WriteZeroes {
                    range,
                    durability,
                    zeroing,
                })
            }
            command::CACHE => {
                header.allow(0)?;
                Ok(NbdCommand::Cache(self.within(header, NbdError::Invalid)?))
            }
            command::BLOCK_STATUS => {
                header.allow(flag::REQ_ONE)?;
                let range = self.within(header, NbdError::Invalid)?;
                let selected = self.agreed.replies == Replies::WithBlockStatus;
                if !selected || range.length == 0 {
                    return Err(NbdError::Invalid);
                }
                let extents = match header.flags & flag::REQ_ONE {
                    0 => Extents::Any,
                    _ => Extents::One,
                };
                Ok(NbdCommand::BlockStatus { range, extents })
            }
            _ => Err(NbdError::Invalid),
        }
    }

    fn writable(&self) -> Result<(), NbdError> {
        match self.agreed.export.access {
            ExportAccess::ReadWrite => Ok(()),
            ExportAccess::ReadOnly => Err(NbdError::Permission),
        }
    }

    fn within(&self, header: &Header, otherwise: NbdError) -> Result<ByteRange, NbdError> {
        let end = header.offset.checked_add(u64::from(header.length));
        match end.is_some_and(|end| end <= self.agreed.export.size) {
            true => Ok(ByteRange {
                offset: header.offset,
                length: header.length,
            }),
            false => Err(otherwise),
        }
    }
}

impl Header {
    fn allow(&self, flags: u16) -> Result<(), NbdError> {
        match self.flags & !flags {
            0 => Ok(()),
            _ => Err(NbdError::Invalid),
        }
    }
}
