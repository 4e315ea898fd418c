//! The pager, asked and brought back.

use crate::{Folders, Options, PartsError, blocking::blocking, pager_process};
use forkyard_pager::{PagerClient, PagerError};
use tokio::sync::Mutex;

/// The host's pager.
#[derive(Debug)]
pub struct Pager {
    client: PagerClient,
    /// Held while another is started.
    starting: Mutex<()>,
}

impl Pager {
    /// The one that this client asks.
    pub fn new(client: PagerClient) -> Self {
        Self {
            client,
            starting: Mutex::default(),
        }
    }

    /// Returns a client of its own for files that VMs boot from.
    pub fn client(&self) -> PagerClient {
        self.client.clone()
    }

    /// Asks it, on a thread of its own. Cancelling the future abandons only the answer.
    pub async fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&PagerClient) -> Result<T, PagerError> + Send + 'static,
    ) -> Result<T, PagerError> {
        let client = self.client();
        blocking(move || call(&client)).await
    }

    /// Starts another if it does not answer, unless it is `missed`. Not cancel-safe: one may be
    /// left that the next call finds.
    pub async fn need(
        &self,
        folders: &Folders,
        options: Options,
        missed: impl Fn() -> bool,
    ) -> Result<(), PartsError> {
        if self.call(|pager| pager.ping()).await.is_ok() {
            return Ok(());
        }
        let _alone = self.starting.lock().await;
        match self.call(|pager| pager.ping()).await {
            Ok(()) => return Ok(()),
            Err(error) if missed() => return Err(error.into()),
            Err(_) => {}
        }
        let folders = folders.clone();
        blocking(move || pager_process::ensure(&folders, options)).await?;
        tracing::warn!("the pager and its keeper were gone: another was started");
        Ok(())
    }
}
