//! Rule that public async functions say what becomes of them when they are dropped halfway.
//!
//! A caller that races one, or whose client goes away, cannot see in its type whether half a step is
//! left behind. Reads lines, not Rust: a doc comment counts for the function that it stands above, with
//! nothing but attributes between them. Functions of traits and of `impl`s of traits are not `pub`.

use std::path::Path;

/// Crates whose functions change VMs, disks or networks.
const CRATES: [&str; 6] = ["vm", "snapshot", "host", "fork", "network", "volume-disks"];
/// Part of the words that say it: cancel-safe, cancelled, cancelling.
const SAID: &str = "ancel";

/// Tells whether the rule is one for this file.
pub fn applies(path: &Path) -> bool {
    let of = |name: &&str| path.starts_with(Path::new("lib").join(name).join("src"));
    CRATES.iter().any(of)
}

/// Lists the functions that do not say it, each with its line.
pub fn faults(text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut is_said, mut in_attribute) = (false, false);
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if let Some(doc) = line.strip_prefix("///") {
            is_said |= doc.contains(SAID);
        } else if in_attribute || line.starts_with("#[") {
            in_attribute = !line.ends_with(']');
        } else {
            if let Some(function) = line.strip_prefix("pub async fn ")
                && !is_said
            {
                let name = function.split(['(', '<']).next().unwrap_or(function);
                faults.push(format!(
                    "{number}: the documentation of {name} does not say if it is cancel-safe"
                ));
            }
            is_said = false;
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_async_functions_say_if_they_are_cancel_safe() {
        let said =
            "/// Waits. Cancel-safe.\n#[instrument(\n    skip_all,\n)]\n    pub async fn a() {\n";
        assert_eq!(faults(said), [""; 0]);
        assert_eq!(
            faults("/// If cancelled, it goes on.\npub async fn a() {"),
            [""; 0]
        );
        let unsaid =
            "/// Waits.\n#[must_use]\npub async fn a<T>(it: T) {\n}\n\npub async fn b() {\n";
        let told = faults(unsaid);
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].starts_with("3: ") && told[0].contains(" a "),
            "{told:?}"
        );
        assert!(
            told[1].starts_with("6: ") && told[1].contains(" b "),
            "{told:?}"
        );
    }

    #[test]
    fn what_another_function_says_does_not_count() {
        let text = "/// Cancel-safe.\npub async fn a() {\n}\n/// Waits.\npub async fn b() {\n";
        assert_eq!(faults(text).len(), 1);
        let text = "/// Cancel-safe.\nstruct A;\npub async fn b() {\n";
        assert_eq!(faults(text).len(), 1);
    }

    #[test]
    fn functions_of_a_crate_alone_and_of_traits_need_not_say_it() {
        let text = "pub(crate) async fn a() {\nasync fn b() {\npub fn c() {\n// pub async fn d\n";
        assert_eq!(faults(text), [""; 0]);
    }

    #[test]
    fn the_rule_is_one_for_code_of_these_crates() {
        for (path, is_judged) in [
            ("lib/vm/src/a.rs", true),
            ("lib/volume-disks/src/a/b.rs", true),
            ("lib/vmm/src/a.rs", false),
            ("lib/network/tests/a.rs", false),
            ("bin/vm/src/a.rs", false),
        ] {
            assert_eq!(applies(Path::new(path)), is_judged, "{path}");
        }
    }
}
