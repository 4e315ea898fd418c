//! Command lines of the documentation, which must be understood, and commands that messages name.

use super::super::Args;
use clap::{CommandFactory, Parser, error::ErrorKind};
use std::{
    fs,
    path::{Path, PathBuf},
};

#[test]
fn every_command_line_in_the_documentation_is_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md")];
    collect(&root.join("docs"), "md", &mut pages);
    let mut count = 0;
    let mut refused = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page");
        for words in commands(&text) {
            count += 1;
            if let Err(error) = Args::try_parse_from(&words)
                && !matches!(
                    error.kind(),
                    ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
                )
            {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default().to_owned();
                refused.push(format!("{}: {words:?}: {why}", page.display()));
            }
        }
    }
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(count > 100, "only {count} command lines were found");
}

#[test]
fn every_command_that_a_message_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for folder in ["bin", "lib", "types"] {
        collect(&root.join(folder), "rs", &mut files);
    }
    let mut count = 0;
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a file");
        for named in named(&text) {
            count += 1;
            if let Some(word) = not_a_command(named) {
                wrong.push(format!("{}: {named:?}: no {word:?}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 100, "only {count} commands were found");
}

#[test]
fn commands_that_are_not_there_are_found_out() {
    for (named, wrong) in [
        ("ls", Some("ls")),
        ("image", None),
        ("image ls", None),
        ("image list", Some("list")),
        ("rm p", None),
        ("exec VM -- nosuch", None),
        ("node --help", None),
    ] {
        assert_eq!(not_a_command(named), wrong, "{named}");
    }
}

/// Gives what stands between backticks after the name of this program.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let spans = text.split(concat!("`", "forkyard ")).skip(1);
    spans.map(|rest| {
        rest.split(['`', '\n', '\\', '"'])
            .next()
            .unwrap_or_default()
    })
}

/// Finds the first word where a command is due that is none.
fn not_a_command(named: &str) -> Option<&str> {
    let all = Args::command();
    let mut command = &all;
    for word in named.split_whitespace() {
        let is_word = word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        if !is_word || word.starts_with('-') || !command.has_subcommands() {
            return None;
        }
        match command.find_subcommand(word) {
            Some(found) => command = found,
            None => return Some(word),
        }
    }
    None
}

#[test]
fn command_lines_are_found_as_a_shell_would() {
    assert_eq!(
        commands("    $ forkyard exec p -- sh -c 'a b; c' >out 2>&1 # why"),
        [["forkyard", "exec", "p", "--", "sh", "-c", "a b; c"]]
    );
    assert_eq!(
        commands(
            "```sh\nA=\"b c\" forkyard ps &\nx | forkyard rm p && true\n```\nforkyard in prose"
        ),
        [vec!["forkyard", "ps"], vec!["forkyard", "rm", "p"]]
    );
    assert_eq!(
        commands("    T=$(forkyard token create sdk -o json | jq .token)"),
        [["forkyard", "token", "create", "sdk", "-o", "json"]]
    );
    assert!(commands("    forkyard exec p -- …").is_empty());
}

fn collect(folder: &Path, kind: &str, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, kind, into);
        } else if path.extension().is_some_and(|end| end == kind) {
            into.push(path);
        }
    }
}

/// Gives the calls of `forkyard` in a page's blocks of code, but those that leave something out.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            found.extend(simple_commands(line).into_iter().filter_map(|words| {
                let own = words.iter().position(|word| !word.contains('='))?;
                let words = &words[own..];
                let whole = !words.iter().any(|word| word.contains(['…', '$']));
                (words[0] == "forkyard" && words.len() > 1 && whole).then(|| words.to_vec())
            }));
        }
    }
    found
}

/// Splits a line of a shell into its simple commands, without redirections and comments.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut redirected = false;
    let mut chars = line.trim().trim_start_matches("$ ").chars();
    while let Some(char) = chars.next() {
        let ends_word = matches!(char, ' ' | '|' | ';' | '&' | '>' | '<' | '(' | ')');
        if ends_word && let Some(done) = word.take() {
            let descriptor = matches!(char, '>' | '<') && done.parse::<u8>().is_ok();
            if !redirected
                && !descriptor
                && let Some(command) = commands.last_mut()
            {
                command.push(done);
            }
            redirected = false;
        }
        match char {
            ' ' => {}
            '#' if word.is_none() => break,
            '>' | '<' => redirected = true,
            '&' if redirected => {}
            '|' | ';' | '&' | '(' | ')' => commands.push(Vec::new()),
            '\'' | '"' => {
                let quoted: String = chars.by_ref().take_while(|next| *next != char).collect();
                word.get_or_insert_default().push_str(&quoted);
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            char => word.get_or_insert_default().push(char),
        }
    }
    if let (Some(word), false, Some(command)) = (word, redirected, commands.last_mut()) {
        command.push(word);
    }
    commands.retain(|command| !command.is_empty());
    commands
}
