//! The configuration in its file.

use crate::place;
use anyhow::{Context, bail};
use forkyard_friendly::{Config, Signal};
use std::{
    fs, io,
    path::{Path, PathBuf},
    time::SystemTime,
};
use toml::{Table, Value};

/// Path if nothing is said.
pub const PLACE: &str = "/etc/forkyard/friendly.toml";

/// A file that is looked at again and again.
#[derive(Debug)]
pub struct Settings {
    path: PathBuf,
    /// The signals that count if the file names none.
    signals: Vec<Signal>,
    seen: Option<(SystemTime, u64)>,
}

impl Settings {
    /// Reads it; without a file, the usual constants. These signals count if it names none.
    pub fn read(path: &Path, signals: Vec<Signal>) -> anyhow::Result<(Self, Config)> {
        let mut settings = Self {
            path: path.to_owned(),
            signals,
            seen: None,
        };
        settings.seen = settings.mark();
        let config = read(path, &settings.signals)?;
        Ok((settings, config))
    }

    /// Reads the file, if it has changed. One that is refused changes nothing,
    /// and is complained of once.
    pub fn changed(&mut self) -> Option<Config> {
        let mark = self.mark();
        if mark == self.seen {
            return None;
        }
        self.seen = mark;
        match read(&self.path, &self.signals) {
            Ok(config) => Some(config),
            Err(error) => {
                eprintln!("forkyard-friendly: going on as before: {error:#}");
                None
            }
        }
    }

    fn mark(&self) -> Option<(SystemTime, u64)> {
        let found = fs::metadata(&self.path).ok()?;
        Some((found.modified().ok()?, found.len()))
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text.with_context(|| format!("cannot read {}", path.display())),
    }
}

fn read(path: &Path, signals: &[Signal]) -> anyhow::Result<Config> {
    let mut config =
        Config::parse(&text(path)?).with_context(|| format!("{} is refused", path.display()))?;
    let counting = &mut config.monitor.signals;
    counting.get_or_insert_with(|| signals.to_owned());
    Ok(config)
}

/// Says what a configuration comes to, here and for a group without limits.
pub fn check(path: &Path) -> anyhow::Result<()> {
    print!("{}", toml::to_string(&read(path, &place::signals(None))?)?);
    Ok(())
}

/// Reads the text to be changed: the file's, or standard input's.
pub fn base(path: &Path, from_stdin: bool) -> anyhow::Result<String> {
    match from_stdin {
        true => io::read_to_string(io::stdin()).context("cannot read standard input"),
        false => text(path),
    }
}

/// Writes a file: this text, with constants changed. All of them, or none if what comes of it is
/// refused. Comments in the file are lost.
pub fn set(path: &Path, base: &str, changes: &[String]) -> anyhow::Result<()> {
    let mut table: Table = base
        .parse()
        .context("what the configuration says is not TOML")?;
    for change in changes {
        let Some((key, value)) = change.split_once('=') else {
            bail!("{change:?}: wanted KEY=VALUE");
        };
        put(&mut table, key.trim(), value_of(value.trim()))?;
    }
    let text = toml::to_string(&table)?;
    Config::parse(&text).context("refused; nothing is changed")?;
    let write = || {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let new = path.with_extension("new");
        fs::write(&new, &text)?;
        fs::rename(new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// As TOML has it; a plain word is a string.
fn value_of(text: &str) -> Value {
    let line: Result<Table, _> = format!("value = {text}").parse();
    let value = line.ok().and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

fn put(table: &mut Table, key: &str, value: Value) -> anyhow::Result<()> {
    match key.split_once('.') {
        Some((section, rest)) => {
            let below = table
                .entry(section)
                .or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(below) = below else {
                bail!("{section} is no section");
            };
            put(below, rest, value)
        }
        None => {
            table.insert(key.to_owned(), value);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_changed_and_nonsense_is_not() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("sub/friendly.toml");
        let change = |changes: &[&str]| {
            let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
            set(&path, &text(&path)?, &changes)
        };
        change(&["monitor.threshold=3", "threads.unit=process"]).expect("fine");
        change(&[
            "threads.exempt=[\"sshd\"]",
            "threads.law={kind=\"aimd\",add=2,divide=2}",
        ])
        .expect("fine");
        let config = read(&path, &[Signal::Vct]).expect("fine");
        assert_eq!(config.monitor.threshold, 3.0);
        assert_eq!(config.threads.unit, forkyard_friendly::Unit::Process);
        assert_eq!(config.threads.exempt, ["sshd"]);
        let before = fs::read_to_string(&path).expect("there");
        for nonsense in [
            "monitor.threshold=0",
            "monitor.treshold=3",
            "monitor",
            "monitor=3",
        ] {
            change(&[nonsense]).expect_err(nonsense);
        }
        assert_eq!(fs::read_to_string(&path).expect("there"), before);
    }

    #[test]
    fn a_change_is_noticed_once_and_a_bad_one_is_passed_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("friendly.toml");
        let (mut settings, config) =
            Settings::read(&path, vec![Signal::Steal]).expect("none is fine");
        let mut here = Config::default();
        here.monitor.signals = Some(vec![Signal::Steal]);
        assert_eq!(config, here);
        assert_eq!(settings.changed(), None);
        fs::write(&path, "[monitor]\newma = 0.5\n").expect("written");
        assert_eq!(
            settings.changed().map(|config| config.monitor.ewma),
            Some(0.5)
        );
        assert_eq!(settings.changed(), None);
        fs::write(&path, "[monitor]\newma = 5000\n").expect("written");
        assert_eq!(settings.changed(), None);
        fs::remove_file(&path).expect("removed");
        assert_eq!(settings.changed(), Some(here));
    }
}
