//! Names of public types: each stands for one concept in the whole workspace.
//!
//! libraries --parse--> modules --follow `pub mod`, `pub use`--> exports --compare--> faults
//!
//! Compares what other crates can name: structs, enums, traits, type aliases, unions, and types
//! that a macro of the same file makes and names after its first argument. A re-export is no
//! second type. Features are taken as on; modules of tests alone are left out.

use crate::run::cargo;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use syn::{
    Attribute, Ident, Item, ItemMacro, UseTree, Visibility, ext::IdentExt, parse::ParseStream,
};

/// Folders of libraries.
const LIBRARIES: [&str; 4] = ["lib", "sys", "types", "sdk/c"];
/// Names that several types may have, and why.
const SHARED: [(&str, &str); 7] = [
    (
        "Accel",
        "one concept: what VMs run by, and the baseline of measurements beside them",
    ),
    ("Answer", "what a server of a protocol says, of each one"),
    ("PlotError", "a picture that a simulator could not draw"),
    ("Reply", "what a server of a protocol says, of each one"),
    ("Request", "what a client of a protocol says, of each one"),
    ("SchedBoost", "one boost: of threads, of a QEMU's too"),
    ("Ticket", "one ticket: in the API, and as a handle in C"),
];

/// Path of a module or type; its first part is the crate.
type Full = Vec<String>;
/// Types that have a name, by the name.
type Named = BTreeMap<String, BTreeSet<Full>>;
/// Names in a module: what each means, and whether that is public.
type Scope = BTreeMap<String, BTreeMap<Full, bool>>;

/// Refuses a name that two public types have, and a shared name that only one has.
pub fn check(root: &Path) -> Result<()> {
    let mut modules = Modules::default();
    for (name, source) in libraries(root)? {
        modules.read_library(&name, &source)?;
    }
    let faults = faults(&modules.exports(), &SHARED);
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    Ok(())
}

/// Lists the libraries: name in code, and root.
fn libraries(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let metadata = ["metadata", "--no-deps", "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&cargo(root).args(metadata).printed()?)?;
    let mut libraries = Vec::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let source = Path::new(target["src_path"].as_str().context("no source")?);
            let is_library = LIBRARIES
                .iter()
                .any(|dir| source.starts_with(root.join(dir)));
            // Examples, tests and benches lie beside `src`.
            if is_library && source.ends_with("src/lib.rs") {
                let name = target["name"].as_str().context("no name")?;
                libraries.push((name.replace('-', "_"), source.to_owned()));
            }
        }
    }
    Ok(libraries)
}

fn faults(exports: &Named, shared: &[(&str, &str)]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, types) in exports {
        let is_shared = shared.iter().any(|(shared, _)| shared == name);
        if types.len() > 1 && !is_shared {
            let types: Vec<_> = types.iter().map(|full| full.join("::")).collect();
            let types = types.join(", ");
            faults.push(format!("{name}: {types}: rename all but one"));
        }
    }
    for (name, _) in shared {
        if exports.get(*name).is_none_or(|types| types.len() < 2) {
            faults.push(format!(
                "{name}: no two types share it: remove it from the list"
            ));
        }
    }
    faults
}

/// A `use` of one name, or of all names of a module.
#[derive(Debug)]
struct Use {
    module: Full,
    from: Vec<String>,
    /// Name that it gives; `None` for all names.
    name: Option<String>,
    is_public: bool,
}

/// All modules of the libraries.
#[derive(Debug, Default)]
struct Modules {
    scopes: BTreeMap<Full, Scope>,
    uses: Vec<Use>,
    /// Takes paths that lead to nothing of ours for paths of foreign crates.
    with_foreign: bool,
}

impl Modules {
    fn read_library(&mut self, name: &str, source: &Path) -> Result<()> {
        let below = source.parent().context("a file in no folder")?;
        self.read(&[name.to_owned()], source, below)
    }

