//! Refused input in plain words: what a deserializer says names types of this program, and what a
//! framework says names the framework.

/// Most characters of a value that is told again.
const VALUE: usize = 100;

/// Beginnings of what is said of text that is not JSON.
const NOT_JSON: [&str; 14] = [
    "EOF while",
    "control character",
    "expected `",
    "expected ident",
    "expected value",
    "invalid escape",
    "invalid number",
    "invalid unicode",
    "key must be",
    "lone leading surrogate",
    "number out of range",
    "recursion limit",
    "trailing c",
    "unexpected end of hex",
];

/// Says in plain words what serde, serde_json or axum has refused. Words of our own stay as they are.
pub fn plainly(refused: &str) -> String {
    let refused = refused.strip_prefix("Invalid URL: ").unwrap_or(refused);
    let (refused, place) = without_place(refused);
    let (path, why) = split_path(refused);
    if let Some(name) = why.strip_prefix("unknown field ") {
        // The path leads to what there is not.
        let above = path.map_or("", |path| {
            path.rsplit_once('.').map_or("", |(above, _)| above)
        });
        let (name, known) = name.split_once(", ").unwrap_or((name, ""));
        return at(Some(above), &format!("there is no {name}{}", listed(known)));
    }
    let is_syntax = NOT_JSON.iter().any(|begin| why.starts_with(begin));
    match (path, place) {
        (None, Some((line, column))) if is_syntax => {
            format!("this is not JSON, from line {line}, column {column} on")
        }
        (None, None) if is_syntax => "this is not JSON".to_owned(),
        // Of an alternative that is named by a text.
        (Some(_), _) if why == "expected value" => at(path, "wanted a text"),
        (Some(_), Some((line, column))) if is_syntax => {
            let text = format!("from line {line}, column {column} on this is not JSON");
            at(path, &text)
        }
        _ => at(path, &reworded(why)),
    }
}

fn at(path: Option<&str>, text: &str) -> String {
    match path {
        None | Some("") => text.to_owned(),
        Some(path) => format!("{path}: {text}"),
    }
}

/// Cuts off the place that serde_json names.
fn without_place(text: &str) -> (&str, Option<(&str, &str)>) {
    let found = text.rsplit_once(" at line ").and_then(|(before, place)| {
        let (line, column) = place.split_once(" column ")?;
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(line) && is_number(column)).then_some((before, (line, column)))
    });
    found.map_or((text, None), |(before, place)| (before, Some(place)))
}

/// Splits off the path that comes first, as `a.b[0]: `.
fn split_path(text: &str) -> (Option<&str>, &str) {
    let is_path = |path: &str| {
        let may_be = |c: char| c.is_alphanumeric() || "_-.[]?".contains(c);
        !path.is_empty() && path.chars().all(may_be)
    };
    match text.split_once(": ") {
        Some((path, why)) if is_path(path) => (Some(path), why),
        Some(_) | None => (None, text),
    }
}

fn reworded(why: &str) -> String {
    if let Some(name) = why.strip_prefix("missing field ") {
        return format!("{name} is missing");
    }
    if let Some(name) = why.strip_prefix("duplicate field ") {
        return format!("{name} is said twice");
    }
    if let Some(name) = why.strip_prefix("Invalid UTF-8 in ") {
        return format!("{name} is not UTF-8");
    }
    if let Some((value, known)) = why.strip_prefix("unknown variant ").and_then(split_wanted) {
        return format!("wanted {}, not {}", choice(known), short(value));
    }
    for begin in ["invalid type: ", "invalid value: ", "invalid length "] {
        if let Some((found, wanted)) = why.strip_prefix(begin).and_then(split_wanted) {
            let found = match begin {
                "invalid length " if wanted.starts_with("struct ") => "a list".to_owned(),
                "invalid length " => format!("{found} of them"),
                _ => told(found),
            };
            return format!("wanted {}, not {found}", kind(wanted));
        }
    }
    if let Some((_, typed)) = why.split_once("annot parse ")
        && let Some((value, kind_of)) = typed.rsplit_once("` to a `")
        && let Some((_, value)) = value.rsplit_once('`')
    {
        let wanted = kind(kind_of.trim_end_matches('`'));
        return format!("wanted {wanted}, not `{}`", short(value));
    }
    match why {
        "invalid digit found in string" | "cannot parse integer from empty string" => {
            "wanted a whole number".to_owned()
        }
        "number too large to fit in target type" => "the number is too large".to_owned(),
        "number too small to fit in target type" => "the number is too small".to_owned(),
        "provided string was not `true` or `false`" => "wanted true or false".to_owned(),
        other => other.to_owned(),
    }
}

