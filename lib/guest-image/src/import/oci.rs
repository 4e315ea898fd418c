//! Selection of an image of an archive, and its parts.
//!
//! Two forms: an OCI image layout (image-spec 1.1: `index.json` names manifests,
//! and these a configuration and layers), and that of `docker save`
//! (`manifest.json`). Newer ones of `docker save` are both; then it is read as
//! the former, where everything has a digest.

use super::{ArchiveError, archive::Parts, digest::Digest};
use forkyard_types::{EntryPoint, Start};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};

/// Operating system and architecture of guests.
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
/// Prefixes of media types of layers that can be unpacked.
const LAYER_KINDS: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];
/// Suffixes of a layer's media type that name its compression.
const COMPRESSIONS: [&str; 6] = ["", "+gzip", ".gzip", "+zstd", ".zstd", "+xz"];
/// Annotation that names an image in an index.
const NAME: &str = "org.opencontainers.image.ref.name";

/// An image: its layers, the lowest first, and what it runs.
#[derive(Debug)]
pub(super) struct Chosen {
    pub layers: Vec<Layer>,
    /// Platform of the image, as others call it.
    pub platform: String,
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
    /// Level of the architecture, `v1` if it is not said.
    #[serde(default)]
    variant: Option<String>,
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
    stop_signal: Option<String>,
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
    /// Returns its level, if guests of a level run it.
    fn level(&self, most: u8) -> Option<u8> {
        let level = match self.variant.as_deref() {
            None | Some("") => 1,
            Some(variant) => variant.strip_prefix('v')?.parse().ok()?,
        };
        let is_ours = self.os == OS && self.architecture == ARCHITECTURE;
        (is_ours && level <= most).then_some(level)
    }

    fn told(&self) -> String {
        let variant = self
            .variant
            .as_deref()
            .filter(|variant| !variant.is_empty());
        let parts = [&self.os, self.architecture.as_str()];
        parts
            .into_iter()
            .chain(variant)
            .collect::<Vec<_>>()
            .join("/")
    }
}

/// Finds the image; each part but the layers of an old `docker save` has been
/// verified then. Of one image for several levels of the architecture it is the
/// best that guests of this level run.
pub(super) fn choose(parts: &Parts, level: u8) -> Result<Chosen, ArchiveError> {
    match (parts.has("index.json"), parts.has("manifest.json")) {
        (true, _) => from_layout(parts, level),
        (false, true) => from_saved(parts, level),
        (false, false) => Err(ArchiveError::NotAnImage),
    }
}

/// An image of an archive that can be run.
struct Candidate {
    listed: Descriptor,
    manifest: Manifest,
    config: Config,
    platform: Platform,
    level: u8,
}

fn from_layout(parts: &Parts, level: u8) -> Result<Chosen, ArchiveError> {
    let index: Index = parts.json("index.json")?;
    let mut manifests = Vec::new();
    collect(
        parts,
        index,
        DEPTH,
        None,
        &mut HashSet::new(),
        &mut manifests,
    )?;
    let mut ours: Vec<Candidate> = Vec::new();
    let mut others = Vec::new();
    for listed in manifests {
        if let Some(platform) = &listed.platform
            && platform.level(level).is_none()
        {
            others.push(platform.told());
            continue;
        }
        // Listed twice, under two names.
        if ours
            .iter()
            .any(|known| known.listed.digest == listed.digest)
        {
            continue;
        }
        let manifest: Manifest = blob(parts, &listed)?;
        let config: Config = blob(parts, &manifest.config)?;
        // An index says more of the level than a configuration, as a rule.
        let mut platform = config.platform.clone();
        if platform.variant.is_none() {
            platform.variant = listed.platform.as_ref().and_then(|of| of.variant.clone());
        }
        match platform.level(level) {
            Some(level) => ours.push(Candidate {
                listed,
                manifest,
                config,
                platform,
                level,
            }),
            None => others.push(platform.told()),
        }
    }
    let best = ours.iter().map(|one| one.level).max();
    let name = |one: &Candidate| one.listed.annotations.get(NAME).cloned();
    let same = ours.windows(2).all(|two| name(&two[0]) == name(&two[1]));
    if same {
        ours.retain(|one| Some(one.level) == best);
    }
    if ours.len() > 1 {
        let names = ours
            .iter()
            .map(|one| name(one).unwrap_or_else(|| one.listed.digest.to_string()));
        return Err(ArchiveError::Several(names.collect()));
    }
    let Some(Candidate {
        manifest,
        config,
        platform,
        ..
    }) = ours.pop()
    else {
        let found = others;
        return Err(match found.is_empty() {
            true => ArchiveError::Empty,
            false => ArchiveError::Platform { found, level },
        });
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
    chosen(layers, &platform, config)
}

fn collect(
    parts: &Parts,
    index: Index,
    depth: u32,
    name: Option<&String>,
    seen: &mut HashSet<Digest>,
    manifests: &mut Vec<Descriptor>,
) -> Result<(), ArchiveError> {
    for mut descriptor in index.manifests {
        // What an index is called, all in it is.
        if let Some(name) = name {
            let entry = descriptor.annotations.entry(NAME.to_owned());
            entry.or_insert_with(|| name.clone());
        }
        if !INDEXES.contains(&descriptor.media_type.as_str()) {
            if manifests.len() == MANIFESTS {
                return Err(ArchiveError::Nonsense("the archive lists too many images"));
            }
            manifests.push(descriptor);
        } else if depth > 0 {
            // Indexes that name each other over and over are as good as once, and read once.
            if !seen.insert(descriptor.digest) {
                continue;
            }
            if seen.len() > MANIFESTS {
                return Err(ArchiveError::Nonsense("the archive has too many indexes"));
            }
            let inner: Index = blob(parts, &descriptor)?;
            let name = descriptor.annotations.get(NAME);
            collect(parts, inner, depth - 1, name, seen, manifests)?;
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

fn from_saved(parts: &Parts, level: u8) -> Result<Chosen, ArchiveError> {
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
    let platform = config.platform.clone();
    if platform.level(level).is_none() {
        let found = vec![platform.told()];
        return Err(ArchiveError::Platform { found, level });
    }
    chosen(saved.layers, &platform, config)
}

fn chosen(parts: Vec<String>, platform: &Platform, config: Config) -> Result<Chosen, ArchiveError> {
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
        stop_signal: run.stop_signal.unwrap_or_default(),
        start: Start::AtBoot,
    };
    if entry.stop_number().is_none() {
        let why = "the image's configuration names a stop signal that there is not";
        return Err(ArchiveError::Nonsense(why));
    }
    let words = entry.argv.iter().chain(entry.env.values());
    let names = entry.env.keys().chain([&entry.dir, &entry.user]);
    if words.chain(names).any(|word| word.contains('\0')) {
        let why = "the image's configuration has a zero byte in what it runs";
        return Err(ArchiveError::Nonsense(why));
    }
    Ok(Chosen {
        layers,
        platform: platform.told(),
        entry,
    })
}
