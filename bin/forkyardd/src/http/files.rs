//! Files of guests: one file's bytes, and trees as tar streams. All of it passes
//! through in pieces.

use super::{Answer, Path, Query, Raw};
use crate::reply::Refusal;
use axum::{
    Json,
    body::{Body, BodyDataStream},
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use forkyard_fork::{FilesIn, FilesOut, Host, HostError};
use forkyard_types::{
    ErrorKind, FileEntry, FileEvent, FileMove, FilePath, FileRead, FileRemove, FileWatch,
    FileWrite, FilesWritten,
};
use futures::{StreamExt, stream};
use std::{io, sync::Arc, time::Duration};
use tokio::time::timeout;

type Shared = State<Arc<Host>>;

/// Time for which what a guest does not take is read from its client.
const REST: Duration = Duration::from_secs(10);

/// Read a file, or a folder with all that is in it, as a tar stream. A path that ends in `/.`
/// is the content of a folder. Sockets, FIFOs and devices are left out.
#[utoipa::path(get, path = "/v1/vms/{vm}/archive", tag = "files", params(("vm" = String, Path, description = "Name or id"), FilePath),
    operation_id = "read_archive",
    responses((status = 200, body = Raw, content_type = "application/x-tar", description = "The files; cut off if the guest fails"), Refusal))]
pub async fn read_tree(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FilePath>,
) -> Result<Response, Refusal> {
    Ok(streamed(
        host.use_vm(&vm).await?.read_tree(wanted.path).await?,
        "application/x-tar",
    ))
}

/// Unpack a tar stream in a guest, where all of it is root's: into a folder that exists,
/// or, if it has one file or folder, under that name.
#[utoipa::path(put, path = "/v1/vms/{vm}/archive", tag = "files", params(("vm" = String, Path, description = "Name or id"), FilePath),
    operation_id = "write_archive",
    request_body(content = Raw, content_type = "application/x-tar"),
    responses((status = 200, body = FilesWritten, description = "They are there"), Refusal))]
pub async fn write_tree(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FilePath>,
    body: Body,
) -> Answer<FilesWritten> {
    // Not spawned: dropped with the connection, the copy is given up.
    let begun = async { Ok(host.use_vm(&vm).await?.write_tree(wanted.path).await?) };
    taken(begun, body).await
}

/// Read a file's bytes, to its end whatever its size.
#[utoipa::path(get, path = "/v1/vms/{vm}/files", tag = "files", params(("vm" = String, Path, description = "Name or id"), FileRead),
    operation_id = "read_file",
    responses((status = 200, body = Raw, content_type = "application/octet-stream", description = "The bytes; cut off if the guest fails"), Refusal))]
pub async fn read_file(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FileRead>,
) -> Result<Response, Refusal> {
    Ok(streamed(
        host.use_vm(&vm).await?.read_file(wanted).await?,
        "application/octet-stream",
    ))
}

/// Replace a file as a whole, or make it: others see the old one or the new one. Its
/// mode and owner stay; a link stays, and what it leads to is replaced.
#[utoipa::path(put, path = "/v1/vms/{vm}/files", tag = "files", params(("vm" = String, Path, description = "Name or id"), FileWrite),
    operation_id = "write_file",
    request_body(content = Raw, content_type = "application/octet-stream"),
    responses((status = 200, body = FilesWritten, description = "The file or folder is there"), Refusal))]
pub async fn write_file(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FileWrite>,
    body: Body,
) -> Answer<FilesWritten> {
    let begun = async { Ok(host.use_vm(&vm).await?.write_file(wanted).await?) };
    taken(begun, body).await
}

/// Remove a file, or a folder: an empty one, or with all that is in it.
#[utoipa::path(delete, path = "/v1/vms/{vm}/files", tag = "files", params(("vm" = String, Path, description = "Name or id"), FileRemove),
    operation_id = "remove_file",
    responses((status = 200, description = "The file or folder is gone"), Refusal))]
pub async fn remove_file(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FileRemove>,
) -> Answer<()> {
    let work = async move {
        let used = host.use_vm(&vm).await?;
        Ok::<_, HostError>(used.remove_file(wanted.path, wanted.recursive).await?)
    };
    super::spawned(work).await.map(Json)
}

