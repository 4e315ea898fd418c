use super::*;
use std::collections::BTreeSet;

fn text(name: &str) -> &'static str {
    let (_, _, content) = FILES.iter().find(|file| file.0 == name).expect("a file");
    std::str::from_utf8(content).expect("text")
}

/// Returns the texts between each occurrence of `before` and the next quotation
/// mark.
fn after(text: &'static str, before: &str) -> impl Iterator<Item = &'static str> {
    let parts: Vec<_> = text.split(before).skip(1).collect();
    parts.into_iter().filter_map(|part| part.split('"').next())
}

/// Files that the page and its modules load. Modules in `vendor` load none.
fn named() -> BTreeSet<&'static str> {
    let page = text(INDEX);
    let mut named: BTreeSet<_> = after(page, "src=\"")
        .chain(after(page, "href=\""))
        .collect();
    for (name, kind, _) in FILES {
        if *kind == JS && !name.starts_with("vendor/") {
            let module = text(name);
            named.extend(after(module, "from \"./").chain(after(module, "import(\"./")));
        }
    }
    named
}

#[test]
fn what_the_page_and_its_modules_load_is_served_and_nothing_else_is() {
    let served = FILES.iter().filter(|file| file.1 != TEXT);
    let served: BTreeSet<_> = served
        .map(|file| file.0)
        .filter(|name| *name != INDEX)
        .collect();
    assert_eq!(named(), served);
}

#[test]
fn every_answer_has_the_policy_and_a_file_that_is_known_is_not_sent_again() {
    for (name, kind, content) in FILES {
        let first = answer(name, &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK, "{name}");
        let headers = first.headers();
        let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
        assert_eq!(header(header::CONTENT_TYPE), Some(*kind), "{name}");
        assert_eq!(header(header::CONTENT_SECURITY_POLICY), Some(POLICY));
        assert_eq!(header(header::X_CONTENT_TYPE_OPTIONS), Some("nosniff"));
        assert_eq!(header(header::REFERRER_POLICY), Some("no-referrer"));
        assert!(!content.is_empty(), "{name}");
        let tag = headers.get(header::ETAG).expect("a tag").clone();
        let asked = HeaderMap::from_iter([(header::IF_NONE_MATCH, tag)]);
        assert_eq!(answer(name, &asked).status(), StatusCode::NOT_MODIFIED);
        let other = HeaderMap::from_iter([(
            header::IF_NONE_MATCH,
            header::HeaderValue::from_static("\"other\""),
        )]);
        assert_eq!(answer(name, &other).status(), StatusCode::OK);
    }
    for name in ["", "../Cargo.toml", "main.js/", "test/run.py"] {
        let answered = answer(name, &HeaderMap::new());
        assert_eq!(answered.status(), StatusCode::NOT_FOUND, "{name}");
    }
}

#[test]
fn the_page_has_no_script_or_style_that_its_policy_refuses_and_no_module_parses_markup() {
    assert!(!POLICY.contains("unsafe"));
    let page = text(INDEX);
    for inline in ["<style", " style=", " on", "javascript:", "http:", "https:"] {
        let found = page.split('<').any(|tag| {
            let inside = tag.split('>').next().unwrap_or_default();
            format!("<{inside}").contains(inline)
        });
        assert!(!found, "{inline}");
    }
    assert_eq!(
        page.matches("<script").count(),
        after(page, "<script type=\"module\" src=\"").count()
    );
    for (name, kind, _) in FILES.iter().filter(|file| !file.0.starts_with("vendor/")) {
        if *kind == JS {
            for wrong in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
            ] {
                assert!(!text(name).contains(wrong), "{name}: {wrong}");
            }
        }
    }
}
