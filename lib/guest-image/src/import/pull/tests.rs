use crate::import::{
    tests::{Oci, cache},
    *,
};
use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Debian's registry, on this host's own address alone.
struct Registry {
    process: Child,
    address: String,
    dir: TempDir,
}

impl Registry {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: \"127.0.0.1:0\"}}\n",
            dir.path().join("blobs").display()
        );
        let path = dir.path().join("registry.yml");
        fs::write(&path, config).expect("written");
        let mut process = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("docker-registry is installed");
        let said = process.stderr.take().expect("a pipe");
        let mut lines = BufReader::new(said).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            let (_, rest) = line.split_once("listening on ")?;
            let end = rest.find(|c: char| c != ':' && c != '.' && !c.is_ascii_digit());
            Some(rest[..end.unwrap_or(rest.len())].to_owned())
        });
        // Its output has no other reader, and it must not wait for one.
        std::thread::spawn(move || lines.for_each(drop));
        Self {
            process,
            address: address.expect("it says where it listens"),
            dir,
        }
    }

    /// Puts an image there; its reference.
    fn put(&self, image: Oci, name: &str) -> ImageReference {
        let archive = self.dir.path().join("archive");
        fs::write(&archive, image.packed()).expect("written");
        let reference = format!("{}/{name}", self.address);
        let copied = Command::new("skopeo")
            .args(["copy", "-q", "--dest-tls-verify=false"])
            .arg(format!("oci-archive:{}", archive.display()))
            .arg(format!("docker://{reference}"))
            .output()
            .expect("skopeo is installed");
        assert!(copied.status.success(), "{copied:?}");
        reference.parse().expect("a reference")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn pull(cache: &Cache, reference: &ImageReference, start: Start) -> Result<Imported, ImportError> {
    let name = "web".parse().expect("a name");
    cache.pull(
        &name,
        (reference, FetchReach::Anywhere),
        (None, start),
        &Cancel::default(),
        |_| {},
    )
}

pub(in crate::import) fn nothing_is_left(cache: &Cache) {
    assert_eq!(
        fs::read_dir(cache.dir.join("tmp")).expect("there").count(),
        0
    );
    assert!(cache.imported().expect("listed").is_empty());
}

#[test]
fn an_image_of_a_registry_is_known_by_its_digest_and_starts_nothing_unless_it_is_to() {
    let registry = Registry::new();
    let reference = registry.put(Oci::new(), "team/app:1");
    let (_dir, cache) = cache();
    let image = pull(&cache, &reference, Start::Never).expect("pulled");
    assert_eq!(image.from.origin, ImageOrigin::Registry);
    assert_eq!(image.from.source, Some(reference.to_string()));
    let entry = image.entry.clone().expect("a container image's");
    assert_eq!(entry.argv, ["/srv/run", "--fast", "a=b"]);
    assert_eq!(
        (entry.dir.as_str(), entry.start),
        ("/work/here", Start::Never)
    );
    assert!(
        image.summary.contains("is not started"),
        "{}",
        image.summary
    );
    // By its digest it is the same one, though its tag has another by now.
    let digest = image.from.digest.clone().expect("known");
    let mut other = Oci::new();
    other.manifests.clear();
    other.image_of("linux", "amd64", Some("v1"), "latest");
    registry.put(other, "team/app:1");
    assert!(matches!(
        pull(&cache, &reference, Start::Never),
        Err(ImportError::Taken { .. })
    ));
    cache.remove_imported(&image).expect("removed");
    let pinned = reference.pinned(&digest).expect("a digest");
    let again = pull(&cache, &pinned, Start::AtBoot).expect("pulled");
    assert_eq!(again.from.digest, Some(digest.clone()));
    assert!(again.entry.expect("known").starts());
    let listed = cache.imported().expect("listed");
    cache.remove_imported(&listed[0]).expect("removed");
    let moved = pull(&cache, &reference, Start::Never).expect("pulled");
    assert_ne!(moved.from.digest, Some(digest));
}

#[test]
fn what_a_registry_does_not_have_or_is_for_another_machine_leaves_nothing() {
    let registry = Registry::new();
    let (_dir, cache) = cache();
    let none = format!("{}/none:1", registry.address)
        .parse()
        .expect("a reference");
    let error = pull(&cache, &none, Start::Never).expect_err("not there");
    let ImportError::Registry { reference, said } = error else {
        panic!("{error:?}");
    };
    assert!(reference.ends_with("/none:1"), "{reference}");
    assert!(said.contains("unknown"), "{said}");
    nothing_is_left(&cache);
    let mut other = Oci::new();
    other.manifests.clear();
    other.image("linux", "s390x", "latest");
    let reference = registry.put(other, "other:1");
    let error = pull(&cache, &reference, Start::Never).expect_err("not for this machine");
    assert!(
        matches!(error, ImportError::Archive(ArchiveError::Platform { .. })),
        "{error:?}"
    );
    nothing_is_left(&cache);
}

#[test]
fn a_pull_that_is_given_up_ends_at_once_and_leaves_nothing() {
    // Takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound");
    let reference = format!("{address}/x").parse().expect("a reference");
    let (_dir, cache) = cache();
    let cancel = Cancel::default();
    let name = "web".parse().expect("a name");
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let connected = silent.accept().expect("it asks");
            cancel.set();
            // Held until then, so that nothing else ends it.
            drop(connected);
        });
        let what = (None, Start::Never);
        cache.pull(
            &name,
            (&reference, FetchReach::Anywhere),
            what,
            &cancel,
            |_| {},
        )
    });
    assert!(matches!(error, Err(ImportError::Cancelled)), "{error:?}");
    nothing_is_left(&cache);
}
