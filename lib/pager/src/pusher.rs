//! The thread that gives the kernel pages before it asks for them.
//!
//! On a thread of its own because the kernel may let it wait for a read of the
//! same page, which another thread has to answer.

use crate::catalog::Push;
use crate::service::Service;
use crate::touched::Run;
use forkyard_types::{PAGE_SIZE, PageCount, PageNo};
use fuser::INodeNo;
use std::io;
use std::sync::Weak;
use std::sync::mpsc::Receiver;
use std::thread;

/// Pages given at once: what a read waits for at most because of us.
const PIECE: usize = 64;

/// Starts the thread; it ends with the service.
pub(crate) fn start(service: Weak<Service>, pushes: Receiver<Push>) -> io::Result<()> {
    let run = move || {
        let mut buffer = vec![0; PIECE * PAGE_SIZE];
        for push in pushes {
            let Some(service) = service.upgrade() else {
                return;
            };
            let image = push.image.lineage().image;
            if let Err(error) = service.give(&push, &mut buffer) {
                // The kernel will ask for the rest.
                let error: &dyn std::error::Error = error.as_ref();
                tracing::warn!(%image, error, "pages not pushed");
            }
        }
    };
    thread::Builder::new().name("push".into()).spawn(run)?;
    Ok(())
}

impl Service {
    fn give(
        &self,
        push: &Push,
        buffer: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Some(kernel) = self.kernel() else {
            return Ok(());
        };
        for piece in push.runs.iter().flat_map(|run| pieces(*run)) {
            let pages = usize::try_from(piece.pages.0)?;
            let bytes = &mut buffer[..pages * PAGE_SIZE];
            push.image.read(piece.first, bytes)?;
            let Some(offset) = piece.first.start() else {
                return Ok(());
            };
            kernel.store(INodeNo(push.node.0), offset.0, bytes)?;
            self.catalog().pushed(push.node, piece);
        }
        Ok(())
    }
}

/// A run in pieces of at most [`PIECE`] pages.
fn pieces(run: Run) -> impl Iterator<Item = Run> {
    let starts = (0..run.pages.0).step_by(PIECE);
    starts.map(move |start| Run {
        first: PageNo(run.first.0 + start),
        pages: PageCount((run.pages.0 - start).min(PIECE as u64)),
    })
}
