//! Fixed newstyle negotiation.
//!
//! ```text
//! Flags --client's flags--> Options --GO, EXPORT_NAME--> HandshakeStep::Opened
//!                            |   ^      ABORT ---------> HandshakeStep::Ended
//!              too long: Skipping +
//! ```

use crate::{
    Broken, Export, ExportDenied, Exports,
    options::{ALLOCATION_ID, Contexts, Wanted, context, listed, reply},
    wire::{
        Fields, MAX_OPTION, MAX_PAYLOAD, NBD_MAGIC, OPTION_HEADER, OPTION_MAGIC, answer, hello,
        option,
    },
};

/// Options that a client may send before it opens an export.
const MOST_OPTIONS: u32 = 1000;
/// Zeroes that old clients expect behind the reply to `EXPORT_NAME`.
const ZEROES: usize = 124;

/// Negotiation with one client.
#[derive(Debug)]
pub struct Handshake {
    phase: Phase,
    options: u32,
    no_zeroes: bool,
    structured: bool,
    /// Export for which the metadata context is selected.
    context: Option<String>,
}

#[derive(Debug)]
enum Phase {
    Flags,
    Options,
    /// Passing over an option that is too long. Bytes that are left of it.
    Skipping(usize),
}

/// Outcome of a step.
#[derive(Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Not before so many bytes are there, those given counted.
    Need(usize),
    /// So many bytes are used; send these, and go on.
    Send {
        /// Bytes of input used.
        used: usize,
        /// Bytes to send.
        bytes: Vec<u8>,
    },
    /// So many bytes are used; send these, and go on with [`crate::Transmission`].
    Opened {
        /// Bytes of input used.
        used: usize,
        /// Bytes to send.
        bytes: Vec<u8>,
        /// Terms that hold for requests and replies.
        agreed: Agreed,
    },
    /// Send these and close the connection.
    Ended {
        /// Bytes to send.
        bytes: Vec<u8>,
    },
}

/// Result of a negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Export that is open.
    pub export: Export,
    /// Form of replies.
    pub replies: Replies,
}

/// Form of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replies {
    /// One header, then the data.
    Simple,
    /// Chunks.
    Structured,
    /// Chunks, and block status may be asked for.
    WithBlockStatus,
}

impl Handshake {
    /// Begins a negotiation. The bytes are to be sent first.
    pub fn begin() -> (Self, [u8; 18]) {
        let mut greeting = [0; 18];
        greeting[..8].copy_from_slice(NBD_MAGIC);
        greeting[8..16].copy_from_slice(OPTION_MAGIC);
        greeting[16..].copy_from_slice(&(hello::FIXED_NEWSTYLE | hello::NO_ZEROES).to_be_bytes());
        let handshake = Self {
            phase: Phase::Flags,
            options: 0,
            no_zeroes: false,
            structured: false,
            context: None,
        };
        (handshake, greeting)
    }

    /// Takes what has been received and not been used, and says what to do.
    pub fn step(
        &mut self,
        input: &[u8],
        exports: &mut dyn Exports,
    ) -> Result<HandshakeStep, Broken> {
        match self.phase {
            Phase::Flags => self.flags(input),
            Phase::Options => self.option(input, exports),
            Phase::Skipping(left) => {
                let used = left.min(input.len());
                if used == 0 {
                    return Ok(HandshakeStep::Need(1));
                }
                self.phase = match left - used {
                    0 => Phase::Options,
                    left => Phase::Skipping(left),
                };
                Ok(silent(used))
            }
        }
    }

    fn flags(&mut self, input: &[u8]) -> Result<HandshakeStep, Broken> {
        let Some(flags) = Fields(input).u32() else {
            return Ok(HandshakeStep::Need(4));
        };
        let known = u32::from(hello::FIXED_NEWSTYLE | hello::NO_ZEROES);
        if flags & !known != 0 {
            return Err(Broken::ClientFlags(flags));
        }
        self.no_zeroes = flags & u32::from(hello::NO_ZEROES) != 0;
        self.phase = Phase::Options;
        Ok(silent(4))
    }

    fn option(&mut self, input: &[u8], exports: &mut dyn Exports) -> Result<HandshakeStep, Broken> {
        let mut fields = Fields(input);
        let (Some(magic), Some(option), Some(length)) =
            (fields.bytes(8), fields.u32(), fields.u32())
        else {
            return Ok(HandshakeStep::Need(OPTION_HEADER));
        };
        if magic != OPTION_MAGIC {
            return Err(Broken::Magic);
        }
        if length > MAX_PAYLOAD {
            return Err(Broken::OptionTooLong(length));
        }
        let whole = usize::try_from(length).map_err(|_| Broken::OptionTooLong(length))?;
        if length > MAX_OPTION {
            self.count()?;
            self.phase = Phase::Skipping(whole);
            let mut bytes = Vec::new();
            let why = b"option is longer than 64 KiB";
            reply(&mut bytes, option, answer::TOO_BIG, why);
            return Ok(HandshakeStep::Send {
                used: OPTION_HEADER,
                bytes,
            });
        }
        let used = OPTION_HEADER + whole;
        let Some(data) = fields.bytes(whole) else {
            return Ok(HandshakeStep::Need(used));
        };
        self.count()?;
        self.answer(option, data, used, exports)
    }

