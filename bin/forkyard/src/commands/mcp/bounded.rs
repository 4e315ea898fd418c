//! Output of any length in bounded space: its beginning, its end, and how
//! much lies between.

use std::collections::VecDeque;

/// Bytes kept of the beginning, and as many of the end.
const HALF: usize = 32 << 10;

/// Output of a stream.
#[derive(Debug, Default)]
pub struct Bounded {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl Bounded {
    /// Takes more output.
    pub fn push(&mut self, data: &[u8]) {
        let room = HALF - self.head.len();
        let (head, tail) = data.split_at(room.min(data.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(tail);
        let over = self.tail.len().saturating_sub(HALF);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    /// All of it as text, or what is left of it.
    pub fn into_text(mut self) -> String {
        let tail = self.tail.make_contiguous();
        if self.left_out == 0 {
            self.head.extend_from_slice(tail);
            return String::from_utf8_lossy(&self.head).into_owned();
        }
        format!(
            "{}\n[… {} bytes left out …]\n{}",
            String::from_utf8_lossy(&self.head),
            self.left_out,
            String::from_utf8_lossy(tail)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(chunks: &[&[u8]]) -> String {
        let mut bounded = Bounded::default();
        chunks.iter().for_each(|chunk| bounded.push(chunk));
        bounded.into_text()
    }

    #[test]
    fn what_fits_is_all_there_however_it_was_cut() {
        let text = "é".repeat(HALF);
        let bytes = text.as_bytes();
        assert_eq!(said(&[bytes]), text);
        let pieces: Vec<_> = bytes.chunks(777).collect();
        assert_eq!(said(&pieces), text);
    }

    #[test]
    fn of_what_does_not_fit_beginning_and_end_are_there() {
        let long = [b"begin".as_slice(), &[b'x'; 5 * HALF], b"end"].concat();
        for chunk in [1, 1000, long.len()] {
            let text = said(&long.chunks(chunk).collect::<Vec<_>>());
            assert!(text.starts_with("begin") && text.ends_with("end"));
            let left_out = format!("[… {} bytes left out …]", long.len() - 2 * HALF);
            assert!(text.contains(&left_out), "{chunk}");
        }
    }
}
