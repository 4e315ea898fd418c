//! Traffic between nodes: requests that another node handles, and news of what
//! they changed.

use axum::http::{HeaderMap, HeaderName, Method, header};
use forkyard_node::{ACTIVATIONS, CLONES, MIGRATIONS};

/// Returns true if the cluster is to hear of the outcome of such a request.
pub fn changes(method: &Method, path: &str) -> bool {
    let from_others = [ACTIVATIONS, CLONES, MIGRATIONS].contains(&path);
    let vms = path == "/v1/vms" || path.starts_with("/v1/vms/") || from_others;
    // What is typed comes as a request a key.
    let typed = path.ends_with("/console") || path.contains("/sessions/");
    let quiet = typed || path.ends_with("/exec");
    vms && !quiet && [Method::POST, Method::DELETE].contains(method)
}

/// Removes headers that are between the two ends of one connection.
pub fn strip(headers: &mut HeaderMap) {
    let own: [HeaderName; 3] = [
        header::CONNECTION,
        header::TRANSFER_ENCODING,
        HeaderName::from_static("keep-alive"),
    ];
    for name in own {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_hears_of_what_changes_vms_and_of_nothing_else() {
        for (method, path, wanted) in [
            (Method::POST, "/v1/vms", true),
            (Method::POST, "/v1/vms/p/fork", true),
            (Method::POST, CLONES, true),
            (Method::POST, ACTIVATIONS, true),
            (Method::POST, MIGRATIONS, true),
            (Method::POST, "/v1/vms/p/migrate", true),
            (Method::DELETE, "/v1/vms/p", true),
            (Method::GET, "/v1/vms/p", false),
            (Method::POST, "/v1/vms/p/exec", false),
            (Method::POST, "/v1/vms/p/console", false),
            (Method::POST, "/v1/vms/p/sessions/9", false),
            (Method::POST, "/v1/doctor", false),
        ] {
            assert_eq!(changes(&method, path), wanted, "{method} {path}");
        }
    }

    #[test]
    fn what_is_of_one_connection_stays_there() {
        let mut headers = HeaderMap::new();
        headers.insert(header::TRANSFER_ENCODING, "chunked".parse().expect("text"));
        headers.insert(header::CONTENT_TYPE, "text/plain".parse().expect("text"));
        strip(&mut headers);
        assert_eq!(headers.len(), 1);
    }
}
