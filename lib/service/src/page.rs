//! The page for people: static files, the same for all users.
//!
//! They are served without a token. What the page shows it asks the API for, with the token that
//! it is given. Its policy allows it nothing beyond that: no script or style but its own files,
//! no connection but to this host.

use crate::{input::Path, reply::Refusal};
use axum::{
    Router,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
    routing::get,
};
use forkyard_types::ErrorKind;
use std::{collections::BTreeMap, sync::LazyLock};

const CSS: &str = "text/css; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";
const TEXT: &str = "text/plain; charset=utf-8";

const INDEX: &str = "index.html";

/// Content security policy of the page. What others have written is text to it,
/// never markup or code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'";

/// A file, its media type, and its content.
type File = (&'static str, &'static str, &'static [u8]);

macro_rules! files {
    ($($name:literal: $kind:ident,)*) => {
        &[$(($name, $kind, include_bytes!(concat!("../../../ui/", $name)))),*]
    };
}

static FILES: &[File] = files! {
    "index.html": HTML,
    "style.css": CSS,
    "icon.svg": SVG,
    "api.js": JS,
    "details.js": JS,
    "dialogs.js": JS,
    "dom.js": JS,
    "events.js": JS,
    "lists.js": JS,
    "main.js": JS,
    "notices.js": JS,
    "screens.js": JS,
    "state.js": JS,
    "terminal.js": JS,
    "timeline.js": JS,
    "tree.js": JS,
    "vendor/xterm/xterm.css": CSS,
    "vendor/xterm/xterm.mjs": JS,
    "vendor/xterm/addon-fit.mjs": JS,
    "vendor/xterm/LICENSE": TEXT,
    "vendor/xterm/LICENSE.addon-fit": TEXT,
};

/// Files by name, each with the tag by which a browser knows that it has this one.
static TAGGED: LazyLock<BTreeMap<&str, (&File, String)>> = LazyLock::new(|| {
    let tagged = FILES.iter().map(|file| {
        let (name, _, content) = file;
        (*name, (file, format!("\"{}\"", blake3::hash(content))))
    });
    tagged.collect()
});

/// Routes of the page; none of them is one of the API.
pub fn router() -> Router {
    let to_page = || get(async || Redirect::temporary("/ui/"));
    Router::new()
        .route("/", to_page())
        .route("/ui", to_page())
        .route("/ui/", get(async |asked: HeaderMap| answer(INDEX, &asked)))
        .route(
            "/ui/{*name}",
            get(async |Path(name): Path<String>, asked: HeaderMap| answer(&name, &asked)),
        )
}

fn answer(name: &str, asked: &HeaderMap) -> Response {
    let Some(((_, kind, content), tag)) = TAGGED.get(name) else {
        return Refusal::new(ErrorKind::NotFound, "there is nothing at this path").into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Kept, but asked for each time: a daemon that was replaced serves another page.
        (header::CACHE_CONTROL, "no-cache"),
        (header::ETAG, tag.as_str()),
    ];
    let known = asked.get(header::IF_NONE_MATCH);
    let known = known.and_then(|known| known.to_str().ok());
    if known.is_some_and(|known| known.split(',').any(|one| one.trim() == tag)) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    (headers, *content).into_response()
}

#[cfg(test)]
mod tests;
