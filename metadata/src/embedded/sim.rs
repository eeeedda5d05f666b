//! A disk in memory for the embedded store's file: at a power cut what was not
//! synced stays, goes, or stays in parts. Seeded.

use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redb::StorageBackend;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A file on a simulated disk. Clones are the same file.
#[derive(Clone)]
pub struct SimBackend {
    state: Arc<Mutex<State>>,
}

struct State {
    random: StdRng,
    /// What a power cut leaves for sure.
    durable: Vec<u8>,
    /// What is read.
    cached: Vec<u8>,
    unsynced: Vec<Unsynced>,
    dies_after: Option<u64>,
}

enum Unsynced {
    Len(usize),
    Write(usize, Vec<u8>),
}

impl fmt::Debug for SimBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBackend").finish_non_exhaustive()
    }
}

impl SimBackend {
    /// An empty file.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: StdRng::seed_from_u64(seed),
            durable: Vec::new(),
            cached: Vec::new(),
            unsynced: Vec::new(),
            dies_after: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// After so many more writes and syncs the power is gone: they fail.
    pub fn dies_after(&self, operations: Option<u64>) {
        self.locked().dies_after = operations;
    }

    /// Whether the power went as was arranged.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.locked().dies_after == Some(0)
    }

    /// Cuts the power: each write that was not synced is on the disk, is not, or
    /// is in parts. The disk then works again.
    pub fn cut_power(&self) {
        let mut state = self.locked();
        let State { random, durable, cached, unsynced, dies_after } = &mut *state;
        for change in unsynced.drain(..) {
            match change {
                Unsynced::Len(len) => {
                    if random.random() {
                        durable.resize(len, 0);
                    }
                }
                Unsynced::Write(offset, data) => {
                    let whole = random.random_bool(0.4);
                    let torn = random.random_bool(0.5);
                    for (at, sector) in data.chunks(SECTOR).enumerate() {
                        if whole || (torn && random.random()) {
                            write(durable, offset + at * SECTOR, sector);
                        }
                    }
                }
            }
        }
        cached.clone_from(durable);
        *dies_after = None;
    }

    /// A copy of what is durable.
    #[must_use]
    pub fn copy(&self) -> Vec<u8> {
        self.locked().durable.clone()
    }

    /// Sets the file back to a copy.
    pub fn set_back(&self, copy: &[u8]) {
        let mut state = self.locked();
        state.unsynced.clear();
        state.durable = copy.to_vec();
        state.cached = copy.to_vec();
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Counts a write or sync, and fails it when the power is gone.
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.dies_after {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

fn write(content: &mut Vec<u8>, offset: usize, data: &[u8]) {
    let end = offset + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(data);
}

impl StorageBackend for SimBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.locked().cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, offset) = (self.locked(), index(offset));
        let found = state.cached.get(offset..offset.saturating_add(out.len()));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.locked();
        state.spend()?;
        let len = index(len);
        state.cached.resize(len, 0);
        state.unsynced.push(Unsynced::Len(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.locked();
        state.spend()?;
        let State { durable, unsynced, .. } = &mut *state;
        for change in unsynced.drain(..) {
            match change {
                Unsynced::Len(len) => durable.resize(len, 0),
                Unsynced::Write(offset, data) => write(durable, offset, &data),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.locked();
        state.spend()?;
        let offset = index(offset);
        write(&mut state.cached, offset, data);
        state.unsynced.push(Unsynced::Write(offset, data.to_vec()));
        Ok(())
    }
}