fn split_wanted(text: &str) -> Option<(&str, &str)> {
    // What was found may hold these words, too.
    text.rsplit_once(", expected ")
}

/// The kind of value that is wanted.
fn kind(wanted: &str) -> String {
    let whole = |least: String, most: String| format!("a whole number from {least} to {most}");
    let text = match wanted {
        "u8" => return whole(u8::MIN.to_string(), u8::MAX.to_string()),
        "u16" => return whole(u16::MIN.to_string(), u16::MAX.to_string()),
        "u32" => return whole(u32::MIN.to_string(), u32::MAX.to_string()),
        "u64" | "usize" => return whole(u64::MIN.to_string(), u64::MAX.to_string()),
        "a nonzero u8" => return whole("1".to_owned(), u8::MAX.to_string()),
        "a nonzero u16" => return whole("1".to_owned(), u16::MAX.to_string()),
        "a nonzero u32" => return whole("1".to_owned(), u32::MAX.to_string()),
        "a nonzero u64" | "a nonzero usize" => return whole("1".to_owned(), u64::MAX.to_string()),
        "i32" => return whole(i32::MIN.to_string(), i32::MAX.to_string()),
        "i64" | "isize" => return whole(i64::MIN.to_string(), i64::MAX.to_string()),
        "f32" | "f64" => "a number",
        "a boolean" | "bool" => "true or false",
        "a string" | "path string" | "a borrowed string" | "a character" => "a text",
        "a sequence" => "a list",
        "a map" => "an object",
        "a formatted UUID string" => "a UUID",
        "unit" => "null",
        _ if wanted.starts_with("struct ") => "an object",
        _ if wanted.starts_with("enum ") || wanted == "string or map" => "a text or an object",
        _ if wanted.starts_with("variant ") => "a text",
        _ => {
            let of = ["a tuple of size ", "an array of length "];
            let size = of.iter().find_map(|begin| wanted.strip_prefix(begin));
            return size.map_or_else(|| wanted.to_owned(), |size| format!("a list of {size}"));
        }
    };
    text.to_owned()
}

/// A value that was found, as JSON has it.
fn told(found: &str) -> String {
    match found {
        "map" => return "an object".to_owned(),
        "sequence" => return "a list".to_owned(),
        "null" | "unit value" | "Option value" => return "null".to_owned(),
        "newtype variant" | "tuple variant" | "struct variant" => return "an object".to_owned(),
        "unit variant" => return "a text".to_owned(),
        _ => {}
    }
    for begin in ["integer ", "floating point ", "boolean ", "character "] {
        if let Some(value) = found.strip_prefix(begin) {
            return value.trim_matches('`').to_owned();
        }
    }
    short(found.strip_prefix("string ").unwrap_or(found))
}

/// A value that may be of any length.
fn short(value: &str) -> String {
    match value.char_indices().nth(VALUE) {
        Some((end, _)) => format!("{}…", &value[..end]),
        None => value.to_owned(),
    }
}

/// Alternatives, in brackets.
fn listed(known: &str) -> String {
    match known.strip_prefix("expected ") {
        Some(known) => format!(" (wanted {})", choice(known)),
        None => String::new(),
    }
}

