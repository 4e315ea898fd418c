//! Language of the code: beginnings of doc comments, and pronouns of people.
//!
//! text --split--> pieces: comments and strings --judge--> faults, by line
//!
//! A doc comment begins with a verb or a noun, so that a list of them reads as a
//! list. Programs are no people: a comment or message names the client, host or
//! thread that it means. Strings of tests are free, as tests have to use any name.

/// Words that begin no doc comment.
const BEGINNINGS: [&str; 14] = [
    "How", "It", "Its", "The same", "What", "When", "Where", "Whether", "Which", "Who", "Whoever",
    "Whom", "Whose", "Why",
];
/// Pronouns of people, in lower case.
const PRONOUNS: [&str; 16] = [
    "anybody",
    "anyone",
    "everybody",
    "everyone",
    "he",
    "herself",
    "him",
    "himself",
    "his",
    "nobody",
    "she",
    "somebody",
    "someone",
    "who",
    "whoever",
    "whom",
];
/// Nouns of people, which `who` and `whom` may follow.
const PEOPLE: [&str; 8] = [
    "operator",
    "operators",
    "owner",
    "owners",
    "people",
    "person",
    "user",
    "users",
];

/// Kind of a piece of text for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Comment, whose line begins with this marker.
    Comment(&'static str),
    /// String literal.
    Literal,
}

/// Text for people, in a file.
#[derive(Debug)]
struct Piece<'a> {
    kind: Kind,
    /// First line, from 1 on.
    line: usize,
    text: &'a str,
}

/// Lists the faults of a file's language, each with its line. `is_test` is a file
/// of tests alone.
pub fn faults(text: &str, is_test: bool) -> Vec<String> {
    let code = if is_test { 0 } else { first_test(text) };
    let mut faults = Vec::new();
    let mut before: Option<(&str, usize)> = None;
    for piece in split(text) {
        if let Kind::Comment(marker) = piece.kind {
            let goes_on = before == Some((marker, piece.line - 1));
            before = Some((marker, piece.line));
            if marker != "//"
                && !goes_on
                && let Some(word) = beginning(piece.text)
            {
                faults.push(format!(
                    "{}: doc comment begins with {word:?}: begin with a verb or a noun",
                    piece.line
                ));
            }
        } else if piece.line > code || !piece.text.contains(' ') {
            // Of one word it is a name, such as that of a user.
            continue;
        }
        for (line, text) in (piece.line..).zip(piece.text.lines()) {
            if let Some(word) = pronoun(text) {
                faults.push(format!(
                    "{line}: {word:?} is for people: name the program that is meant"
                ));
            }
        }
    }
    faults
}

/// Returns the line before which a file's tests begin.
fn first_test(text: &str) -> usize {
    let lines = || text.lines();
    let tests = lines().position(|line| line.trim() == "#[cfg(test)]");
    tests.unwrap_or_else(|| lines().count())
}

fn beginning(text: &str) -> Option<&'static str> {
    let text = text.trim_start();
    let begins = |word: &&&str| {
        let rest = text.strip_prefix(**word);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    BEGINNINGS.iter().find(begins).copied()
}

/// Finds the first pronoun of people, outside of code and of places for values.
fn pronoun(text: &str) -> Option<&'static str> {
    let mut before = String::new();
    for word in prose(text).split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-')) {
        // A name in capitals is a name.
        let lower = word.to_lowercase();
        let is_name = word.len() > 1 && word == word.to_uppercase();
        let found = PRONOUNS.iter().find(|pronoun| **pronoun == lower);
        if let Some(found) = found.filter(|_| !is_name) {
            let of_people = ["who", "whom"].contains(found) && PEOPLE.contains(&before.as_str());
            if !of_people {
                return Some(found);
            }
        }
        if !word.is_empty() {
            before = lower;
        }
    }
    None
}

/// Removes what stands between backquotes or braces.
fn prose(text: &str) -> String {
    let mut prose = String::new();
    let mut end = None;
    for c in text.chars() {
        match (end, c) {
            (Some(last), c) if c == last => end = None,
            (Some(_), _) => {}
            (None, '`') => end = Some('`'),
            (None, '{') => end = Some('}'),
            (None, c) => prose.push(c),
        }
    }
    prose
}

