//! Identity of a node towards the others: its key, its certificate, and the
//! authority that vouches for all of them.

use crate::{
    Fingerprint, NodeKey, TlsError,
    authority::AUTHORITY,
    certificate::{read_chain, write},
    provider,
};
use rcgen::KeyPair;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

const CERTIFICATE: &str = "node.pem";
const KEY: &str = "node-key.pem";

/// Identity of a node.
#[derive(Debug)]
pub struct NodeIdentity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authority: Vec<CertificateDer<'static>>,
    own: Fingerprint,
}

impl NodeIdentity {
    /// The public half of the key kept in `folder`, drawn if there is none.
    pub fn key(folder: &Path) -> Result<NodeKey, TlsError> {
        let path = folder.join(KEY);
        let pair = match path.exists() {
            true => {
                let text = fs::read_to_string(&path).map_err(|source| TlsError::Io {
                    what: "read",
                    path,
                    source,
                })?;
                KeyPair::from_pem(&text)?
            }
            false => {
                let pair = KeyPair::generate()?;
                write(&path, &pair.serialize_pem(), 0o600)?;
                pair
            }
        };
        NodeKey::new(pair.public_key_raw().to_vec())
    }

    /// Keeps what an authority has signed for the key kept in `folder`, and its
    /// own certificate, both in PEM.
    pub fn keep(folder: &Path, certificate: &str, authority: &str) -> Result<(), TlsError> {
        write(&folder.join(AUTHORITY), authority, 0o644)?;
        // Last: where it is, the others are.
        write(&folder.join(CERTIFICATE), certificate, 0o644)
    }

    /// The identity kept in `folder`; none if this host was never a node.
    pub fn kept_in(folder: &Path) -> Result<Option<Self>, TlsError> {
        let certificate = folder.join(CERTIFICATE);
        if !certificate.exists() {
            return Ok(None);
        }
        let chain = read_chain(&certificate)?;
        let own = Fingerprint::of(
            chain
                .first()
                .ok_or(TlsError::NoCertificate { path: certificate })?,
        );
        let path: PathBuf = folder.join(KEY);
        let key = PrivateKeyDer::from_pem_file(&path).map_err(|source| TlsError::Pem {
            what: "private key",
            path,
            source,
        })?;
        Ok(Some(Self {
            chain,
            key,
            authority: read_chain(&folder.join(AUTHORITY))?,
            own,
        }))
    }

    /// Returns the fingerprint of its certificate, by which the cluster's
    /// records know it.
    pub fn fingerprint(&self) -> Fingerprint {
        self.own
    }

    /// Configures a server with it: a client that presents a certificate must
    /// have it from the cluster's authority; one without is let in so far, and
    /// has to bring a token.
    pub fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let known = WebPkiClientVerifier::builder_with_provider(self.roots()?.into(), provider())
            .allow_unauthenticated()
            .build()?;
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(known)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Configures a client with it: each server must present a certificate from
    /// the authority that bears the name it is called by.
    pub fn client(&self) -> Result<Arc<ClientConfig>, TlsError> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in &self.authority {
            roots.add(certificate.clone())?;
        }
        Ok(roots)
    }
}