    fn count(&mut self) -> Result<(), Broken> {
        self.options += 1;
        if self.options > MOST_OPTIONS {
            return Err(Broken::TooManyOptions(self.options));
        }
        Ok(())
    }

    fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        used: usize,
        exports: &mut dyn Exports,
    ) -> Result<HandshakeStep, Broken> {
        let mut bytes = Vec::new();
        let out = &mut bytes;
        match option {
            option::EXPORT_NAME => return self.export_name(data, used, exports),
            option::ABORT => {
                reply(out, option, answer::ACK, &[]);
                return Ok(HandshakeStep::Ended { bytes });
            }
            option::LIST if data.is_empty() => {
                for name in exports.names() {
                    listed(out, option, &name);
                }
                reply(out, option, answer::ACK, &[]);
            }
            option::INFO | option::GO => {
                if let Some(agreed) = self.info(option, data, out, exports) {
                    return Ok(HandshakeStep::Opened {
                        used,
                        bytes,
                        agreed,
                    });
                }
            }
            option::STRUCTURED_REPLY if data.is_empty() && !self.structured => {
                self.structured = true;
                reply(out, option, answer::ACK, &[]);
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(option, data, out, exports);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                let why = b"option carries data, or was sent before";
                reply(out, option, answer::INVALID, why);
            }
            // STARTTLS too: a layer below may have encrypted the connection already.
            other => reply(out, other, answer::UNSUPPORTED, b"unknown option"),
        }
        Ok(HandshakeStep::Send { used, bytes })
    }

    fn export_name(
        &self,
        data: &[u8],
        used: usize,
        exports: &mut dyn Exports,
    ) -> Result<HandshakeStep, Broken> {
        let name = std::str::from_utf8(data).map_err(|_| Broken::NoSuchExport)?;
        let export = exports.open(name).map_err(|_| Broken::NoSuchExport)?;
        let mut bytes = export.size.to_be_bytes().to_vec();
        bytes.extend_from_slice(&export.flags(self.structured).to_be_bytes());
        if !self.no_zeroes {
            bytes.extend_from_slice(&[0; ZEROES]);
        }
        let agreed = self.agreed(name, export);
        Ok(HandshakeStep::Opened {
            used,
            bytes,
            agreed,
        })
    }

    /// Answers `INFO` and `GO`. Returns what is agreed once an export is open.
    fn info(
        &self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
        exports: &mut dyn Exports,
    ) -> Option<Agreed> {
        let Some(wanted) = Wanted::parse(data) else {
            reply(out, option, answer::INVALID, b"malformed option");
            return None;
        };
        let opens = option == option::GO;
        let found = match opens {
            true => exports.open(wanted.name),
            false => exports.describe(wanted.name),
        };
        match found {
            Err(denied) => {
                refuse(out, option, &denied);
                None
            }
            Ok(export) => {
                let name = wanted.name;
                wanted.answer(out, option, &export, self.structured);
                opens.then(|| self.agreed(name, export))
            }
        }
    }

    fn contexts(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>, exports: &mut dyn Exports) {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            self.context = None;
        }
        let wanted = Contexts::parse(data);
        let Some(wanted) = wanted.filter(|_| self.structured) else {
            let why = b"malformed option, or structured replies were not negotiated";
            return reply(out, option, answer::INVALID, why);
        };
        if let Err(denied) = exports.describe(wanted.name) {
            return refuse(out, option, &denied);
        }
        match sets {
            true if wanted.exact => {
                self.context = Some(wanted.name.to_owned());
                context(out, option, ALLOCATION_ID);
            }
            false if wanted.listed => context(out, option, 0),
            true | false => {}
        }
        reply(out, option, answer::ACK, &[]);
    }

    fn agreed(&self, name: &str, export: Export) -> Agreed {
        let selected = self.context.as_deref() == Some(name);
        let replies = match (self.structured, selected) {
            (false, _) => Replies::Simple,
            (true, false) => Replies::Structured,
            (true, true) => Replies::WithBlockStatus,
        };
        Agreed { export, replies }
    }
}

fn refuse(out: &mut Vec<u8>, option: u32, denied: &ExportDenied) {
    let (kind, why) = denied.reply();
    reply(out, option, kind, why.as_bytes());
}

fn silent(used: usize) -> HandshakeStep {
    let bytes = Vec::new();
    HandshakeStep::Send { used, bytes }
}
