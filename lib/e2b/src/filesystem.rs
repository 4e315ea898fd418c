//! `filesystem.Filesystem`, as JSON, and what uploads are answered.

use serde::{Deserialize, Serialize};

/// `Stat`, `MakeDir`, `Remove`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct PathRequest {
    /// The path.
    #[serde(default)]
    pub path: String,
}

/// `Move`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MoveRequest {
    /// From.
    #[serde(default)]
    pub source: String,
    /// To.
    #[serde(default)]
    pub destination: String,
}

/// `ListDir`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct ListDirRequest {
    /// The folder.
    #[serde(default)]
    pub path: String,
    /// Folders below each other that are listed.
    #[serde(default)]
    pub depth: u32,
}

/// `WatchDir`, `CreateWatcher`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct WatchRequest {
    /// The folder.
    #[serde(default)]
    pub path: String,
    /// With all folders below.
    #[serde(default)]
    pub recursive: bool,
}

/// `GetWatcherEvents`, `RemoveWatcher`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfWatcher {
    /// The watcher.
    #[serde(default)]
    pub watcher_id: String,
}

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum FileType {
    /// None of the others.
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Other,
    /// File.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// Folder.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// Symbolic link.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryInfo {
    /// Name of the entry.
    pub name: String,
    /// Kind of the entry.
    #[serde(rename = "type")]
    pub kind: FileType,
    /// Path of the entry.
    pub path: String,
    /// Bytes; in text, as protobuf has it.
    pub size: String,
    /// Permission bits.
    pub mode: u32,
    /// Permissions as `ls -l` has them.
    pub permissions: String,
    /// Owner of the entry.
    pub owner: String,
    /// Group of the entry.
    pub group: String,
    /// Time at which its content changed last.
    pub modified_time: String,
    /// Target of a link.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// Set of a link.
    pub is_symlink: bool,
}

/// Permission bits as `ls -l` has them.
pub fn permissions(kind: FileType, mode: u32) -> String {
    let first = match kind {
        FileType::Directory => 'd',
        FileType::Symlink => 'L',
        FileType::File | FileType::Other => '-',
    };
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    let bits = bits.map(|(bit, letter)| if mode >> bit & 1 == 1 { letter } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

/// Answer with one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntryResponse {
    /// The file.
    pub entry: EntryInfo,
}

/// Answer to `ListDir`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListDirResponse {
    /// The files.
    pub entries: Vec<EntryInfo>,
}

/// Answer to an upload, for each file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Name of the entry.
    pub name: String,
    /// `file`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// Path of the entry.
    pub path: String,
}

/// Kind of event in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum EventType {
    /// A file was made.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// A file was written.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// A file was removed.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// A file was moved away.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// Permissions or owner of a file changed.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

/// An event of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FilesystemEvent {
    /// The file, seen from the folder.
    pub name: String,
    /// Kind of event.
    #[serde(rename = "type")]
    pub kind: EventType,
}

/// A message of `WatchDir`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchResponse {
    /// The watch has begun.
    Start {},
    /// Something happened.
    Filesystem(FilesystemEvent),
    /// Nothing, so that the connection is not taken for dead.
    Keepalive {},
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_as_ls_shows_them() {
        assert_eq!(permissions(FileType::Directory, 0o755), "drwxr-xr-x");
        assert_eq!(permissions(FileType::File, 0o640), "-rw-r-----");
    }
}
