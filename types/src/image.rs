//! Guest images, as the API has them.

use crate::{ByteCount, EntryPoint, ImageReference};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A guest image.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestImage {
    /// Name of its recipe, or the one it was imported under.
    pub name: String,
    /// Purpose of the image.
    pub summary: String,
    /// Bytes it takes on disk; none if it has not been built yet.
    pub built: Option<ByteCount>,
    /// Origin.
    #[serde(default)]
    pub origin: ImageOrigin,
    /// Source that it was made of: the image in its registry, the Dockerfile, or the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Digest of the manifest that the registry had under that name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Entry point of a container image, with the environment, folder and user that commands have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryPoint>,
}

/// Origin of a guest image.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageOrigin {
    /// Built here from a recipe, and can be built again.
    #[default]
    Recipe,
    /// Imported from a raw disk.
    Raw,
    /// Imported from a qcow2 disk.
    Qcow2,
    /// Imported from an archive of a container image.
    Oci,
    /// Pulled from a registry.
    Registry,
    /// Built from a Dockerfile.
    Dockerfile,
    /// Made of a VM's disk.
    Vm,
}

/// `POST /v1/images/{name}/pull`: what to make a guest image of.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagePullRequest {
    /// The image in its registry: `docker.io/library/python:3.12-slim`.
    #[cfg_attr(feature = "schema", schema(value_type = String, max_length = 512))]
    pub reference: ImageReference,
    /// Size of the guest's disk in bytes, whole MiB; made up from what is in the image if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(value_type = Option<u64>, minimum = 16_777_216, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576))]
    pub size: Option<ByteCount>,
    /// Size in MiB, as it was said before. Not with `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schema(deprecated, minimum = 16, maximum = 1_048_576)
    )]
    pub size_mib: Option<u64>,
    /// True if VMs are to start its entry point when they boot.
    #[serde(default)]
    pub start: bool,
}

/// `PUT /v1/images/{name}/build`: a build of what the body holds, a tar archive of a context.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageBuildRequest {
    /// Path of the Dockerfile in the context; `Dockerfile` if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(max_length = 1024))]
    pub dockerfile: Option<String>,
    /// Values of the Dockerfile's `ARG`s, as a JSON object: `{"VERSION":"3.1"}`. They may be read in the processes of the host while
    /// it builds, and in the image's history: no place for secrets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(max_length = 32768))]
    pub build_args: Option<String>,
    /// Size of the guest's disk in bytes, whole MiB; made up from what is in the image if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(value_type = Option<u64>, minimum = 16_777_216, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576))]
    pub size: Option<ByteCount>,
    /// Size in MiB, as it was said before. Not with `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(ignore))]
    pub size_mib: Option<u64>,
    /// True if VMs are to start its entry point when they boot.
    #[serde(default)]
    pub start: bool,
}

/// `POST /v1/images/{name}/commit`: the VM whose disk becomes an image.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageCommitRequest {
    /// Name or id of a VM that runs, has stopped, or is a checkpoint.
    pub vm: String,
}

/// Source format of an image that is imported. Always said, never guessed from
/// content: the writer of a disk decides what it looks like.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImportFormat {
    /// A disk, byte by byte.
    Raw,
    /// A disk as QEMU keeps it, that needs no other file.
    Qcow2,
    /// An archive of a container image: an OCI layout, or of `docker save`.
    Oci,
}

/// `PUT /v1/images/{name}`: what the body is, and what to take of it.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportRequest {
    /// Format of the body.
    pub format: ImportFormat,
    /// Of a disk with a partition table: the partition with the root file
    /// system, counted from 1.
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(minimum = 1, maximum = 4_294_967_295_u32))]
    pub partition: Option<u32>,
    /// Of a container image: size of the guest's disk in bytes, whole MiB; made up from what is in
    /// it if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", param(value_type = Option<u64>, minimum = 16_777_216, maximum = 1_099_511_627_776_u64, multiple_of = 1_048_576))]
    pub size: Option<ByteCount>,
    /// Size in MiB, as it was said before. Not with `size`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", param(ignore))]
    pub size_mib: Option<u64>,
}

/// Format of a disk that is exported.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportFormat {
    /// Byte by byte.
    Raw,
    /// As QEMU keeps disks; holes take no room.
    Qcow2,
}

/// `GET /v1/images/{name}/disk`, `GET /v1/vms/{vm}/disk`: how to write it.
#[cfg_attr(feature = "schema", derive(utoipa::IntoParams))]
#[cfg_attr(feature = "schema", into_params(parameter_in = Query))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// Format of the body.
    pub format: ExportFormat,
}

/// Name of an imported image: so that VMs can be named after it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImageName(String);

/// Text that is no name for an imported image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no name for an image: wanted 1 to 48 lower-case letters, digits and inner hyphens"
)]
pub struct InvalidImageName(String);

impl ImageName {
    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ImageName {
    type Err = InvalidImageName;

    fn from_str(text: &str) -> Result<Self, InvalidImageName> {
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let fits = (1..=48).contains(&text.len())
            && text.bytes().all(inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        match fits {
            true => Ok(Self(text.to_owned())),
            false => Err(InvalidImageName(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_image_name_leaves_room_for_names_of_vms() {
        let longest = "a".repeat(48);
        let name: ImageName = longest.parse().expect("fits");
        assert!(format!("{name}-0a1b").parse::<crate::VmName>().is_ok());
        for wrong in ["", "-a", "a-", "A", "a.b", "../a", "a/b", &"a".repeat(49)] {
            assert!(wrong.parse::<ImageName>().is_err(), "{wrong}");
        }
    }
}
