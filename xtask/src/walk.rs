//! The path of a fork in the tour of the code: files and functions that it names exist, and no file is
//! opened twice.
//!
//! ```text
//! path/to/file.rs  name, other       words        a file that is opened here, and functions in it
//! (file.rs  name)                    words        functions in a file that is open already
//! ```

use std::{collections::BTreeMap, fs, path::Path};

/// Heading of the part of the tour that is checked.
const HEADING: &str = "## A fork, walked";

/// Texts of the files that were opened, by their paths.
type Opened = BTreeMap<String, String>;

/// Lists what the walk names and is not there.
pub fn broken(root: &Path, tour: &str) -> Vec<String> {
    let mut part = tour.lines().skip_while(|line| *line != HEADING);
    if part.next().is_none() {
        return vec![format!("there is no heading {HEADING:?}")];
    }
    let (mut opened, mut wrong) = (Opened::new(), Vec::new());
    let (mut fenced, mut prose) = (false, String::new());
    for line in part.take_while(|line| !line.starts_with("## ")) {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            wrong.extend(stops(line).flat_map(|stop| stop.follow(root, &mut opened)));
        } else {
            prose += line;
            prose.push('\n');
        }
    }
    wrong.extend(mentions(root, &prose, &mut opened));
    if opened.is_empty() {
        wrong.push("it names no file".into());
    }
    wrong
}

/// A file in the picture, with functions in it.
struct Stop<'a> {
    file: &'a str,
    functions: Vec<&'a str>,
}

/// Gives the files that a line of the picture names.
fn stops(line: &str) -> impl Iterator<Item = Stop<'_>> {
    let words: Vec<_> = line.split_whitespace().collect();
    let files: Vec<_> = (0..words.len())
        .filter(|at| words[*at].ends_with(".rs"))
        .collect();
    files.into_iter().map(move |at| {
        let mut functions = Vec::new();
        for word in &words[at + 1..] {
            functions.push(word.trim_end_matches([',', ')']));
            if !word.ends_with(',') {
                break;
            }
        }
        Stop {
            file: words[at].trim_start_matches('('),
            functions,
        }
    })
}

impl Stop<'_> {
    fn follow(&self, root: &Path, opened: &mut Opened) -> Vec<String> {
        let file = self.file;
        let text = match file.contains('/') {
            true if opened.contains_key(file) => {
                return vec![format!("{file} is opened twice")];
            }
            true => match open(root, file, opened) {
                Some(text) => text,
                None => return vec![format!("there is no {file}")],
            },
            false => {
                let end = format!("/{file}");
                let known: Vec<_> = opened.iter().filter(|it| it.0.ends_with(&end)).collect();
                match known[..] {
                    [(_, text)] => text,
                    _ => return vec![format!("{file} is not one file that is open")],
                }
            }
        };
        if self.functions.is_empty() {
            return vec![format!("{file} is opened for no function")];
        }
        let missing = self.functions.iter().filter(|name| !defines(text, name));
        missing
            .map(|name| format!("{file} has no function {name:?}"))
            .collect()
    }
}

/// Checks the files and functions that prose names between backticks: a function is in one of the files that
/// are named anywhere.
fn mentions(root: &Path, prose: &str, opened: &mut Opened) -> Vec<String> {
    let names: Vec<_> = prose.split('`').skip(1).step_by(2).collect();
    let (files, names): (Vec<_>, Vec<_>) = names.into_iter().partition(|it| it.ends_with(".rs"));
    let mut wrong = Vec::new();
    for file in files {
        if open(root, file, opened).is_none() {
            wrong.push(format!("there is no {file}"));
        }
    }
    let is_name = |name: &&str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let unknown = names
        .into_iter()
        .filter(is_name)
        .filter(|name| !opened.values().any(|text| defines(text, name)));
    wrong.extend(unknown.map(|name| format!("no file has a function {name:?}")));
    wrong
}

fn open<'a>(root: &Path, file: &str, opened: &'a mut Opened) -> Option<&'a String> {
    let text = fs::read_to_string(root.join(file)).ok()?;
    Some(opened.entry(file.to_owned()).or_insert(text))
}

fn defines(text: &str, function: &str) -> bool {
    ["(", "<"]
        .iter()
        .any(|end| text.contains(&format!("fn {function}{end}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walked(walk: &str) -> Vec<String> {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in [
            ("a", "pub fn first() {}\nasync fn second<T>() {}\n"),
            ("b", "fn third() {}\n"),
        ] {
            fs::create_dir_all(dir.path().join("lib")).expect("made");
            fs::write(dir.path().join(format!("lib/{name}.rs")), text).expect("written");
        }
        broken(dir.path(), walk)
    }

    #[test]
    fn a_walk_that_is_true_is_not_complained_of() {
        let walk = "```text\nlib/x.rs  y\n```\n## A fork, walked\n\n```text\nlib/a.rs  first, second   words, `rm`\n  \
                    └─► lib/b.rs  third ···► (a.rs  first)   other words\n```\n\n`first` and `third`, as in `lib/b.rs`; `a b`.\n\
                    ## Other\n`gone` `lib/gone.rs`\n";
        assert_eq!(walked(walk), Vec::<String>::new());
    }

    #[test]
    fn whatever_is_not_there_or_opened_twice_is_listed() {
        let walk = "## A fork, walked\n```text\nlib/a.rs  first, fourth   words\nlib/c.rs  first\nlib/a.rs  second\n\
                    (b.rs  third)\nlib/b.rs\n(a.rs  fir)\n```\n`gone` in `lib/d.rs`, `third`\n";
        assert_eq!(
            walked(walk),
            [
                "lib/a.rs has no function \"fourth\"",
                "there is no lib/c.rs",
                "lib/a.rs is opened twice",
                "b.rs is not one file that is open",
                "lib/b.rs is opened for no function",
                "a.rs has no function \"fir\"",
                "there is no lib/d.rs",
                "no file has a function \"gone\"",
            ]
        );
    }

    #[test]
    fn a_walk_that_is_gone_is_not_taken_for_a_true_one() {
        assert!(!walked("## Another heading\n").is_empty());
        assert!(!walked("## A fork, walked\nnothing\n").is_empty());
    }
}
