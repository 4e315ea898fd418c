//! Text of strangers, as it is shown to people: in logs, in tables, on terminals.

use std::{borrow::Cow, fmt::Write};

/// True of a character that does something to what shows it, in place of being seen: a control
/// character, an end of a line, or one that turns the direction in which text is read.
pub fn acts(c: char) -> bool {
    let is_separator = matches!(c, '\u{2028}' | '\u{2029}');
    let turns =
        matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || is_separator || turns
}

/// Text in which what [`acts`] is spelt `\u001b`, as JSON does, but for characters that `stay`.
pub fn shown(text: &str, stay: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_spelt = |c| acts(c) && !stay(c);
    if !text.contains(is_spelt) {
        return text.into();
    }
    let mut out = String::new();
    for c in text.chars() {
        match is_spelt(c) {
            // Writing to a string does not fail.
            true => drop(write!(out, "\\u{:04x}", u32::from(c))),
            false => out.push(c),
        }
    }
    out.into()
}

/// Text of so many bytes at most, and how many there were.
pub fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.len() {
        length if length <= most => text.into(),
        length => format!(
            "{}… ({length} bytes in all)",
            &text[..text.floor_char_boundary(most)]
        )
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_between_characters_and_its_length_told() {
        assert_eq!(cut("aé", 3), "aé");
        assert_eq!(cut("aéé", 4), "aé… (5 bytes in all)");
    }

    #[test]
    fn what_acts_is_spelt_and_all_else_stays() {
        let text = "a\u{1b}[2J\nb\u{202e}c\u{85}d é \u{1f600}";
        assert_eq!(
            shown(text, |_| false),
            "a\\u001b[2J\\u000ab\\u202ec\\u0085d é \u{1f600}"
        );
        assert!(shown(text, |c| c == '\n').contains("\nb"));
        assert!(matches!(shown("plain é", |_| false), Cow::Borrowed(_)));
    }
}
