//! Progress of calls: told to callers that ask for it by a token. Of a fork, each second how far it is;
//! of a command, what it has written since the last time.

use rmcp::{
    Peer, RoleServer,
    model::{ProgressNotificationParam, ProgressToken},
};
use std::{
    convert::Infallible,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

/// Longest time between two notifications.
const EVERY: Duration = Duration::from_secs(1);
/// Time in which what a command writes is gathered for one notification.
const GATHERED: Duration = Duration::from_millis(100);
/// Most bytes of output in one notification.
const OUTPUT: usize = 8 << 10;

/// Progress of a call.
#[derive(Clone, Debug, Default)]
pub struct Said(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    told: Mutex<Told>,
    written: Notify,
}

#[derive(Debug, Default)]
struct Told {
    /// Progress in words.
    words: String,
    /// Output that is still to be told, the last of it.
    output: Vec<u8>,
    /// Bytes that were written before that and are not told.
    left_out: usize,
}

impl Said {
    /// Says how far the call is.
    pub fn say(&self, text: &str) {
        text.clone_into(&mut self.told().words);
    }

    /// Takes what a command has written; gives that back.
    pub fn heard(&self, data: Vec<u8>) -> Vec<u8> {
        let mut told = self.told();
        told.output.extend_from_slice(&data);
        let over = told.output.len().saturating_sub(OUTPUT);
        told.output.drain(..over);
        told.left_out += over;
        drop(told);
        self.0.written.notify_one();
        data
    }

    /// Takes the message of the next notification: what was written since the last one, else how far
    /// the call is after so many seconds. A letter whose end is still to come is left.
    fn next(&self, seconds: u64) -> String {
        let mut told = self.told();
        let whole = told.output.len() - cut_letter(&told.output);
        if whole > 0 {
            let output: Vec<u8> = told.output.drain(..whole).collect();
            let text = String::from_utf8_lossy(&output);
            return match std::mem::take(&mut told.left_out) {
                0 => text.into_owned(),
                bytes => format!("[… {bytes} bytes left out …]\n{text}"),
            };
        }
        match told.words.as_str() {
            "" => format!("{seconds} s"),
            words => format!("{seconds} s: {words}"),
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts the bytes at the end of a text that begin a letter whose end is still to come.
pub fn cut_letter(text: &[u8]) -> usize {
    match std::str::from_utf8(&text[text.len().saturating_sub(3)..]) {
        Ok(_) => 0,
        // The beginning may be the end of a letter, too.
        Err(_) => (1..=text.len().min(3))
            .find(|length| {
                let end = &text[text.len() - length..];
                std::str::from_utf8(end)
                    .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
            })
            .unwrap_or(0),
    }
}

/// Tells the caller how far its call is. Cancel-safe.
pub async fn tell(
    peer: &Peer<RoleServer>,
    token: Option<ProgressToken>,
    said: &Said,
) -> Infallible {
    let Some(token) = token else {
        return pending().await;
    };
    let begun = Instant::now();
    loop {
        if timeout(EVERY, said.0.written.notified()).await.is_ok() {
            sleep(GATHERED).await;
        }
        let message = said.next(begun.elapsed().as_secs());
        let progress = ProgressNotificationParam::new(token.clone(), begun.elapsed().as_secs_f64());
        // A caller that has gone is seen elsewhere.
        let _ = peer.notify_progress(progress.with_message(message)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_wrote_is_its_progress_once_and_in_whole_letters() {
        let said = Said::default();
        assert_eq!(said.heard(b"one\ntwo\n".to_vec()), b"one\ntwo\n");
        said.heard("é".as_bytes()[..1].to_vec());
        assert_eq!(said.next(1), "one\ntwo\n");
        assert_eq!(said.next(2), "2 s");
        said.heard("é".as_bytes()[1..].to_vec());
        assert_eq!(said.next(3), "é");
        said.heard(vec![b'x'; OUTPUT]);
        said.heard(b"end".to_vec());
        let told = said.next(4);
        assert!(told.starts_with("[… 3 bytes left out …]\nxxx") && told.ends_with("xend"));
        said.say("1 of 2 clones");
        assert_eq!(said.next(5), "5 s: 1 of 2 clones");
    }

    #[test]
    fn a_letter_is_cut_only_if_its_end_may_still_come() {
        let letters = "aé€😀".as_bytes();
        assert_eq!(cut_letter(letters), 0);
        assert_eq!(cut_letter(b""), 0);
        for length in 1..4 {
            assert_eq!(cut_letter(&letters[..6 + length]), length);
        }
        assert_eq!(cut_letter(&[b'a', 0xff]), 0, "no letter");
        assert_eq!(cut_letter(&[0x80, 0x80, 0x80]), 0, "no beginning");
    }
}
