//! Files of sandboxes, one at a time: told of, made, moved, removed.

use super::{envd::Call, input::spawned, reply::Failure};
use forkyard_e2b::{
    EntryInfo, EntryResponse, FileType, ListDirRequest, ListDirResponse, MoveRequest, PathRequest,
    absolute, permissions, rfc3339,
};
use forkyard_fork::VmError;
use forkyard_types::{ErrorKind, FileEntry, FileKind};
use serde_json::{Value, json};

/// Most files of a list of several folders.
const MOST: usize = 10_000;

/// The last part of a path.
pub fn name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

fn told(path: String, found: FileEntry) -> EntryInfo {
    let kind = match found.kind {
        FileKind::File => FileType::File,
        FileKind::Folder => FileType::Directory,
        FileKind::Link => FileType::Symlink,
        FileKind::Other => FileType::Other,
    };
    let named = |id: u32| match id {
        0 => "root".to_owned(),
        other => other.to_string(),
    };
    EntryInfo {
        name: name(&path),
        kind,
        path,
        size: found.size.to_string(),
        mode: found.mode & 0o7777,
        permissions: permissions(kind, found.mode),
        owner: named(found.uid),
        group: named(found.gid),
        modified_time: rfc3339(found.mtime_ns),
        symlink_target: found.target,
        is_symlink: kind == FileType::Symlink,
    }
}

async fn entry(call: &Call, path: &str) -> Result<EntryInfo, Failure> {
    let path = absolute(path);
    let found = call.used().await?.stat_file(path.clone()).await?;
    Ok(told(path, found))
}

/// `Stat`.
pub async fn stat(call: Call, asked: PathRequest) -> Result<EntryResponse, Failure> {
    Ok(EntryResponse {
        entry: entry(&call, &asked.path).await?,
    })
}

/// `MakeDir`.
pub async fn make_dir(call: Call, asked: PathRequest) -> Result<EntryResponse, Failure> {
    let path = absolute(&asked.path);
    match call.used().await?.stat_file(path.clone()).await {
        Ok(found) if found.kind == FileKind::Folder => {
            return Err(Failure::exists(format!("directory already exists: {path}")));
        }
        Ok(_) => {
            return Err(Failure::invalid(format!(
                "{path} exists and is no directory"
            )));
        }
        Err(error) if is_missing(&error) => {}
        Err(error) => return Err(error.into()),
    }
    let (used, wanted) = (call.used().await?, path.clone());
    spawned(async move { Ok(used.make_folder(wanted).await?) }).await?;
    let entry = entry(&call, &path).await?;
    Ok(EntryResponse { entry })
}

fn is_missing(error: &VmError) -> bool {
    error.kind() == ErrorKind::NotFound
}

/// `Move`.
pub async fn rename(call: Call, asked: MoveRequest) -> Result<EntryResponse, Failure> {
    let (from, to) = (absolute(&asked.source), absolute(&asked.destination));
    let (used, wanted) = (call.used().await?, to.clone());
    spawned(async move { Ok(used.move_file(from, wanted).await?) }).await?;
    let entry = entry(&call, &to).await?;
    Ok(EntryResponse { entry })
}

/// `ListDir`.
pub async fn list_dir(call: Call, asked: ListDirRequest) -> Result<ListDirResponse, Failure> {
    let top = absolute(&asked.path);
    let found = call.used().await?.stat_file(top.clone()).await?;
    if found.kind != FileKind::Folder && found.kind != FileKind::Link {
        return Err(Failure::invalid(format!("path is not a directory: {top}")));
    }
    let mut entries: Vec<EntryInfo> = Vec::new();
    let mut folders = vec![(top, asked.depth.max(1))];
    while let Some((folder, depth)) = folders.pop() {
        for found in call.used().await?.list_files(folder.clone()).await? {
            let path = format!("{}/{}", folder.trim_end_matches('/'), found.name);
            if found.kind == FileKind::Folder && depth > 1 {
                folders.push((path.clone(), depth - 1));
            }
            entries.push(told(path, found));
            if entries.len() > MOST {
                return Err(Failure::exhausted(format!(
                    "more than {MOST} files: list fewer folders"
                )));
            }
        }
    }
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(ListDirResponse { entries })
}

/// `Remove`.
pub async fn remove(call: Call, asked: PathRequest) -> Result<Value, Failure> {
    let path = absolute(&asked.path);
    let used = call.used().await?;
    let removed = spawned(async move {
        match used.remove_file(path, true).await {
            Err(error) if is_missing(&error) => Ok(()),
            done => Ok(done?),
        }
    });
    removed.await.map(|()| json!({}))
}
