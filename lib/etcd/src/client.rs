//! The calls, and the connection that each has to itself.

use crate::{
    Endpoint, EtcdError, KeyEntry, KeyRange, KeyWatch, Keys, LeaseId, Revision, Txn, TxnOutcome,
    txn,
    wire::{Answered, Bytes, Failure, Granted, KeptAlive, Line, Members, Put},
};
use bytes::Bytes as Body;
use forkyard_tls::{ClientConfig, ServerName};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, Uri, body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

/// Time to connect to an etcd.
const CONNECT: Duration = Duration::from_secs(2);
/// Time it may take to answer: three times what it allows itself.
const ANSWER: Duration = Duration::from_secs(15);
/// Bytes of an answer.
const MOST: usize = 64 << 20;
/// Port for clients, where a member's URL names none.
const CLIENTS: u16 = 2379;
/// Port for other members, where its URL names none.
const PEERS: u16 = 2380;

/// A client of an etcd, or of several that are one cluster.
#[derive(Clone, Debug)]
pub struct Etcd(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoints: Vec<Endpoint>,
    tls: Option<Arc<ClientConfig>>,
    /// The one that is asked first: the last that answered.
    first: AtomicUsize,
}

impl Etcd {
    /// A client of these, which connects when it is used. `tls` is for those
    /// whose address says `https`: it has what they are held to, and what is
    /// shown to them. Without it they cannot be reached.
    pub fn new(endpoints: Vec<Endpoint>, tls: Option<Arc<ClientConfig>>) -> Self {
        Self(Arc::new(Inner {
            endpoints,
            tls,
            first: AtomicUsize::new(0),
        }))
    }