    /// Reads the file of a module, and the modules in it. Files of those lie `below`.
    fn read(&mut self, module: &[String], file: &Path, below: &Path) -> Result<()> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let parsed = syn::parse_file(&text).with_context(|| file.display().to_string())?;
        self.declare(module, parsed.items, below)
    }

    fn declare(&mut self, module: &[String], items: Vec<Item>, below: &Path) -> Result<()> {
        self.scopes.entry(module.to_vec()).or_default();
        let mut makers = Vec::new();
        for item in items {
            if let Item::Mod(inner) = item {
                if inner.attrs.iter().any(is_for_tests) {
                    continue;
                }
                let name = inner.ident.unraw().to_string();
                let (full, place) = (join(module, &name), below.join(&name));
                self.name(module, &name, full.clone(), is_public(&inner.vis));
                match inner.content {
                    Some((_, items)) => self.declare(&full, items, &place)?,
                    None => {
                        let file = Some(place.with_extension("rs")).filter(|file| file.exists());
                        let file = file.unwrap_or_else(|| place.join("mod.rs"));
                        self.read(&full, &file, &place)?;
                    }
                }
            } else if let Item::Use(item) = item {
                self.import(module, &[], item.tree, is_public(&item.vis));
            } else if let Item::Macro(item) = item {
                makers.extend(maker(&item));
                if makers.iter().any(|maker| item.mac.path.is_ident(maker)) {
                    let name = item.mac.parse_body_with(first_name)?.to_string();
                    self.name(module, &name, join(module, &name), true);
                }
            } else if let Some((name, vis)) = type_of(&item) {
                let name = name.unraw().to_string();
                self.name(module, &name, join(module, &name), is_public(vis));
            }
        }
        Ok(())
    }

    /// Notes the names that a `use` gives.
    fn import(&mut self, module: &[String], from: &[String], tree: UseTree, is_public: bool) {
        let (last, name) = match tree {
            UseTree::Path(path) => {
                let from = join(from, &path.ident.unraw().to_string());
                return self.import(module, &from, *path.tree, is_public);
            }
            UseTree::Group(group) => {
                for tree in group.items {
                    self.import(module, from, tree, is_public);
                }
                return;
            }
            UseTree::Glob(_) => (None, None),
            // A module beside what is in it.
            UseTree::Name(name) if name.ident == "self" => (None, from.last().cloned()),
            UseTree::Name(name) => {
                let name = name.ident.unraw().to_string();
                (Some(name.clone()), Some(name))
            }
            UseTree::Rename(name) => (
                Some(name.ident.unraw().to_string()),
                Some(name.rename.unraw().to_string()),
            ),
        };
        self.uses.push(Use {
            module: module.to_vec(),
            from: from.iter().cloned().chain(last).collect(),
            name,
            is_public,
        });
    }

    /// Gives a name in a module; true if that is news.
    fn name(&mut self, module: &[String], name: &str, full: Full, is_public: bool) -> bool {
        let scope = self.scopes.entry(module.to_vec()).or_default();
        let meanings = scope.entry(name.to_owned()).or_default();
        match meanings.insert(full.clone(), is_public) {
            None => true,
            Some(before) => {
                meanings.insert(full, is_public || before);
                is_public && !before
            }
        }
    }

    /// Lists what other crates can name.
    fn exports(mut self) -> Named {
        let uses = std::mem::take(&mut self.uses);
        // An import may lead to another one; only then is it known which are foreign.
        for with_foreign in [false, true] {
            self.with_foreign = with_foreign;
            while uses.iter().fold(false, |any, used| any | self.follow(used)) {}
        }
        let mut exports = Named::new();
        let mut left: Vec<_> = self.scopes.keys().filter(|p| p.len() == 1).collect();
        let mut seen = BTreeSet::new();
        while let Some(path) = left.pop() {
            let scope = self.scopes.get(path).filter(|_| seen.insert(path));
            for (name, meanings) in scope.into_iter().flatten() {
                for (full, _) in meanings.iter().filter(|(_, is_public)| **is_public) {
                    if self.scopes.contains_key(full) {
                        left.push(full);
                    } else if self.is_ours(full) || is_type_name(name) {
                        let types = exports.entry(name.clone()).or_default();
                        types.insert(full.clone());
                    }
                }
            }
        }
        exports
    }

    /// Gives the names of an import, as far as it is known now; true if one is news.
    fn follow(&mut self, used: &Use) -> bool {
        let mut given = Vec::new();
        for full in self.resolve(&used.module, &used.from) {
            if let Some(name) = &used.name {
                given.push((name.clone(), full));
                continue;
            }
            for (name, meanings) in self.scopes.get(&full).into_iter().flatten() {
                let public = meanings.iter().filter(|(_, is_public)| **is_public);
                given.extend(public.map(|(full, _)| (name.clone(), full.clone())));
            }
        }
        let mut any = false;
        for (name, full) in given {
            any |= self.name(&used.module, &name, full, used.is_public);
        }
        any
    }

    /// Finds what a path leads to in a module.
    fn resolve(&self, module: &[String], from: &[String]) -> Vec<Full> {
        let mut found = vec![module.to_vec()];
        for (at, part) in from.iter().enumerate() {
            let step = |full: &Full| match part.as_str() {
                "self" => vec![full.clone()],
                "super" => vec![full[..full.len() - 1].to_vec()],
                "crate" => vec![full[..1].to_vec()],
                name => match self.scopes.get(full) {
                    Some(scope) => {
                        let meanings = scope.get(name).into_iter().flatten();
                        // A path through a foreign name would lead on without end.
                        let found = meanings.filter(|(full, _)| at > 0 || self.is_ours(full));
                        let found: Vec<_> = found.map(|(full, _)| full.clone()).collect();
                        let krate = vec![name.to_owned()];
                        let is_crate = self.with_foreign || self.is_ours(&krate);
                        match found.is_empty() && at == 0 && is_crate {
                            true => vec![krate],
                            false => found,
                        }
                    }
                    // In a type of ours there are only variants.
                    None if self.is_ours(full) => Vec::new(),
                    None => vec![join(full, name)],
                },
            };
            found = found.iter().flat_map(step).collect();
        }
        found
    }

    /// True if it is in a library of the workspace.
    fn is_ours(&self, full: &[String]) -> bool {
        self.scopes.contains_key(&full[..1])
    }
}

