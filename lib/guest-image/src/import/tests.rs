use super::*;
use layer::tests::Crafted;
use serde_json::{Value, json};
use std::{collections::BTreeMap, os::unix::fs::MetadataExt, process::Command};
use tempfile::TempDir;

mod hostile;
mod locks;

fn digest(bytes: &[u8]) -> String {
    digest::Digest::of(bytes).expect("read").to_string()
}

fn blob(digest: &str) -> String {
    digest.replace("sha256:", "blobs/sha256/")
}

/// An OCI archive, in parts, to be spoilt before it is packed.
pub(super) struct Oci {
    parts: BTreeMap<String, Vec<u8>>,
    pub manifests: Vec<Value>,
}

impl Oci {
    /// With one image: two layers, and what it runs.
    pub fn new() -> Self {
        let mut oci = Self {
            parts: BTreeMap::new(),
            manifests: Vec::new(),
        };
        oci.image("linux", "amd64", "latest");
        oci
    }

    fn layers() -> [Vec<u8>; 2] {
        let lower = Crafted::new()
            .folder("etc")
            .file("etc/gone", "")
            .file("a", "lower");
        let upper = Crafted::new().file("etc/.wh.gone", "").file("b", "upper");
        [lower.done(), upper.done()]
    }

    fn put(&mut self, bytes: Vec<u8>, kind: &str) -> Value {
        let digest = digest(&bytes);
        let size = bytes.len();
        self.parts.insert(blob(&digest), bytes);
        json!({"mediaType": kind, "digest": digest, "size": size})
    }

    fn config(os: &str, architecture: &str) -> Value {
        let layers = Self::layers();
        json!({
            "os": os, "architecture": architecture,
            "config": {
                "Entrypoint": ["/srv/run"], "Cmd": ["--fast", "a=b"],
                "Env": ["PATH=/srv", "A=1=2"], "WorkingDir": "/work/here", "User": "web:logs",
                "StopSignal": "SIGQUIT",
            },
            "rootfs": {"type": "layers", "diff_ids": layers.map(|layer| digest(&layer))},
            "history": [],
        })
    }

    pub fn image(&mut self, os: &str, architecture: &str, name: &str) {
        self.image_of(os, architecture, None, name);
    }

    pub fn image_of(&mut self, os: &str, architecture: &str, variant: Option<&str>, name: &str) {
        let [lower, upper] = Self::layers();
        let mut config = Self::config(os, architecture);
        // No two of them are one image.
        config["variant"] = json!(variant);
        let config = config.to_string().into_bytes();
        let config = self.put(config, "application/vnd.oci.image.config.v1+json");
        let upper = zstd::encode_all(&upper[..], 1).expect("packed");
        let layers = [
            self.put(lower, "application/vnd.oci.image.layer.v1.tar"),
            self.put(upper, "application/vnd.oci.image.layer.v1.tar+zstd"),
        ];
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        let manifest = manifest.to_string().into_bytes();
        let mut listed = self.put(manifest, "application/vnd.oci.image.manifest.v1+json");
        listed["platform"] = json!({"os": os, "architecture": architecture, "variant": variant});
        listed["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        self.manifests.push(listed);
    }

    pub fn packed(mut self) -> Vec<u8> {
        let index = json!({"schemaVersion": 2, "manifests": self.manifests});
        self.parts
            .entry("index.json".into())
            .or_insert(index.to_string().into_bytes());
        packed(&self.parts)
    }

    /// The part of this digest in the manifest, at a JSON pointer.
    fn part(&self, pointer: &str) -> String {
        let listed = self.manifests[0]["digest"].as_str().expect("text");
        let manifest: Value = serde_json::from_slice(&self.parts[&blob(listed)]).expect("JSON");
        blob(
            manifest
                .pointer(pointer)
                .and_then(Value::as_str)
                .expect("text"),
        )
    }
}

fn packed(parts: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, name, &content[..])
            .expect("appended");
    }
    builder.into_inner().expect("whole")
}

pub(super) fn cache() -> (TempDir, Cache) {
    let dir = tempfile::tempdir().expect("a directory");
    let cache = Cache::new(dir.path().join("cache"));
    (dir, cache)
}

fn import(cache: &Cache, source: Source, bytes: &[u8]) -> Result<Imported, ImportError> {
    let name = "web".parse().expect("a name");
    cache.import(&name, source, bytes, &Cancel::default(), |_| {})
}

