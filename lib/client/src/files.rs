//! Paths of requests about files in guests.

/// A path of the API with a query: each value may hold anything.
pub fn of_files(vm: &str, what: &str, query: &[(&str, &str)]) -> String {
    let mut path = format!("/v1/vms/{}/{what}", escaped(vm));
    for (at, (name, value)) in query.iter().enumerate() {
        path.push(if at == 0 { '?' } else { '&' });
        path.push_str(name);
        path.push('=');
        path.push_str(&escaped(value));
    }
    path
}

fn escaped(text: &str) -> String {
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
}
