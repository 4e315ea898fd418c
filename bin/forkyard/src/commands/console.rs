//! `console`: a guest's serial console, as if one sat at it.

use super::terminal::Raw;
use crate::output;
use clap::Args;
use forkyard_api_client::Client;
use std::{
    io::{IsTerminal, Read, Write, stdin, stdout},
    process::ExitCode,
};
use tokio::sync::mpsc;

/// Ctrl-]: as in telnet and virsh.
const LEAVE: u8 = 0x1d;
/// Bytes read from the keyboard at once.
const PIECE: usize = 4096;

/// `console`
#[derive(Debug, Args)]
pub struct Console {
    /// VM: name or id.
    pub vm: String,
}

/// Passes keys to the guest and what it says back, until Ctrl-] is typed, or the
/// VM ends. Without a terminal, standard input is typed and what the guest says is
/// shown until its VM ends.
pub async fn console(client: &Client, wanted: Console) -> anyhow::Result<ExitCode> {
    let vm = wanted.vm;
    let mut said = client.listen(&vm).await?;
    let is_terminal = stdin().is_terminal();
    if is_terminal {
        tell!("the console of {vm}; Ctrl-] leaves");
    }
    let mut raw = is_terminal.then(Raw::enter).transpose()?;
    let mut typed = keyboard(raw.is_some());
    let mut left = false;
    while !left {
        tokio::select! {
            piece = said.next() => {
                let Some(piece) = piece? else { break };
                show(&piece, &mut raw);
            }
            Some(keys) = typed.recv() => match keys {
                Keys::Typed(keys) => client.type_in(&vm, keys.into()).await?,
                Keys::Leave => left = true,
            },
        }
    }
    // The terminal is as it was before anything else is said.
    drop(raw);
    // A thread may still wait for a key; nothing is lost with it.
    std::process::exit(0)
}

/// Shows what a guest says. If that cannot be done this program ends, with the terminal as it was.
fn show(piece: &[u8], raw: &mut Option<Raw>) {
    let mut out = stdout().lock();
    if let Err(error) = out.write_all(piece).and_then(|()| out.flush()) {
        drop(raw.take());
        std::process::exit(output::cannot_write(&error));
    }
}

enum Keys {
    Typed(Vec<u8>),
    Leave,
}

/// Reads the keyboard in a thread, because reading a terminal cannot be given
/// up.
fn keyboard(is_terminal: bool) -> mpsc::Receiver<Keys> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut buffer = [0; PIECE];
        while let Ok(read @ 1..) = stdin().read(&mut buffer) {
            let keys = &buffer[..read];
            let leave = keys.iter().position(|key| is_terminal && *key == LEAVE);
            let typed = keys[..leave.unwrap_or(read)].to_vec();
            if !typed.is_empty() && sender.blocking_send(Keys::Typed(typed)).is_err() {
                return;
            }
            if leave.is_some() {
                // Without a listener the loop has left already.
                let _ = sender.blocking_send(Keys::Leave);
                return;
            }
        }
    });
    receiver
}