const OCI: Source = Source::Oci {
    size: None,
    start: Start::AtBoot,
};

/// Returns the error of an import that must fail; it leaves nothing.
#[track_caller]
fn refused(source: Source, bytes: &[u8]) -> ImportError {
    let (_dir, cache) = cache();
    let refused = import(&cache, source, bytes).expect_err("refused");
    nothing_left(&cache);
    refused
}

#[track_caller]
fn nothing_left(cache: &Cache) {
    assert_eq!(cache.imported().expect("listed"), []);
    for folder in ["tmp", "imported"] {
        let left = list(&cache.dir.join(folder)).expect("listed").len();
        assert_eq!(left, 0, "{folder}");
    }
}

/// Returns the output of a program of e2fsprogs about a disk.
fn debugfs(disk: &Path, request: &str) -> String {
    let said = Command::new("debugfs")
        .args(["-R", request])
        .arg(disk)
        .output();
    String::from_utf8(said.expect("installed").stdout).expect("text")
}

fn ext4(mib: u64) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .arg(file.path())
        .arg(format!("{mib}M"))
        .output();
    assert!(made.expect("installed").status.success());
    fs::read(file.path()).expect("read")
}

mod forms;

#[test]
fn container_image_becomes_a_disk_with_its_layers_and_what_it_runs() {
    let (_dir, cache) = cache();
    let image = import(&cache, OCI, &Oci::new().packed()).expect("imported");
    assert_eq!(image.from.origin, ImageOrigin::Oci);
    assert!(
        image.summary.ends_with("runs /srv/run --fast a=b"),
        "{}",
        image.summary
    );
    assert_eq!(
        cache.imported().expect("listed"),
        std::slice::from_ref(&image)
    );
    let disk = &image.file.path;
    assert!(
        fs::metadata(disk).expect("there").blocks() * 512 < 64 << 20,
        "it has holes"
    );
    let entry = debugfs(disk, &format!("cat {}", forkyard_types::EntryPoint::PLACE));
    let entry: forkyard_types::EntryPoint = serde_json::from_str(&entry).expect("JSON");
    assert_eq!(entry.argv, ["/srv/run", "--fast", "a=b"]);
    assert_eq!(
        (entry.env["PATH"].as_str(), entry.env["A"].as_str()),
        ("/srv", "1=2")
    );
    assert_eq!(
        (entry.dir.as_str(), entry.user.as_str()),
        ("/work/here", "web:logs")
    );
    assert_eq!(entry.stop_signal, "SIGQUIT");
    assert_eq!(debugfs(disk, "cat /b"), "upper");
    assert!(!debugfs(disk, "ls -l /etc").contains("gone"));
    assert!(debugfs(disk, "ls -l /work").contains("here"));
    let check = Command::new("e2fsck").args(["-fn"]).arg(disk).output();
    assert!(check.expect("installed").status.success());

    let again = import(&cache, OCI, &Oci::new().packed());
    assert!(matches!(again, Err(ImportError::Taken { .. })), "{again:?}");
    cache.remove_imported(&image).expect("removed");
    cache.remove_imported(&image).expect("gone already");
    nothing_left(&cache);
}

#[test]
fn archive_of_docker_save_is_known_old_or_new() {
    let layers = Oci::layers();
    let config = Oci::config("linux", "amd64").to_string().into_bytes();
    let name = format!("{}.json", digest(&config).replace("sha256:", ""));
    let manifest =
        json!([{"Config": name, "RepoTags": ["a:b"], "Layers": ["1/layer.tar", "2/layer.tar"]}]);
    let [lower, upper] = layers;
    let parts = |upper| {
        BTreeMap::from([
            (
                "manifest.json".to_owned(),
                manifest.to_string().into_bytes(),
            ),
            (name.clone(), config.clone()),
            ("1/layer.tar".to_owned(), lower.clone()),
            ("2/layer.tar".to_owned(), upper),
        ])
    };
    let (_dir, cache) = cache();
    let old = packed(&parts(upper.clone()));
    let image = import(&cache, OCI, &old).expect("imported");
    assert_eq!(debugfs(&image.file.path, "cat /b"), "upper");
    // Nothing but the digest of what it unpacks to tells that this is another.
    let spoilt = packed(&parts(Crafted::new().file("b", "other").done()));
    let error = refused(OCI, &spoilt);
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::Digest { .. })),
        "{error:?}"
    );
}

