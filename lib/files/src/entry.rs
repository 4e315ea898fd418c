//! Members of a stream.

/// Kind of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Regular file of this size. Its data are in the stream, but for holes.
    File {
        /// Size, holes included.
        size: u64,
        /// Extents with data, as offset and length, in order; none: all of it.
        extents: Option<Vec<(u64, u64)>>,
    },
    /// Folder.
    Folder,
    /// Symbolic link, and where it leads.
    Link(Vec<u8>),
    /// Another name of an earlier member.
    Same(Vec<u8>),
    /// FIFO.
    Fifo,
    /// Device.
    Device,
}

/// Member of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Path as bytes, without a leading or trailing slash.
    pub path: Vec<u8>,
    /// Kind.
    pub kind: EntryKind,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Time of last change of the content: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Extended attributes: names and values.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}
