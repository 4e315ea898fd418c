use super::*;
use crate::import::{pull::tests::nothing_is_left, tests::cache, *};
use forkyard_types::{ImageOrigin, Start};
use std::{
    net::{TcpListener, TcpStream},
    process::Command,
};

fn context(files: &[(&str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        builder
            .append_data(&mut header, name, text.as_bytes())
            .expect("appended");
    }
    builder.into_inner().expect("whole")
}

fn build(cache: &Cache, context: &[u8], cancel: &Cancel) -> Result<Imported, ImportError> {
    let name = "made".parse().expect("a name");
    let file: Dockerfile = "Dockerfile".parse().expect("a path");
    let args = [("VALUE".to_owned(), "y, and more".to_owned())].into();
    let file = file.with_args(args).expect("arguments");
    let what = (None, Start::Never);
    cache.build(&name, &file, what, context, cancel, |_| {})
}

#[test]
fn what_a_dockerfile_says_becomes_an_image_and_the_host_has_nothing_of_it() {
    let (_dir, cache) = cache();
    let text =
        "FROM scratch\nARG VALUE\nCOPY a /srv/a\nENV X=$VALUE\nWORKDIR /srv\nCMD [\"/srv/a\"]\n";
    let files = context(&[("Dockerfile", text), ("a", "content")]);
    let image = build(&cache, &files, &Cancel::default()).expect("built");
    assert_eq!(image.from.origin, ImageOrigin::Dockerfile);
    let entry = image.entry.expect("a container image's");
    assert_eq!(entry.argv, ["/srv/a"]);
    assert_eq!(
        (entry.env["X"].as_str(), entry.dir.as_str()),
        ("y, and more", "/srv")
    );
    let said = Command::new("debugfs")
        .args(["-R", "cat /srv/a"])
        .arg(&image.file.path)
        .output();
    assert_eq!(said.expect("installed").stdout, b"content");
    assert_eq!(
        fs::read_dir(cache.dir.join("tmp")).expect("there").count(),
        0
    );
    let mounts = fs::read_to_string("/proc/self/mounts").expect("read");
    assert!(
        !mounts.contains(&cache.dir.display().to_string()),
        "{mounts}"
    );
}

#[test]
fn arguments_have_names_and_values_that_are_text() {
    let file = || "Dockerfile".parse::<Dockerfile>().expect("a path");
    let with = |name: &str, value: &str| file().with_args([(name.into(), value.into())].into());
    assert!(with("A_1", "a = b").is_ok() && with("_", "").is_ok());
    for wrong in ["", "1A", "A B", "A=B", "--squash", "ä", &"A".repeat(129)] {
        let refused = with(wrong, "x");
        assert!(
            matches!(refused, Err(InvalidDockerfile::Name(_))),
            "{wrong}"
        );
    }
    assert!(matches!(
        with("A", "a\nb"),
        Err(InvalidDockerfile::Value(_))
    ));
    let many = (0..65).map(|n| (format!("A{n}"), String::new())).collect();
    assert!(matches!(
        file().with_args(many),
        Err(InvalidDockerfile::Many(65))
    ));
}

#[test]
fn a_step_that_fails_says_which_and_nothing_is_left() {
    let (_dir, cache) = cache();
    let text = "FROM scratch\nCOPY none /srv/a\n";
    let files = context(&[("Dockerfile", text)]);
    let error = build(&cache, &files, &Cancel::default()).expect_err("no such file");
    let ImportError::Dockerfile { said } = error else {
        panic!("{error:?}");
    };
    assert!(said.contains("COPY none /srv/a"), "{said}");
    nothing_is_left(&cache);
    // A context that leads outside, and one that is none.
    let mut hostile = tar::Builder::new(Vec::new());
    let mut link = tar::Header::new_gnu();
    link.set_entry_type(tar::EntryType::Symlink);
    link.set_size(0);
    hostile
        .append_link(&mut link, "Dockerfile", "/etc/shadow")
        .expect("appended");
    let hostile = hostile.into_inner().expect("whole");
    for context in [&hostile[..], b"no archive"] {
        let error = build(&cache, context, &Cancel::default());
        assert!(
            matches!(error, Err(ImportError::Dockerfile { .. })),
            "{error:?}"
        );
        nothing_is_left(&cache);
    }
}

#[test]
fn a_build_that_is_given_up_ends_at_once() {
    // Takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("bound");
    let text = format!("FROM {address}/x\n");
    let files = context(&[("Dockerfile", &text)]);
    let (_dir, cache) = cache();
    let cancel = Cancel::default();
    let error = std::thread::scope(|scope| {
        scope.spawn(|| {
            let connected = silent.accept().expect("it asks");
            cancel.set();
            drop(connected);
        });
        let error = build(&cache, &files, &cancel);
        // One that ended without asking is not waited for.
        drop(TcpStream::connect(address));
        error
    });
    assert!(matches!(error, Err(ImportError::Cancelled)), "{error:?}");
    nothing_is_left(&cache);
}

#[test]
fn a_dockerfile_is_a_file_of_its_context() {
    for text in ["Dockerfile", "a/b.Dockerfile", "-f"] {
        let file: Dockerfile = text.parse().expect(text);
        assert_eq!(file.to_string(), text);
    }
    for text in [
        "",
        "/etc/passwd",
        "..",
        "a/../../b",
        "a\nb",
        &"x".repeat(2000),
    ] {
        assert!(text.parse::<Dockerfile>().is_err(), "{text:?}");
    }
}