    /// Returns the servers that it asks.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.0.endpoints
    }

    /// The value of a key, if there is one.
    pub async fn get(&self, key: &str) -> Result<Option<KeyEntry>, EtcdError> {
        let range = self.range(&Keys::One(key.to_owned())).await?;
        Ok(range.entries.into_iter().next())
    }

    /// Keys and their values, all of one moment, which is not before the call.
    pub async fn range(&self, keys: &Keys) -> Result<KeyRange, EtcdError> {
        let answer: Answered = self.call("/v3/kv/range", &keys.bounds()).await?;
        Ok(KeyRange {
            revision: answer.header.revision,
            entries: answer.entries()?,
        })
    }

    /// Puts a value, which goes with the lease if one is given.
    pub async fn put(
        &self,
        key: &str,
        value: impl Into<Vec<u8>>,
        lease: Option<LeaseId>,
    ) -> Result<Revision, EtcdError> {
        let put = Put {
            key: Bytes(key.into()),
            value: Bytes(value.into()),
            lease,
        };
        let answer: Answered = self.call("/v3/kv/put", &put).await?;
        Ok(answer.header.revision)
    }

    /// Removes keys; no error if there are none.
    pub async fn delete(&self, keys: &Keys) -> Result<(), EtcdError> {
        let _: Answered = self.call("/v3/kv/deleterange", &keys.bounds()).await?;
        Ok(())
    }

    /// Carries out a transaction.
    pub async fn txn(&self, txn: Txn) -> Result<TxnOutcome, EtcdError> {
        let response: txn::Response = self.call("/v3/kv/txn", &txn::Request::from(txn)).await?;
        response.try_into()
    }

    /// Grants a lease, rounded up to whole seconds.
    pub async fn grant(&self, length: Duration) -> Result<LeaseId, EtcdError> {
        let seconds = length.as_millis().div_ceil(1000).to_string();
        let granted: Granted = self
            .call("/v3/lease/grant", &json!({"TTL": seconds}))
            .await?;
        Ok(granted.id)
    }

    /// Has a lease last its whole length again, from some moment between the
    /// call and its answer.
    pub async fn keep_alive(&self, lease: LeaseId) -> Result<(), EtcdError> {
        let line: Line<KeptAlive> = self
            .call("/v3/lease/keepalive", &json!({"ID": lease}))
            .await?;
        match line {
            Line::Result(kept) if kept.ttl > 0 => Ok(()),
            Line::Result(_) => Err(EtcdError::LeaseGone),
            Line::Error(failure) => Err(refusal(failure)),
        }
    }

    /// Ends a lease, and with it the keys that were put with it.
    pub async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        let _: Answered = self.call("/v3/lease/revoke", &json!({"ID": lease})).await?;
        Ok(())
    }

    /// Lists the places at which members of etcd are reached, by clients and by each other: names or
    /// addresses, and ports. Cancel-safe.
    pub async fn members(&self) -> Result<Vec<(String, u16)>, EtcdError> {
        let listed: Members = self.call("/v3/cluster/member/list", &json!({})).await?;
        let urls = listed.members.into_iter().flat_map(|member| {
            let clients = member.client_urls.into_iter().map(|url| (url, CLIENTS));
            let peers = member.peer_urls.into_iter().map(|url| (url, PEERS));
            clients.chain(peers)
        });
        Ok(urls
            .filter_map(|(url, port)| place_of(&url, port))
            .collect())
    }

    /// Watches keys, from `from` on: nothing is left out, and nothing is told
    /// twice.
    pub async fn watch(&self, keys: &Keys, from: Revision) -> Result<KeyWatch, EtcdError> {
        let bounds = keys.bounds();
        let request = json!({"create_request": {
            "key": bounds.key, "range_end": bounds.range_end.unwrap_or_default(), "start_revision": from,
        }});
        let (endpoint, response) = self.send("/v3/watch", &request).await?;
        Ok(KeyWatch::new(endpoint, response.into_body()))
    }

    async fn call<A: DeserializeOwned>(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<A, EtcdError> {
        let (endpoint, response) = self.send(path, request).await?;
        Ok(serde_json::from_slice(&read(endpoint, response).await?)?)
    }

    /// The head of the answer, which is no refusal.
    async fn send(
        &self,
        path: &str,
        request: &impl Serialize,
    ) -> Result<(Endpoint, Response<Incoming>), EtcdError> {
        let body = Full::new(Body::from(serde_json::to_vec(request)?));
        let (number, endpoint, mut sender) = self.connect().await?;
        let request = Request::post(path)
            .header("host", endpoint.authority())
            .header("content-type", "application/json")
            .body(body)?;
        let answered = timeout(ANSWER, sender.send_request(request)).await;
        let response = match answered {
            Ok(Ok(response)) => response,
            Ok(Err(source)) => {
                self.after(number);
                return Err(EtcdError::Broke { endpoint, source });
            }
            Err(_) => {
                self.after(number);
                return Err(EtcdError::Late { endpoint });
            }
        };
        if response.status().is_success() {
            self.0.first.store(number, Ordering::Relaxed);
            return Ok((endpoint, response));
        }
        self.after(number);
        let said = read(endpoint, response).await?;
        Err(refusal(serde_json::from_slice(&said).unwrap_or_else(
            |_| Failure {
                code: 0,
                message: String::from_utf8_lossy(&said).trim().to_owned(),
            },
        )))
    }

    /// The next call goes to another.
    fn after(&self, number: usize) {
        self.0.first.store(number + 1, Ordering::Relaxed);
    }

    async fn connect(
        &self,
    ) -> Result<(usize, Endpoint, http1::SendRequest<Full<Body>>), EtcdError> {
        let endpoints = &self.0.endpoints;
        let first = self.0.first.load(Ordering::Relaxed);
        let mut failed = None;
        for turn in 0..endpoints.len() {
            let number = (first + turn) % endpoints.len();
            let endpoint = &endpoints[number];
            match timeout(CONNECT, self.connect_to(endpoint)).await {
                Ok(Ok(sender)) => return Ok((number, endpoint.clone(), sender)),
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some(io::ErrorKind::TimedOut.into()),
            }
        }
        Err(match failed {
            Some(source) => EtcdError::Unreachable {
                tried: endpoints.clone(),
                source,
            },
            None => EtcdError::NoEndpoint,
        })
    }

    async fn connect_to(&self, endpoint: &Endpoint) -> io::Result<http1::SendRequest<Full<Body>>> {
        let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
        stream.set_nodelay(true)?;
        if !endpoint.secure {
            return talk(stream).await;
        }
        let no_tls = || io::Error::other("it is to be reached by TLS, and nothing says by whose");
        let tls = self.0.tls.clone().ok_or_else(no_tls)?;
        let name = ServerName::try_from(endpoint.host.clone()).map_err(io::Error::other)?;
        talk(TlsConnector::from(tls).connect(name, stream).await?).await
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<http1::SendRequest<Full<Body>>> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    // Ends with the connection; an error shows in the request itself.
    tokio::spawn(connection);
    Ok(sender)
}

async fn read(endpoint: Endpoint, response: Response<Incoming>) -> Result<Body, EtcdError> {
    let body = Limited::new(response.into_body(), MOST).collect();
    match timeout(ANSWER, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => match error.downcast::<hyper::Error>() {
            Ok(source) => Err(EtcdError::Broke {
                endpoint,
                source: *source,
            }),
            Err(_) => Err(EtcdError::Unexpected {
                what: "it is too long",
            }),
        },
        Err(_) => Err(EtcdError::Late { endpoint }),
    }
}

/// gRPC's code for something that is not there.
const NOT_FOUND: u32 = 5;

pub(crate) fn refusal(failure: Failure) -> EtcdError {
    let Failure { code, message } = failure;
    match code == NOT_FOUND && message.contains("lease not found") {
        true => EtcdError::LeaseGone,
        false => EtcdError::Refused { code, message },
    }
}

/// Host and port of a URL; none if it has no host, as that of a Unix socket.
fn place_of(url: &str, port: u16) -> Option<(String, u16)> {
    let url: Uri = url.parse().ok()?;
    let host = url.host().filter(|host| !host.is_empty())?;
    let host = host.trim_matches(['[', ']']).to_owned();
    Some((host, url.port_u16().unwrap_or(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_members_place_is_its_urls_host_and_port() {
        let place = |host: &str, port| Some((host.to_owned(), port));
        for (url, expected) in [
            ("http://10.0.0.1:2480", place("10.0.0.1", 2480)),
            ("https://etcd.example", place("etcd.example", PEERS)),
            ("http://[::1]:1", place("::1", 1)),
            ("unix:///run/etcd.sock", None),
            ("", None),
        ] {
            assert_eq!(place_of(url, PEERS), expected, "{url}");
        }
    }
}
