//! What a guest runs once it is up, besides or instead of an init.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The program that an image is there to run, as a container image names it.
/// Kept in the image itself, so that it goes where the disk goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryPoint {
    /// The program, looked for in its `PATH`, and its arguments.
    pub argv: Vec<String>,
    /// Its environment. `PATH` and `HOME` are made up if they are not here.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Folder it starts in; the root if empty.
    #[serde(default)]
    pub dir: String,
    /// Who it runs as: `USER` or `USER:GROUP`, each a name of the image's or a
    /// number; root if empty.
    #[serde(default)]
    pub user: String,
}

impl EntryPoint {
    /// Where an image says so, as JSON.
    pub const PLACE: &str = "/etc/forkyard/entrypoint.json";
    /// Most bytes of it.
    pub const MOST: u64 = 1 << 20;
    /// Where programs are looked for unless it says so.
    pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

    /// Whether this is an init, which insists on being process 1.
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
    fn the_program_alone_is_enough() {
        let entry: EntryPoint = serde_json::from_str(r#"{"argv": ["/srv"]}"#).expect("enough");
        assert_eq!((entry.argv.len(), entry.user.as_str()), (1, ""));
        serde_json::from_str::<EntryPoint>(r#"{"argv": [], "cmd": []}"#).expect_err("unknown");
    }
}
