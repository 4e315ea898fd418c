//! TLS between a daemon and its clients over the network: the daemon's
//! certificate, and what a client holds it to; and between the nodes of a
//! cluster, whose authority of their own vouches for each to the others. Opens
//! no socket.

mod authority;
mod certificate;
mod error;
mod fingerprint;
mod identity;
mod trust;

pub use authority::{Authority, NodeKey};
pub use certificate::Certificate;
pub use error::TlsError;
pub use fingerprint::{Fingerprint, InvalidFingerprint};
pub use identity::NodeIdentity;
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
mod cluster_tests;
#[cfg(test)]
mod tests;
