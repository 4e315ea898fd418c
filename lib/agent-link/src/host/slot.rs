//! An answer that may come before or after it is waited for.

use std::sync::{Mutex, PoisonError};
use tokio::sync::Notify;

/// Holds the latest answer until it is taken.
#[derive(Debug)]
pub struct Slot<T> {
    value: Mutex<Option<T>>,
    filled: Notify,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            value: Mutex::new(None),
            filled: Notify::new(),
        }
    }
}

impl<T> Slot<T> {
    /// Puts an answer in; an earlier one that was not taken goes.
    pub fn fill(&self, value: T) {
        *self.value.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
        self.filled.notify_one();
    }

    /// Forgets an answer to an earlier question.
    pub fn clear(&self) {
        self.value
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// Waits for an answer. Cancel-safe: it stays until taken.
    pub async fn take(&self) -> T {
        loop {
            let filled = self.filled.notified();
            let value = self
                .value
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(value) = value {
                return value;
            }
            filled.await;
        }
    }
}
