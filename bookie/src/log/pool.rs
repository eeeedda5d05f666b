//! Log files that wait for their use: filled with zeros ahead, or recycled
//! (L3). Their blocks are written once already, so that writing them again
//! changes no metadata of the file system.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::format::Generation;
use crate::disk::{Access, AlignedBuffer, Disk, DiskFile};

const POOL: &str = ".pool";
const FILLING: &str = ".filling";
const LOG: &str = ".log";

/// Zeros are written in pieces of this many bytes: what the log writes meanwhile
/// waits for one of them at most.
pub const FILL_BYTES: usize = 128 << 10;

/// The name of a log file.
#[must_use]
pub fn log_name(generation: Generation) -> String {
    format!("{:020}{LOG}", generation.0)
}

/// The generation of a log file of this name.
#[must_use]
pub fn log_generation(name: &str) -> Option<Generation> {
    number(name, LOG).map(Generation)
}

fn number(name: &str, suffix: &str) -> Option<u64> {
    name.strip_suffix(suffix).filter(|digits| digits.len() == 20)?.parse().ok()
}

/// The files that wait. Shared by who takes and who fills.
#[derive(Debug)]
pub struct FilePool {
    file_bytes: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ready: Vec<String>,
    next: u64,
}

impl FilePool {
    /// Takes stock of a directory and removes what a crash left half-filled.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn open<D: Disk>(disk: &D, file_bytes: u64) -> io::Result<Self> {
        let mut state = State::default();
        for name in disk.list()? {
            if name.ends_with(FILLING) || name.ends_with(".new") {
                disk.remove(&name)?;
            } else if let Some(number) = number(&name, POOL) {
                state.next = state.next.max(number + 1);
                if disk.open(&name, Access::Direct)?.len() == file_bytes {
                    state.ready.push(name);
                } else {
                    disk.remove(&name)?;
                }
            }
        }
        state.ready.sort();
        Ok(Self { file_bytes, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Length of its files.
    #[must_use]
    pub const fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Number of files that wait.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.state().ready.len()
    }

    /// A file of at least this length, under a name that no boot takes for a
    /// log file. Made on the spot when none waits.
    ///
    /// # Errors
    /// When the disk fails or is full.
    pub fn take<D: Disk>(&self, disk: &D, len: u64) -> io::Result<(String, std::sync::Arc<D::File>)> {
        if len <= self.file_bytes {
            let ready = self.state().ready.pop();
            if let Some(name) = ready {
                let file = disk.open(&name, Access::Direct)?;
                return Ok((name, file));
            }
        }
        let name = self.fresh_name(FILLING);
        let file = match disk.create(&name, len.max(self.file_bytes), Access::Direct) {
            // Better a small file than none: a bookie whose disk is full must
            // still start, fence and delete.
            Err(error) if error.kind() == io::ErrorKind::StorageFull && len < self.file_bytes => {
                disk.create(&name, len, Access::Direct)?
            }
            created => created?,
        };
        Ok((name, file))
    }

    /// Adds one file of zeros. `go_on` is asked before each piece, and slows the
    /// filling down; false gives up.
    ///
    /// # Errors
    /// When the disk fails or is full.
    pub fn fill<D: Disk>(&self, disk: &D, mut go_on: impl FnMut() -> bool) -> io::Result<()> {
        let name = self.fresh_name(FILLING);
        let filled = self.fill_file(disk, &name, &mut go_on);
        match filled {
            Ok(true) => self.add(disk, &name),
            Ok(false) => disk.remove(&name),
            Err(error) => {
                // Else the disk fills up with such files.
                if let Err(left) = disk.remove(&name) {
                    tracing::debug!(name, %left, "a file that could not be filled is left behind");
                }
                Err(error)
            }
        }
    }

    /// Whether it was filled to its end.
    fn fill_file<D: Disk>(&self, disk: &D, name: &str, go_on: &mut impl FnMut() -> bool) -> io::Result<bool> {
        let file = disk.create(name, self.file_bytes, Access::Direct)?;
        let mut zeros = AlignedBuffer::new(FILL_BYTES);
        zeros.resize(FILL_BYTES);
        let mut at = 0;
        while at < self.file_bytes {
            if !go_on() {
                return Ok(false);
            }
            let left = usize::try_from(self.file_bytes - at).unwrap_or(FILL_BYTES);
            zeros.resize(left.min(FILL_BYTES));
            file.write_at(zeros.as_slice(), at)?;
            at += zeros.len() as u64;
        }
        file.sync()?;
        Ok(true)
    }

    /// Takes a log file that nobody reads any more, for another use.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn recycle<D: Disk>(&self, disk: &D, generation: Generation, keep: usize) -> io::Result<()> {
        let name = log_name(generation);
        let usable = disk.open(&name, Access::Direct)?.len() == self.file_bytes;
        if usable && self.ready() < keep {
            self.add(disk, &name)
        } else {
            disk.remove(&name)?;
            disk.sync_dir()
        }
    }

    /// The new name is durable before the file can be taken: a boot never sees
    /// the log file under its old name with new content.
    fn add<D: Disk>(&self, disk: &D, name: &str) -> io::Result<()> {
        let ready = self.fresh_name(POOL);
        disk.rename(name, &ready)?;
        disk.sync_dir()?;
        self.state().ready.push(ready);
        Ok(())
    }

    fn fresh_name(&self, suffix: &str) -> String {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        format!("{number:020}{suffix}")
    }
}
