//! Origins of images, as their summaries tell them.

use super::Source;
use forkyard_types::ImageOrigin;
use serde::{Deserialize, Serialize};

/// Origin of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Way in which it came.
    pub origin: ImageOrigin,
    /// The image in its registry, or the VM.
    #[serde(default)]
    pub source: Option<String>,
    /// Digest of the manifest that the registry has under that name.
    #[serde(default)]
    pub digest: Option<String>,
}

impl Provenance {
    pub(super) fn of(source: Source) -> Self {
        let origin = match source {
            Source::Raw { .. } => ImageOrigin::Raw,
            Source::Qcow2 { .. } => ImageOrigin::Qcow2,
            Source::Oci { .. } => ImageOrigin::Oci,
        };
        Self {
            origin,
            source: None,
            digest: None,
        }
    }

    pub(super) fn told(&self) -> String {
        match (self.origin, &self.source) {
            (ImageOrigin::Registry, Some(source)) => format!("pulled from {source}"),
            (ImageOrigin::Dockerfile, Some(source)) => format!("built from {source}"),
            (ImageOrigin::Vm, Some(source)) => format!("disk of the VM {source}"),
            (ImageOrigin::Oci, _) => "imported from a container image".to_owned(),
            (ImageOrigin::Qcow2, _) => "imported from a qcow2 disk".to_owned(),
            (
                ImageOrigin::Raw
                | ImageOrigin::Recipe
                | ImageOrigin::Registry
                | ImageOrigin::Dockerfile
                | ImageOrigin::Vm,
                _,
            ) => "imported from a raw disk".to_owned(),
        }
    }
}