#[test]
fn part_that_is_corrupt_cut_off_or_missing_is_refused() {
    for pointer in ["/config/digest", "/layers/0/digest", "/layers/1/digest"] {
        let mut oci = Oci::new();
        let part = oci.part(pointer);
        if let Some(byte) = oci.parts.get_mut(&part).and_then(|bytes| bytes.get_mut(40)) {
            *byte ^= 1;
        }
        let error = refused(OCI, &oci.packed());
        assert!(
            matches!(error, ImportError::Archive(ArchiveError::Digest { .. })),
            "{error:?}"
        );

        let mut oci = Oci::new();
        oci.parts.get_mut(&part).expect("there").pop();
        let error = refused(OCI, &oci.packed());
        assert!(
            matches!(error, ImportError::Archive(ArchiveError::Size { .. })),
            "{error:?}"
        );

        let mut oci = Oci::new();
        oci.parts.remove(&part);
        let error = refused(OCI, &oci.packed());
        assert!(
            matches!(error, ImportError::Archive(ArchiveError::Missing { .. })),
            "{error:?}"
        );
    }
}

#[test]
fn archive_that_is_cut_off_is_refused() {
    let whole = Oci::new().packed();
    for part in [1, 2, 3] {
        refused(OCI, &whole[..whole.len() * part / 4]);
    }
}

#[test]
fn several_images_are_refused_by_their_names() {
    let mut oci = Oci::new();
    let mut other = oci.manifests[0].clone();
    let digest = other["digest"].as_str().expect("text").to_owned();
    let mut manifest: Value = serde_json::from_slice(&oci.parts[&blob(&digest)]).expect("JSON");
    manifest["annotations"] = json!({"other": "yes"});
    let put = oci.put(
        manifest.to_string().into_bytes(),
        "application/vnd.oci.image.manifest.v1+json",
    );
    other["digest"] = put["digest"].clone();
    other["size"] = put["size"].clone();
    other["annotations"] = json!({"org.opencontainers.image.ref.name": "second"});
    oci.manifests.push(other);
    let error = refused(OCI, &oci.packed());
    let ImportError::Archive(ArchiveError::Several(names)) = error else {
        panic!("{error:?}");
    };
    assert_eq!(names, ["latest", "second"]);
}

#[test]
fn what_is_no_archive_of_an_image_is_refused_by_what_it_is() {
    let other = packed(&BTreeMap::from([("hello".to_owned(), b"x".to_vec())]));
    let error = refused(OCI, &other);
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::NotAnImage)),
        "{error:?}"
    );
    for (begins, what) in [(&b"BZh91AY&SY"[..], "bzip2"), (b"PK\x03\x04..", "zip")] {
        let error = refused(OCI, begins);
        let ImportError::Archive(ArchiveError::Tar { source }) = error else {
            panic!("{error:?}");
        };
        let told = source.to_string();
        assert!(told.contains(what) && told.contains("zstd"), "{told}");
    }
    let error = refused(OCI, b"no tar at all");
    assert!(matches!(error, ImportError::Archive(_)), "{error:?}");
    let mut oci = Oci::new();
    oci.parts.insert("index.json".into(), b"[[[[".to_vec());
    let error = refused(OCI, &oci.packed());
    let ImportError::Archive(ArchiveError::Json { why, .. }) = error else {
        panic!("{error:?}");
    };
    // Not in the words of the parser.
    assert!(!why.contains("EOF") && !why.contains("struct"), "{why}");
    let mut oci = Oci::new();
    oci.manifests.clear();
    let error = refused(OCI, &oci.packed());
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::Empty)),
        "{error:?}"
    );
    let mut oci = Oci::new();
    oci.manifests[0]["digest"] = json!("sha256:../../../etc/passwd");
    let error = refused(OCI, &oci.packed());
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::Json { .. })),
        "{error:?}"
    );
}