fn join(path: &[String], name: &str) -> Full {
    path.iter().cloned().chain([name.to_owned()]).collect()
}

fn is_public(vis: &Visibility) -> bool {
    matches!(vis, Visibility::Public(_))
}

fn is_for_tests(attribute: &Attribute) -> bool {
    let list = attribute.meta.require_list();
    list.is_ok_and(|list| list.path.is_ident("cfg") && list.tokens.to_string() == "test")
}

/// Functions, constants and modules of other crates are told from types by their names.
fn is_type_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_uppercase()) && name.contains(|c: char| c.is_lowercase())
}

/// Name and visibility of a type.
fn type_of(item: &Item) -> Option<(&Ident, &Visibility)> {
    if let Item::Struct(item) = item {
        Some((&item.ident, &item.vis))
    } else if let Item::Enum(item) = item {
        Some((&item.ident, &item.vis))
    } else if let Item::Trait(item) = item {
        Some((&item.ident, &item.vis))
    } else if let Item::Type(item) = item {
        Some((&item.ident, &item.vis))
    } else if let Item::Union(item) = item {
        Some((&item.ident, &item.vis))
    } else {
        None
    }
}

/// Name of a macro that this item declares and that makes public types.
fn maker(item: &ItemMacro) -> Option<Ident> {
    let mut body = item.mac.tokens.to_string();
    body.retain(|c| !c.is_whitespace());
    let makes = ["pubstruct$", "pubenum$"]
        .iter()
        .any(|made| body.contains(made));
    item.ident.clone().filter(|_| makes)
}

