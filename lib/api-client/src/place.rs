//! Place of a daemon.

use std::{
    fmt,
    path::{Path, PathBuf, absolute},
    str::FromStr,
};

/// Port of a daemon on the network, where none is said.
pub const PORT: u16 = 7433;

/// Place of a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this host: `unix:///run/forkyard/api.sock`.
    Socket(PathBuf),
    /// On the network: `https://host:7433`.
    Network {
        /// Name or address, an IPv6 one without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

/// Most bytes of the path of a Unix socket.
const SOCKET: usize = 107;
/// Most bytes of a run folder's path: the longest socket below it is a VM's console.
const RUN_DIR: usize = SOCKET - "/vms/23456789abc/console.sock".len();

/// A run folder below which sockets would have paths that are too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the run folder's path has {length} bytes, and {RUN_DIR} at most, for sockets lie in it: choose a shorter one (--run-dir, FORKYARD_RUN_DIR)"
)]
pub struct LongRunDir {
    length: usize,
}

/// Refuses a run folder in which sockets could not be made.
pub fn check_run_dir(run_dir: &Path) -> Result<(), LongRunDir> {
    let path = absolute(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    match path.as_os_str().len() {
        ..=RUN_DIR => Ok(()),
        length => Err(LongRunDir { length }),
    }
}

/// Text that is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of a daemon: wanted https://HOST:PORT or unix:///PATH/api.sock")]
pub struct InvalidPlace(String);

impl FromStr for Place {
    type Err = InvalidPlace;

    /// There is no `http://`: a token is never sent in the clear.
    fn from_str(text: &str) -> Result<Self, InvalidPlace> {
        let invalid = || InvalidPlace(text.to_owned());
        if let Some(path) = text.strip_prefix("unix://") {
            return match path.starts_with('/') {
                true => Ok(Self::Socket(path.into())),
                false => Err(invalid()),
            };
        }
        let rest = text.strip_prefix("https://").ok_or_else(invalid)?;
        let uri: hyper::Uri = text.parse().map_err(|_| invalid())?;
        let plain = rest.trim_end_matches('/');
        let host = uri.host().unwrap_or_default();
        if host.is_empty() || plain.contains(['/', '@', '?', '#']) {
            return Err(invalid());
        }
        let port = match uri.port_u16() {
            Some(port) => port,
            None if plain == host => PORT,
            // Something stands where a port would, and is none.
            None => return Err(invalid()),
        };
        Ok(Self::Network {
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "unix://{}", path.display()),
            Self::Network { host, port } if host.contains(':') => {
                write!(f, "https://[{host}]:{port}")
            }
            Self::Network { host, port } => write!(f, "https://{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_folder_is_as_long_as_a_consoles_socket_lets_it_be() {
        let folder = |length: usize| PathBuf::from(format!("/{}", "r".repeat(length - 1)));
        assert_eq!(check_run_dir(&folder(RUN_DIR)), Ok(()));
        let socket = folder(RUN_DIR).join("vms/23456789abc/console.sock");
        std::os::unix::net::SocketAddr::from_pathname(socket).expect("the longest there is");
        let length = RUN_DIR + 1;
        assert_eq!(check_run_dir(&folder(length)), Err(LongRunDir { length }));
        assert!(check_run_dir(Path::new(&"r".repeat(RUN_DIR))).is_err());
    }

    #[test]
    fn a_place_survives_its_text() {
        for text in [
            "unix:///run/forkyard/api.sock",
            "https://build.example:443",
            "https://10.0.0.1:7433",
            "https://[fd00::1]:99",
        ] {
            let place: Place = text.parse().expect(text);
            assert_eq!(place.to_string(), text);
        }
        let place: Result<Place, _> = "https://host/".parse();
        assert_eq!(
            place.map(|it| it.to_string()),
            Ok("https://host:7433".into())
        );
    }

    #[test]
    fn what_is_not_encrypted_or_says_more_than_a_place_is_refused() {
        for text in [
            "",
            "host",
            "host:7433",
            "http://host:7433",
            "https://",
            "https://host/v1",
            "https://user@host",
            "unix://relative",
            "https://host:99999",
        ] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }
}
