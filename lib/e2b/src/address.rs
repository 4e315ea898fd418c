//! Names of sandboxes' ports: `PORT-SANDBOX.DOMAIN`.

/// Port of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sandbox {
    /// Id of the sandbox.
    pub id: String,
    /// The port.
    pub port: u16,
}

/// Sandbox and port that a host name stands for, if it does. A port of the host's own is ignored.
pub fn of_host(host: &str) -> Option<Sandbox> {
    let (label, _) = host.split_once('.')?;
    let (port, id) = label.split_once('-')?;
    let port = port.parse().ok().filter(|port| *port != 0)?;
    let plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
    let is_id = !id.is_empty() && id.chars().all(plain);
    is_id.then(|| Sandbox {
        // Names of hosts have no case, and ids are of small letters.
        id: id.to_ascii_lowercase(),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_label_names_port_and_sandbox() {
        for (host, wanted) in [
            ("8080-abc.localhost:3000", Some(("abc", 8080))),
            ("8080-ABC.LOCALHOST:3000", Some(("abc", 8080))),
            ("49983-my-vm.example.com", Some(("my-vm", 49983))),
            ("api.example.com", None),
            ("0-abc.localhost", None),
            ("99999-abc.localhost", None),
            ("8080-.localhost", None),
            ("8080-a/b.localhost", None),
            ("8080-abc", None),
            ("127.0.0.1:3000", None),
        ] {
            let found = of_host(host);
            let found = found.as_ref().map(|it| (it.id.as_str(), it.port));
            assert_eq!(found, wanted, "{host}");
        }
    }
}
