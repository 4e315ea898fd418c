//! The guest's memory, and what its guest keeps there.

use forkyard_sys_host::mapping::Mapping;
use forkyard_types::PAGE_SIZE;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fs::File,
    io,
    num::NonZeroUsize,
    path::Path,
    sync::{Mutex, MutexGuard},
};

/// Pages that the guest keeps what it knows in: a length, and JSON.
const KNOWS: usize = 16;
const LENGTH: usize = 8;
const MOST: usize = KNOWS * PAGE_SIZE - LENGTH;

#[derive(Debug)]
pub struct Memory(Mutex<Mapping>);

impl Memory {
    /// Memory of zeros, or a private view of a file.
    pub fn new(bytes: usize, file: Option<&Path>) -> io::Result<Self> {
        let bytes = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self(Mutex::new(match file {
            Some(path) => {
                let file = File::options().read(true).write(true).open(path)?;
                Mapping::private(&file, bytes)?
            }
            None => Mapping::anonymous(bytes)?,
        })))
    }

    fn mapping(&self) -> MutexGuard<'_, Mapping> {
        self.0.lock().expect("no holder panics")
    }

    pub fn address(&self) -> u64 {
        self.mapping().address().0
    }

    /// Reads what the guest knows; what a guest knows that has just booted if it is nothing.
    pub fn knows<T: DeserializeOwned + Default>(&self) -> io::Result<T> {
        let mapping = self.mapping();
        let mut length = [0; LENGTH];
        mapping.read(0, &mut length)?;
        let length = usize::try_from(u64::from_le_bytes(length)).map_err(io::Error::other)?;
        match length {
            0 => Ok(T::default()),
            1..=MOST => {
                let mut text = vec![0; length];
                mapping.read(LENGTH, &mut text)?;
                Ok(serde_json::from_slice(&text)?)
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Writes what the guest knows.
    pub fn know(&self, known: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_vec(known)?;
        if text.len() > MOST {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mapping = self.mapping();
        mapping.write(LENGTH, &text)?;
        mapping.write(0, &(text.len() as u64).to_le_bytes())
    }

    /// Reads the first byte of a page of the programs'.
    pub fn peek(&self, page: usize) -> io::Result<u8> {
        let mut byte = [0];
        self.mapping().read((KNOWS + page) * PAGE_SIZE, &mut byte)?;
        Ok(byte[0])
    }

    /// Fills a page of the programs'.
    pub fn poke(&self, page: usize, byte: u8) -> io::Result<()> {
        self.mapping()
            .write((KNOWS + page) * PAGE_SIZE, &[byte; PAGE_SIZE])
    }
}
