use super::*;

fn read(text: &str) -> ImageReference {
    text.parse().unwrap_or_else(|error| panic!("{error}"))
}

const DIGITS: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn a_short_name_is_one_of_the_usual_registry() {
    for (text, whole) in [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12-slim", "docker.io/library/python:3.12-slim"),
        ("team/app", "docker.io/team/app:latest"),
        ("docker.io/library/python:3", "docker.io/library/python:3"),
        ("docker://quay.io/a/b/c:D.e_f-1", "quay.io/a/b/c:D.e_f-1"),
        ("127.0.0.1:5000/x:tag", "127.0.0.1:5000/x:tag"),
        ("localhost/x", "localhost/x:latest"),
        ("[::1]:5000/x", "[::1]:5000/x:latest"),
        (
            "Registry.Example:443/a__b/c-d",
            "registry.example:443/a__b/c-d:latest",
        ),
    ] {
        assert_eq!(read(text).to_string(), whole, "{text}");
        assert_eq!(
            read(whole),
            read(text),
            "it means the same when it is read again"
        );
    }
}

#[test]
fn a_digest_stands_before_a_tag() {
    let digest = format!("sha256:{DIGITS}");
    let both = read(&format!("python:3@{digest}"));
    assert_eq!(
        both.to_string(),
        format!("docker.io/library/python@{digest}")
    );
    assert_eq!(both.digest(), Some(digest.as_str()));
    assert_eq!(read("python:3").pinned(&digest), Some(both));
    assert_eq!(read("python:3").digest(), None);
    assert_eq!(read("python:3").pinned("sha256:12"), None);
}

#[test]
fn what_a_program_could_take_for_something_else_is_refused() {
    let many = "a/".repeat(300) + "a";
    let long = format!("a:{}", "x".repeat(129));
    for text in [
        "",
        "-a",
        "--help",
        "a b",
        "a\n",
        "a:",
        "a@",
        "a/",
        "/a",
        "/etc/passwd",
        "../a",
        "a/../b",
        "a//b",
        "A",
        "a/B",
        "a:-x",
        "a:x y",
        "a:x/y:z/",
        "a@sha256:12",
        &format!("a@sha512:{DIGITS}"),
        &format!("a@sha256:{}", DIGITS.to_uppercase()),
        "a...b",
        "a_-b",
        "oci:/etc",
        "dir:/",
        "docker-archive:/x",
        "host:99999/a",
        "host:/a",
        "host:5000:1/a",
        "-host.x/a",
        "ho_st.x/a",
        "user@host.x/a",
        "user:pass@host.x/a",
        "[::1/a",
        "[x]:1/a",
        "a\0b",
        "ä",
        &many,
        &long,
    ] {
        assert!(text.parse::<ImageReference>().is_err(), "{text:?}");
    }
}

#[test]
fn a_registry_of_this_host_is_known_by_its_name() {
    for text in [
        "127.0.0.1:5000/x",
        "127.9.9.9/x",
        "localhost:1/x",
        "a.localhost/x",
        "[::1]:5/x",
        "0.0.0.0:1/x",
        "[::ffff:127.0.0.1]:5/x",
    ] {
        assert!(read(text).is_of_this_host(), "{text}");
    }
    for text in [
        "x",
        "10.0.0.1:5000/x",
        "localhost.example/x",
        "127.0.0.1.example:1/x",
    ] {
        assert!(!read(text).is_of_this_host(), "{text}");
    }
}

#[test]
fn a_guest_image_is_named_after_it() {
    for (text, name) in [
        ("python", "python"),
        ("python:3.12-slim", "python-3-12-slim"),
        ("quay.io/a/b__c.d:X_y", "b-c-d-x-y"),
        (&format!("a/b@sha256:{DIGITS}"), "b"),
    ] {
        assert_eq!(read(text).name(), name, "{text}");
        assert!(name.parse::<crate::ImageName>().is_ok());
    }
}

#[test]
fn it_is_text_in_messages() {
    let text = serde_json::to_string(&read("python:3")).expect("written");
    assert_eq!(text, r#""docker.io/library/python:3""#);
    assert_eq!(
        serde_json::from_str::<ImageReference>(&text).expect("read"),
        read("python:3")
    );
    serde_json::from_str::<ImageReference>(r#""--all""#).expect_err("no reference");
}
