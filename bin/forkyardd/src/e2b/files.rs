//! Files up and down, in pieces.

use super::{envd::Call, filesystem::name, reply::Failure};
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequest, Multipart, Request},
    http::{HeaderName, Method, header},
    response::{IntoResponse, Response},
};
use forkyard_e2b::{Operation, Written, absolute, sign};
use forkyard_types::{ErrorKind, FileRead, FileWrite};
use futures::{Stream, StreamExt, stream};
use std::{collections::BTreeMap, io};

fn query(request: &Request) -> BTreeMap<String, String> {
    let text = request.uri().query().unwrap_or_default();
    forkyard_e2b::pairs(text)
}

/// The file that a request is for.
pub fn path(request: &Request) -> Option<String> {
    query(request).remove("path")
}

/// Longest path that a signature is read for.
const LONGEST: usize = 4096;

/// A request for a file that is signed, as far as it shows.
#[derive(Debug)]
pub struct Signed {
    operation: Operation,
    path: String,
    user: String,
    expires: Option<u64>,
    signature: String,
}

impl Signed {
    /// Reads a request; none if it is for no file, or has no signature that could hold now.
    pub fn of(request: &Request) -> Option<Self> {
        if request.uri().path() != "/files" {
            return None;
        }
        let mut query = query(request);
        let mut text = |name: &str| query.remove(name);
        let (signature, path) = (text("signature")?, text("path").unwrap_or_default());
        let user = text("username").unwrap_or_default();
        let expires = text("signature_expiration").map(|text| text.parse());
        let expires = expires.transpose().ok()?;
        let holds = expires.is_none_or(|expires| crate::now() <= expires);
        let operation = match request.method() == Method::GET {
            true => Operation::Read,
            false => Operation::Write,
        };
        (holds && path.len() + user.len() <= LONGEST).then_some(Self {
            operation,
            path,
            user,
            expires,
            signature,
        })
    }

    /// True if it is signed by this token.
    pub fn is_by(&self, token: &str) -> bool {
        let wanted = sign(self.operation, &self.path, &self.user, token, self.expires);
        forkyard_e2b::is_signed(&self.signature, &wanted, self.expires, crate::now())
    }
}

/// `GET /files`.
pub async fn download(call: &Call, path: Option<String>) -> Result<Response, Failure> {
    let path = path.ok_or_else(|| Failure::invalid("no path is said"))?;
    let wanted = FileRead {
        path: absolute(&path),
        offset: None,
        limit: None,
    };
    let files = call.used().await?.read_file(wanted).await?;
    let pieces = stream::unfold(Some(files), |files| async {
        let mut files = files?;
        match files.next().await {
            Ok(None) => None,
            Ok(Some(piece)) => Some((Ok(piece), Some(files))),
            Err(error) => {
                tracing::info!(%error, "a file of a guest broke off");
                Some((Err(io::Error::other("the guest failed")), None))
            }
        }
    });
    let kind = [(header::CONTENT_TYPE, "application/octet-stream")];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

/// `POST /files`: one file as the body, or some as parts of it.
pub async fn upload(call: &Call, request: Request) -> Result<Json<Vec<Written>>, Failure> {
    let path = query(&request).remove("path");
    let (kind, coding) = (
        head(&request, &header::CONTENT_TYPE),
        head(&request, &header::CONTENT_ENCODING),
    );
    if coding.is_some_and(|coding| coding != "identity") {
        return Err(Failure::unsupported("an upload that is compressed"));
    }
    if !kind.unwrap_or_default().starts_with("multipart/form-data") {
        let path = path.ok_or_else(|| Failure::invalid("no path is said"))?;
        let body = request.into_body().into_data_stream();
        return Ok(Json(vec![write(call, &path, body).await?]));
    }
    let mut written = Vec::new();
    let mut request = request;
    DefaultBodyLimit::apply(DefaultBodyLimit::disable(), &mut request);
    let parts = Multipart::from_request(request, &()).await;
    let mut parts = parts.map_err(|wrong| Failure::invalid(wrong.body_text()))?;
    loop {
        let part = parts.next_field().await;
        let Some(part) = part.map_err(|wrong| Failure::invalid(wrong.body_text()))? else {
            break;
        };
        if part.name() != Some("file") {
            continue;
        }
        let named = part.file_name().map(str::to_owned);
        let path = path
            .clone()
            .or(named)
            .ok_or_else(|| Failure::invalid("no path is said"))?;
        written.push(write(call, &path, part).await?);
    }
    match written.is_empty() {
        true => Err(Failure::invalid("the body has no part `file`")),
        false => Ok(Json(written)),
    }
}

fn head(request: &Request, name: &HeaderName) -> Option<String> {
    let value = request.headers().get(name)?;
    value.to_str().ok().map(str::to_owned)
}

async fn write<E>(
    call: &Call,
    path: &str,
    mut pieces: impl Stream<Item = Result<Bytes, E>> + Unpin,
) -> Result<Written, Failure> {
    let path = absolute(path);
    let wanted = FileWrite {
        path: path.clone(),
        mode: None,
        parents: true,
    };
    let mut files = call.used().await?.write_file(wanted).await?;
    while let Some(piece) = pieces.next().await {
        // Dropped, the guest removes what it has.
        let piece = piece.map_err(|_| Failure::invalid("the file did not come in whole"))?;
        if !files.push(piece.into()).await {
            break;
        }
    }
    files.finish().await.map_err(|error| {
        let full = error.to_api();
        match full.kind == ErrorKind::Guest && full.message.contains("No space left") {
            true => Failure {
                status: axum::http::StatusCode::INSUFFICIENT_STORAGE,
                ..Failure::from(full)
            },
            false => error.into(),
        }
    })?;
    Ok(Written {
        name: name(&path),
        kind: "file",
        path,
    })
}
