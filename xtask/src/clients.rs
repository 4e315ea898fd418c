//! The SDKs stay alike: what a program can do in one language it can do in the others, and what the API
//! can do is in all of them, or is left out for a reason that is written here.
//!
//! Reads the names of methods, and the routes that TypeScript names literally. A name in Python is the
//! same one in TypeScript, where `snake_case` is `camelCase`.

use anyhow::{Context, Result, bail};
use std::{collections::BTreeSet, fs, path::Path};

/// Methods of one language alone: class, name as of Python, and the reason.
const APART: [(&str, &str, &str); 5] = [
    ("Files", "put", "in Node `unpack` takes a tar stream"),
    ("Files", "get", "in Node `pack` gives a tar stream"),
    ("Files", "stream", "in Python `get` writes to a file"),
    ("Files", "pack", "in Python there is `get`"),
    ("Files", "unpack", "in Python there is `put`"),
];

/// Beginnings of routes that no SDK has, and the reason.
const LEFT_OUT: [(&str, &str); 22] = [
    ("/metrics", "for Prometheus"),
    ("/openapi.json", "the description itself"),
    ("/v1/doctor", "the host's operator has `forkyard doctor`"),
    (
        "/v1/friendly/police",
        "the host's operator has `forkyard friendly police`",
    ),
    ("/v1/images/{name}/disk", "`forkyard image export`"),
    ("/v1/join", "between nodes"),
    ("/v1/nodes", "the cluster's operator has `forkyard node`"),
    ("/v1/pages", "the host's operator has `forkyard inspect`"),
    ("/v1/peer/", "between hosts"),
    ("/v1/ping", "the SDKs' own look at a daemon that is silent"),
    ("/v1/quotas", "the cluster's operator has `forkyard node`"),
    ("/v1/sched", "the host's operator has `forkyard sched`"),
    ("/v1/stores/collect", "`forkyard substrate collect`"),
    ("/v1/substrate-key", "`forkyard substrate key`"),
    (
        "/v1/substrates/{name}/activations",
        "for clients that watch",
    ),
    ("/v1/tickets", "guests' own"),
    ("/v1/tokens", "root of the host has `forkyard token`"),
    ("/v1/vms/{vm}/console", "`forkyard console`"),
    ("/v1/vms/{vm}/disk", "`forkyard image export --vm`"),
    ("/v1/volumes/{name}/export", "`forkyard volume export`"),
    ("/v1/vms/{vm}/archive", "in Python by `put` and `get`"),
    ("/v1/events", "a stream, of the module for events"),
];

/// Lists what one SDK has and another has not, and routes that none has.
pub fn check(root: &Path) -> Result<()> {
    let read = |path: &str| {
        fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))
    };
    let python = read("sdk/python/forkyard_host/_client.py")?;
    let on_loop = read("sdk/python/forkyard_host/_aio.py")?;
    let mut faults = Vec::new();
    let mut sources = String::new();
    for (class, file) in [("Forkyard", "client"), ("Vm", "vm"), ("Files", "files")] {
        let script = read(&format!("sdk/typescript/src/{file}.ts"))?;
        let blocking = of_python(&python, class);
        let awaited = of_python(&on_loop, &format!("Async{class}"));
        let node = of_typescript(&script);
        let [here, there] = ["Python", "asyncio's Python"];
        faults.extend(differences(class, (here, &blocking), (there, &awaited)));
        let (blocking, node) = (but_apart(class, blocking), but_apart(class, node));
        faults.extend(differences(class, (here, &blocking), ("TypeScript", &node)));
        sources += &script;
    }
    let description: serde_json::Value = serde_json::from_str(&read("sdk/openapi.json")?)?;
    let paths = description["paths"].as_object();
    let paths = paths.context("the description has no paths")?;
    faults.extend(without_method(paths.keys().map(String::as_str), &sources));
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

