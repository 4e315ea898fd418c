//! Node that handles a request about a volume that is at home at another one.

use axum::http::Method;

/// Handling of a request about a volume that is at home elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeWay {
    /// By this node: it is about what is here.
    Here,
    /// By that node.
    There,
    /// There, unless that node cannot be asked and a copy is here.
    ThereOrCopy,
    /// Refused: a file would be made at the other node.
    Nowhere,
}

impl VolumeWay {
    /// Decides about a request by its method and what is asked of the volume.
    pub fn of(method: &Method, what: &str, has_copy: bool) -> Self {
        match what {
            "bring" | "promote" => Self::Here,
            "export" => Self::Nowhere,
            "" if *method == Method::DELETE && has_copy => Self::Here,
            "" if *method == Method::GET && has_copy => Self::ThereOrCopy,
            _ => Self::There,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_the_copy_here_stays_here() {
        let way =
            |method: Method, what: &str, has_copy: bool| VolumeWay::of(&method, what, has_copy);
        for what in ["bring", "promote"] {
            assert_eq!(way(Method::POST, what, true), VolumeWay::Here);
        }
        assert_eq!(way(Method::DELETE, "", true), VolumeWay::Here);
        assert_eq!(way(Method::DELETE, "", false), VolumeWay::There);
        assert_eq!(way(Method::GET, "", true), VolumeWay::ThereOrCopy);
        assert_eq!(way(Method::POST, "move", true), VolumeWay::There);
        assert_eq!(
            way(Method::DELETE, "snapshots/monday", true),
            VolumeWay::There
        );
        assert_eq!(way(Method::POST, "export", false), VolumeWay::Nowhere);
    }
}
