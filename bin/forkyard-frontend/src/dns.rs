//! A client of a zone's primary name server: questions, and updates that are signed (RFC 2136, RFC 8945).
//!
//! Both go over TCP: an answer is not cut, and is not forged by a stranger that guesses a number. What an
//! update did is asked for afterwards, since a server accepts one that it ignores (RFC 2136, 3.4.2.2).

use crate::config::DnsEntry;
use anyhow::{Context, bail, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use forkyard_frontend::Update;
use hickory_proto::{
    op::{Message, OpCode, Query, ResponseCode, UpdateMessage},
    rr::{
        DNSClass, Name, RData, Record, RecordType, TSigner,
        rdata::{A, AAAA, tsig::TsigAlgorithm},
    },
    serialize::binary::DecodeError,
};
use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Seconds that the clocks may differ (RFC 8945, 10).
const FUDGE: u16 = 300;
/// Time that a server may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// A zone's primary name server.
pub struct NameServer {
    address: SocketAddr,
    zone: Name,
    signer: TSigner,
}

impl std::fmt::Debug for NameServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NameServer({})", self.address)
    }
}

impl NameServer {
    /// The one of the configuration.
    pub fn new(entry: &DnsEntry) -> anyhow::Result<Self> {
        let algorithm = match entry.algorithm.to_ascii_lowercase().as_str() {
            "hmac-sha256" => TsigAlgorithm::HmacSha256,
            "hmac-sha384" => TsigAlgorithm::HmacSha384,
            "hmac-sha512" => TsigAlgorithm::HmacSha512,
            other => bail!(
                "[dns] algorithm {other:?} is not known: hmac-sha256, hmac-sha384 or hmac-sha512"
            ),
        };
        let secret = STANDARD.decode(&entry.secret.0);
        let secret = secret.context("[dns] secret is not base64")?;
        ensure!(!secret.is_empty(), "[dns] secret is empty");
        Ok(Self {
            address: entry.server,
            zone: name(&entry.zone)?,
            signer: TSigner::new(secret, algorithm, name(&entry.key)?, FUDGE)?,
        })
    }

    /// Asks for the addresses of a name.
    pub async fn addresses(&self, of: &str) -> anyhow::Result<BTreeSet<IpAddr>> {
        let of = name(of)?;
        let mut found = BTreeSet::new();
        for kind in [RecordType::A, RecordType::AAAA] {
            let mut message = Message::query();
            message.metadata.recursion_desired = false;
            message.add_query(Query::query(of.clone(), kind));
            let bytes = self.exchange(&message.to_vec()?).await?;
            let answer = Message::from_vec(&bytes).map_err(nonsense)?;
            let code = answer.metadata.response_code;
            let told = [ResponseCode::NoError, ResponseCode::NXDomain].contains(&code);
            ensure!(told, "{} answers {code} about {of}", self.address);
            let own = answer.answers.iter().filter(|record| record.name == of);
            found.extend(own.filter_map(|record| record.data.ip_addr()));
        }
        Ok(found)
    }

    /// Replaces the addresses of a name, all at once.
    pub async fn update(&self, Update(record): &Update) -> anyhow::Result<()> {
        let of = name(&record.name)?;
        let ttl = u32::try_from(record.ttl.as_secs()).unwrap_or(u32::MAX);
        let mut message = Message::query();
        message.metadata.op_code = OpCode::Update;
        message.metadata.recursion_desired = false;
        let mut zone = Query::query(self.zone.clone(), RecordType::SOA);
        zone.set_query_class(DNSClass::IN);
        message.add_zone(zone);
        // RFC 2136, 2.5.2: all records of a kind go; 2.5.1: these come.
        for kind in [RecordType::A, RecordType::AAAA] {
            let mut gone = Record::update0(of.clone(), 0, kind);
            gone.dns_class = DNSClass::ANY;
            message.add_update(gone);
        }
        for address in &record.addresses {
            let data = match address {
                IpAddr::V4(address) => RData::A(A(*address)),
                IpAddr::V6(address) => RData::AAAA(AAAA(*address)),
            };
            message.add_update(Record::from_rdata(of.clone(), ttl, data));
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let verifier = message.finalize(&self.signer, now)?;
        let bytes = self.exchange(&message.to_vec()?).await?;
        let code = Message::from_vec(&bytes)
            .map_err(nonsense)?
            .metadata
            .response_code;
        // A refusal of the key itself is not signed by it.
        ensure!(
            code == ResponseCode::NoError,
            "{} refuses the update of {of}: {code}; may its key {} update the zone {}, and is its clock right?",
            self.address,
            self.signer.signer_name(),
            self.zone
        );
        let mut verifier = verifier.context("the update was not signed")?;
        let checked = verifier.verify(&bytes);
        checked.map_err(|error| {
            anyhow::anyhow!(
                "the answer of {} is not signed as it must be: {error}",
                self.address
            )
        })?;
        Ok(())
    }

    async fn exchange(&self, message: &[u8]) -> anyhow::Result<Vec<u8>> {
        let exchange = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let length = u16::try_from(message.len()).map_err(std::io::Error::other)?;
            let framed = [&length.to_be_bytes(), message].concat();
            stream.write_all(&framed).await?;
            let length = stream.read_u16().await?;
            let mut answer = vec![0; length.into()];
            stream.read_exact(&mut answer).await?;
            std::io::Result::Ok(answer)
        };
        let answer = timeout(PATIENCE, exchange).await;
        let answer = answer.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()));
        let answer =
            answer.with_context(|| format!("the name server {} does not answer", self.address))?;
        ensure!(
            answer.get(..2) == message.get(..2),
            "{} answers another question",
            self.address
        );
        Ok(answer)
    }
}

fn name(text: &str) -> anyhow::Result<Name> {
    let mut name = Name::from_ascii(text)
        .map_err(|error| anyhow::anyhow!("{text:?} is no name in the DNS: {error}"))?;
    name.set_fqdn(true);
    Ok(name.to_lowercase())
}

fn nonsense(error: DecodeError) -> anyhow::Error {
    anyhow::anyhow!("what the name server answers is not to be read: {error}")
}
