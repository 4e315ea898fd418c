//! Program that a guest runs once it is up, besides or instead of an init.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The program that an image is there to run, as a container image names it.
/// Kept in the image itself, so that it goes where the disk goes.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryPoint {
    /// The program, looked for in its `PATH`, and its arguments.
    pub argv: Vec<String>,
    /// Environment of the program. `PATH` and `HOME` are made up if they are
    /// not here.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Folder it starts in; the root if empty.
    #[serde(default)]
    pub dir: String,
    /// User that it runs as: `USER` or `USER:GROUP`, each a name of the image's
    /// or a number; root if empty.
    #[serde(default)]
    pub user: String,
    /// Signal that asks it to end: a name, with or without `SIG`, or a number;
    /// SIGTERM if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stop_signal: String,
    /// Time at which a VM starts it.
    #[serde(default, skip_serializing_if = "Start::is_at_boot")]
    pub start: Start,
}

/// Time at which a VM starts its image's entry point.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// As soon as the VM has its name and its network.
    #[default]
    AtBoot,
    /// Not by itself: the VM waits for commands, and no init of the image runs either.
    Never,
}

impl Start {
    /// True of what is run without being asked for.
    // Serde passes a reference.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    fn is_at_boot(&self) -> bool {
        *self == Self::AtBoot
    }
}

/// Signals by number, from 1.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
/// SIGTERM.
const TERM: u8 = 15;
/// The first and the last of the real-time signals, as programs count them.
const REAL_TIME: (u8, u8) = (34, 64);

impl EntryPoint {
    /// File in an image that says so, as JSON.
    pub const PLACE: &str = "/etc/forkyard/entrypoint.json";
    /// Most bytes of it.
    pub const MOST: u64 = 1 << 20;
    /// Folders in which programs are looked for unless it says so.
    pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

    /// Number of the signal that asks it to end; none if there is no such signal.
    pub fn stop_number(&self) -> Option<u8> {
        let text = self.stop_signal.trim().to_ascii_uppercase();
        let name = text.strip_prefix("SIG").unwrap_or(&text);
        let (first, last) = REAL_TIME;
        let number = match name {
            "" if self.stop_signal.is_empty() => TERM,
            "RTMIN" => first,
            "RTMAX" => last,
            "IOT" => 6,
            "CLD" => 17,
            "POLL" => 29,
            _ => {
                if let Some(more) = name.strip_prefix("RTMIN+") {
                    first.checked_add(more.parse().ok()?)?
                } else if let Some(less) = name.strip_prefix("RTMAX-") {
                    last.checked_sub(less.parse().ok()?)
                        .filter(|n| *n >= first)?
                } else if let Some(at) = SIGNALS.iter().position(|known| *known == name) {
                    u8::try_from(at).ok()? + 1
                } else {
                    name.parse().ok()?
                }
            }
        };
        (1..=last).contains(&number).then_some(number)
    }

    /// True if a VM starts it when it boots.
    pub fn starts(&self) -> bool {
        self.start == Start::AtBoot && !self.argv.is_empty()
    }

    /// Tells whether this is an init, which insists on being process 1.
    pub fn is_init(&self) -> bool {
        let name = self.argv.first().and_then(|path| path.rsplit('/').next());
        name.is_some_and(|name| ["init", "systemd"].contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_init_is_known_by_its_name() {
        let is_init = |path: &str| {
            let argv = vec![path.to_owned()];
            let entry = EntryPoint {
                argv,
                ..EntryPoint::default()
            };
            entry.is_init()
        };
        assert!(
            ["/init", "/sbin/init", "/lib/systemd/systemd"]
                .iter()
                .all(|path| is_init(path))
        );
        assert!(
            !["/usr/bin/tini", "initdb", ""]
                .iter()
                .any(|path| is_init(path))
        );
    }

    #[test]
    fn a_stop_signal_is_known_by_its_name_or_its_number() {
        let number = |text: &str| {
            let stop_signal = text.to_owned();
            let entry = EntryPoint {
                stop_signal,
                ..EntryPoint::default()
            };
            entry.stop_number()
        };
        for (text, wanted) in [
            ("", 15),
            ("SIGTERM", 15),
            ("SIGQUIT", 3),
            ("int", 2),
            ("9", 9),
            ("SIGWINCH", 28),
            ("SIGRTMIN+3", 37),
            ("RTMAX-1", 63),
            ("64", 64),
        ] {
            assert_eq!(number(text), Some(wanted), "{text}");
        }
        for text in [
            "SIG", "SIGNONE", "0", "65", "-1", "RTMIN+31", "RTMAX-31", "RTMIN+x",
        ] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn one_that_is_not_to_start_says_so_and_one_that_is_says_what_older_agents_read() {
        let mut entry = EntryPoint {
            argv: vec!["/srv".to_owned()],
            ..EntryPoint::default()
        };
        let text = |entry: &EntryPoint| serde_json::to_string(entry).expect("written");
        assert!(!text(&entry).contains("start"));
        entry.start = Start::Never;
        let again: EntryPoint = serde_json::from_str(&text(&entry)).expect("read");
        assert_eq!(again, entry);
        assert!(!again.starts());
    }

    #[test]
    fn the_program_alone_is_enough() {
        let entry: EntryPoint = serde_json::from_str(r#"{"argv": ["/srv"]}"#).expect("enough");
        assert_eq!((entry.argv.len(), entry.user.as_str()), (1, ""));
        assert!(entry.starts());
        serde_json::from_str::<EntryPoint>(r#"{"argv": [], "cmd": []}"#).expect_err("unknown");
    }
}
