//! Words on standard error for a user whose command or copy gets nowhere: its VM may not answer any more.

use crate::output;
use forkyard_api_client::{Client, of_vm};
use forkyard_types::VmView;
use hyper::Method;
use std::{convert::Infallible, time::Duration};
use tokio::time::{Instant, sleep_until};

/// Trouble of a VM that keeps its commands from getting on.
fn trouble(vm: &VmView) -> Option<String> {
    match (&vm.silence, vm.memory_wait_percent) {
        (Some(why), _) => Some(format!("does not answer: {why}")),
        (None, Some(percent)) => Some(format!(
            "thrashes: its programs wait for memory {percent} % of the time (`forkyard run --memory` gives more)"
        )),
        (None, None) => None,
    }
}

/// Time without a word after which its VM is looked at.
const QUIET: Duration = Duration::from_secs(10);
/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);

/// Watch over a VM while what is under way there says nothing.
pub struct Silence<'a> {
    client: &'a Client,
    vm: &'a str,
    waits: &'static str,
    due: Instant,
    told: bool,
}

impl<'a> Silence<'a> {
    /// Begins to watch. `waits` says what waits for the VM, and what gives it up.
    pub fn of(client: &'a Client, vm: &'a str, waits: &'static str) -> Self {
        let due = Instant::now() + QUIET;
        Self {
            client,
            vm,
            waits,
            due,
            told: false,
        }
    }

    /// Notes that the command has said something.
    pub fn broken(&mut self) {
        self.due = Instant::now() + QUIET;
        self.told = false;
    }

    /// Tells on standard error that the VM does not answer, and when it does again. Cancel-safe.
    pub async fn watch(&mut self) -> Infallible {
        loop {
            sleep_until(self.due).await;
            let path = of_vm(self.vm, "");
            let seen = self.client.call::<VmView>(Method::GET, &path).await;
            // A daemon that is not there is told of by the command's own connection.
            let trouble = seen.ok().and_then(|vm| trouble(&vm));
            self.due = Instant::now() + LOOK;
            match (&trouble, self.told) {
                (Some(what), false) => tell!(
                    "forkyard: {} {}; {}",
                    self.vm,
                    output::line(what),
                    self.waits
                ),
                (None, true) => tell!("forkyard: {} gets on again", self.vm),
                (Some(_), true) | (None, false) => {}
            }
            self.told = trouble.is_some();
        }
    }
}
