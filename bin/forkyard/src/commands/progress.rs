//! A fork while it is made: how far each host is with its clones.

use super::vms::spinner;
use crate::output;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::{ForkProgress, RequestId};
use hyper::Method;
use indicatif::{ProgressFinish, ProgressStyle};
use std::time::Duration;
use tokio::time::sleep;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(250);

/// Does the work, and shows meanwhile how far the fork of this VM is that it asks for, on
/// standard error, where that is a terminal. As cancel-safe as the work.
pub async fn shown<T>(
    client: &Client,
    vm: &str,
    watch: RequestId,
    work: impl Future<Output = T>,
) -> T {
    let bar = spinner(format!("forking {vm}")).with_finish(ProgressFinish::AndClear);
    if bar.is_hidden() {
        return work.await;
    }
    if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix}{msg}") {
        bar.set_style(style);
    }
    let see = |fork: &ForkProgress| bar.set_message(output::plain(&text(vm, fork)).into_owned());
    watched(client, vm, watch, see, work).await
}

/// Does the work, and meanwhile has `see` know of the fork of this VM that it asks for. As
/// cancel-safe as the work.
pub async fn watched<T>(
    client: &Client,
    vm: &str,
    watch: RequestId,
    mut see: impl FnMut(&ForkProgress),
    work: impl Future<Output = T>,
) -> T {
    let path = of_vm(vm, "forks");
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
pub fn text(vm: &str, fork: &ForkProgress) -> String {
    let sum = |count: fn(&forkyard_types::HostProgress) -> u16| {
        fork.hosts.iter().map(count).map(u32::from).sum::<u32>()
    };
    let (ready, granted) = (sum(|host| host.ready), sum(|host| host.granted));
    let mut text = format!("forking {vm}: {ready} of {granted} clones ready");
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
        assert_eq!(text("p", &fork), lines.join("\n"));
    }
}
