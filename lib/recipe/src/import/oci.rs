//! Which image of an archive is meant, and what it is made of.
//!
//! Two forms: an OCI image layout (image-spec 1.1: `index.json` names manifests,
//! and these a configuration and layers), and that of `docker save`
//! (`manifest.json`). Newer ones of `docker save` are both; then it is read as
//! the former, where everything has a digest.

use super::{ArchiveError, archive::Parts, digest::Digest};
use forkyard_types::EntryPoint;
use serde::Deserialize;
use std::collections::BTreeMap;

/// What this machine runs.
const OS: &str = "linux";
const ARCHITECTURE: &str = "amd64";
/// Most indexes within indexes.
const DEPTH: u32 = 4;
/// Most manifests that are looked at.
const MANIFESTS: usize = 1000;
/// Most layers of an image.
const LAYERS: usize = 1000;
/// Kinds of parts that list others.
const INDEXES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
/// How the kinds of layers begin that can be unpacked.
const LAYER_KINDS: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];
/// How a layer may be compressed, as its kind says.
const COMPRESSIONS: [&str; 5] = ["", "+gzip", ".gzip", "+zstd", ".zstd"];
/// What names an image in an index.
const NAME: &str = "org.opencontainers.image.ref.name";

/// An image: its layers, the lowest first, and what it runs.
#[derive(Debug)]
pub(super) struct Chosen {
    pub layers: Vec<Layer>,
    pub entry: EntryPoint,
}

/// A layer.
#[derive(Debug)]
pub(super) struct Layer {
    /// The part it is in; it has been verified if it has a digest.
    pub part: String,
    /// Of what it unpacks to.
    pub unpacked: Digest,
}

#[derive(Debug, Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Debug, Deserialize)]
struct Config {
    #[serde(flatten)]
    platform: Platform,
    config: Option<Run>,
    rootfs: RootFs,
}

