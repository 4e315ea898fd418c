//! A connection by TCP, carried to a service's VM.
//!
//! One that comes while the VM moves waits for it. A connection that cannot be carried, or breaks on the VM's
//! side, is reset: an end would pass for the server's.

use crate::{
    counts,
    service::{Service, ToTarget},
};
use forkyard_api_client::PortStream;
use forkyard_gateway::{ProxyRefusal, Stalls};
use hyper::StatusCode;
use socket2::SockRef;
use std::{net::IpAddr, sync::Arc, time::Duration};
use tokio::{io::copy_bidirectional, net::TcpStream};

/// Time a client may take nothing of the data sent to it.
const STALLS: Duration = Duration::from_secs(60);

/// Carries a connection until both directions have ended, or one has broken.
pub async fn carry(stream: TcpStream, from: IpAddr, service: Arc<Service>) {
    let _visit = service.visited();
    let mut client = Stalls::new(stream, STALLS);
    let outcome = match reached(&service).await {
        Ok((mut guest, _in_use)) => match copy_bidirectional(&mut client, &mut guest).await {
            Ok(_) => "ended",
            Err(error) => {
                tracing::debug!(%from, service = service.name, %error, "a connection broke");
                reset(client.get_ref());
                "broken"
            }
        },
        Err(refusal) => {
            tracing::warn!(%from, service = service.name, error = %refusal, "not connected");
            reset(client.get_ref());
            "refused"
        }
    };
    counts::carried(&service.name, outcome);
}

/// Connects to a VM; to each once, if those before do not answer.
async fn reached(service: &Service) -> Result<(PortStream, impl Send + use<>), ProxyRefusal> {
    let until = service.until();
    let mut tried = Vec::new();
    loop {
        let target = service.pick(&tried, until).await?;
        let in_use = target.used();
        let way = ToTarget {
            service,
            target: &target,
            until,
            counts: true,
        };
        match service.connect(&way).await {
            Ok((_, stream)) => return Ok((stream, in_use)),
            Err(refusal)
                if refusal.status() == StatusCode::BAD_GATEWAY
                    && tried.len() + 1 < service.targets.len() =>
            {
                tried.push(target);
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

/// Has the connection be reset when it is dropped.
fn reset(stream: &TcpStream) {
    // Fails only for a connection that has gone already.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
