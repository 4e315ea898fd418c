//! Trust of a client in a daemon's certificate.

use crate::{
    Certificate, Fingerprint, InvalidFingerprint, TlsError, certificate::read_chain, provider,
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{
        CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::{path::PathBuf, str::FromStr, sync::Arc};

/// Trust of a client in a daemon's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// An authority this host trusts vouches for its name.
    System,
    /// One of the certificates in this file is it, or vouches for it; and it
    /// bears the name that the client asked for.
    Authorities(PathBuf),
    /// The certificate is this one, whatever its name.
    Pinned(Fingerprint),
}

impl FromStr for Trust {
    type Err = InvalidFingerprint;

    /// `sha256:…` or a file's path.
    fn from_str(text: &str) -> Result<Self, InvalidFingerprint> {
        match text.starts_with("sha256:") {
            true => text.parse().map(Self::Pinned),
            false => Ok(Self::Authorities(text.into())),
        }
    }
}

impl Trust {
    /// Configures a client that presents no certificate of its own.
    pub fn client(&self) -> Result<Arc<ClientConfig>, TlsError> {
        self.client_as(None)
    }

    /// Configures a client that presents this certificate, if asked for one.
    pub fn client_as(&self, own: Option<Certificate>) -> Result<Arc<ClientConfig>, TlsError> {
        let provider = provider();
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()?;
        let builder = match self {
            Self::System => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(TlsError::NoAuthorities);
                }
                builder.with_root_certificates(roots)
            }
            Self::Authorities(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in read_chain(path)? {
                    roots.add(certificate)?;
                }
                builder.with_root_certificates(roots)
            }
            Self::Pinned(fingerprint) => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Pin::new(*fingerprint, &provider))),
        };
        Ok(Arc::new(match own {
            Some(own) => {
                let (chain, key) = own.into_parts();
                builder.with_client_auth_cert(chain, key)?
            }
            None => builder.with_no_client_auth(),
        }))
    }
}

/// Accepts one certificate, from a peer that proves to have its key.
#[derive(Debug)]
struct Pin {
    fingerprint: Fingerprint,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Pin {
    fn new(fingerprint: Fingerprint, provider: &CryptoProvider) -> Self {
        Self {
            fingerprint,
            algorithms: provider.signature_verification_algorithms,
        }
    }
}

impl ServerCertVerifier for Pin {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match Fingerprint::of(end_entity) == self.fingerprint {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