#[derive(Debug, Deserialize)]
struct RootFs {
    diff_ids: Vec<Digest>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Run {
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Platform {
    fn is_ours(&self) -> bool {
        self.os == OS && self.architecture == ARCHITECTURE
    }

    fn told(&self) -> String {
        format!("{}/{}", self.os, self.architecture)
    }
}

/// Finds the image; each part but the layers of an old `docker save` has been
/// verified then.
pub(super) fn choose(parts: &Parts) -> Result<Chosen, ArchiveError> {
    match (parts.has("index.json"), parts.has("manifest.json")) {
        (true, _) => from_layout(parts),
        (false, true) => from_saved(parts),
        (false, false) => Err(ArchiveError::NotAnImage),
    }
}

fn from_layout(parts: &Parts) -> Result<Chosen, ArchiveError> {
    let index: Index = parts.json("index.json")?;
    let mut manifests = Vec::new();
    collect(parts, index, DEPTH, &mut manifests)?;
    let mut ours: Vec<(Descriptor, Manifest, Config)> = Vec::new();
    let mut others = Vec::new();
    for descriptor in manifests {
        if let Some(platform) = &descriptor.platform
            && !platform.is_ours()
        {
            others.push(platform.told());
            continue;
        }
        // Listed twice, under two names.
        if ours
            .iter()
            .any(|(known, ..)| known.digest == descriptor.digest)
        {
            continue;
        }
        let manifest: Manifest = blob(parts, &descriptor)?;
        let config: Config = blob(parts, &manifest.config)?;
        match config.platform.is_ours() {
            true => ours.push((descriptor, manifest, config)),
            false => others.push(config.platform.told()),
        }
    }
    if ours.len() > 1 {
        let name = |descriptor: &Descriptor| match descriptor.annotations.get(NAME) {
            Some(name) => name.clone(),
            None => descriptor.digest.to_string(),
        };
        let names = ours.iter().map(|(descriptor, ..)| name(descriptor));
        return Err(ArchiveError::Several(names.collect()));
    }
    let Some((_, manifest, config)) = ours.pop() else {
        return Err(ArchiveError::Platform(others));
    };
    let mut layers = Vec::new();
    for layer in &manifest.layers {
        let is_known = LAYER_KINDS.iter().any(|kind| {
            let rest = layer.media_type.strip_prefix(kind);
            rest.is_some_and(|rest| COMPRESSIONS.contains(&rest))
        });
        if !is_known {
            return Err(ArchiveError::MediaType(layer.media_type.clone()));
        }
        layers.push(verified(parts, layer)?);
    }
    chosen(layers, config)
}

fn collect(
    parts: &Parts,
    index: Index,
    depth: u32,
    manifests: &mut Vec<Descriptor>,
) -> Result<(), ArchiveError> {
    for descriptor in index.manifests {
        if !INDEXES.contains(&descriptor.media_type.as_str()) {
            if manifests.len() == MANIFESTS {
                return Err(ArchiveError::Nonsense("the archive lists too many images"));
            }
            manifests.push(descriptor);
        } else if depth > 0 {
            let inner: Index = blob(parts, &descriptor)?;
            collect(parts, inner, depth - 1, manifests)?;
        } else {
            return Err(ArchiveError::Nonsense("the archive's indexes are too deep"));
        }
    }
    Ok(())
}

/// The name of a part that is as it should be.
fn verified(parts: &Parts, descriptor: &Descriptor) -> Result<String, ArchiveError> {
    let name = format!("blobs/sha256/{}", descriptor.digest.hex());
    parts.verify(&name, descriptor.digest, Some(descriptor.size))?;
    Ok(name)
}

fn blob<T: serde::de::DeserializeOwned>(
    parts: &Parts,
    descriptor: &Descriptor,
) -> Result<T, ArchiveError> {
    parts.json(&verified(parts, descriptor)?)
}

fn from_saved(parts: &Parts) -> Result<Chosen, ArchiveError> {
    let mut saved: Vec<Saved> = parts.json("manifest.json")?;
    if saved.len() > 1 {
        let names = saved.into_iter().map(|image| match image.repo_tags {
            Some(tags) if !tags.is_empty() => tags.join(" "),
            Some(_) | None => image.config,
        });
        return Err(ArchiveError::Several(names.collect()));
    }
    let saved = saved
        .pop()
        .ok_or(ArchiveError::Nonsense("the archive lists no image"))?;
    // Named after its digest.
    let name = saved.config.rsplit('/').next().unwrap_or_default();
    let digits = name.strip_suffix(".json").unwrap_or(name);
    if let Ok(digest) = format!("sha256:{digits}").parse() {
        parts.verify(&saved.config, digest, None)?;
    }
    let config: Config = parts.json(&saved.config)?;
    if !config.platform.is_ours() {
        return Err(ArchiveError::Platform(vec![config.platform.told()]));
    }
    chosen(saved.layers, config)
}

fn chosen(parts: Vec<String>, config: Config) -> Result<Chosen, ArchiveError> {
    let unpacked = config.rootfs.diff_ids;
    if parts.len() != unpacked.len() {
        let why = "the image's manifest and its configuration list different numbers of layers";
        return Err(ArchiveError::Nonsense(why));
    }
    if parts.len() > LAYERS {
        return Err(ArchiveError::Nonsense("the image has too many layers"));
    }
    let layers = parts
        .into_iter()
        .zip(unpacked)
        .map(|(part, unpacked)| Layer { part, unpacked })
        .collect();
    let run = config.config.unwrap_or_default();
    let mut argv = run.entrypoint.unwrap_or_default();
    argv.extend(run.cmd.unwrap_or_default());
    let env = run.env.unwrap_or_default();
    let env = env.iter().filter_map(|line| line.split_once('='));
    let entry = EntryPoint {
        argv,
        env: env
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect(),
        dir: run.working_dir.unwrap_or_default(),
        user: run.user.unwrap_or_default(),
    };
    let words = entry.argv.iter().chain(entry.env.values());
    if words.chain([&entry.dir]).any(|word| word.contains('\0')) {
        let why = "the image's configuration has a zero byte in what it runs";
        return Err(ArchiveError::Nonsense(why));
    }
    Ok(Chosen { layers, entry })
}