/// Alternatives as a sentence has them.
fn choice(known: &str) -> String {
    let known = known.strip_prefix("one of ").unwrap_or(known);
    match known.rsplit_once(", ") {
        Some((all, last)) => format!("{all} or {last}"),
        None => known.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AtEnd, ExecRequest, FamilyId, Lifetime};
    use serde::{Deserialize, de::DeserializeOwned};

    fn refused<T: DeserializeOwned>(text: &str) -> String {
        let mut reader = serde_json::Deserializer::from_str(text);
        let read: Result<T, _> = serde_path_to_error::deserialize(&mut reader);
        // As axum says it.
        plainly(&match read {
            Err(error) => error.to_string(),
            Ok(_) => reader.end().expect_err("all of it was taken").to_string(),
        })
    }

    #[test]
    fn bodies_that_are_wrong_are_told_of_as_json_has_it() {
        let of = refused::<ExecRequest>;
        let long = "x".repeat(2 * VALUE);
        for (said, wanted) in [
            ("{", "this is not JSON, from line 1, column 1 on"),
            ("", "this is not JSON, from line 1, column 0 on"),
            (
                "{\"argv\": [\"a\"]} x",
                "this is not JSON, from line 1, column 17 on",
            ),
            ("{}", "`argv` is missing"),
            ("5", "wanted an object, not 5"),
            ("[]", "wanted an object, not a list"),
            ("{\"argv\": null}", "argv: wanted a list, not null"),
            (
                "{\"argv\": [\"a\", {}]}",
                "argv[1]: wanted a text, not an object",
            ),
            (
                "{\"argv\": [], \"env\": [\"a\"]}",
                "env[0]: wanted a list of 2, not \"a\"",
            ),
            (
                "{\"argv\": [], \"env\": [[\"a\"]]}",
                "env[0]: wanted a list of 2, not 1 of them",
            ),
            (
                "{\"argv\": [], \"detach\": 1}",
                "detach: wanted true or false, not 1",
            ),
            (
                "{\"argv\": [], \"timeout_s\": -1}",
                "timeout_s: wanted a whole number from 0 to 4294967295, not -1",
            ),
            (
                "{\"argv\": [], \"tty\": {\"rows\": 1}}",
                "tty: `cols` is missing",
            ),
        ] {
            assert_eq!(of(said), wanted, "{said}");
        }
        let text = of("{\"argv\": [], \"argv\": []}");
        assert!(text.ends_with("`argv` is said twice"), "{text}");
        let text = of("{\"argv\": [\"a\",]}");
        assert!(
            text.ends_with("from line 1, column 15 on this is not JSON"),
            "{text}"
        );
        let text = of(&format!("{{\"argv\": [], \"detach\": \"{long}\"}}"));
        assert!(text.len() < 2 * VALUE && text.ends_with('…'), "{text}");
        let text = of("{\"argv\": [], \"arg\": 1}");
        assert!(
            text.starts_with("there is no `arg` (wanted `argv`, `env`, ")
                && text.ends_with(" or `tag`)"),
            "{text}"
        );
    }

    #[test]
    fn alternatives_are_told_and_words_of_our_own_stay() {
        let of = refused::<Lifetime>;
        let variant = of("{\"ttl_s\": 1, \"action\": \"sleep\"}");
        assert_eq!(
            variant,
            "action: wanted `rm`, `stop`, `pause` or `checkpoint`, not `sleep`"
        );
        assert_eq!(of("{\"ttl_s\": 1, \"action\": 5}"), "action: wanted a text");
        assert_eq!(refused::<Vec<AtEnd>>("[5]"), "[0]: wanted a text");
        let id = "\"x\" is not a family id";
        assert_eq!(refused::<FamilyId>("\"x\""), id);
        assert_eq!(plainly(id), id);
    }

    #[test]
    fn nothing_of_a_framework_is_left_of_what_it_says_of_paths_and_queries() {
        for (said, wanted) in [
            (
                "Invalid URL: Cannot parse value at index 1 with value `-1` to a `u16`",
                "wanted a whole number from 0 to 65535, not `-1`",
            ),
            (
                "Invalid URL: Cannot parse `x` to a `u32`",
                "wanted a whole number from 0 to 4294967295, not `x`",
            ),
            ("Invalid URL: Invalid UTF-8 in `vm`", "`vm` is not UTF-8"),
            (
                "Invalid URL: \"-1\" is not a ticket",
                "\"-1\" is not a ticket",
            ),
            (
                "limit: invalid digit found in string",
                "limit: wanted a whole number",
            ),
            (
                "nosuch: unknown field `nosuch`, expected `path` or `recursive`",
                "there is no `nosuch` (wanted `path` or `recursive`)",
            ),
            (
                "a.nosuch: unknown field `nosuch`, there are no fields",
                "a: there is no `nosuch`",
            ),
        ] {
            assert_eq!(plainly(said), wanted);
        }
    }

    #[derive(Debug, Deserialize)]
    struct Odd {
        #[serde(rename = "a")]
        _a: f64,
    }

    #[test]
    fn a_value_that_has_the_words_of_an_error_is_a_value() {
        let said = refused::<Odd>("{\"a\": \"x, expected y at line 1 column 2\"}");
        assert_eq!(
            said,
            "a: wanted a number, not \"x, expected y at line 1 column 2\""
        );
    }
}
