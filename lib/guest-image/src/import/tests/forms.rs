//! Forms in which an archive comes: compressed, and for several levels of the
//! architecture.

use super::*;

/// Passes bytes through a program of the host.
fn by_program(program: &str, bytes: &[u8]) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().expect("a file");
    fs::write(file.path(), bytes).expect("written");
    let done = Command::new(program)
        .arg("-c")
        .arg(file.path())
        .output()
        .expect(program);
    assert!(done.status.success(), "{program}: {done:?}");
    done.stdout
}

/// As pzstd has it: before each frame one that is skipped, with its length.
fn pzstd(bytes: &[u8]) -> Vec<u8> {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let mut packed = Vec::new();
    for half in [first, second] {
        let frame = zstd::encode_all(half, 1).expect("packed");
        packed.extend([0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0]);
        packed.extend(u32::try_from(frame.len()).expect("short").to_le_bytes());
        packed.extend(frame);
    }
    packed
}

#[test]
fn compressed_archive_is_the_archive_it_unpacks_to() {
    let archive = Oci::new().packed();
    let (_dir, plain) = cache();
    let seen = |image: &Imported| {
        let root = debugfs(&image.file.path, "ls -p /");
        assert!(root.contains("/etc/"), "{root}");
        (image.summary.clone(), root)
    };
    let wanted = seen(&import(&plain, OCI, &archive).expect("imported"));
    let mut twice = by_program("gzip", &archive[..1000]);
    twice.extend(by_program("gzip", &archive[1000..]));
    let all = [
        ("gzip", by_program("gzip", &archive)),
        ("gzip in parts", twice),
        ("xz", by_program("xz", &archive)),
        ("zstd", zstd::encode_all(&archive[..], 1).expect("packed")),
        ("pzstd", pzstd(&archive)),
    ];
    for (how, packed) in all {
        let (_dir, cache) = cache();
        let image = import(&cache, OCI, &packed).expect(how);
        assert_eq!(seen(&image), wanted, "{how}");
        // Cut off, it is not whole.
        let error = refused(OCI, &packed[..packed.len() - 20]);
        assert!(
            matches!(
                error,
                ImportError::Incoming { .. } | ImportError::Archive(_)
            ),
            "{how}: {error:?}"
        );
    }
    // A disk is what it is said to be.
    let error = refused(
        Source::Raw { partition: None },
        &by_program("gzip", &ext4(2)),
    );
    assert!(matches!(error, ImportError::Disk(_)), "{error:?}");
}

#[test]
fn layer_that_is_compressed_by_xz_is_unpacked() {
    let mut oci = Oci::new();
    oci.manifests.clear();
    let [lower, upper] = Oci::layers();
    let config = Oci::config("linux", "amd64").to_string().into_bytes();
    let config = oci.put(config, "application/vnd.oci.image.config.v1+json");
    let layers = [lower, upper].map(|layer| {
        let packed = by_program("xz", &layer);
        oci.put(packed, "application/vnd.oci.image.layer.v1.tar+xz")
    });
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
    let manifest = manifest.to_string().into_bytes();
    let listed = oci.put(manifest, "application/vnd.oci.image.manifest.v1+json");
    oci.manifests.push(listed);
    let (_dir, cache) = cache();
    let image = import(&cache, OCI, &oci.packed()).expect("imported");
    assert_eq!(debugfs(&image.file.path, "cat /b"), "upper");
}

#[test]
fn archive_that_unpacks_to_more_than_there_may_be_is_refused() {
    let from = io::Read::take(io::repeat(0), 1 << 20);
    let packed = zstd::encode_all(from, 1).expect("packed");
    let dir = tempfile::tempdir().expect("a folder");
    let to = dir.path().join("to");
    let refused = unpack::expand(&packed[..], &to, ByteCount(1000), &Cancel::default());
    assert!(
        matches!(
            refused,
            Err(ImportError::Archive(ArchiveError::Unpacks { .. }))
        ),
        "{refused:?}"
    );
    assert_eq!(fs::metadata(&to).expect("there").len(), 0);
}

#[test]
fn of_several_levels_of_the_architecture_the_best_is_chosen_that_runs() {
    let choose = |variants: &[Option<&str>], level: u8| {
        let mut oci = Oci::new();
        oci.manifests.clear();
        for variant in variants {
            oci.image_of("linux", "amd64", *variant, "latest");
        }
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("archive");
        fs::write(&path, oci.packed()).expect("written");
        let parts = archive::Parts::of(File::open(path).expect("there")).expect("parts");
        oci::choose(&parts, level).map(|chosen| chosen.platform)
    };
    let all = [None, Some("v2"), Some("v3"), Some("v4")];
    for (level, wanted) in [
        (1, "linux/amd64"),
        (2, "linux/amd64/v2"),
        (3, "linux/amd64/v3"),
    ] {
        assert_eq!(choose(&all, level).expect("one"), wanted);
    }
    assert_eq!(choose(&all[..2], 3).expect("one"), "linux/amd64/v2");
    let refused = choose(&all[2..], 2);
    let Err(ArchiveError::Platform { found, level: 2 }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(found, ["linux/amd64/v3", "linux/amd64/v4"]);
}

#[test]
fn image_of_another_platform_is_refused_and_passed_over_among_others() {
    let mut oci = Oci::new();
    oci.manifests.clear();
    oci.image("linux", "arm64", "a");
    let other = oci.packed();
    let error = refused(OCI, &other);
    let ImportError::Archive(ArchiveError::Platform { found: there, .. }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(there, ["linux/arm64"]);
    // It says so in its configuration alone.
    let mut oci = Oci::new();
    oci.manifests.clear();
    oci.image("linux", "s390x", "a");
    oci.manifests[0]["platform"] = Value::Null;
    let error = refused(OCI, &oci.packed());
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::Platform { .. })),
        "{error:?}"
    );

    let mut several = Oci::new();
    several.image("linux", "arm64", "a");
    // What BuildKit puts beside an image.
    several.image("unknown", "unknown", "attestation");
    let (_dir, cache) = cache();
    import(&cache, OCI, &several.packed()).expect("imported");
}