/// Tell of a file: kind, size, mode, owner, time. Of a link, the link itself.
#[utoipa::path(get, path = "/v1/vms/{vm}/stat", tag = "files", params(("vm" = String, Path, description = "Name or id"), FilePath),
    operation_id = "stat_file",
    responses((status = 200, body = FileEntry, description = "The file"), Refusal))]
pub async fn stat(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FilePath>,
) -> Answer<FileEntry> {
    Ok(Json(host.use_vm(&vm).await?.stat_file(wanted.path).await?))
}

/// List a folder, by name.
#[utoipa::path(get, path = "/v1/vms/{vm}/folder", tag = "files", params(("vm" = String, Path, description = "Name or id"), FilePath),
    operation_id = "list_folder",
    responses((status = 200, body = Vec<FileEntry>, description = "The files in it"), Refusal))]
pub async fn list(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FilePath>,
) -> Answer<Vec<FileEntry>> {
    Ok(Json(host.use_vm(&vm).await?.list_files(wanted.path).await?))
}

/// Make a folder, and those above it that are not there.
#[utoipa::path(put, path = "/v1/vms/{vm}/folder", tag = "files", params(("vm" = String, Path, description = "Name or id"), FilePath),
    operation_id = "make_folder",
    responses((status = 200, description = "The file or folder is there"), Refusal))]
pub async fn make_folder(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FilePath>,
) -> Answer<()> {
    let work = async move {
        let used = host.use_vm(&vm).await?;
        Ok::<_, HostError>(used.make_folder(wanted.path).await?)
    };
    super::spawned(work).await.map(Json)
}

/// Move a file or folder within a guest.
#[utoipa::path(post, path = "/v1/vms/{vm}/move", tag = "files", params(("vm" = String, Path, description = "Name or id"), FileMove),
    operation_id = "move_file",
    responses((status = 200, description = "The file or folder is there"), Refusal))]
pub async fn rename(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FileMove>,
) -> Answer<()> {
    let work = async move {
        let used = host.use_vm(&vm).await?;
        Ok::<_, HostError>(used.move_file(wanted.path, wanted.to).await?)
    };
    super::spawned(work).await.map(Json)
}

/// Watch a folder, until the client goes away or the folder does.
#[utoipa::path(get, path = "/v1/vms/{vm}/watch", tag = "files", params(("vm" = String, Path, description = "Name or id"), FileWatch),
    operation_id = "watch_folder",
    responses((status = 200, body = FileEvent, content_type = "application/x-ndjson",
        description = "The folder is watched: a stream of lines, each one event as JSON; empty ones mean nothing"), Refusal))]
pub async fn watch(
    State(host): Shared,
    Path(vm): Path<String>,
    Query(wanted): Query<FileWatch>,
) -> Result<Response, Refusal> {
    let events = host.use_vm(&vm).await?.watch_files(wanted).await?;
    Ok(streamed(events, "application/x-ndjson"))
}

fn streamed(files: FilesOut, kind: &'static str) -> Response {
    let pieces = stream::unfold(Some(files), |files| async {
        let mut files = files?;
        match files.next().await {
            Ok(None) => None,
            Ok(Some(piece)) => Some((Ok(piece), Some(files))),
            Err(error) => {
                tracing::info!(%error, "files of a guest broke off");
                Some((Err(io::Error::other("the guest failed")), None))
            }
        }
    });
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response()
}

/// Passes a body on to a guest that is ready for it. Where it is not, or takes no more, the rest is read
/// all the same: a client that cannot go on sending does not hear why.
async fn taken(
    begun: impl Future<Output = Result<FilesIn, HostError>>,
    body: Body,
) -> Answer<FilesWritten> {
    let mut pieces = body.into_data_stream();
    let passed = match begun.await {
        Ok(files) => passed(files, &mut pieces).await,
        Err(error) => Err(error.into()),
    };
    if passed.is_err() {
        let rest = async { while let Some(Ok(_)) = pieces.next().await {} };
        let _ = timeout(REST, rest).await;
    }
    passed.map(Json)
}

async fn passed(mut files: FilesIn, pieces: &mut BodyDataStream) -> Result<FilesWritten, Refusal> {
    while let Some(piece) = pieces.next().await {
        // Dropped, the guest removes what it has.
        let piece = piece.map_err(|error| {
            tracing::info!(%error, "files for a guest broke off");
            Refusal::new(ErrorKind::Invalid, "the files did not come in whole")
        })?;
        if !files.push(piece.into()).await {
            break;
        }
    }
    Ok(files.finish().await?)
}
