//! The rules put back when another program removed or changed them.
//!
//! ```text
//! a commit of others touches our tables
//!   --> families' bridges down: nothing passes
//!   --> all rules anew, in one transaction; tunnels' after that
//!   --> bridges up, and pointed to the places on other hosts again
//! ```
//!
//! If the rules cannot be put back, the bridges stay down and the caller tries again.
//! While no daemon runs nothing is watched; the next one begins with rules of its own.

use crate::{
    CommitWatch, Commits, Link, NetworkError, Networks, fetchers, nft::apply, refused, routes,
    rules, tunnels,
};
use nftables::{
    helper::get_current_ruleset_with_args,
    schema::{NfListObject, NfObject},
};
use rtnetlink::LinkUnspec;
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::PoisonError};

/// Interference of other programs with our tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wall {
    /// Times that the rules were put back.
    pub mended: u32,
    /// The rules are not in force; the families' bridges are down.
    pub broken: bool,
}

/// State of the families' bridges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bridges {
    Up,
    Down,
}

impl Networks {
    /// Gives out the subscription to changes of our tables, once.
    pub fn watch(&self) -> Option<CommitWatch> {
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        watch.take()
    }

    /// Interference of other programs so far.
    pub fn wall(&self) -> Wall {
        *self.wall.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the rules back if one of these commits was another program's; true if so.
    /// After an error the bridges are down: call it again. Not cancel-safe, for the same
    /// reason.
    pub async fn mend(&self, commits: &Commits) -> Result<bool, NetworkError> {
        let foreign = {
            // A commit of ours that is under way is known after it.
            let turn = self.nft.turn().await;
            commits.generations.iter().any(|it| !turn.made(*it))
        };
        if !foreign && (!commits.missed || self.has_tables().await?) {
            return Ok(false);
        }
        self.note(|wall| wall.broken = true);
        self.switch(Bridges::Down).await?;
        self.put_back().await?;
        self.switch(Bridges::Up).await?;
        self.point_again().await?;
        self.note(|wall| {
            wall.broken = false;
            wall.mended = wall.mended.saturating_add(1);
        });
        Ok(true)
    }

    async fn put_back(&self) -> Result<(), NetworkError> {
        let turn = self.nft.turn().await;
        // Read while no other commit of ours is under way.
        let mut commands = read(rules::RULES)?;
        commands.extend(read(routes::ROUTES)?);
        commands.extend(self.rules.readmit()?);
        commands.extend(self.closed());
        commands.extend(fetchers::enforce());
        for family in self.families().values() {
            commands.extend(family.rules().install());
        }
        apply(turn, &json!({ "nftables": commands })).await.1?;
        self.forwarding.note_again().await?;
        self.hear_again().await
    }

    /// True if all of our tables are there.
    async fn has_tables(&self) -> Result<bool, NetworkError> {
        let _turn = self.nft.turn().await;
        let look = || get_current_ruleset_with_args(None::<&str>, ["list", "tables"]);
        let tables = match tokio::task::spawn_blocking(look).await {
            Ok(tables) => tables?,
            Err(broke) => std::panic::resume_unwind(broke.into_panic()),
        };
        let ours = tables.objects.iter().filter(|object| {
            matches!(object, NfObject::ListObject(NfListObject::Table(table))
                if [rules::TABLE, tunnels::TABLE].contains(&table.name.as_ref()))
        });
        // One for bridges, one for routes, one for tunnels.
        Ok(ours.count() == 3)
    }

    async fn switch(&self, to: Bridges) -> Result<(), NetworkError> {
        let links: BTreeSet<String> = {
            let links = self.links()?.into_iter();
            let bridges = links.filter(|link| matches!(link, Link::Bridge(_)));
            bridges.map(Link::name).collect()
        };
        for name in links {
            let link = LinkUnspec::new_with_name(&name);
            let (what, link) = match to {
                Bridges::Up => ("open", link.up()),
                Bridges::Down => ("shut", link.down()),
            };
            let set = self.netlink.link().set(link.build()).execute().await;
            // One that has gone meanwhile is neither.
            if let Err(source) = set
                && nix::net::if_::if_nametoindex(name.as_str()).is_ok()
            {
                return Err(refused(what, &name, source));
            }
        }
        Ok(())
    }

    fn note(&self, change: impl FnOnce(&mut Wall)) {
        change(&mut self.wall.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The commands of a file of this program.
pub(crate) fn read(text: &str) -> Result<Vec<Value>, NetworkError> {
    let file = serde_json::from_str::<Value>(text);
    let mut file = file.map_err(|source| NetworkError::Rules { source })?;
    let commands = file["nftables"].as_array_mut().map(std::mem::take);
    Ok(commands.unwrap_or_default())
}