/// Reads the name with which the arguments of a macro begin, after attributes.
fn first_name(arguments: ParseStream<'_>) -> syn::Result<Ident> {
    arguments.call(Attribute::parse_outer)?;
    let name = arguments.parse()?;
    while !arguments.is_empty() {
        arguments.parse::<syn::parse::Nothing>()?;
        arguments.step(|at| Ok(((), at.token_tree().map_or(*at, |(_, rest)| rest))))?;
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exports of crates, each of them some files.
    fn exports(crates: &[(&str, &[(&str, &str)])]) -> Named {
        let dir = tempfile::tempdir().expect("a directory");
        let mut modules = Modules::default();
        for (name, files) in crates {
            for (file, text) in *files {
                let path = dir.path().join(name).join(file);
                fs::create_dir_all(path.parent().expect("one")).expect("made");
                fs::write(path, text).expect("written");
            }
            let root = dir.path().join(name).join("lib.rs");
            modules.read_library(name, &root).expect("read");
        }
        modules.exports()
    }

    fn names(text: &str) -> Vec<String> {
        exports(&[("a", &[("lib.rs", text)])]).into_keys().collect()
    }

    #[test]
    fn types_of_every_kind_are_exported_if_they_are_public() {
        let text = "\
pub struct Struct;
pub enum Enum {}
pub trait Trait {}
pub type Alias = u8;
pub union Union { a: u8 }
struct Private;
pub(crate) enum Inner {}
pub(super) type Outer = u8;
pub fn function() {}
pub const CONSTANT: u8 = 0;
fn body() { struct Local; }
";
        assert_eq!(names(text), ["Alias", "Enum", "Struct", "Trait", "Union"]);
    }

    #[test]
    fn only_public_modules_and_re_exports_are_seen_from_outside() {
        let text = "\
pub mod open { pub struct Seen; pub(crate) mod shut { pub struct Unseen; } }
mod private { pub struct Given; pub struct Kept; pub mod deep { pub struct Deep; } }
mod all { pub struct One; pub struct Two; struct Not; pub fn also() {} }
mod inside { pub struct Crate; }
mod imported { pub struct Renamed; }
use imported as other;
pub use self::private::{Given, deep::{self}};
pub use all::*;
pub(crate) use inside::Crate;
pub use crate::other::Renamed as New;
#[cfg(test)]
pub mod tests { pub struct Test; }
#[cfg(feature = \"testing\")]
pub mod testing { pub struct Testing; }
";
        let seen = ["Deep", "Given", "New", "One", "Seen", "Testing", "Two"];
        assert_eq!(names(text), seen);
    }

    #[test]
    fn types_that_a_macro_makes_have_the_name_that_it_is_given() {
        let text = "\
macro_rules! id { ($(#[$doc:meta])* $name:ident, $n:literal) => { pub struct $name(u8); } }
macro_rules! text { ($name:ident) => { impl From<$name> for u8 {} } }
id!(/** One. */ One, 1);
text!(Other);
";
        assert_eq!(names(text), ["One"]);
    }

    #[test]
    fn modules_are_read_from_their_files() {
        let files = [
            ("lib.rs", "pub mod a;\nmod b;\npub use b::c::C;\n"),
            ("a.rs", "pub struct A;\n"),
            ("b/mod.rs", "pub mod c;\n"),
            (
                "b/c.rs",
                "pub struct C;\npub use super::super::a::A as D;\n",
            ),
        ];
        let exports = exports(&[("x", &files)]);
        assert_eq!(exports.into_keys().collect::<Vec<_>>(), ["A", "C"]);
    }

    #[test]
    fn a_re_export_is_the_type_itself_and_a_second_type_is_refused() {
        let one: (_, &[_]) = (
            "one",
            &[(
                "lib.rs",
                "mod m { pub struct A; pub struct B; }\npub use m::*;",
            )],
        );
        let text = "pub use one::A;\npub use foreign::{Far, f, deep, F};\npub use B as Other;\nuse one::B;";
        let two: (_, &[_]) = ("two", &[("lib.rs", text)]);
        let good = exports(&[one, two]);
        assert_eq!(faults(&good, &[]), [] as [String; 0]);
        assert!(good.contains_key("Far") && good.contains_key("Other"));

        let three: (_, &[_]) = (
            "three",
            &[("lib.rs", "pub enum A {}\npub mod o { pub struct Far; }\n")],
        );
        let bad = exports(&[one, two, three]);
        let wrong = [
            "A: one::m::A, three::A: rename all but one",
            "Far: foreign::Far, three::o::Far: rename all but one",
        ];
        assert_eq!(faults(&bad, &[]), wrong);
        assert_eq!(faults(&bad, &[("A", "one concept")]), wrong[1..]);
    }

    #[test]
    fn an_import_of_its_own_name_comes_to_an_end() {
        let text =
            "use a::b;\nuse b::a;\npub use c::c;\npub use e::*;\nmod e { pub use super::*; }";
        assert_eq!(names(text), [] as [String; 0]);
    }

    #[test]
    fn a_shared_name_that_is_not_shared_leaves_the_list() {
        let one = exports(&[("a", &[("lib.rs", "pub struct A;")])]);
        for name in ["A", "B"] {
            let stale = format!("{name}: no two types share it: remove it from the list");
            assert_eq!(faults(&one, &[(name, "why")]), [stale]);
        }
    }
}
