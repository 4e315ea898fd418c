//! Substrates that go to folders and object stores, and come from there; keys that they are signed by.

use crate::{args::Format, output};
use clap::Subcommand;
use forkyard_api_client::{Client, escaped};
use forkyard_types::{
    CollectRequest, Collected, PullRequest, PushRequest, PushResponse, StoredSubstrate,
    SubstrateKey, SubstrateView, TrustRequest, TrustedKeys, VmName,
};
use hyper::Method;
use std::{path::PathBuf, process::ExitCode};

/// Commands of `substrate` about folders and stores.
#[derive(Debug, Subcommand)]
pub enum Stored {
    /// Put a substrate into a folder of the host or an object store, for other hosts.
    #[command(
        after_help = "A folder gets all of it as plain files. A store, file:///FOLDER or s3://BUCKET/PREFIX, gets the pieces that it has not, of whatever substrate.\n\nExamples:\n  forkyard substrate push apache s3://images/team\n  forkyard substrate push apache file:///mnt/store\n  forkyard substrate push apache /mnt/folder"
    )]
    Push {
        /// Name of the substrate.
        name: VmName,
        /// Folder of the host, or address of a store; in it the substrate has its own name.
        #[arg(value_name = "FOLDER|STORE")]
        to: String,
        /// Read what the store has already, and send again what is damaged there.
        #[arg(long)]
        verify: bool,
    },
    /// Bring in a substrate that another host has pushed.
    #[command(
        after_help = "Examples:\n  forkyard substrate pull s3://images/team/apache --trust 3b6a…\n  forkyard substrate pull file:///mnt/store/apache --name web\n  forkyard substrate pull /mnt/folder/apache --unsigned"
    )]
    Pull {
        /// The substrate's own folder, or its address: the store's, `/`, its name there.
        #[arg(value_name = "FOLDER|STORE/NAME")]
        from: String,
        /// Name that it is to have here.
        #[arg(long)]
        name: Option<VmName>,
        /// Key of the host that pushed it: `forkyard substrate key` there. What this host pushed itself
        /// needs none, nor does what `forkyard substrate trust` has named.
        #[arg(long, value_name = "KEY")]
        trust: Option<String>,
        /// Accept any signature, or none. For folders.
        #[arg(long, conflicts_with = "trust")]
        unsigned: bool,
    },
    /// Show the key by which this host signs what it pushes.
    #[command(after_help = "Example: forkyard substrate key")]
    Key,
    /// Trust the key of another host from now on; list those that are trusted.
    #[command(
        after_help = "Examples:\n  forkyard substrate trust\n  forkyard substrate trust 3b6a27bc…\n  forkyard substrate trust 3b6a27bc… --forget"
    )]
    Trust {
        /// The key: `forkyard substrate key` there.
        key: Option<String>,
        /// Trust it no longer. What was pulled stays.
        #[arg(long, requires = "key")]
        forget: bool,
    },
    /// Remove from an object store what no substrate in it needs: of pushes that were cut short, or
    /// replaced. `rm --store` does so by itself.
    #[command(after_help = "Example: forkyard substrate collect s3://images/team")]
    Collect {
        /// Address of the store.
        store: String,
    },
}

