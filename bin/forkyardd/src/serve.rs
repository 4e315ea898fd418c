//! The daemon's life: a host taken over, its API served, the host let go of.

use crate::{
    args::Args,
    e2b::{Choices, Endpoint},
    http,
    idle::{self, Idle},
    listen, metrics,
    police::{OnHost, Station},
    remote::{self, Remote},
};
use forkyard_auth::Access;
use forkyard_fork::MakeEngine;
use forkyard_node::{Node, Nodes, PeersFile, closed};
use forkyard_service::{local::Caller, unreadable::UnixSocket};
use forkyard_sys_host::signals::is_ignored;
use forkyard_types::RemoteView;
use forkyard_vcpu_dispatch::Service;
use futures::FutureExt;
use std::sync::Arc;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

/// Port of the API, where none is said.
const PORT: u16 = 7433;

/// Serves until it is told to end, or has nothing to do any more.
pub async fn serve(args: Args, engine: MakeEngine) -> anyhow::Result<()> {
    let (folders, options) = (args.folders()?, args.options());
    args.cluster.check_standing(&folders.state)?;
    let group = args.group.as_deref().map(listen::group).transpose()?;
    let database = folders.database();
    let sched = Service::new(&folders.run, &folders.bin);
    let run = folders.run.clone();
    let metrics = metrics::Metrics::install()?;
    if let Some(pages) = args.pages.filter(|at| at.ip().is_unspecified()) {
        anyhow::bail!("--pages {pages}: others must be told an address of this host's");
    }
    let stores = args.stores()?;
    // From before there is anything that would be left behind: one that is told to end while it
    // takes over the host does so, and then lets go of it.
    let hangup = SignalKind::hangup();
    let watched = !is_ignored(hangup.as_raw_value());
    let mut hang_up = watched.then(|| signal(hangup)).transpose()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let hung_up = async {
        match &mut hang_up {
            Some(hang_up) => drop(hang_up.recv().await),
            // Under nohup(1).
            None => std::future::pending().await,
        }
    };
    let host = listen::host(folders, options, engine).await?;
    host.use_stores(stores);
    let (remote, view, node) = match network(&args).await {
        Ok(network) => network,
        Err(error) => {
            host.close().await;
            return Err(error);
        }
    };
    let peers = args.peers.clone().map(PeersFile::new);
    match (&node, &peers) {
        (Some(node), _) => {
            let cluster = node.cluster().clone();
            host.set_peers(Some(cluster.reach().pages), Box::new(Nodes(cluster)));
            closed::of_cluster(node.cluster(), &host).await;
        }
        (None, Some(file)) => host.set_peers(args.pages, Box::new(file.clone())),
        (None, None) => closed::nothing(&host).await,
    }
    let opened = listen::socket(&args.run_dir, group)
        .and_then(|(socket, listener)| Ok((socket, listener, Access::open(&database)?)));
    let (socket, listener, access) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            host.close().await;
            return Err(error);
        }
    };
    let shared = http::Shared {
        host: host.clone(),
        access: Arc::new(access),
        remote: view,
        metrics,
        idle: Idle::new(args.listen.is_some()),
        cluster: node.clone(),
        bodies: http::Bodies::default(),
        streams: http::Streams::default(),
        police: Station::new(
            OnHost {
                host: host.clone(),
                sched: sched.clone(),
            },
            &run,
        ),
        sched,
    };
    let e2b = match e2b(&args, &shared).await {
        Ok(e2b) => e2b,
        Err(error) => {
            host.close().await;
            return Err(error);
        }
    };
    // Clients that follow it find it as soon as they find a daemon.
    shared.police.resume().await;
    let (stop, stopped) = watch::channel(false);
    let ended = |mut stopped: watch::Receiver<bool>| async move {
        // The sender lives until everything has ended.
        let _ = stopped.wait_for(|stop| *stop).await;
    };
    let end = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = hung_up => {}
            () = idle::close_when_idle(&shared.idle, &host, socket.path()), if args.exit_when_idle => {}
        }
        // New commands must find no daemon rather than one about to end.
        drop(socket);
        stop.send_replace(true);
        // Their readers would keep the daemon for ever.
        host.events().close();
    };
    let network = async {
        if let Some(remote) = remote {
            let router = http::remote(&shared);
            remote.serve(router, ended(stopped.clone())).await;
        }
    };
    let foreign = async {
        if let Some(e2b) = e2b {
            e2b.serve(ended(stopped.clone()).shared()).await;
        }
    };
    let local = axum::serve(
        UnixSocket(listener),
        http::local(&shared).into_make_service_with_connect_info::<Caller>(),
    )
    .with_graceful_shutdown(ended(stopped.clone()));
    // A client that follows a log would keep it for ever.
    let farewell = async {
        ended(stopped.clone()).await;
        tokio::time::sleep(remote::FAREWELL).await;
    };
    let local = async {
        tokio::select! {
            served = local.into_future() => served,
            () = farewell => {
                tracing::info!("requests under way were cut off");
                Ok(())
            }
        }
    };
    let background = async {
        let kept = async {
            match (&node, &peers) {
                (Some(node), _) => node.run(&host).await,
                (None, Some(peers)) => closed::keep_peers(peers, &host).await,
                (None, None) => {}
            }
        };
        tokio::select! {
            () = kept => {}
            () = ended(stopped.clone()) => {}
        }
    };
    let (served, (), (), (), ()) = tokio::join!(local, network, foreign, end, background);
    shared.police.close().await;
    served?;
    host.close().await;
    Ok(())
}

/// Listens for clients of E2B, if that is wanted.
async fn e2b(args: &Args, shared: &http::Shared) -> anyhow::Result<Option<Endpoint>> {
    let Some(address) = args.e2b else {
        return Ok(None);
    };
    let choices = Choices {
        base: args.e2b_base.clone(),
        memory_mib: args.e2b_memory,
        domain: args.e2b_domain.clone(),
    };
    let given = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
    let opened = Endpoint::open(address, given, &args.state_dir, choices, shared);
    Ok(Some(opened.await?))
}

/// Listens on the network, and becomes a node, if either is wanted.
async fn network(
    args: &Args,
) -> anyhow::Result<(Option<Remote>, Option<RemoteView>, Option<Node>)> {
    let address = args.listen.or_else(|| args.cluster.listen(PORT));
    let Some(address) = address else {
        return Ok((None, None, None));
    };
    let listener = listen::bind(address).await?;
    let listens = listener.local_addr()?;
    let (tls, fingerprint, node) = match args.cluster.wanted() {
        true => {
            let node = args.cluster.start(&args.state_dir, listens.port()).await?;
            let tls = node.cluster().server()?;
            (tls, node.cluster().fingerprint(), Some(node))
        }
        false => {
            let given = args.tls_cert.as_deref().zip(args.tls_key.as_deref());
            let certificate = listen::certificate(address, given, &args.state_dir)?;
            let fingerprint = certificate.fingerprint();
            (certificate.server()?, fingerprint, None)
        }
    };
    let view = RemoteView {
        listen: listens.to_string(),
        fingerprint: fingerprint.to_string(),
    };
    tracing::info!(listen = %view.listen, fingerprint = %view.fingerprint, "listening");
    Ok((Some(Remote { listener, tls }), Some(view), node))
}
