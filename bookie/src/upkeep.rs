//! What a bookie does beside serving, on a thread of its own: writes the
//! indexes of full files, fills files ahead, watches its space (L6), recycles
//! files (L8), and reads everything again, slowly.

use std::collections::BTreeSet;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quire_ledger::record::Record;
use quire_ledger::replica::{Admission, Event};

use crate::catalog::Catalog;
use crate::disk::{Disk, DiskFile};
use crate::inbox::{Inbox, Message};
use crate::log::format::Generation;
use crate::log::pool::{FILL_BYTES, FilePool};
use crate::log::scan;
use crate::reader::Reader;
use crate::reclaim::{self, Draining, Living};
use crate::shared::Shared;
use crate::space::Space;

/// Between two rounds.
const EVERY: Duration = Duration::from_millis(500);

/// Rounds between two looks for files to recycle, while there is space.
const RECYCLE_EVERY: u64 = 6;

/// How fast files are filled ahead and living entries copied, bytes a second.
const BACKGROUND_BYTES_PER_SECOND: u64 = 64 << 20;

/// A file of which less than this part lives is emptied; more when space is
/// short.
const MOSTLY_DEAD: f64 = 0.2;
const MOSTLY_DEAD_WHEN_FULL: f64 = 0.6;

/// Stops the upkeep.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits; false when it is stopped.
    fn wait(&self, how_long: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(stopped, how_long, |stopped| !*stopped);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The upkeep of one bookie.
pub(crate) struct Upkeep<D: Disk> {
    pub(crate) disk: D,
    pub(crate) pool: Arc<FilePool>,
    pub(crate) catalog: Arc<Catalog<D::File>>,
    pub(crate) reader: Arc<Reader<D>>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) space: Arc<Space<D>>,
    pub(crate) scrub_bytes_per_second: u64,
    /// Taken out of the catalog; readers may still hold them.
    pub(crate) draining: Draining<D::File>,
    /// Cannot be emptied: something in them is unreadable.
    pub(crate) stuck: BTreeSet<Generation>,
    /// Damaged, and said so.
    pub(crate) damaged: BTreeSet<Generation>,
    /// The file that the scrub read last, and when it may read on.
    pub(crate) scrubbed: Generation,
    pub(crate) scrub_at: Instant,
}

impl<D: Disk> Upkeep<D> {
    /// Runs until it is stopped.
    pub(crate) fn run(mut self) {
        for round in 0_u64.. {
            if !self.stop.wait(EVERY) {
                return;
            }
            self.write_indexes();
            self.watch_space();
            // It looks at every ledger.
            if round.is_multiple_of(RECYCLE_EVERY) || self.shared.admission() < Admission::All {
                self.recycle();
            }
            self.fill_ahead();
            self.scrub();
        }
    }

    fn write_indexes(&self) {
        if let Err(error) = reclaim::write_indexes(&self.disk, &self.catalog) {
            tracing::warn!(%error, "an index could not be written: its lines stay in memory");
        }
    }

    fn watch_space(&self) {
        metrics::gauge!("quire_bookie_ledgers").set(self.catalog.ledgers() as f64);
        if let Some(admission) = self.space.look() {
            // A log thread that is stopped takes nothing anyway.
            _ = self.inbox.push(Message::Event(Event::Admission(admission)));
        }
    }

    /// L8: a file whose ledgers are all gone is recycled whole; one that is
    /// mostly dead is emptied first.
    fn recycle(&mut self) {
        let full = self.shared.admission() < Admission::All;
        let part = if full { MOSTLY_DEAD_WHEN_FULL } else { MOSTLY_DEAD };
        for generation in reclaim::mostly_dead(&self.catalog, part) {
            if !self.stuck.contains(&generation) && self.empty(generation) {
                self.draining.take_out(&self.catalog, generation);
            }
        }
        let keep = self.pool_max();
        match self.draining.recycle(&self.disk, &self.pool, keep) {
            Ok(0) => {}
            Ok(files) => {
                metrics::counter!("quire_bookie_recycled_files_total").increment(files as u64);
                tracing::info!(files, "log files were recycled");
            }
            Err(error) => tracing::warn!(%error, "a log file could not be recycled, trying again"),
        }
    }

    /// One ahead, and the reserve.
    fn pool_max(&self) -> usize {
        let reserve = self.space.water.reserve_bytes.div_ceil(self.pool.file_bytes());
        usize::try_from(reserve).unwrap_or(usize::MAX).saturating_add(1)
    }

    /// Copies what lives in a file; whether all of it is durable elsewhere.
    fn empty(&mut self, generation: Generation) -> bool {
        let mut living = Living::of(&self.catalog, generation);
        loop {
            match living.next(&self.reader) {
                Ok(Some(records)) => {
                    if !self.copy(records) {
                        return false;
                    }
                }
                Ok(None) => return true,
                Err(why) => {
                    tracing::error!(generation = generation.0, why, "a log file cannot be emptied and stays");
                    self.stuck.insert(generation);
                    return false;
                }
            }
        }
    }

    fn copy(&self, records: Vec<Record>) -> bool {
        let bytes: u64 = records.iter().map(|record| record.header.record_len() as u64).sum();
        let (done, copied) = sync_channel(1);
        if self.inbox.push(Message::Copy(records, done)).is_err() || copied.recv().is_err() {
            return false;
        }
        metrics::counter!("quire_bookie_copied_bytes_total").increment(bytes);
        self.stop.wait(pause(bytes))
    }

    fn fill_ahead(&self) {
        let space = self.disk.space();
        let fits = space.is_ok_and(|space| {
            let after = space.free.saturating_sub(self.pool.file_bytes());
            space.part_in_use(after) <= self.space.water.high
        });
        if self.pool.ready() >= self.pool_max() || !fits {
            return;
        }
        let filled = self.pool.fill(&self.disk, || self.stop.wait(pause(FILL_BYTES as u64)));
        if let Err(error) = filled {
            tracing::warn!(%error, "a log file could not be filled ahead");
        }
    }

    /// Reads one file again after another, each when its time has come.
    fn scrub(&mut self) {
        if self.scrub_bytes_per_second == 0 || Instant::now() < self.scrub_at {
            return;
        }
        let full: Vec<_> = self.catalog.usage().into_keys().collect();
        let full = &full[..full.len().saturating_sub(1)];
        let next = full.iter().copied().find(|&generation| generation > self.scrubbed);
        let Some(generation) = next.or_else(|| full.first().copied()) else { return };
        self.scrubbed = generation;
        let Some(file) = self.catalog.file(generation) else { return };
        let seconds = file.file.len() / self.scrub_bytes_per_second;
        self.scrub_at = Instant::now() + Duration::from_secs(seconds.max(1));
        let mut bad = 0_u64;
        match scan::file_header(&*file.file) {
            Some(header) => {
                scan::scan(&*file.file, &header, |batch| bad += u64::from(batch.records.is_none()))
            }
            None => bad += 1,
        }
        metrics::counter!("quire_bookie_scrubbed_bytes_total").increment(file.file.len());
        if bad > 0 {
            metrics::counter!("quire_bookie_scrub_errors_total").increment(bad);
            self.shared.set_damaged();
            if self.damaged.insert(generation) {
                tracing::error!(
                    generation = generation.0,
                    bad,
                    "the scrub found damaged batches: what they hold is read from other copies, if there are any"
                );
            }
        }
    }
}

/// How long to wait after so many bytes.
fn pause(bytes: u64) -> Duration {
    Duration::from_micros(bytes.saturating_mul(1_000_000) / BACKGROUND_BYTES_PER_SECOND)
}
