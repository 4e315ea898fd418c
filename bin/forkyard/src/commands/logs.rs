//! `logs`.

use crate::{
    args::{Format, Logs},
    output,
};
use forkyard_api_client::Client;
use serde_json::json;
use std::{
    io::{IsTerminal, Write},
    process::ExitCode,
};

/// Passes on what a guest says on its console: byte by byte, but to a terminal, which is not to do
/// what a guest says.
pub async fn logs(client: &Client, format: Format, wanted: Logs) -> anyhow::Result<ExitCode> {
    let mut said = client.logs(&wanted.vm, wanted.follow).await?;
    let mut out = std::io::stdout();
    let is_terminal = out.is_terminal();
    let mut cut = Vec::new();
    while let Some(piece) = said.next().await? {
        let written = match format {
            Format::Text if is_terminal => out.write_all(shown(&mut cut, &piece).as_bytes()),
            Format::Text => out.write_all(&piece),
            Format::Json => writeln!(
                out,
                "{}",
                json!({"console": String::from_utf8_lossy(&piece)})
            ),
        };
        if let Err(error) = written.and_then(|()| out.flush()) {
            std::process::exit(output::cannot_write(&error));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A piece as a terminal may have it; a letter that is cut in two waits for its rest in `cut`.
fn shown(cut: &mut Vec<u8>, piece: &[u8]) -> String {
    cut.extend_from_slice(piece);
    let end = match std::str::from_utf8(cut) {
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        Ok(_) | Err(_) => cut.len(),
    };
    let whole: Vec<u8> = cut.drain(..end).collect();
    let text = String::from_utf8_lossy(&whole).replace("\r\n", "\n");
    output::plain(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_does_nothing_that_a_guest_says() {
        let mut cut = Vec::new();
        assert_eq!(shown(&mut cut, b"\x1b[6n\xc3"), "\\u001b[6n");
        assert_eq!(shown(&mut cut, b"\xa9\r\n"), "é\n");
        assert_eq!(shown(&mut cut, b"\xff!"), "\u{fffd}!");
    }
}
