//! The end of a command that was sent SIGTERM: a VM that does not answer never hands it on.
//!
//! ```text
//! Calm --SIGTERM--> Sent --a while--> Asked --no answer in time--> this program ends
//!   ^---- the command says something --+-------- an answer --> Calm
//! ```

use forkyard_api_client::{Client, of_files};
use forkyard_types::FileEntry;
use hyper::Method;
use nix::libc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout};

/// Time for a command to end after SIGTERM before its VM is asked.
const GRACE: Duration = Duration::from_secs(3);
/// Time for the VM to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Watch over a VM whose command was sent SIGTERM.
pub struct Termination<'a> {
    client: &'a Client,
    vm: &'a str,
    grace: Duration,
    answer: Duration,
    due: Option<Instant>,
}

impl<'a> Termination<'a> {
    /// One for a command that has not been sent it.
    pub fn of(client: &'a Client, vm: &'a str) -> Self {
        Self {
            client,
            vm,
            grace: GRACE,
            answer: ANSWER,
            due: None,
        }
    }

    /// Notes that it has been sent.
    pub fn begin(&mut self) {
        self.due = Some(Instant::now() + self.grace);
    }

    /// Notes that the VM lives.
    pub fn reached(&mut self) {
        self.due = None;
    }

    /// Returns the status to end with once the VM was sent the signal and does not answer.
    /// Cancel-safe.
    pub async fn fails(&mut self) -> u8 {
        let Some(due) = self.due else {
            return std::future::pending().await;
        };
        sleep_until(due).await;
        if !self.is_answered().await {
            return 128 + u8::try_from(libc::SIGTERM).unwrap_or_default();
        }
        // The signal has come there before: a command that goes on all the same is waited for.
        self.due = None;
        std::future::pending().await
    }

    /// Asks the agent itself, whatever the daemon thinks of it.
    async fn is_answered(&self) -> bool {
        let path = of_files(self.vm, "stat", &[("path", "/")]);
        let asked = self.client.call::<FileEntry>(Method::GET, &path);
        matches!(timeout(self.answer, asked).await, Ok(Ok(_)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkyard_api_client::{Place, Trust};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixListener,
    };

    /// Longer than anything here takes.
    const LONG: Duration = Duration::from_secs(60);
    /// For what is not to come.
    const SHORT: Duration = Duration::from_millis(100);

    /// A daemon whose VM answers with this, or not at all.
    fn daemon(dir: &tempfile::TempDir, answer: Option<&'static str>) -> Client {
        let socket = dir.path().join("api.sock");
        let listener = UnixListener::bind(&socket).expect("bound");
        tokio::spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.expect("a client");
                while stream.read_u8().await.expect("a request") != b'\n' {}
                if let Some(answer) = answer {
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n", answer.len());
                    let whole = format!("{head}Content-Type: application/json\r\n\r\n{answer}");
                    stream.write_all(whole.as_bytes()).await.expect("written");
                }
                open.push(stream);
            }
        });
        Client::at(Place::Socket(socket), None, &Trust::System).expect("no TLS in it")
    }

    #[tokio::test]
    async fn a_vm_that_never_answers_does_not_hold_a_client_that_is_to_end() {
        let dir = tempfile::tempdir().expect("a folder");
        let client = daemon(&dir, None);
        let mut termination = Termination::of(&client, "p");
        (termination.grace, termination.answer) = (SHORT, SHORT);
        termination.begin();
        let code = timeout(LONG, termination.fails()).await;
        assert_eq!(code.expect("it ends"), 143);
    }

    #[tokio::test]
    async fn a_command_that_ignores_the_signal_in_a_vm_that_answers_is_waited_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let entry =
            r#"{"name":"/","kind":"folder","size":0,"mode":493,"uid":0,"gid":0,"mtime_ns":0}"#;
        let client = daemon(&dir, Some(entry));
        let mut termination = Termination::of(&client, "p");
        (termination.grace, termination.answer) = (SHORT, LONG);
        assert!(termination.is_answered().await);
        termination.begin();
        let waits = timeout(SHORT * 5, termination.fails()).await;
        assert!(waits.is_err(), "{waits:?}");
        // Nor is one that says something.
        termination.begin();
        termination.reached();
        let waits = timeout(SHORT * 5, termination.fails()).await;
        assert!(waits.is_err(), "{waits:?}");
    }
}
