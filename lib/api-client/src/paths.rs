//! Paths of requests. Names that users give may hold anything: in a path each is one segment,
//! and in a query one value.

/// Path of a VM, or of something of it: `fork`, `inspect`.
pub fn of_vm(vm: &str, what: &str) -> String {
    let vm = escaped(vm);
    match what {
        "" => format!("/v1/vms/{vm}"),
        _ => format!("/v1/vms/{vm}/{what}"),
    }
}

/// Path of a VM's files, with a query.
pub fn of_files(vm: &str, what: &str, query: &[(&str, &str)]) -> String {
    let mut path = of_vm(vm, what);
    for (at, (name, value)) in query.iter().enumerate() {
        path.push(if at == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        path.push_str(&escaped(value));
    }
    path
}

/// Text as one segment of a path, or one value of a query.
pub fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_stay_one_value_of_the_query() {
        assert_eq!(
            of_files(
                "p",
                "files",
                &[("path", "/a b&c=#?%é"), ("parents", "true")]
            ),
            "/v1/vms/p/files?path=%2Fa%20b%26c%3D%23%3F%25%C3%A9&parents=true"
        );
    }

    #[test]
    fn odd_names_stay_one_segment_of_the_path() {
        assert_eq!(of_vm("p-1", "fork"), "/v1/vms/p-1/fork");
        assert_eq!(of_vm("a?x=", "inspect"), "/v1/vms/a%3Fx%3D/inspect");
        assert_eq!(of_vm("../images/tiny", ""), "/v1/vms/..%2Fimages%2Ftiny");
        for name in ["", "p/stop", "p?x", "p%2f", "é\n\u{9b}"] {
            let path = of_vm(name, "");
            let uri: hyper::Uri = path.parse().expect(&path);
            assert_eq!(uri.path(), path);
        }
    }
}
