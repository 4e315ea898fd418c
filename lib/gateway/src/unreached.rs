//! Reasons why a port of a VM is not reached, as HTTP has them.

use forkyard_api_client::ClientError;
use forkyard_types::{ApiError, ErrorKind};
use hyper::StatusCode;

/// No connection.
#[derive(Debug)]
pub struct Unreached {
    /// As HTTP has it.
    pub status: StatusCode,
    /// Reason.
    pub error: ApiError,
    /// True if it may be otherwise in a moment.
    pub for_now: bool,
}

impl From<ClientError> for Unreached {
    fn from(error: ClientError) -> Self {
        let for_now = if let ClientError::Refused(error) = &error {
            matches!(
                error.kind,
                ErrorKind::Conflict | ErrorKind::Exhausted | ErrorKind::Timeout
            )
        } else {
            // Trust that is not there does not come by waiting.
            matches!(
                error,
                ClientError::NoDaemon { .. }
                    | ClientError::Unreachable { .. }
                    | ClientError::Hangs { .. }
                    | ClientError::Broke { .. }
            )
        };
        let ClientError::Refused(error) = error else {
            // The daemon's address and its faults are for the log, not for clients.
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "the daemon is not reached"
            );
            let error = ApiError {
                kind: ErrorKind::Host,
                message: "the host does not answer".to_owned(),
                hint: Some("try again later; this program's log says why".to_owned()),
            };
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Self {
                status,
                error,
                for_now,
            };
        };
        let status = match error.kind {
            ErrorKind::NotFound => StatusCode::NOT_FOUND,
            ErrorKind::Conflict | ErrorKind::Host => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Exhausted => StatusCode::TOO_MANY_REQUESTS,
            ErrorKind::Guest => StatusCode::BAD_GATEWAY,
            ErrorKind::Timeout => StatusCode::GATEWAY_TIMEOUT,
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            // This program's own rights are meant, not the client's.
            ErrorKind::Unauthorized | ErrorKind::Forbidden => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self {
            status,
            error,
            for_now,
        }
    }
}
