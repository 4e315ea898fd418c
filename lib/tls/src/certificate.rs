//! The daemon's certificate: one that was given, or one made on first use.

use crate::{Fingerprint, TlsError, provider};
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

const CERTIFICATE: &str = "cert.pem";
const KEY: &str = "key.pem";

/// A certificate and its key.
#[derive(Debug)]
pub struct Certificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    own: Fingerprint,
}

impl Certificate {
    /// Reads a chain, the daemon's own certificate first, and its key.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let chain = read_chain(certificate)?;
        let own = Fingerprint::of(chain.first().ok_or_else(|| TlsError::NoCertificate {
            path: certificate.into(),
        })?);
        let key = PrivateKeyDer::from_pem_file(key).map_err(|source| TlsError::Pem {
            what: "private key",
            path: key.into(),
            source,
        })?;
        Ok(Self { chain, key, own })
    }

    /// The certificate kept in `folder`, made there if there is none: signed
    /// by itself and good for ever, for no authority vouches for it. A client knows
    /// it by its fingerprint, or by the file `cert.pem` itself.
    pub fn kept_in(folder: &Path, names: &[String]) -> Result<Self, TlsError> {
        let (certificate, key) = (folder.join(CERTIFICATE), folder.join(KEY));
        if !certificate.exists() {
            fs::create_dir_all(folder).map_err(|source| TlsError::Io {
                what: "create",
                path: folder.into(),
                source,
            })?;
            let pair = KeyPair::generate()?;
            let mut parameters = CertificateParams::new(names)?;
            parameters
                .distinguished_name
                .push(DnType::CommonName, "forkyard");
            let made = parameters.self_signed(&pair)?;
            // The certificate last: where it is, its key is.
            write(&key, &pair.serialize_pem(), 0o600)?;
            write(&certificate, &made.pem(), 0o644)?;
        }
        Self::load(&certificate, &key)
    }

    /// Returns the fingerprint.
    pub fn fingerprint(&self) -> Fingerprint {
        self.own
    }

    pub(crate) fn into_parts(self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        (self.chain, self.key)
    }

    /// Configures a server with it: TLS 1.2 or 1.3, HTTP/1.1 alone.
    pub fn server(self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(self.chain, self.key)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

pub(crate) fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |source| TlsError::Pem {
        what: "certificate",
        path: path.into(),
        source,
    };
    let chain = CertificateDer::pem_file_iter(path).map_err(failed)?;
    let chain: Vec<_> = chain.collect::<Result<_, _>>().map_err(failed)?;
    match chain.is_empty() {
        true => Err(TlsError::NoCertificate { path: path.into() }),
        false => Ok(chain),
    }
}

/// Never open to more than `mode` says, not even while it is written, and
/// whole or not there at all.
pub(crate) fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    let new = path.with_extension("new");
    let written = || {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(|source| TlsError::Io {
        what: "write",
        path: path.into(),
        source,
    })
}
