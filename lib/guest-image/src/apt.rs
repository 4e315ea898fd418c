//! Sources of this host's Debian packages.
//!
//! A host's own sources are the ones that work on it: a mirror nearby, a
//! frozen snapshot, a proxy. Of them, only Debian's own for the suite wanted
//! are used: what a third party adds for the host has no place in a guest.

use crate::{
    error::{BuildError, io_error},
    progress::Progress,
    run::APT_CONFIG,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Folder of apt's configuration.
const ETC_APT: &str = "/etc/apt";

/// One source in apt's one-line form, `deb [options] uri suite components`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Source {
    keyring: Option<String>,
    uri: String,
    suite: String,
    components: Vec<String>,
}

impl Source {
    pub(crate) fn line(&self) -> String {
        let options = match &self.keyring {
            Some(path) => format!("[signed-by={path}] "),
            None => String::new(),
        };
        let components = self.components.join(" ");
        format!("deb {options}{} {} {components}", self.uri, self.suite)
    }

    /// Tells whether it is Debian's for this release. By shape, for a mirror may have
    /// any address: third parties use suites or components of their own.
    fn is_debians(&self, suite: &str) -> bool {
        let rest = self.suite.strip_prefix(suite);
        rest.is_some_and(|r| ["", "-updates", "-security"].contains(&r))
            && self.components.iter().any(|c| c == "main")
    }
}

/// Sources for `suite`: the host's, or Debian's public ones if it has none.
pub(crate) fn sources(suite: &str) -> Result<Vec<Source>, BuildError> {
    let mut found = Vec::new();
    for path in source_files(Path::new(ETC_APT))? {
        let text = fs::read_to_string(&path).map_err(io_error("read", &path))?;
        let all = match path.extension() {
            Some(e) if e == "sources" => parse_deb822(&text),
            Some(_) | None => parse_lines(&text),
        };
        found.extend(all.into_iter().filter(|s| s.is_debians(suite)));
    }
    found.sort();
    found.dedup();
    // Updates alone make no system: the release itself must be among them.
    if !found.iter().any(|s| s.suite == suite) {
        found = public(suite);
    }
    Ok(found)
}

fn public(suite: &str) -> Vec<Source> {
    let source = |uri: &str, suite: String| Source {
        keyring: None,
        uri: uri.into(),
        suite,
        components: vec!["main".into()],
    };
    vec![
        source("http://deb.debian.org/debian", suite.into()),
        source("http://deb.debian.org/debian", format!("{suite}-updates")),
        source(
            "http://deb.debian.org/debian-security",
            format!("{suite}-security"),
        ),
    ]
}

/// The files apt would read, in its order. None of them need exist.
fn source_files(etc: &Path) -> Result<Vec<PathBuf>, BuildError> {
    let parts = etc.join("sources.list.d");
    let mut files = match fs::read_dir(&parts) {
        Ok(entries) => entries
            .map(|entry| entry.map(|e| e.path()))
            .collect::<io::Result<Vec<_>>>()
            .map_err(io_error("list", &parts))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(e) => return Err(io_error("list", &parts)(e)),
    };
    files.retain(|f| f.extension().is_some_and(|e| e == "list" || e == "sources"));
    files.sort();
    let main = etc.join("sources.list");
    if main.exists() {
        files.insert(0, main);
    }
    Ok(files)
}

/// The form of `sources.list`: `deb [signed-by=K] URI SUITE COMPONENT…`.
fn parse_lines(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Source> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let rest = line.strip_prefix("deb")?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (options, rest) = match rest.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?,
        None => ("", rest),
    };
    let keyring = options
        .split_whitespace()
        .find_map(|o| o.strip_prefix("signed-by="))
        .map(str::to_owned);
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source {
        keyring,
        uri: words.next()?,
        suite: words.next()?,
        components: words.collect(),
    })
}

/// The form of `*.sources`: paragraphs of fields, several values to a field.
fn parse_deb822(text: &str) -> Vec<Source> {
    let text: String = text
        .lines()
        .filter(|l| !l.starts_with('#'))
        .flat_map(|l| [l.trim_end(), "\n"])
        .collect();
    text.split("\n\n").flat_map(parse_stanza).collect()
}

