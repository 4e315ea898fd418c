use super::*;

const GOOD: &str = r#"
description = "a test"
suite = "bookworm"
variant = "extract"
packages = ["busybox-static"]
size_mib = 64
busybox = "/bin/busybox"
directories = ["/srv"]
[[files]]
path = "/etc/motd"
content = "hello\n"
[[links]]
path = "/sbin/init"
target = "/bin/busybox"
"#;

fn parse(text: &str) -> Result<Recipe, RecipeError> {
    Recipe::parse(Path::new("images/test.toml"), text)
}

fn key(text: &str) -> CacheKey {
    parse(text).expect("parses").key().expect("readable")
}

#[test]
fn name_is_that_of_the_file() {
    let recipe = parse(GOOD).expect("parses");
    assert_eq!(recipe.name(), "test");
    assert_eq!(recipe.size(), ByteCount(64 << 20));
}

#[test]
fn what_is_no_toml_of_ours_is_reported_with_file_and_place() {
    let mistakes = [
        ("no TOML", GOOD.replacen('=', ":", 1)),
        ("an unknown key", format!("colour = \"red\"\n{GOOD}")),
        ("an unknown variant", GOOD.replace("extract", "whole")),
        ("a missing key", GOOD.replace("size_mib = 64", "")),
        (
            "a wrong type",
            GOOD.replace("size_mib = 64", "size_mib = \"64\""),
        ),
        (
            "an unknown key of a file",
            GOOD.replace("content =", "text ="),
        ),
    ];
    for (what, text) in mistakes {
        match parse(&text) {
            Err(RecipeError::Parse { path, source }) => {
                assert_eq!(path, Path::new("images/test.toml"), "{what}");
                assert!(source.span().is_some(), "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn value_that_makes_no_sense_is_reported_by_its_key() {
    let mistakes = [
        ("size_mib", GOOD.replace("= 64", "= 15")),
        ("size_mib", GOOD.replace("= 64", "= 1048577")),
        (
            "suite (\"--evil\")",
            GOOD.replace("\"bookworm\"", "\"--evil\""),
        ),
        ("packages (\"a,b\")", GOOD.replace("busybox-static", "a,b")),
        ("packages", GOOD.replace("[\"busybox-static\"]", "[]")),
        (
            "busybox (bin/busybox)",
            GOOD.replace("busybox = \"/bin", "busybox = \"bin"),
        ),
        (
            "directories (/srv/../etc)",
            GOOD.replace("\"/srv\"", "\"/srv/../etc\""),
        ),
        ("directories (/)", GOOD.replace("\"/srv\"", "\"/\"")),
        (
            "files[0].path",
            GOOD.replace("\"/etc/motd\"", "\"etc/motd\""),
        ),
        (
            "files[0].mode",
            GOOD.replace("content =", "mode = 0o10000\ncontent ="),
        ),
        (
            "files[0].content",
            GOOD.replace("content = \"hello\\n\"", ""),
        ),
        (
            "files[0].content",
            GOOD.replace("content =", "source = \"x\"\ncontent ="),
        ),
        (
            "links[0].path",
            GOOD.replace("\"/sbin/init\"", "\"/sbin/./..\""),
        ),
        (
            "links[0].target",
            GOOD.replace("target = \"/bin/busybox\"", "target = \"\""),
        ),
    ];
    for (wanted, text) in mistakes {
        match parse(&text) {
            Err(RecipeError::Invalid { path, key, .. }) => {
                assert_eq!(path, Path::new("images/test.toml"));
                assert_eq!(key, wanted);
            }
            other => panic!("{wanted}: {other:?}"),
        }
    }
}

#[test]
fn file_name_that_cannot_name_an_image_is_refused() {
    let error = Recipe::parse(Path::new("images/a b.toml"), GOOD).expect_err("has a space");
    assert!(matches!(error, RecipeError::Invalid { .. }), "{error:?}");
}

#[test]
fn key_changes_with_everything_the_recipe_says() {
    let changes = [
        GOOD.replace("a test", "another"),
        GOOD.replace("bookworm", "trixie"),
        GOOD.replace("extract", "minbase"),
        GOOD.replace("busybox-static", "busybox"),
        GOOD.replace("= 64", "= 65"),
        GOOD.replace("busybox = \"/bin/busybox\"", ""),
        GOOD.replace("/srv", "/opt"),
        GOOD.replace("/etc/motd", "/etc/issue"),
        GOOD.replace("hello", "hallo"),
        GOOD.replace("content =", "mode = 0o600\ncontent ="),
        GOOD.replace("/sbin/init", "/init"),
        GOOD.replace("target = \"/bin/busybox\"", "target = \"busybox\""),
    ];
    let mut keys: Vec<CacheKey> = changes.iter().map(|text| key(text)).collect();
    keys.push(key(GOOD));
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), changes.len() + 1);
}

#[test]
fn key_ignores_comments_and_layout() {
    assert_eq!(key(&format!("# why\n\n{GOOD}")), key(GOOD));
}

#[test]
fn key_changes_with_a_source_and_not_with_its_place() {
    let key_in = |content: &str| {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join("motd"), content).expect("written");
        let path = dir.path().join("test.toml");
        let text = GOOD.replace("content = \"hello\\n\"", "source = \"motd\"");
        fs::write(&path, text).expect("written");
        Recipe::load(&path).expect("loads").key().expect("readable")
    };
    assert_eq!(key_in("one"), key_in("one"));
    assert_ne!(key_in("one"), key_in("two"));
}

#[test]
fn missing_source_is_named() {
    let text = GOOD.replace("content = \"hello\\n\"", "source = \"nowhere\"");
    match parse(&text).expect("parses").key() {
        Err(RecipeError::Read { path, .. }) => assert_eq!(path, Path::new("images/nowhere")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn recipes_that_ship_load() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../images");
    for name in ["tiny", "debian"] {
        let recipe = Recipe::load(&dir.join(name).with_extension("toml")).expect(name);
        recipe.key().expect(name);
    }
}
