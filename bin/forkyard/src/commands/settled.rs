//! Clones on other hosts, until they need no page of any other.

use anyhow::bail;
use forkyard_api_client::Client;
use forkyard_types::{ImageId, ListedVm, PageCount, VmView};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use std::{collections::BTreeMap, time::Duration};
use tokio::time::sleep;

/// Between two looks: hosts themselves look about as often.
const LOOK: Duration = Duration::from_millis(300);

/// Looks on end at which one does not answer until it is not waited for: half a minute.
const SILENT: u32 = 100;

/// Waits until all pages of these are on their hosts, and shows how many are. A
/// clone that ends before is an error, and so is one that stays silent. Cancel-safe:
/// they come all the same.
pub async fn wait(client: &Client, clones: &[VmView]) -> anyhow::Result<()> {
    let template =
        ProgressStyle::with_template("{spinner} {bar:24} {pos} of {len} pages {elapsed}")?;
    let bar = ProgressBar::new(0).with_style(template);
    let mut silent = 0;
    loop {
        let vms: Vec<ListedVm> = client.call(Method::GET, "/v1/vms").await?;
        let found = clones.iter().map(|clone| alive(&vms, clone));
        let found = found.collect::<anyhow::Result<Vec<_>>>()?;
        let mut awaited = found.iter().filter(|listed| !listed.vm.awaits.is_empty());
        match awaited.find_map(|listed| Some((&listed.vm.name, listed.vm.silence.as_ref()?))) {
            Some((name, why)) if silent >= SILENT => {
                bail!("{name}: {why}; how much of it has come is not known")
            }
            Some(_) => silent += 1,
            None => silent = 0,
        }
        let away = away(found);
        if away == PageCount(0) {
            bar.finish_and_clear();
            return Ok(());
        }
        let all = bar.length().unwrap_or_default().max(away.0);
        bar.set_length(all);
        bar.set_position(all - away.0);
        sleep(LOOK).await;
    }
}

/// Returns the present state of a clone.
fn alive<'a>(vms: &'a [ListedVm], clone: &VmView) -> anyhow::Result<&'a ListedVm> {
    let Some(found) = vms.iter().find(|listed| listed.vm.id == clone.id) else {
        bail!("{} has ended before all its pages had come", clone.name);
    };
    match &found.vm.failure {
        Some(why) => bail!("{}: {why}", clone.name),
        None if found.lost => bail!("{} is on a node that is lost", clone.name),
        None => Ok(found),
    }
}

/// Pages still to come: those of one host's clones are the same pages.
fn away<'a>(vms: impl IntoIterator<Item = &'a ListedVm>) -> PageCount {
    let mut images: BTreeMap<(Option<&str>, ImageId), PageCount> = BTreeMap::new();
    for listed in vms {
        let node = listed.node.as_ref().map(|node| node.as_str());
        let host = node.or(listed.vm.host.as_deref());
        for awaited in &listed.vm.awaits {
            images.insert((host, awaited.image), awaited.away);
        }
    }
    PageCount(images.values().map(|pages| pages.0).sum())
}
