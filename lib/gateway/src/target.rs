//! Target of a request, by its host name or its path.

use forkyard_types::GuestPort;

/// First part of a path that names a VM.
const VMS: &str = "/vms/";

/// Way in which a request names its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By host name, `PORT-VM.DOMAIN`: an origin of its own in a browser.
    Host,
    /// By path, `/vms/VM/ports/PORT/`: all ports share an origin.
    Path,
}

/// Port of a VM, and what is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// VM: name or id.
    pub vm: String,
    /// The port.
    pub port: GuestPort,
    /// Path and query as the server has them.
    pub path: String,
    /// Way in which the request named it.
    pub form: Form,
}

impl Target {
    /// Finds where a request goes: by the host it names, which may have a port of the
    /// gateway's behind it, if that is a name below `domain`, else by its path.
    pub fn of(host: Option<&str>, path: &str, domain: &str) -> Option<Self> {
        host.and_then(|host| Self::of_host(host, path, domain))
            .or_else(|| Self::of_path(path))
    }

    fn of_host(host: &str, path: &str, domain: &str) -> Option<Self> {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
            _ => host,
        };
        // Names of hosts are the same in either case, and may end with a dot.
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let label = name.strip_suffix(domain)?.strip_suffix('.')?;
        let (port, vm) = label.split_once('-')?;
        Self::new(vm, port, path.to_owned(), Form::Host)
    }

    fn of_path(path: &str) -> Option<Self> {
        let (vm, rest) = path.strip_prefix(VMS)?.split_once('/')?;
        let rest = rest.strip_prefix("ports/")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (port, rest) = rest.split_at(end);
        let path = match rest.starts_with('/') {
            true => rest.to_owned(),
            false => format!("/{rest}"),
        };
        Self::new(vm, port, path, Form::Path)
    }

    fn new(vm: &str, port: &str, path: String, form: Form) -> Option<Self> {
        let plain = |it: u8| it.is_ascii_lowercase() || it.is_ascii_digit() || it == b'-';
        let is_name = !vm.is_empty() && vm.len() <= 63 && vm.bytes().all(plain);
        let number = port.bytes().all(|it| it.is_ascii_digit());
        let port = port.parse().ok().filter(|_| number)?;
        is_name.then(|| Self {
            vm: vm.to_owned(),
            port,
            path,
            form,
        })
    }

    /// Path under which the server's own paths are for a client.
    pub fn prefix(&self) -> Option<String> {
        match self.form {
            Form::Host => None,
            Form::Path => Some(format!("{VMS}{}/ports/{}", self.vm, self.port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(host: &str, path: &str) -> Option<(String, String, String, Form)> {
        let it = Target::of(Some(host), path, "vms.example.org")?;
        Some((it.vm, it.port.to_string(), it.path, it.form))
    }

    #[test]
    fn a_host_name_below_the_domain_names_port_and_vm() {
        for (host, wanted) in [
            ("8080-p.vms.example.org", Some(("p", "8080"))),
            ("8080-P-3.VMS.example.org:8443", Some(("p-3", "8080"))),
            ("80-p.vms.example.org.", Some(("p", "80"))),
            ("p.vms.example.org", None),
            ("0-p.vms.example.org", None),
            ("+80-p.vms.example.org", None),
            ("65536-p.vms.example.org", None),
            ("80-p.evil.org", None),
            ("80-p.evilvms.example.org", None),
            ("80-a.b.vms.example.org", None),
            ("vms.example.org", None),
            ("80-.vms.example.org", None),
            ("[::1]:80", None),
        ] {
            let found = found(host, "/a?b=c");
            let wanted = wanted.map(|(vm, port)| {
                let path = "/a?b=c".to_owned();
                (vm.to_owned(), port.to_owned(), path, Form::Host)
            });
            assert_eq!(found, wanted, "{host}");
        }
    }

    #[test]
    fn a_path_names_them_too_and_is_not_what_the_server_gets() {
        for (path, wanted) in [
            ("/vms/p/ports/80/", Some("/")),
            ("/vms/p/ports/80", Some("/")),
            ("/vms/p/ports/80?a=b", Some("/?a=b")),
            ("/vms/p/ports/80/x/y?a=/b", Some("/x/y?a=/b")),
            ("/vms/p/ports/80//x", Some("//x")),
            ("/vms/p/ports/80x/", None),
            ("/vms/p%2f/ports/80/", None),
            ("/vms/p/x/ports/80/", None),
            ("/vms//ports/80/", None),
            ("/x", None),
            ("*", None),
        ] {
            let found = found("gateway:8000", path).map(|it| it.2);
            assert_eq!(found.as_deref(), wanted, "{path}");
        }
    }

    proptest! {
        #[test]
        fn what_a_server_gets_is_a_path_and_the_name_is_one(host in ".{0,40}", path in "/.{0,60}") {
            if let Some(target) = Target::of(Some(&host), &path, "d") {
                prop_assert!(target.path.starts_with('/'));
                prop_assert!(!target.vm.contains(['/', '.', '%']));
            }
        }
    }
}
