//! A parent's standstill as its user meets it: a program in the guest that
//! speaks all the time falls silent while the guest stands still.
//!
//! Told from outside, so it holds whatever the report says; and it includes
//! what else delays a word: holding user code still, the agent, a busy host.

use crate::BenchError;
use futures::{Stream, StreamExt};
use std::{
    pin::pin,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// A shell that says a line every millisecond or so. It waits by reading from
/// a pipe without a writer: starting a program each time would take longer.
pub const TALK: &str = "rm -f /run/silent && mkfifo /run/silent && exec 3<>/run/silent; while :; do read -t 0.001 -u 3 nothing; echo; done";

/// Time to listen before, to know what is usual, and after.
const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(200);

/// Time in which nothing was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The longest time between two words around what was done.
    pub longest: Duration,
    /// The usual time between two words before it: the median.
    pub usual: Duration,
}

/// Does something while listening. Dropping it stops both.
pub async fn during<T>(
    words: impl Stream<Item = ()>,
    act: impl Future<Output = Result<T, BenchError>>,
) -> Result<(T, Silence), BenchError> {
    let mut words = pin!(words);
    let mut heard = Vec::new();
    listen(&mut words, &mut heard, sleep(BEFORE)).await;
    let begun = Instant::now();
    let done = listen(&mut words, &mut heard, act).await?;
    let ended = Instant::now();
    listen(&mut words, &mut heard, sleep(AFTER)).await;
    let silence = silence(&heard, begun, ended).ok_or(BenchError::Silent {
        what: "a word of the parent",
    })?;
    Ok((done, silence))
}

async fn listen<T>(
    words: &mut (impl Stream<Item = ()> + Unpin),
    heard: &mut Vec<Instant>,
    until: impl Future<Output = T>,
) -> T {
    let mut until = pin!(until);
    loop {
        tokio::select! {
            Some(()) = words.next() => heard.push(Instant::now()),
            done = &mut until => return done,
        }
    }
}

/// None unless words were heard before, and after it began.
fn silence(heard: &[Instant], begun: Instant, ended: Instant) -> Option<Silence> {
    let gaps = || heard.iter().zip(heard.iter().skip(1));
    let mut before: Vec<_> = gaps()
        .filter(|(_, to)| **to <= begun)
        .map(|(from, to)| *to - *from)
        .collect();
    before.sort();
    Some(Silence {
        longest: gaps()
            .filter(|(from, to)| **to > begun && **from < ended)
            .map(|(from, to)| *to - *from)
            .max()?,
        usual: *before.get(before.len() / 2)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;

    /// Words at these milliseconds, the deed from 10 to 20.
    fn of(words: &[u64]) -> Option<(u64, u64)> {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let heard: Vec<_> = words.iter().copied().map(at).collect();
        let Silence { longest, usual } = silence(&heard, at(10), at(20))?;
        let ms = |time: Duration| u64::try_from(time.as_millis()).expect("short");
        Some((ms(longest), ms(usual)))
    }

    #[test]
    fn a_silence_that_outlasts_the_deed_is_heard_whole() {
        assert_eq!(of(&[0, 1, 2, 9, 31, 32]), Some((22, 1)));
    }

    #[test]
    fn silences_before_and_after_are_not_the_deed_s() {
        assert_eq!(of(&[0, 1, 2, 8, 9, 10, 13, 22, 90]), Some((9, 1)));
    }

    #[test]
    fn a_parent_that_never_speaks_again_is_no_measurement() {
        assert_eq!(of(&[0, 1, 2, 9]), None);
        assert_eq!(of(&[11, 12]), None);
    }

    #[tokio::test]
    async fn words_are_heard_before_during_and_after() {
        let words = stream::unfold((), |()| async {
            sleep(Duration::from_millis(1)).await;
            Some(((), ()))
        });
        let act = async {
            sleep(Duration::from_millis(5)).await;
            Ok(7)
        };
        let (done, silence) = during(words, act).await.expect("heard");
        assert_eq!(done, 7);
        assert!(silence.longest >= Duration::from_millis(1));
    }

    #[tokio::test]
    async fn what_fails_is_not_measured() {
        let act = async { Err::<(), _>(BenchError::Interrupted) };
        let outcome = during(stream::pending(), act).await;
        assert!(matches!(outcome, Err(BenchError::Interrupted)));
    }
}
