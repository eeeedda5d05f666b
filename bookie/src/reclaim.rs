//! Getting the space of dead entries back (L8): copies synced → index switched
//! → old readers drained → the file renamed, its new use begun later.
//!
//! What a file says besides entries is in the snapshot of every later file, so
//! that only entries keep it.

use std::io;
use std::sync::Arc;

use quire_ledger::message::{Read, Response};
use quire_ledger::record::Record;
use quire_proto::id::EntryId;

use crate::catalog::{Catalog, LogFile};
use crate::disk::{Disk, DiskFile};
use crate::log::format::Generation;
use crate::log::index::{self, Run};
use crate::log::pool::FilePool;
use crate::reader::Reader;

/// Copied at once.
const COPY_BYTES: u32 = 1 << 20;

/// Writes the index of every full file that has none; its lines then leave the
/// memory.
///
/// # Errors
/// When the disk refuses: the lines stay in memory.
pub fn write_indexes<D: Disk>(disk: &D, catalog: &Catalog<D::File>) -> io::Result<()> {
    for generation in catalog.unindexed() {
        let (runs, lines) = catalog.lines_of(generation);
        catalog.switch_to_index(generation, index::write(disk, generation, runs, &lines)?);
    }
    Ok(())
}

/// The full files of which at most this part lives.
pub fn mostly_dead<F: DiskFile>(catalog: &Catalog<F>, part: f64) -> Vec<Generation> {
    let usage = catalog.usage();
    let newest = usage.keys().next_back().copied();
    let full = usage.into_iter().filter(|&(generation, _)| Some(generation) != newest);
    let dead = full.filter(|&(generation, usage)| {
        let bytes = catalog.file(generation).map_or(0, |file| file.file.len());
        usage.live == 0 || usage.live as f64 <= part * bytes as f64
    });
    dead.map(|(generation, _)| generation).collect()
}

/// Goes through the living entries of a file.
#[derive(Debug)]
pub struct Living {
    runs: Vec<Run>,
    next: EntryId,
}

impl Living {
    /// Those of this file.
    #[must_use]
    pub fn of<F: DiskFile>(catalog: &Catalog<F>, generation: Generation) -> Self {
        let mut runs = catalog.runs_of(generation);
        runs.reverse();
        let next = EntryId(runs.last().map_or(0, |run| run.first));
        Self { runs, next }
    }

    /// The next of them, to be appended again; nothing at the end.
    ///
    /// # Errors
    /// When one cannot be read: the file must stay.
    pub fn next<D: Disk>(&mut self, reader: &Reader<D>) -> Result<Option<Vec<Record>>, String> {
        while let Some(run) = self.runs.last() {
            let end = run.first + u64::from(run.count);
            let read = Read {
                ledger: run.ledger,
                from: self.next,
                max_entries: u32::try_from(end.saturating_sub(self.next.0)).unwrap_or(u32::MAX),
                max_bytes: COPY_BYTES,
                prefix: false,
            };
            if self.next.0 < end {
                match reader.read(&read) {
                    Response::Entries(records) => {
                        self.next = EntryId(self.next.0 + records.len() as u64);
                        return Ok(Some(records));
                    }
                    // It died meanwhile.
                    Response::Deleted => {}
                    other => return Err(format!("entry {} of ledger {}: {other:?}", self.next, run.ledger)),
                }
            }
            self.runs.pop();
            self.next = EntryId(self.runs.last().map_or(0, |run| run.first));
        }
        Ok(None)
    }
}

/// Files that were taken out of the catalog; readers may still hold them.
#[derive(Debug)]
pub struct Draining<F> {
    files: Vec<Arc<LogFile<F>>>,
}

impl<F> Default for Draining<F> {
    fn default() -> Self {
        Self { files: Vec::new() }
    }
}

impl<F: DiskFile> Draining<F> {
    /// Takes a file out of the catalog: whatever lives in it is durable
    /// elsewhere.
    pub fn take_out(&mut self, catalog: &Catalog<F>, generation: Generation) {
        self.files.extend(catalog.remove_file(generation));
    }

    /// Recycles what nobody reads any more; `keep` files may wait in the pool.
    /// Returns how many.
    ///
    /// # Errors
    /// When the disk refuses: what is left is tried again.
    pub fn recycle<D: Disk<File = F>>(
        &mut self,
        disk: &D,
        pool: &FilePool,
        keep: usize,
    ) -> io::Result<usize> {
        let (mut recycled, mut at) = (0, 0);
        while let Some(file) = self.files.get(at) {
            if Arc::strong_count(file) > 1 {
                at += 1;
                continue;
            }
            let name = index::name(file.generation);
            if disk.list()?.contains(&name) {
                disk.remove(&name)?;
            }
            pool.recycle(disk, file.generation, keep)?;
            self.files.swap_remove(at);
            recycled += 1;
        }
        Ok(recycled)
    }
}
