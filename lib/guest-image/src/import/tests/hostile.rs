//! Tests of images made to harm the importer.

use super::*;

/// A qcow2 disk whose header has this at this place.
fn spoilt(at: usize, bytes: &[u8]) -> Vec<u8> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk");
    let made = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2"])
        .arg(&path)
        .arg("7M")
        .output();
    assert!(made.expect("installed").status.success());
    let mut disk = fs::read(&path).expect("read");
    disk[at..at + bytes.len()].copy_from_slice(bytes);
    disk
}

#[test]
fn qcow2_whose_tables_are_larger_than_any_disk_needs_is_refused_in_the_words_of_qemu_img() {
    // Entries of its first table, and where snapshots are and how many.
    for (at, bytes) in [(36, [0x7f, 0xff, 0xff, 0xff]), (60, [0x7f; 4])] {
        let error = refused(Source::Qcow2 { partition: None }, &spoilt(at, &bytes));
        let ImportError::Build(BuildError::Program { program, tail, .. }) = error else {
            panic!("{error:?}");
        };
        assert_eq!(program, "qemu-img");
        assert!(!tail.is_empty());
    }
}

#[test]
fn indexes_that_name_each_other_many_times_are_read_once() {
    let mut oci = Oci::new();
    let kind = "application/vnd.oci.image.index.v1+json";
    let mut inner = oci.manifests.clone();
    for _ in 0..4 {
        let index = json!({"schemaVersion": 2, "manifests": inner});
        let named = oci.put(index.to_string().into_bytes(), kind);
        inner = vec![named; 300];
    }
    oci.manifests = inner;
    let (_dir, cache) = cache();
    import(&cache, OCI, &oci.packed()).expect("the one image in it");
}

#[test]
fn names_of_parts_longer_than_any_are_refused() {
    let mut oci = Oci::new();
    oci.parts.insert("x/".repeat(5_000) + "x", Vec::new());
    let error = refused(OCI, &oci.packed());
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::Tar { .. })),
        "{error:?}"
    );
}

#[test]
fn what_a_killed_export_left_is_swept_away_and_one_under_way_is_not() {
    let (_dir, cache) = cache();
    let folder = cache.dir.join("tmp");
    fs::create_dir_all(&folder).expect("made");
    let [left, held] = ["left", "held"].map(|name| folder.join(format!("{EXPORT}{name}")));
    fs::write(&left, "half").expect("written");
    let made = File::create(&held).expect("made");
    made.lock().expect("locked");
    cache.sweep().expect("swept");
    assert!(held.exists() && !left.exists());
}
