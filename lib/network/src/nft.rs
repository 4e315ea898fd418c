//! `nft`, one at a time, each run one transaction: all of it or nothing.

use crate::{NetworkError, watch};
use nftables::helper::{DEFAULT_ARGS, DEFAULT_NFT, apply_ruleset_raw};
use serde::Serialize;
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    io::Write as _,
    process::{Command, Stdio},
    sync::Arc,
};
use tokio::sync::OwnedMutexGuard;

/// Commits of ours that are remembered.
const LATELY: usize = 4096;

/// The right to run `nft`, one caller at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nft(Arc<tokio::sync::Mutex<Own>>);

/// Held for as long as an `nft` runs, also by one whose caller has gone.
pub(crate) type Turn = OwnedMutexGuard<Own>;

/// Generations of nftables that our commits made.
#[derive(Debug, Default)]
pub(crate) struct Own(VecDeque<u32>);

impl Own {
    /// A commit of ours made this generation, and no other program's did.
    pub(crate) fn made(&self, generation: u32) -> bool {
        self.0.contains(&generation)
    }

    /// Runs a commit and notes the generation it made. One that another program's came
    /// in between of is not noted: it is mended as that is.
    fn committed<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let before = watch::generation();
        let outcome = run();
        if let (Ok(before), Ok(after)) = (before, watch::generation())
            // There is no generation 0.
            && after == before.checked_add(1).unwrap_or(1)
        {
            self.0.push_back(after);
            if self.0.len() > LATELY {
                self.0.pop_front();
            }
        }
        outcome
    }
}

impl Nft {
    pub(crate) async fn turn(&self) -> Turn {
        self.0.clone().lock_owned().await
    }

    /// Carries out what a file of this program says, in JSON.
    pub(crate) async fn run_text(&self, commands: &str) -> Result<(), NetworkError> {
        let commands: Value =
            serde_json::from_str(commands).map_err(|source| NetworkError::Rules { source })?;
        apply(self.turn().await, &commands).await.1
    }

    /// Carries out what a file of this program says in the words of nft(8): there are
    /// more of them.
    pub(crate) async fn run_words(&self, commands: &'static str) -> Result<(), NetworkError> {
        within(self.turn().await, || say(commands)).await.1
    }

    /// Carries commands out, in the form of libnftables-json(5).
    pub(crate) async fn run(&self, commands: Vec<Value>) -> Result<(), NetworkError> {
        apply(self.turn().await, &json!({ "nftables": commands }))
            .await
            .1
    }
}

/// Runs `nft`. Goes on to its end if cancelled.
pub(crate) async fn apply(
    turn: Turn,
    rules: &(impl Serialize + Sync),
) -> (Turn, Result<(), NetworkError>) {
    let rules = match serde_json::to_string(rules) {
        Ok(rules) => rules,
        Err(source) => return (turn, Err(NetworkError::Rules { source })),
    };
    let run = move || Ok(apply_ruleset_raw(&rules, DEFAULT_NFT, DEFAULT_ARGS).map(drop)?);
    within(turn, run).await
}

/// On a thread that may block.
async fn within(
    mut turn: Turn,
    run: impl FnOnce() -> Result<(), NetworkError> + Send + 'static,
) -> (Turn, Result<(), NetworkError>) {
    let run = move || {
        let outcome = turn.committed(run);
        (turn, outcome)
    };
    match tokio::task::spawn_blocking(run).await {
        Ok(outcome) => outcome,
        Err(broke) => std::panic::resume_unwind(broke.into_panic()),
    }
}

fn say(commands: &str) -> Result<(), NetworkError> {
    let failed = |source| NetworkError::NoNft { source };
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    if let Some(mut words) = nft.stdin.take() {
        words.write_all(commands.as_bytes()).map_err(failed)?;
    }
    let outcome = nft.wait_with_output().map_err(failed)?;
    match outcome.status.success() {
        true => Ok(()),
        false => Err(NetworkError::Refused {
            said: String::from_utf8_lossy(&outcome.stderr).trim_end().into(),
        }),
    }
}
