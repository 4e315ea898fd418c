//! Reasons why TLS cannot be set up.

use std::{io, path::PathBuf};

/// Reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file does not hold what it should, in PEM.
    #[error("{} holds no {what}", path.display())]
    Pem {
        /// Part that was looked for.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Reason why it is not there.
        source: rustls::pki_types::pem::Error,
    },
    /// A file holds no certificate at all.
    #[error("{} holds no certificate", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key cannot be used together, or at all.
    #[error("the certificate or its key cannot be used")]
    Unusable(#[from] rustls::Error),
    /// No certificate could be made.
    #[error("no certificate could be made")]
    Make(#[from] rcgen::Error),
    /// Text that is no public key of a node.
    #[error(
        "not a node's public key: wanted an uncompressed point of P-256, {} bytes",
        crate::authority::POINT
    )]
    NoNodeKey,
    /// No one can be held to an authority that cannot be used.
    #[error("the cluster's authority cannot be used to verify its nodes")]
    Authority(#[from] rustls::server::VerifierBuilderError),
    /// This host trusts no certificate authority.
    #[error("this host trusts no certificate authority")]
    NoAuthorities,
    /// A file cannot be written or looked at.
    #[error("cannot {what} {}", path.display())]
    Io {
        /// Operation that was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the host.
        source: io::Error,
    },
}
