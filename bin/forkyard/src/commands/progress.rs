//! A fork while it is made: how far each host is with its clones.

use super::vms::spinner;
use crate::output;
use forkyard_api_client::{Client, escaped, of_vm};
use forkyard_types::{ForkProgress, RequestId};
use hyper::Method;
use indicatif::{ProgressFinish, ProgressStyle};
use std::time::Duration;
use tokio::time::sleep;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// Work that is watched: VMs that are made.
#[derive(Clone, Copy, Debug)]
pub enum Watched<'a> {
    /// Clones of this VM.
    Fork(&'a str),
    /// VMs of this substrate.
    Activation(&'a str),
}

impl Watched<'_> {
    fn path(self) -> String {
        match self {
            Self::Fork(vm) => of_vm(vm, "forks"),
            Self::Activation(name) => format!("/v1/substrates/{}/activations", escaped(name)),
        }
    }

    fn title(self) -> String {
        match self {
            Self::Fork(vm) => format!("forking {vm}"),
            Self::Activation(name) => format!("waking {name}"),
        }
    }
}

/// Does the work, and shows meanwhile how far that is which it asks for, on
/// standard error, where that is a terminal. As cancel-safe as the work.
pub async fn shown<T>(
    client: &Client,
    what: Watched<'_>,
    watch: RequestId,
    work: impl Future<Output = T>,
) -> T {
    let bar = spinner(what.title()).with_finish(ProgressFinish::AndClear);
    if bar.is_hidden() {
        return work.await;
    }
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}{msg}") {
        bar.set_style(style);
    }
    let see = |fork: &ForkProgress| bar.set_message(output::plain(&text(what, fork)).into_owned());
    watched(client, what, watch, see, work).await
}

/// Does the work, and meanwhile has `see` know how far that is which it asks for. As
/// cancel-safe as the work.
pub async fn watched<T>(
    client: &Client,
    what: Watched<'_>,
    watch: RequestId,
    mut see: impl FnMut(&ForkProgress),
    work: impl Future<Output = T>,
) -> T {
    let path = what.path();
    let look = async {
        loop {
            sleep(LOOK).await;
            // What it comes to is what counts: that it cannot be watched is no error.
            let forks = client.call::<Vec<ForkProgress>>(Method::GET, &path).await;
            let mut forks = forks.into_iter().flatten();
            if let Some(fork) = forks.find(|fork| fork.watch == Some(watch)) {
                see(&fork);
            }
        }
    };
    tokio::select! {
        biased;
        done = work => done,
        never = look => match never {},
    }
}

/// All of it in a line, and one for each host.
pub fn text(what: Watched<'_>, fork: &ForkProgress) -> String {
    let sum = |count: fn(&forkyard_types::HostProgress) -> u16| {
        fork.hosts.iter().map(count).map(u32::from).sum::<u32>()
    };
    let (ready, granted) = (sum(|host| host.ready), sum(|host| host.granted));
    let made = match what {
        Watched::Fork(_) => "clones",
        Watched::Activation(_) => "VMs",
    };
    let mut text = format!("{}: {ready} of {granted} {made} ready", what.title());
    for host in &fork.hosts {
        text += &format!("\n  {host}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_types::{ForkId, ForkPhase, HostProgress};

    #[test]
    fn each_host_has_a_line() {
        let hosts = ["a", "b", "c"].map(|name| HostProgress::granted(Some(name.into()), 2));
        let [mut a, b, mut c] = hosts;
        a.phase = ForkPhase::Starting;
        a.one_ready();
        c.some_failed(2, "node c was not reached".into());
        let fork = ForkProgress {
            fork: ForkId::random(),
            watch: None,
            over: false,
            hosts: vec![a, b, c],
        };
        let lines = [
            "forking p: 1 of 6 clones ready",
            "  a: 2 granted, 1 of 2 ready",
            "  b: 2 granted, no machine there yet",
            "  c: 2 granted, none made, 2 failed: node c was not reached",
        ];
        assert_eq!(text(Watched::Fork("p"), &fork), lines.join("\n"));
        let woken = text(Watched::Activation("s"), &fork);
        assert!(
            woken.starts_with("waking s: 1 of 6 VMs ready\n  a: "),
            "{woken}"
        );
    }
}
