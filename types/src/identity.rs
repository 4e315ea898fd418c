//! Identity: the differences between the VMs of a family.

use crate::{Epoch, FamilyId, InvalidId, Member, VmId, VmName};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
use std::{fmt, net::Ipv4Addr, str::FromStr};

/// An Ethernet address: its six bytes.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "schema", schema(value_type = String, pattern = "^([0-9a-f]{2}:){5}[0-9a-f]{2}$"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Serialize for Mac {
    /// As text in JSON, as bytes between host and guest.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match serializer.is_human_readable() {
            true => serializer.collect_str(self),
            false => self.0.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            /// In records and answers of earlier versions.
            Bytes([u8; 6]),
        }
        if !deserializer.is_human_readable() {
            return <[u8; 6]>::deserialize(deserializer).map(Self);
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

impl FromStr for Mac {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let bytes = text.split(':').map(|byte| {
            // A sign would be read, too.
            let is_byte = byte.len() == 2 && byte.bytes().all(|b| b.is_ascii_hexdigit());
            is_byte.then(|| u8::from_str_radix(byte, 16).ok())?
        });
        let bytes: Option<Vec<u8>> = bytes.collect();
        let six = bytes.and_then(|bytes| bytes.try_into().ok());
        six.map(Self).ok_or_else(|| InvalidId {
            text: text.into(),
            what: "an Ethernet address: six bytes as 02:00:5e:10:00:01",
        })
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The family's private network as one of its VMs sees it.
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The VM's own address.
    #[cfg_attr(feature = "schema", schema(value_type = String, format = Ipv4))]
    pub ip: Ipv4Addr,
    /// Length of the network's prefix, in bits.
    pub prefix: u8,
    /// The VM's Ethernet address.
    pub mac: Mac,
}

/// The way from a family's network to the outside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The host's address on the family's network.
    pub gateway: Ipv4Addr,
    /// Addresses of name servers; if empty, the VM keeps its own.
    pub resolvers: Vec<Ipv4Addr>,
}

/// Everything the agent must change in a VM before user code goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The VM.
    pub vm: VmId,
    /// Family of the VM.
    pub family: FamilyId,
    /// Place in the family.
    pub member: Member,
    /// This life of its memory.
    pub epoch: Epoch,
    /// Host name of the VM.
    pub name: VmName,
    /// Place on the network.
    pub address: Address,
    /// The way out, if there is one.
    pub route: Option<Route>,
    /// Address of the VM it was cloned from; its own for one that booted.
    pub parent_ip: Ipv4Addr,
    /// Fresh bytes for the kernel's random number generator.
    pub seed: [u8; 32],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_is_text_in_json_and_was_bytes_before() {
        let mac = Mac([0x46, 0x59, 0, 0, 0, 0xff]);
        let text = serde_json::to_string(&mac).expect("JSON");
        assert_eq!(text, "\"46:59:00:00:00:ff\"");
        for json in [text.as_str(), "[70,89,0,0,0,255]"] {
            assert_eq!(serde_json::from_str::<Mac>(json).ok(), Some(mac), "{json}");
        }
        for wrong in [
            "",
            "46:59:00:00:00",
            "46:59:00:00:00:ff:0",
            "4:659:0:0:0:ff",
            "+1:59:00:00:00:ff",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }
}
