//! Progress of calls: told each second to callers that ask for it by a token.

use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
};
use std::{
    convert::Infallible,
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::sleep;

const EVERY: Duration = Duration::from_secs(1);
/// Letters of a command's last line that are told.
const LINE: usize = 200;

/// Progress of a call, in words.
#[derive(Clone, Debug, Default)]
pub struct Said(Arc<Mutex<String>>);

impl Said {
    /// Sets it.
    pub fn say(&self, text: &str) {
        text.clone_into(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sets it to the last line of what a command has written; gives that back.
    pub fn heard(&self, data: Vec<u8>) -> Vec<u8> {
        let text = String::from_utf8_lossy(&data);
        if let Some(line) = text.lines().rfind(|line| !line.trim().is_empty()) {
            self.say(&line.chars().take(LINE).collect::<String>());
        }
        data
    }

    fn text(&self) -> String {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        said.clone()
    }
}

/// Tells the caller each second how far its call is. Cancel-safe.
pub async fn tell(
    peer: &Peer<RoleServer>,
    token: Option<ProgressToken>,
    said: &Said,
) -> Infallible {
    let Some(token) = token else {
        return pending().await;
    };
    let mut seconds = 0_u32;
    loop {
        sleep(EVERY).await;
        seconds = seconds.saturating_add(1);
        let message = match said.text() {
            text if text.is_empty() => format!("{seconds} s"),
            text => format!("{seconds} s: {text}"),
        };
        let progress = ProgressNotificationParam::new(token.clone(), seconds.into());
        // A caller that has gone is seen elsewhere.
        let _ = peer.notify_progress(progress.with_message(message)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_wrote_last_is_its_progress() {
        let said = Said::default();
        assert_eq!(said.heard(b"one\ntwo\n\n".to_vec()), b"one\ntwo\n\n");
        assert_eq!(said.text(), "two");
        said.heard(b"\n".to_vec());
        assert_eq!(said.text(), "two");
        said.heard("é".repeat(1000).into_bytes());
        assert_eq!(said.text(), "é".repeat(LINE));
    }
}
