//! Patterns of paths in a guest: one name at a time.

/// Matches one name of a path against a pattern, in which `*` stands for any number of
/// characters. A pattern without a dot in front matches no name that has one, as in a shell.
pub fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && pattern.starts_with('*') {
        return false;
    }
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Tries every way to take characters for a star.
    fn slowly(pattern: &[char], name: &[char]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (None, Some(_)) => false,
            (Some(('*', more)), _) => (0..=name.len()).any(|at| slowly(more, &name[at..])),
            (Some((letter, more)), Some((first, rest))) => letter == first && slowly(more, rest),
            (Some(_), None) => false,
        }
    }

    proptest! {
        #[test]
        fn names_match_as_if_all_ways_were_tried(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
            let letters = |text: &str| text.chars().collect::<Vec<_>>();
            prop_assert_eq!(matches(&pattern, &name), slowly(&letters(&pattern), &letters(&name)));
        }
    }

    #[test]
    fn a_star_matches_no_hidden_file_and_a_key_no_other() {
        assert!(matches("ssh_host_*_key", "ssh_host_ed25519_key"));
        assert!(!matches("ssh_host_*_key", "ssh_host_ed25519_key.pub"));
        assert!(!matches("*", ".ssh") && matches(".*", ".ssh") && matches("*", "ssh"));
    }
}
