//! Making files of pieces.

use crate::objects::{AT_ONCE, Objects};
use forkyard_objects::order::{Done, Failed, File};
use forkyard_sys_host::private;
use futures::{StreamExt, stream};
use tokio::io::AsyncWriteExt;

/// Makes files, each of which must be new. What was made of one that fails is left.
pub async fn fetch(objects: &Objects, files: Vec<File>) -> Result<Done, Failed> {
    let mut done = Done::default();
    for File { path, pieces } in files {
        let failed = |error: std::io::Error| Failed::Here(format!("{}: {error}", path.display()));
        let file = private::create_new(&path).map_err(failed)?;
        let mut file = tokio::fs::File::from_std(file);
        // In order, a few ahead.
        let mut coming = stream::iter(pieces)
            .map(|piece| objects.piece(piece))
            .buffered(AT_ONCE);
        while let Some(bytes) = coming.next().await {
            let bytes = bytes?;
            file.write_all(&bytes).await.map_err(failed)?;
            done.moved += bytes.len() as u64;
        }
        // The last write is under way, and its error is told by this alone.
        file.flush().await.map_err(failed)?;
        file.sync_all().await.map_err(failed)?;
    }
    Ok(done)
}
