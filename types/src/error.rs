//! Errors as the API tells of them.

use serde::{Deserialize, Serialize};
use std::error::Error;

/// Reason why a request was refused or failed, in a form a program can branch on.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request makes no sense as it stands. Never a fault of the host.
    Invalid,
    /// No such VM, image or ticket.
    NotFound,
    /// The VM is in a state that does not allow it, or the name is taken.
    Conflict,
    /// A limit of the host or of the family is reached.
    Exhausted,
    /// The guest did not answer, or answered nonsense.
    Guest,
    /// The operation took longer than allowed.
    Timeout,
    /// The host failed: QEMU, kernel, disk, its own records, or what another host answered.
    Host,
    /// No token came with the request, or one that does not hold (any more).
    Unauthorized,
    /// Not for clients over the network.
    Forbidden,
}

/// An error: what happened, why, and what to do about it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Class of the error, to branch on.
    pub kind: ErrorKind,
    /// Description of the error and its reason, causes joined by a colon.
    pub message: String,
    /// Advice to the user.
    #[serde(default)]
    pub hint: Option<String>,
}

impl ApiError {
    /// Tells of an error: the whole chain of causes in one line. Where the cause is what another host
    /// answered, the advice is that host's, which knows best.
    pub fn of(error: &(dyn Error + 'static), kind: ErrorKind, hint: Option<&str>) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            if !message.ends_with(&text) {
                message = format!("{message}: {text}");
            }
            cause = error.source();
        }
        let told = error
            .source()
            .and_then(|cause| cause.downcast_ref::<Self>());
        Self {
            kind,
            message,
            hint: told.map_or_else(|| hint.map(str::to_owned), |told| told.hint.clone()),
        }
    }
}
