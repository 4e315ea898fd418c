//! Names of files that are not whole yet: what watches a folder tells of those under their later names.

use std::{
    ffi::OsStr,
    hash::{BuildHasher, Hasher, RandomState},
    os::unix::ffi::OsStrExt,
};

const PREFIX: &str = ".forkyard-cp.";
/// End of the name of a file that is to replace another.
const OVER: &str = ".over";

/// File under a name of ours, beside its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// Content of a file of which it was not known whether it is there.
    New,
    /// Content of a file that is there.
    Over,
}

impl Half {
    /// Draws a name that no other file has.
    pub fn name(self) -> String {
        let random = RandomState::new().build_hasher().finish();
        let end = match self {
            Self::New => "",
            Self::Over => OVER,
        };
        format!("{PREFIX}{random:016x}{end}")
    }

    /// Tells whether a file's name is such a one.
    pub fn of(name: &OsStr) -> Option<Self> {
        let name = name.as_bytes();
        match (
            name.starts_with(PREFIX.as_bytes()),
            name.ends_with(OVER.as_bytes()),
        ) {
            (true, false) => Some(Self::New),
            (true, true) => Some(Self::Over),
            (false, _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_what_it_is_of() {
        for half in [Half::New, Half::Over] {
            assert_eq!(Half::of(half.name().as_ref()), Some(half));
        }
        assert_eq!(Half::of("a.over".as_ref()), None);
    }
}
