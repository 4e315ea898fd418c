//! A server that speaks S3 over a folder, in the networks of hosts: `s3s-fs`, which can be had to fail.

use forkyard_e2e::Host;
use forkyard_tls::Certificate;
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::rt::TokioIo;
use s3s::{
    auth::SimpleAuth,
    service::{S3Service, S3ServiceBuilder},
};
use s3s_fs::FileSystem;
use std::{
    fs, future, io,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

pub const BUCKET: &str = "images";
/// Part of the key that must be seen nowhere.
pub const SECRET: &str = "open-sesame-0123456789";
const NAME: &str = "forkyard-test";

/// Requests from now on that are answered; then connections are closed, or nothing is said.
#[derive(Debug)]
struct Limits {
    left: AtomicUsize,
    then_hangs: AtomicUsize,
}

pub struct S3 {
    folder: TempDir,
    limits: Arc<Limits>,
    service: S3Service,
    runtime: Runtime,
}

impl S3 {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join(BUCKET)).expect("a bucket");
        let mut builder = S3ServiceBuilder::new(FileSystem::new(folder.path()).expect("a folder"));
        builder.set_auth(SimpleAuth::from_single(NAME, SECRET));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self {
            service: builder.build(),
            folder,
            limits: Arc::new(Limits {
                left: AtomicUsize::new(usize::MAX),
                then_hangs: AtomicUsize::new(0),
            }),
            runtime: runtime.expect("a runtime"),
        }
    }

    /// Folder of the bucket's objects.
    pub fn objects(&self) -> PathBuf {
        self.folder.path().join(BUCKET)
    }

    /// Serves on a host's network, and writes that host's settings to a file.
    pub fn serve(&self, host: &Host, settings: &Path) {
        let listener = listen(host);
        write_settings(settings, listener.local_addr().expect("an address"), SECRET);
        self.accept(listener, None);
    }

    /// Serves behind TLS, with a certificate that nothing but itself vouches for; returns the server's address
    /// and that certificate's file.
    pub fn serve_privately(&self, host: &Host, folder: &Path) -> (SocketAddr, PathBuf) {
        let listener = listen(host);
        let at = listener.local_addr().expect("an address");
        let own = Certificate::kept_in(folder, &[at.ip().to_string()]).expect("made");
        self.accept(listener, Some(own.server().expect("a server").into()));
        (at, folder.join("cert.pem"))
    }

    fn accept(&self, listener: TcpListener, tls: Option<TlsAcceptor>) {
        let (service, limits) = (self.service.clone(), self.limits.clone());
        listener.set_nonblocking(true).expect("set");
        self.runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            while let Ok((socket, _)) = listener.accept().await {
                let (service, limits, tls) = (service.clone(), limits.clone(), tls.clone());
                let answer = service_fn(move |request: hyper::Request<Incoming>| {
                    let (service, limits) = (service.clone(), limits.clone());
                    async move {
                        let take = |left: usize| left.checked_sub(1);
                        let left =
                            limits
                                .left
                                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
                        match left {
                            Ok(_) => Service::call(&service, request)
                                .await
                                .map_err(|it| format!("{it:?}")),
                            Err(_) if limits.then_hangs.load(Ordering::SeqCst) == 1 => {
                                future::pending().await
                            }
                            Err(_) => Err("gone".to_owned()),
                        }
                        .map_err(io::Error::other)
                    }
                });
                let serving = http1::Builder::new();
                tokio::spawn(async move {
                    match tls {
                        None => drop(serving.serve_connection(TokioIo::new(socket), answer).await),
                        // Clients that do not trust it go away here.
                        Some(tls) => {
                            if let Ok(socket) = tls.accept(socket).await {
                                let socket = TokioIo::new(socket);
                                drop(serving.serve_connection(socket, answer).await);
                            }
                        }
                    }
                });
            }
        });
    }

    /// Answers so many more requests, and then closes connections.
    pub fn go_after(&self, requests: usize) {
        self.limits.then_hangs.store(0, Ordering::SeqCst);
        self.limits.left.store(requests, Ordering::SeqCst);
    }

    /// Answers so many more requests, and then says nothing.
    pub fn hang_after(&self, requests: usize) {
        self.limits.then_hangs.store(1, Ordering::SeqCst);
        self.limits.left.store(requests, Ordering::SeqCst);
    }

    /// Answers all again.
    pub fn come_back(&self) {
        self.go_after(usize::MAX);
    }

    pub fn has_hung(&self) -> bool {
        self.limits.left.load(Ordering::SeqCst) == 0
    }
}

fn listen(host: &Host) -> TcpListener {
    host.within(|| {
        let mut up = Command::new("ip");
        up.args(["link", "set", "lo", "up"]);
        assert!(up.status().expect("ip").success());
        TcpListener::bind(("127.0.0.1", 0)).expect("bound")
    })
}

/// Writes the settings of the bucket.
pub fn write_settings(path: &Path, server: SocketAddr, secret: &str) {
    write_settings_of(path, &format!("http://{server}"), secret, "");
}

/// Writes them for a server of that URL, with more lines.
pub fn write_settings_of(path: &Path, url: &str, secret: &str, more: &str) {
    let text = format!(
        "[bucket.{BUCKET}]\nendpoint = '{url}'\nregion = 'eu-west-1'\naccess_key_id = '{NAME}'\n\
         secret_access_key = '{secret}'\n{more}"
    );
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("set");
}
