//! A cluster's certificate authority: it vouches for nodes and nothing else.
//!
//! It is kept where the cluster was founded, and its key never leaves that
//! host. A node draws its own key and sends the public half alone, so no node
//! ever has another's.

use crate::{Fingerprint, TlsError, certificate::write};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use std::{fs, io::ErrorKind, net::IpAddr, path::Path};

pub(crate) const AUTHORITY: &str = "authority.pem";
const KEY: &str = "authority-key.pem";
/// Bytes of an uncompressed point of P-256, and what the first one is.
pub(crate) const POINT: usize = 65;
const UNCOMPRESSED: u8 = 4;

/// The public half of a node's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeKey(Vec<u8>);

impl NodeKey {
    /// Takes an uncompressed point of P-256. That the peer has its other half
    /// shows when the certificate is used, not before.
    pub fn new(point: Vec<u8>) -> Result<Self, TlsError> {
        match point.len() == POINT && point[0] == UNCOMPRESSED {
            true => Ok(Self(point)),
            false => Err(TlsError::NoNodeKey),
        }
    }

    /// The point.
    pub fn point(&self) -> &[u8] {
        &self.0
    }
}

impl PublicKeyData for NodeKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

/// An authority, with its key.
#[derive(Debug)]
pub struct Authority {
    certificate: String,
    key: KeyPair,
}

impl Authority {
    /// The authority kept in `folder`, if this is the host that keeps it.
    pub fn kept_in(folder: &Path) -> Result<Option<Self>, TlsError> {
        let path = folder.join(KEY);
        let key = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            key => key.map_err(|source| TlsError::Io {
                what: "read",
                path,
                source,
            })?,
        };
        let path = folder.join(AUTHORITY);
        let certificate = fs::read_to_string(&path).map_err(|source| TlsError::Io {
            what: "read",
            path,
            source,
        })?;
        let key = KeyPair::from_pem(&key)?;
        Ok(Some(Self { certificate, key }))
    }

    /// Makes an authority and keeps it in `folder`, which is there.
    pub fn found(folder: &Path) -> Result<Self, TlsError> {
        let key = KeyPair::generate()?;
        let certificate = parameters()?.self_signed(&key)?.pem();
        write(&folder.join(KEY), &key.serialize_pem(), 0o600)?;
        write(&folder.join(AUTHORITY), &certificate, 0o644)?;
        Ok(Self { certificate, key })
    }

    /// Returns the certificate, in PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// Has a host that is to be a node of another cluster forget its own.
    pub fn forget(folder: &Path) -> Result<(), TlsError> {
        let path = folder.join(KEY);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != ErrorKind::NotFound => Err(TlsError::Io {
                what: "remove",
                path,
                source,
            }),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// A certificate for the node `name` at `address`, in PEM, and what it will be
    /// known by: as a server and as a client. It holds for ever: a node that is removed is not known any
    /// more by those it meets.
    pub fn sign(
        &self,
        key: &NodeKey,
        name: &str,
        address: IpAddr,
    ) -> Result<(String, Fingerprint), TlsError> {
        let names = [name.to_owned(), address.to_string()];
        let mut node = CertificateParams::new(names)?;
        node.distinguished_name.push(DnType::CommonName, name);
        node.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        node.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let authority = parameters()?;
        let issuer = Issuer::from_params(&authority, &self.key);
        let signed = node.signed_by(key, &issuer)?;
        Ok((signed.pem(), Fingerprint::of(signed.der())))
    }
}

/// Returns the parameters that every authority has: certificates it signs
/// depend on them.
fn parameters() -> Result<CertificateParams, TlsError> {
    let mut parameters = CertificateParams::new(Vec::new())?;
    parameters
        .distinguished_name
        .push(DnType::CommonName, "forkyard cluster");
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(parameters)
}
