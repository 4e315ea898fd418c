//! What was sent and received, counted.

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Pages asked for, every time.
    pub asked: u64,
    /// Of them, those that were ignored because the answer was on its way.
    pub lockstep: u64,
    /// Pages sent, each time: one that goes to a group counts once.
    pub pages: u64,
    /// Of them, those sent by the same way before.
    pub again: u64,
    /// Of them, those that nobody had asked for.
    pub pushed: u64,
    /// Pages said to be zero.
    pub zero: u64,
    /// Pages that could not be read.
    pub gone: u64,
    /// Packets, of any kind.
    pub packets: u64,
    /// Their bytes, without those of IP and UDP.
    pub bytes: u64,
    /// Bytes that went to a group.
    pub group_bytes: u64,
    /// Packets that were not authentic, not in their time, or made no sense.
    pub refused: u64,
}

/// What a client has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Pages it asked for, every time.
    pub asked: u64,
    /// Of them, those it had asked for before.
    pub again: u64,
    /// Pages that came while somebody waited for them.
    pub waited: u64,
    /// Pages that came without.
    pub ahead: u64,
    /// Pages that came and were there already.
    pub twice: u64,
    /// Pages that are zero.
    pub zero: u64,
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets that were not authentic, not in their time, or made no sense.
    pub refused: u64,
}
