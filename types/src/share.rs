//! Tokens that admit to one port of one VM, through a gateway.

use crate::{GuestPort, ShareId, VmId, VmName};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Letters of a label of a host name.
const LABEL: usize = 63;

/// Parameter of an address that has a token.
pub const SHARE_PARAMETER: &str = "forkyard_token";

/// `POST /v1/vms/{id}/shares`: give out a token for one port of a VM.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShareRequest {
    /// TCP port of the guest.
    #[cfg_attr(feature = "schema", schema(value_type = u16, minimum = 1, maximum = 65_535))]
    pub port: GuestPort,
    /// Seconds for which it holds, at most ten years; an hour if absent.
    #[serde(default = "an_hour")]
    #[cfg_attr(feature = "schema", schema(minimum = 1, maximum = 315_360_000))]
    pub expires_s: u32,
    /// Purpose: 128 bytes at most.
    #[serde(default)]
    pub note: String,
}

fn an_hour() -> u32 {
    3600
}

/// A token for one port of one VM, as it is listed. The token itself is kept nowhere.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareView {
    /// Id by which it is taken back.
    pub id: ShareId,
    /// TCP port of the guest.
    #[cfg_attr(feature = "schema", schema(value_type = u16, minimum = 1, maximum = 65_535))]
    pub port: GuestPort,
    /// Seconds since 1970 from which on it holds no more.
    pub expires: u64,
    /// Purpose.
    #[serde(default)]
    pub note: String,
    /// BLAKE3 of the token, in hexadecimal: by this gateways know it.
    pub hash: String,
}

/// Answer to a request for a token: it is shown this once.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShareGrant {
    /// The token, as it will be listed.
    pub share: ShareView,
    /// Token that a client of the gateway shows.
    pub token: String,
}

/// A token in parts: `VM.PORT.ID.SECRET`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ShareToken<'a> {
    /// The VM.
    pub vm: VmId,
    /// Port of the VM.
    pub port: GuestPort,
    /// The token's id.
    pub id: ShareId,
    /// Secret part of the token.
    pub secret: &'a str,
}

impl fmt::Debug for ShareToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShareToken({} {} {})", self.vm, self.port, self.id)
    }
}

impl fmt::Display for ShareToken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            vm,
            port,
            id,
            secret,
        } = self;
        write!(f, "{vm}.{port}.{id}.{secret}")
    }
}

impl<'a> ShareToken<'a> {
    /// Takes a token apart; none if it is not of this form.
    pub fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split('.');
        let token = Self {
            vm: parts.next()?.parse().ok()?,
            port: parts.next()?.parse().ok()?,
            id: parts.next()?.parse().ok()?,
            secret: parts.next()?,
        };
        parts.next().is_none().then_some(token)
    }
}

/// Address at which clients reach a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayBase {
    scheme: String,
    /// Domain, and port if there is one.
    authority: String,
}

impl FromStr for GatewayBase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text}: wanted is http[s]://DOMAIN[:PORT]");
        let (scheme, authority) = text.split_once("://").ok_or_else(wrong)?;
        let authority = authority.trim_end_matches('/');
        if !["http", "https"].contains(&scheme) || authority.is_empty() || authority.contains('/') {
            return Err(wrong());
        }
        Ok(Self {
            scheme: scheme.to_owned(),
            authority: authority.to_owned(),
        })
    }
}

impl GatewayBase {
    /// Address of a port, with a token that admits to it. A name too long for a label gives way to the
    /// VM's id.
    pub fn address(&self, name: &VmName, vm: VmId, port: GuestPort, token: &str) -> String {
        let Self { scheme, authority } = self;
        let mut label = format!("{port}-{name}");
        if label.len() > LABEL {
            label = format!("{port}-{vm}");
        }
        format!("{scheme}://{label}.{authority}/?{SHARE_PARAMETER}={token}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written_and_nothing_else_is() {
        let token = ShareToken {
            vm: VmId::random(),
            port: "80".parse().expect("a port"),
            id: ShareId::random(),
            secret: "s",
        };
        let text = token.to_string();
        assert_eq!(ShareToken::parse(&text), Some(token));
        assert!(
            !format!("{token:?}").contains(".s"),
            "it does not show itself"
        );
        // One that a gateway's key has signed says when it expires there.
        let signed = format!("{}.80.1795842537.s", token.vm);
        for wrong in ["", "a.b.c.d", &format!("{text}.x"), &signed] {
            assert_eq!(ShareToken::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_address_has_the_name_as_long_as_a_label_may_be() {
        let base: GatewayBase = "https://vms.test:8443/".parse().expect("a base");
        let port = "80".parse().expect("a port");
        let vm = VmId::random();
        let of = |name: &str| base.address(&name.parse().expect("a name"), vm, port, "t");
        assert_eq!(of("p"), "https://80-p.vms.test:8443/?forkyard_token=t");
        let long = "p".repeat(62);
        assert_eq!(
            of(&long),
            format!("https://80-{vm}.vms.test:8443/?forkyard_token=t")
        );
        for wrong in ["example.org", "ftp://example.org", "http://a/b", "http://"] {
            wrong.parse::<GatewayBase>().expect_err(wrong);
        }
    }
}
