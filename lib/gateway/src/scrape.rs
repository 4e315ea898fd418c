//! Metrics of a program, told at an address of their own: its clients are strangers.

use crate::{ReplyBody, body};
use hyper::{
    Request, Response, StatusCode, body::Incoming, header, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::PrometheusHandle;
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{sleep, timeout},
};

/// Most readers at once, and the time each has.
const READERS: usize = 16;
const TO_READ: Duration = Duration::from_secs(10);

/// Tells what has been counted, at `/metrics`.
pub async fn scraped(listener: TcpListener, handle: PrometheusHandle) {
    let readers = Arc::new(Semaphore::new(READERS));
    loop {
        let Ok(place) = readers.clone().acquire_owned().await else {
            return;
        };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(200)).await;
            continue;
        };
        let handle = handle.clone();
        tokio::spawn(async move {
            let _place = place;
            let answer = service_fn(move |request: Request<Incoming>| {
                let handle = handle.clone();
                async move { Ok::<_, Infallible>(answer(&request, &handle)) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(TO_READ)
                .serve_connection(TokioIo::new(stream), answer);
            // One that reads nothing gives its place back.
            let _ = timeout(TO_READ * 6, served).await;
        });
    }
}

fn answer(request: &Request<Incoming>, handle: &PrometheusHandle) -> Response<ReplyBody> {
    if request.uri().path() != "/metrics" {
        let mut response = Response::new(body("metrics are at /metrics\n"));
        *response.status_mut() = StatusCode::NOT_FOUND;
        return response;
    }
    let mut response = Response::new(body(handle.render()));
    let text = header::HeaderValue::from_static("text/plain; version=0.0.4");
    response.headers_mut().insert(header::CONTENT_TYPE, text);
    response
}