#[test]
fn disk_of_a_container_image_has_the_size_that_is_wanted_or_is_refused() {
    let oci = |mib: u64| Source::Oci {
        start: Start::AtBoot,
        size: Some(ByteCount(mib << 20)),
    };
    let (_dir, cache) = cache();
    let image = import(&cache, oci(64), &Oci::new().packed()).expect("imported");
    assert_eq!(image.file.size, ByteCount(64 << 20));
    let error = refused(oci(1), &Oci::new().packed());
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::DiskSize(_))),
        "{error:?}"
    );
}

#[test]
fn raw_disk_is_taken_as_it_is_in_whole_pages() {
    let (_dir, cache) = cache();
    let mut disk = ext4(3);
    disk.extend([0; 512]);
    let image = import(&cache, Source::Raw { partition: None }, &disk).expect("imported");
    let mode = fs::metadata(image.file.path.parent().expect("a folder"))
        .expect("there")
        .mode();
    assert_eq!(mode & 0o777, 0o700);
    disk.resize(disk.len().next_multiple_of(PAGE), 0);
    assert_eq!(fs::read(&image.file.path).expect("read"), disk);
    assert_eq!(
        (image.from.origin, image.file.size),
        (ImageOrigin::Raw, ByteCount(disk.len() as u64))
    );
}

#[test]
fn partition_is_cut_out() {
    let system = ext4(2);
    let mut disk = vec![0; 1 << 20];
    disk[446 + 4] = 0x83;
    disk[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    disk[446 + 12..446 + 16].copy_from_slice(&4096_u32.to_le_bytes());
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk.extend(&system);
    disk.extend([7; 512]);
    let (_dir, cache) = cache();
    let source = Source::Raw { partition: Some(1) };
    let image = import(&cache, source, &disk).expect("imported");
    assert_eq!(fs::read(&image.file.path).expect("read"), system);
    let error = refused(Source::Raw { partition: None }, &disk);
    assert!(
        matches!(error, ImportError::Disk(DiskImportError::Partitioned(_))),
        "{error:?}"
    );
}

#[test]
fn qcow2_is_converted_and_what_is_said_to_be_raw_is_not_looked_into() {
    let dir = tempfile::tempdir().expect("a directory");
    let (raw, packed) = (dir.path().join("raw"), dir.path().join("qcow2"));
    let system = ext4(2);
    fs::write(&raw, &system).expect("written");
    let convert = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args([&raw, &packed])
        .output();
    assert!(convert.expect("installed").status.success());
    let bytes = fs::read(&packed).expect("read");
    let (_dir, cache) = cache();
    let image = import(&cache, Source::Qcow2 { partition: None }, &bytes).expect("imported");
    assert_eq!(fs::read(&image.file.path).expect("read"), system);
    let error = refused(Source::Raw { partition: None }, &bytes);
    assert!(
        matches!(error, ImportError::Disk(DiskImportError::IsQcow2)),
        "{error:?}"
    );
    let error = refused(Source::Qcow2 { partition: None }, &system);
    assert!(
        matches!(error, ImportError::Disk(DiskImportError::NotQcow2)),
        "{error:?}"
    );
    let rebase = Command::new("qemu-img")
        .args(["rebase", "-u", "-F", "raw", "-b", "/etc/shadow"])
        .arg(&packed)
        .output();
    assert!(rebase.expect("installed").status.success());
    let bytes = fs::read(&packed).expect("read");
    let error = refused(Source::Qcow2 { partition: None }, &bytes);
    assert!(
        matches!(error, ImportError::Disk(DiskImportError::NeedsAnother(_))),
        "{error:?}"
    );
}

#[test]
fn import_that_breaks_off_or_is_given_up_leaves_nothing() {
    struct Breaks;
    impl Read for Breaks {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }
    let (_dir, cache) = cache();
    let name = "web".parse().expect("a name");
    let source = Source::Raw { partition: None };
    let half = [0; 100_000].chain(Breaks);
    let broke = cache.import(&name, source, half, &Cancel::default(), |_| {});
    assert!(
        matches!(broke, Err(ImportError::Incoming { .. })),
        "{broke:?}"
    );
    nothing_left(&cache);
    let cancel = Cancel::default();
    let given_up = cache.import(&name, OCI, &Oci::new().packed()[..], &cancel, |event| {
        if event == BuildEvent::Step("making the file system") {
            cancel.set();
        }
    });
    assert!(
        matches!(given_up, Err(ImportError::Cancelled)),
        "{given_up:?}"
    );
    nothing_left(&cache);
}