/// Splits a file of Rust into its comments and string literals.
fn split(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut at, mut line) = (0, 1);
    // Start of the name or number that ends here.
    let mut word = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let (kind, skipped, length, total) = if let Some(marker) = marker(rest) {
            let length = rest.find('\n').unwrap_or(rest.len());
            let skipped = marker.len();
            (Some(Kind::Comment(marker)), skipped, length, length)
        } else if let Some((skipped, length, total)) = literal(rest, &text[word..at]) {
            (Some(Kind::Literal), skipped, length, total)
        } else {
            let total = character(rest).unwrap_or(c.len_utf8());
            (None, 0, total, total)
        };
        if let Some(kind) = kind {
            let text = &rest[skipped..length];
            pieces.push(Piece { kind, line, text });
        }
        line += rest[..total].matches('\n').count();
        at += total;
        if !(c.is_alphanumeric() || c == '_') {
            word = at;
        }
    }
    pieces
}

fn marker(rest: &str) -> Option<&'static str> {
    let markers = ["////", "///", "//!", "//"];
    let found = markers.into_iter().find(|marker| rest.starts_with(marker));
    // Four make a plain comment.
    found.map(|marker| if marker == "////" { "//" } else { marker })
}

/// Measures a string literal: where its text begins and ends, and where the literal
/// ends. After `word`, if that is no prefix of literals, an `r` is part of a name.
fn literal(rest: &str, word: &str) -> Option<(usize, usize, usize)> {
    if let Some(text) = rest.strip_prefix('"') {
        let mut escaped = false;
        let end = text.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        })?;
        return Some((1, 1 + end, end + 2));
    }
    let may_be_raw = ["", "b", "c"].contains(&word);
    let raw = rest.strip_prefix('r').filter(|_| may_be_raw)?;
    let hashes = raw.len() - raw.trim_start_matches('#').len();
    let text = raw[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = text.find(&close)?;
    let start = 1 + hashes + 1;
    Some((start, start + end, start + end + close.len()))
}

/// Measures a character literal; a lifetime is none.
fn character(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    let mut chars = inner.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        // The character after the backslash may be a quotation mark.
        chars.next()?;
        let (end, _) = chars.find(|(_, c)| *c == '\'')?;
        return Some(end + 2);
    }
    let (end, next) = chars.next()?;
    (next == '\'').then_some(end + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let number = |fault: &String| fault.split(':').next().and_then(|n| n.parse().ok());
        faults(text, false).iter().filter_map(number).collect()
    }

    #[test]
    fn doc_comments_begin_with_no_question_and_no_pronoun() {
        let text = "\
//! What this is.

/// How many.
/// What follows is free.
fn a() {}
/// Whether.
#[test]
/// Its.
fn b() {} // What for.
/// Whatever it is.
fn c() {}
/// The same, but not it.
fn d() {}
/// Number of a thing.
fn e() {}
/// Where it is.
const F: &str = \"\";
/// Why not, and
/// which of them.
fn g() {}
";
        assert_eq!(lines(text), [1, 3, 6, 8, 12, 16, 18]);
    }

    #[test]
    fn people_are_users_and_operators_and_no_programs() {
        for text in [
            "// Nobody waits.",
            "/// Clients who wait.",
            "fail(\"somebody\\\" else\");",
            "fail(r#\"a \" whoever\"#);",
            "let quote = ['\"', '\\'']; // he",
            "for br in [br#\"\"\"#, \"\\\"\"] {} // she",
        ] {
            assert_eq!(lines(text), [1], "{text}");
        }
        for text in [
            "// Users who wait, an operator whom others ask.",
            "// The user `nobody`, and [`NOBODY`], or NOBODY.",
            "fail(\"{who} is\", who, 'w');",
            "run_as(\"nobody\");",
            "fn a<'who>(of: &'who str) {}",
            "// A whole the other.",
        ] {
            assert_eq!(lines(text), [] as [usize; 0], "{text}");
        }
    }

    #[test]
    fn strings_of_tests_are_free_and_their_comments_are_not() {
        let test = "fn a(\"nobody waits\") {} // nobody\n";
        assert_eq!(lines(test).len(), 2);
        assert_eq!(lines(&format!("#[cfg(test)]\n{test}")), [2]);
        assert_eq!(faults(test, true).len(), 1);
    }

    #[test]
    fn lines_are_those_of_the_file() {
        let text = "fail(\"one\n two\n nobody\"); // he\n// she\n";
        assert_eq!(lines(text), [3, 3, 4]);
    }
}