/// Carries out one of them.
pub async fn stored(client: &Client, format: Format, command: Stored) -> anyhow::Result<ExitCode> {
    match command {
        Stored::Push { name, to, verify } => {
            let (folder, store) = place(to)?;
            let request = PushRequest {
                folder,
                store,
                verify,
            };
            let path = format!("{}/push", super::path(&name));
            let pushed: PushResponse = client.post(&path, &request).await?;
            match (format, &request.store) {
                (Format::Json, _) => output::json(&pushed)?,
                (Format::Text, Some(store)) => say!(
                    "{name}: {} sent, {} were there: forkyard substrate pull {}/{name}",
                    pushed.sent,
                    pushed.shared,
                    store.trim_end_matches('/')
                ),
                (Format::Text, None) => say!("{name}, {}", pushed.substrate.size),
            }
            Ok(ExitCode::SUCCESS)
        }
        Stored::Pull {
            from,
            name,
            trust,
            unsigned,
        } => {
            let (folder, store) = place(from)?;
            let request = PullRequest {
                folder,
                store,
                name,
                trust,
                unsigned,
            };
            let pulled: SubstrateView = client.post("/v1/substrates/pull", &request).await?;
            super::told(format, &pulled)
        }
        Stored::Key => {
            let key: SubstrateKey = client.call(Method::GET, "/v1/substrate-key").await?;
            match format {
                Format::Json => output::json(&key)?,
                Format::Text => say!("{}", key.public),
            }
            Ok(ExitCode::SUCCESS)
        }
        Stored::Trust { key, forget } => {
            let to = "/v1/substrate-keys";
            let keys: TrustedKeys = match key {
                None => client.call(Method::GET, to).await?,
                Some(key) if forget => {
                    let path = format!("{to}/{}", escaped(&key));
                    client.call(Method::DELETE, &path).await?
                }
                Some(key) => client.post(to, &TrustRequest { key }).await?,
            };
            match format {
                Format::Json => output::json(&keys)?,
                Format::Text => keys.keys.iter().for_each(|key| say!("{key}")),
            }
            Ok(ExitCode::SUCCESS)
        }
        Stored::Collect { store } => {
            let request = CollectRequest { store };
            let gone: Collected = client.post("/v1/stores/collect", &request).await?;
            told_of_removed(format, gone)
        }
    }
}

/// Tells the address of a store from the path of a folder.
fn place(text: String) -> anyhow::Result<(Option<PathBuf>, Option<String>)> {
    Ok(match text.contains("://") {
        true => (None, Some(text)),
        false => (Some(std::path::absolute(text)?), None),
    })
}

/// Removes substrates from a store.
pub async fn remove(
    client: &Client,
    format: Format,
    store: &str,
    names: &[VmName],
) -> anyhow::Result<ExitCode> {
    let mut all = Collected::default();
    for name in names {
        let (store, name) = (escaped(store), escaped(name.as_str()));
        let path = format!("/v1/stores?store={store}&name={name}");
        let gone: Collected = client.call(Method::DELETE, &path).await?;
        all.pieces += gone.pieces;
        all.bytes.0 += gone.bytes.0;
    }
    told_of_removed(format, all)
}

fn told_of_removed(format: Format, gone: Collected) -> anyhow::Result<ExitCode> {
    match format {
        Format::Json => output::json(&gone)?,
        Format::Text => say!("{} pieces, {}, removed", gone.pieces, gone.bytes),
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the substrates of a store.
pub async fn list(client: &Client, format: Format, store: &str) -> anyhow::Result<ExitCode> {
    let path = format!("/v1/stores?store={}", escaped(store));
    let all: Vec<StoredSubstrate> = client.call(Method::GET, &path).await?;
    if format == Format::Json {
        output::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    let row = |it: &StoredSubstrate| {
        let facts = it.facts.as_ref();
        let told =
            |of: &dyn Fn(&forkyard_types::StoredFacts) -> String| facts.map(of).unwrap_or_default();
        let key = it.key.as_deref().unwrap_or_default();
        [
            it.name.clone(),
            told(&|it| output::word(&it.kind)),
            told(&|it| it.size.to_string()),
            told(&|it| it.image.clone()),
            told(&|it| it.vcpus.to_string()),
            told(&|it| it.memory.to_string()),
            key.chars().take(16).collect(),
            match it.trusted {
                true => "yes".to_owned(),
                false => "no".to_owned(),
            },
            it.problem.clone().unwrap_or_default(),
        ]
    };
    let rows: Vec<_> = all.iter().map(row).collect();
    output::table(
        [
            "NAME", "KIND", "SIZE", "IMAGE", "VCPUS", "MEMORY", "KEY", "TRUSTED", "PROBLEM",
        ],
        &rows,
    );
    Ok(ExitCode::SUCCESS)
}