fn parse_stanza(stanza: &str) -> Vec<Source> {
    // A line that begins with a blank goes on with the field before it.
    let stanza = stanza.replace("\n ", " ").replace("\n\t", " ");
    let field = |name: &str| -> Vec<String> {
        stanza
            .lines()
            .filter_map(|l| l.split_once(':'))
            .find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.split_whitespace().map(str::to_owned).collect())
            .unwrap_or_default()
    };
    let off = field("Enabled").iter().any(|v| v == "no" || v == "false");
    if off || !field("Types").iter().any(|t| t == "deb") {
        return Vec::new();
    }
    // A key may also stand there in full; then apt's common keyring has to do.
    let keyring = field("Signed-By").into_iter().find(|k| k.starts_with('/'));
    let (uris, suites) = (field("URIs"), field("Suites"));
    let pairs = uris.iter().flat_map(|u| suites.iter().map(move |s| (u, s)));
    pairs
        .map(|(uri, suite)| Source {
            keyring: keyring.clone(),
            uri: uri.clone(),
            suite: suite.clone(),
            components: field("Components"),
        })
        .collect()
}

/// The host's settings for fetching, as lines of an apt.conf: a program that
/// keeps a configuration of its own would miss the host's proxy without them.
pub(crate) fn fetch_settings(progress: Progress<'_>) -> Result<String, BuildError> {
    let dump = APT_CONFIG.call().args(["dump", "Acquire"]).run(progress)?;
    let keep = |line: &&str| {
        ["http", "https", "Check-", "Retries"]
            .iter()
            .any(|name| line.starts_with(&format!("Acquire::{name}")))
    };
    let lines = String::from_utf8_lossy(&dump);
    Ok(lines.lines().filter(keep).flat_map(|l| [l, "\n"]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(sources: &[Source], suite: &str) -> Vec<String> {
        let mine = sources.iter().filter(|s| s.is_debians(suite));
        mine.map(Source::line).collect()
    }

    #[test]
    fn paragraphs_become_one_line_a_suite() {
        let text = "Types: deb deb-src\n# a snapshot\nURIs: http://deb.debian.org/debian\n\
            Suites: bookworm bookworm-updates\nComponents: main contrib\n\
            Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
            Types: deb\nURIs: http://deb.debian.org/debian-security\nSuites:\n bookworm-security\n\
            Components: main\n";
        assert_eq!(
            lines(&parse_deb822(text), "bookworm"),
            [
                "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main contrib",
                "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm-updates main contrib",
                "deb http://deb.debian.org/debian-security bookworm-security main",
            ]
        );
    }

    #[test]
    fn one_line_sources_keep_their_keyring() {
        let text = "# deb http://old bookworm main\ndeb http://a/debian bookworm main # mine\n\
            deb-src http://a/debian bookworm main\n\
            deb [ arch=amd64 signed-by=/k.gpg ] http://b/debian bookworm-updates main non-free\n";
        assert_eq!(
            lines(&parse_lines(text), "bookworm"),
            [
                "deb http://a/debian bookworm main",
                "deb [signed-by=/k.gpg] http://b/debian bookworm-updates main non-free",
            ]
        );
    }

    #[test]
    fn third_parties_and_other_releases_are_left_out() {
        let text = "deb http://download.docker.com/linux/debian bookworm stable\n\
            deb http://apt.postgresql.org/pub/repos/apt bookworm-pgdg main\n\
            deb https://deb.nodesource.com/node_20.x nodistro main\n\
            deb http://deb.debian.org/debian trixie main\n\
            deb http://deb.debian.org/debian bookworm-backports main\n";
        assert_eq!(lines(&parse_lines(text), "bookworm"), [""; 0]);
    }

    #[test]
    fn disabled_or_keyed_in_full_paragraphs_are_understood() {
        let off = "Types: deb\nURIs: http://a\nSuites: bookworm\nComponents: main\nEnabled: no\n";
        assert_eq!(parse_deb822(off), []);
        let keyed = "Types: deb\nURIs: http://a\nSuites: bookworm\nComponents: main\n\
            Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n";
        assert_eq!(
            lines(&parse_deb822(keyed), "bookworm"),
            ["deb http://a bookworm main"]
        );
    }

    #[test]
    fn host_without_sources_has_no_source_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = source_files(dir.path()).expect("readable");
        assert!(files.is_empty(), "{files:?}");
    }

    #[test]
    fn only_files_apt_would_read_are_read_and_the_main_one_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let parts = dir.path().join("sources.list.d");
        fs::create_dir(&parts).expect("made");
        for name in ["b.list", "a.sources", "c.list.disabled"] {
            fs::write(parts.join(name), "").expect("written");
        }
        fs::write(dir.path().join("sources.list"), "").expect("written");
        let wanted = [
            dir.path().join("sources.list"),
            parts.join("a.sources"),
            parts.join("b.list"),
        ];
        assert_eq!(source_files(dir.path()).expect("readable"), wanted);
    }
}
