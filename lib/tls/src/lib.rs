//! TLS between a daemon and those who reach it over the network: the daemon's
//! certificate, and what a client holds it to. Opens no socket.

mod certificate;
mod error;
mod fingerprint;
mod trust;

pub use certificate::Certificate;
pub use error::TlsError;
pub use fingerprint::{Fingerprint, InvalidFingerprint};
pub use rustls::{ClientConfig, ServerConfig, pki_types::ServerName};
pub use trust::Trust;

use rustls::crypto::{CryptoProvider, ring};
use std::sync::Arc;

/// Chosen here, not for the whole process: what else is linked in may have
/// another.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

#[cfg(test)]
mod tests;
