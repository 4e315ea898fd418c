//! Tokens that grant use of the API over the network.

use crate::TokenId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// `POST /v1/tokens`: give out a token.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenRequest {
    /// Name that its owner gives it: 1 to 64 characters, unique.
    #[cfg_attr(feature = "schema", schema(min_length = 1, max_length = 64))]
    pub name: String,
    /// Seconds it holds, at most a hundred years; for ever if absent.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 3_153_600_000_u64))]
    pub expires_s: Option<u64>,
}

/// A token, without its secret.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Id, the part of the token that is no secret.
    pub id: TokenId,
    /// Name that its owner gave it.
    pub name: String,
    /// Seconds since 1970 at which it was given out.
    pub created: u64,
    /// Seconds since 1970 from which on it holds no more; none if it always will.
    pub expires: Option<u64>,
}

/// A token that was just given out. The host keeps no copy of it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenGrant {
    /// The token, as it will be listed.
    pub view: TokenView,
    /// Secret to send as `Authorization: Bearer …`.
    pub token: TokenSecret,
    /// Address at which the daemon listens; none if it does so on its Unix socket alone.
    pub remote: Option<RemoteView>,
}

/// Address and certificate of a daemon that is reached over the network.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteView {
    /// Address and port it listens on.
    pub listen: String,
    /// `sha256:` and the SHA-256 of its certificate in hexadecimal, which a
    /// client may hold it to (`FORKYARD_CA`).
    pub fingerprint: String,
}

/// A token in full. Its debug output hides the secret.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TokenSecret(pub String);

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenSecret(…)")
    }
}
