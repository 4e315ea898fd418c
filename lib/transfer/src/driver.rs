//! The state machines on real sockets: a thread for each server, and one
//! for each image that is fetched.

mod batch;
mod client;
mod server;
mod socket;

pub use client::{Fetch, FetchError, PageClient};
pub use server::{ImageOffer, PageServer};

use std::io;

/// A number that cannot be guessed.
fn random() -> io::Result<u64> {
    getrandom::u64().map_err(io::Error::other)
}

/// A secret.
fn secret() -> io::Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}
