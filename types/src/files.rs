//! Files in guests, as the API tells of them.

use serde::{Deserialize, Serialize};

/// Kind of a file.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// Regular file.
    File,
    /// Folder.
    Folder,
    /// Symbolic link.
    Link,
    /// Socket, FIFO or device.
    Other,
}

/// File in a guest.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name in its folder; what is no UTF-8 in it is replaced.
    pub name: String,
    /// Kind.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Target of a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// Account of a copy into a guest.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesWritten {
    /// Files and links.
    pub files: u64,
    /// Bytes, holes left out.
    pub bytes: u64,
    /// Members that were left out, and why.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Change of a file in a folder that is watched.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChange {
    /// The file was made, or moved here.
    Created,
    /// The content of the file changed.
    Written,
    /// The file was removed.
    Removed,
    /// The file was moved away.
    MovedAway,
    /// The mode, owner or time of the file changed.
    Attributes,
}

/// Change in a folder that is watched: a line of the answer to `GET /v1/vms/{vm}/watch`.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEvent {
    /// Kind of change.
    pub change: FileChange,
    /// The file, seen from the folder; what is no UTF-8 in it is replaced.
    pub name: String,
}

/// Query of `GET /v1/vms/{vm}/watch`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileWatch {
    /// The folder.
    #[cfg_attr(feature = "schema", param(min_length = 1))]
    pub path: String,
    /// With all folders below.
    #[serde(default)]
    pub recursive: bool,
}

/// Query of `POST /v1/vms/{vm}/move`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileMove {
    /// The path.
    #[cfg_attr(feature = "schema", param(min_length = 1))]
    pub path: String,
    /// The path that it is to have; folders above that are not there are made.
    #[cfg_attr(feature = "schema", param(min_length = 1))]
    pub to: String,
}

/// Query of a request about a path in a guest.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilePath {
    /// The path; one that does not begin with a slash begins at `/`.
    #[cfg_attr(feature = "schema", param(min_length = 1))]
    pub path: String,
}

/// Query of `GET /v1/vms/{vm}/files`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRead {
    /// The path.
    #[cfg_attr(feature = "schema", param(min_length = 1))]
    pub path: String,
    /// First byte wanted.
    #[serde(default)]
    pub offset: Option<u64>,
    /// Most bytes wanted.
    #[serde(default)]
    pub limit: Option<u64>,
}

/// Query of `PUT /v1/vms/{vm}/files`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileWrite {
    /// The path.
    #[cfg_attr(feature = "schema", param(min_length = 1))]
    pub path: String,
    /// Permission bits in octal, such as `755`; if absent those of the file that is
    /// there, or 644.
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(pattern = "^[0-7]{1,4}$"))]
    pub mode: Option<String>,
    /// Make the folders above that are not there.
    #[serde(default)]
    pub parents: bool,
}

/// Query of `DELETE /v1/vms/{vm}/files`.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRemove {
    /// The path.
    #[cfg_attr(feature = "schema", param(min_length = 1))]
    pub path: String,
    /// A folder with all that is in it.
    #[serde(default)]
    pub recursive: bool,
}