/// Names of the public methods of a class.
fn of_python(source: &str, class: &str) -> BTreeSet<String> {
    let is_head = |line: &&str| line.starts_with("class ");
    let body = source.lines().skip_while(|line| {
        let name = line.strip_prefix("class ").unwrap_or_default();
        name.split([':', '(']).next() != Some(class)
    });
    let body = body.skip(1).take_while(|line| !is_head(line));
    let name = |line: &str| {
        let line = line.strip_prefix("    ")?;
        let line = line.strip_prefix("async ").unwrap_or(line);
        named(line.strip_prefix("def ")?)
    };
    body.filter_map(name).collect()
}

/// Names of the public methods of the class of a file, as Python has them.
fn of_typescript(source: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let line = line.strip_prefix("  ")?;
        let line = line.strip_prefix("async ").unwrap_or(line);
        let words = ["get ", "constructor", "if ", "for "];
        if words.iter().any(|word| line.starts_with(word)) {
            return None;
        }
        named(line)
    };
    let snake = |name: String| {
        let mut snake = String::new();
        for letter in name.chars() {
            if letter.is_ascii_uppercase() {
                snake.push('_');
            }
            snake.push(letter.to_ascii_lowercase());
        }
        snake
    };
    source.lines().filter_map(name).map(snake).collect()
}

/// The name at the beginning of a method, unless it is private.
fn named(line: &str) -> Option<String> {
    let name = line.split(['(', '<']).next()?;
    let is_name = name.starts_with(|letter: char| letter.is_ascii_lowercase())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && name.len() < line.len();
    is_name.then(|| name.to_owned())
}

fn but_apart(class: &str, mut names: BTreeSet<String>) -> BTreeSet<String> {
    names.retain(|name| { APART.iter() }.all(|(of, it, _)| (*of, *it) != (class, name)));
    names
}

fn differences(
    class: &str,
    (one, ours): (&str, &BTreeSet<String>),
    (other, theirs): (&str, &BTreeSet<String>),
) -> Vec<String> {
    let lacks = |whose: &str, name: &String| format!("{class} of {whose} has no {name}");
    let there = ours.difference(theirs).map(|name| lacks(other, name));
    let here = theirs.difference(ours).map(|name| lacks(one, name));
    there.chain(here).collect()
}

/// Routes that the sources do not name, though they are not left out on purpose.
fn without_method<'a>(paths: impl Iterator<Item = &'a str>, sources: &str) -> Vec<String> {
    let is_left_out = |path: &str| LEFT_OUT.iter().any(|(begin, _)| path.starts_with(begin));
    let is_there = |path: &str| sources.contains(&format!("\"{path}\""));
    let missing = paths.filter(|path| !is_left_out(path) && !is_there(path));
    let told = |path| format!("no SDK has {path}: add it, or say why not in xtask/src/clients.rs");
    missing.map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PYTHON: &str = "class Vm(View):\n    def set_labels(self) -> None:\n        def inner() -> None:\n\
        \x20   def _own(self) -> None:\nclass Other:\n    def other(self) -> None:\n";

    #[test]
    fn methods_of_one_class_are_found_and_named_alike() {
        let wanted = BTreeSet::from(["set_labels".to_owned()]);
        assert_eq!(of_python(PYTHON, "Vm"), wanted);
        let script = "  constructor(a: B) {\n  get id(): string {\n  async setLabels(a: B): C {\n  async #own() {\n";
        assert_eq!(of_typescript(script), wanted);
    }

    #[test]
    fn a_method_that_one_lacks_is_told_unless_it_is_left_out_on_purpose() {
        let [one, other] = [["pause", "put"], ["pause", "fork"]]
            .map(|names| names.map(str::to_owned).into_iter().collect());
        let [one, other] = [but_apart("Files", one), but_apart("Files", other)];
        assert_eq!(
            differences("Files", ("A", &one), ("B", &other)),
            ["Files of A has no fork"]
        );
    }

    #[test]
    fn a_route_without_a_method_is_told() {
        let paths = ["/metrics", "/v1/vms", "/v1/vms/{vm}/pause"];
        let told = without_method(paths.into_iter(), "call(\"/v1/vms\")");
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("/v1/vms/{vm}/pause"), "{told:?}");
    }
}
