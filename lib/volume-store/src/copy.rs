//! Raw disks in and out.

use crate::{Found, Patience, Scratch, Store, StoreError};
use forkyard_volume::{Takeover, View};
use std::{
    fs::File,
    io::{Read, Seek, SeekFrom, Write},
    path::Path,
};

/// Bytes copied at once.
const PIECE: usize = 1 << 20;

impl Store {
    /// Copies a raw disk into the volume, from its start on. The volume is opened for writing
    /// meanwhile. Blocks of zeroes are left out, so that the volume should be new.
    pub fn import(&self, from: &Path) -> Result<(), StoreError> {
        let failed = |e| StoreError::io("read", from, e);
        let mut file = File::open(from).map_err(failed)?;
        let have = file.metadata().map_err(failed)?.len();
        let room = self.size(View::Current).unwrap_or(0);
        if have > room {
            return Err(StoreError::TooLarge { have, room });
        }
        let epoch = self.open_writer(Takeover::Refused)?;
        let mut copy = || {
            let (mut buffer, mut offset) = (vec![0; PIECE], 0);
            loop {
                let count = fill(&mut file, &mut buffer).map_err(failed)?;
                if count == 0 {
                    return self.flush();
                }
                for (number, block) in buffer[..count].chunks(4096).enumerate() {
                    if block.iter().any(|byte| *byte != 0) {
                        self.write(epoch, offset + number as u64 * 4096, block)?;
                    }
                }
                offset += count as u64;
            }
        };
        let copied = copy();
        let closed = self.close_writer(epoch);
        copied.and(closed)
    }

    /// Copies the volume or a snapshot into a new raw disk, with holes. Nothing is left of it if
    /// that fails.
    pub fn export(&self, view: View, to: &Path) -> Result<(), StoreError> {
        let failed = |e| StoreError::io("write", to, e);
        let file = File::create_new(to).map_err(failed)?;
        let copied = self.copy_out(view, (file, to));
        if copied.is_err() {
            let _ = std::fs::remove_file(to);
        }
        copied
    }

    fn copy_out(&self, view: View, (mut file, to): (File, &Path)) -> Result<(), StoreError> {
        let failed = |e| StoreError::io("write", to, e);
        let size = self.size(view).unwrap_or(0);
        file.set_len(size).map_err(failed)?;
        let (mut buffer, mut scratch) = (vec![0; PIECE], Scratch::default());
        for offset in (0..size).step_by(PIECE) {
            let count = usize::try_from(size - offset).unwrap_or(PIECE).min(PIECE);
            let piece = &mut buffer[..count];
            let found = self.read(view, offset, piece, &mut scratch, Patience::Wait)?;
            if found == Found::Data {
                file.seek(SeekFrom::Start(offset)).map_err(failed)?;
                file.write_all(piece).map_err(failed)?;
            }
        }
        file.sync_all().map_err(failed)
    }
}

/// Fills a buffer as far as the file goes.
fn fill(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..])? {
            0 => break,
            read => count += read,
        }
    }
    Ok(count)
}
