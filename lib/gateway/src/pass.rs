//! A request passed on over a kept connection or a new one, and once more if it may be.
//!
//! A request that HTTP lets be repeated (RFC 9110, 9.2.2), and whose body is at hand, is sent once more if
//! the connection to its server breaks before an answer begins: a daemon that dies breaks all of them.
//! A kept connection that turns out to be broken does not count.

use crate::{Exchanged, Pool, ProxyRefusal, ReplyBody, body, exchange, opened};
use bytes::Bytes;
use hyper::{
    HeaderMap, Method, Request, StatusCode, Uri, client::conn::http1::SendRequest,
    upgrade::OnUpgrade,
};
use std::{future::Future, hash::Hash};
use tokio::io::{AsyncRead, AsyncWrite};

/// Methods of requests that may be repeated.
const REPEATED: [Method; 5] = [
    Method::GET,
    Method::HEAD,
    Method::OPTIONS,
    Method::PUT,
    Method::DELETE,
];

/// True if HTTP lets a request of this method be sent twice.
pub fn may_be_repeated(method: &Method) -> bool {
    REPEATED.contains(method)
}

/// Way to one server.
pub trait ServerWay: Sync {
    /// Name of the connections that may be used for one another.
    type Key: Clone + Eq + Hash + Send + 'static;
    /// A connection.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Returns the keys of kept connections that may be used now, in order.
    fn kept(&self) -> Vec<Self::Key>;

    /// Connects, waiting for as long as it makes sense.
    fn connect(
        &self,
    ) -> impl Future<Output = Result<(Self::Key, Self::Stream), ProxyRefusal>> + Send;

    /// Describes the server, for a client to read.
    fn server(&self) -> String;
}

/// A request as servers are sent it, with the whole of its body.
#[derive(Clone, Debug)]
pub struct ForwardedRequest {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// Headers, stripped.
    pub headers: HeaderMap,
    /// Body; empty if that is sent by itself.
    pub body: Bytes,
}

impl ForwardedRequest {
    /// Builds the request with another body.
    pub fn with(&self, body: ReplyBody) -> Request<ReplyBody> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers.clone();
        request
    }
}

/// Sends a request, and once more if its connection breaks without an answer.
pub async fn repeatedly<W: ServerWay>(
    pool: &Pool<W::Key, ReplyBody>,
    way: &W,
    sent: &ForwardedRequest,
) -> Result<Exchanged, ProxyRefusal> {
    let mut broken = 0;
    loop {
        let mut kept = way.kept().into_iter();
        let kept = kept.find_map(|key| Some((pool.take(&key)?, key)));
        let (mut sender, key, kept) = match kept {
            Some((sender, key)) => (sender, key, true),
            None => {
                let (sender, key) = begun(way).await?;
                (sender, key, false)
            }
        };
        // It asks for no other protocol.
        let request = sent.with(body(sent.body.clone()));
        match exchange(&mut sender, request, None, ()).await {
            Ok(exchanged) if exchanged.switched => return Err(nonsense(way)),
            Ok(exchanged) => {
                pool.put(key, sender);
                return Ok(exchanged);
            }
            Err(error) if error.is_parse() => return Err(broke(way, &error)),
            Err(error) if !kept && broken > 0 => return Err(broke(way, &error)),
            Err(error) => {
                tracing::debug!(server = way.server(), %error, "sent again");
                broken += u32::from(!kept);
                pool.forget(|it| *it == key);
            }
        }
    }
}

/// Sends a request on a connection of its own. `client` is the client's connection, if that may become
/// one of another protocol, and what is held as long as that lasts.
pub async fn once<W: ServerWay>(
    pool: &Pool<W::Key, ReplyBody>,
    way: &W,
    request: Request<ReplyBody>,
    client: Option<(OnUpgrade, impl Send + 'static)>,
) -> Result<Exchanged, ProxyRefusal> {
    let (mut sender, key) = begun(way).await?;
    let (client, holds) = client.unzip();
    let may_switch = client.is_some();
    let exchanged = exchange(&mut sender, request, client, holds).await;
    let exchanged = exchanged.map_err(|error| broke(way, &error))?;
    match (exchanged.switched, may_switch) {
        (true, false) => return Err(nonsense(way)),
        (true, true) => {}
        (false, _) => pool.put(key, sender),
    }
    Ok(exchanged)
}

async fn begun<W: ServerWay>(way: &W) -> Result<(SendRequest<ReplyBody>, W::Key), ProxyRefusal> {
    let (key, stream) = way.connect().await?;
    let sender = opened(stream).await.map_err(|error| broke(way, &error))?;
    Ok((sender, key))
}

fn broke(way: &impl ServerWay, error: &hyper::Error) -> ProxyRefusal {
    let why = format!(
        "{} gave no answer in HTTP, and the request may have been carried out: {error}",
        way.server()
    );
    ProxyRefusal::new(StatusCode::BAD_GATEWAY, why)
}

fn nonsense(way: &impl ServerWay) -> ProxyRefusal {
    let why = format!("{} switched protocols without being asked to", way.server());
    ProxyRefusal::new(StatusCode::BAD_GATEWAY, why)
}
