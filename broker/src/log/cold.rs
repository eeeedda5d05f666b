//! Entries that are read back from bookies: whole ones in a cache bounded by
//! bytes, headers in another. One read at a time for one place: who comes second
//! waits for the first one's answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use moka::sync::Cache;
use quire_ledger::message::{Read, Request, Response};
use quire_ledger::record::Record;
use quire_proto::id::{BookieId, EntryId, LedgerId, Offset};
use quire_proto::v1::ErrorReason;

use crate::bookies::Bookies;
use crate::entry::EntryHeader;
use crate::failure::Failure;
use crate::log::partition::Segment;
use crate::log::stored::StoredEntry;

/// Entries whose headers are read and cached together.
pub const HEADS: u64 = 128;

/// Of the budget, what headers may take: one part in this many.
const HEADS_SHARE: u64 = 8;

/// Bytes that one read asks for: what is asked for and read-ahead.
const READ_BYTES: u32 = 1 << 20;

/// Entries that one read asks for.
const READ_ENTRIES: u32 = 256;

/// What a cached thing costs beside its bytes.
const OVERHEAD: usize = 256;

/// Where an offset was found, to go on from. Never trusted over the data.
const HINTS: u64 = 16_384;

/// A place that is read from.
type Place = (LedgerId, EntryId);
type Run = Arc<Vec<Arc<StoredEntry>>>;
type Reading = BoxFuture<'static, Result<Run, Failure>>;
/// Reads under way. Only those that wait for one hold it: when they have all gone
/// away, so has the read, with what it held at the bookie.
type Flights = Mutex<HashMap<Place, WeakShared<Reading>>>;

/// Reads entries of ledgers.
#[derive(Debug)]
pub struct Cold {
    bookies: Arc<Bookies>,
    entries: Cache<Place, Arc<StoredEntry>>,
    heads: Cache<(LedgerId, u64), Arc<Vec<EntryHeader>>>,
    hints: Cache<(LedgerId, Offset), EntryId>,
    flights: Flights,
}

/// Somebody waits for the read at a place. Made before the read is joined, so
/// that it is dropped after it.
struct Waiting<'a> {
    flights: &'a Flights,
    place: Place,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut flights = lock(self.flights);
        if flights.get(&self.place).is_some_and(|flight| flight.upgrade().is_none()) {
            flights.remove(&self.place);
        }
    }
}

impl Cold {
    /// A reader whose caches hold this many bytes.
    #[must_use]
    pub fn new(bookies: Arc<Bookies>, cache_bytes: usize) -> Self {
        let cache_bytes = cache_bytes as u64;
        Self {
            bookies,
            entries: Cache::builder()
                .max_capacity(cache_bytes - cache_bytes / HEADS_SHARE)
                .weigher(|_, entry: &Arc<StoredEntry>| weight(entry.size()))
                .build(),
            heads: Cache::builder()
                .max_capacity(cache_bytes / HEADS_SHARE)
                .weigher(|_, heads: &Arc<Vec<EntryHeader>>| {
                    weight(heads.iter().map(|head| 64 + EntryHeader::len_of(head.lines.len())).sum())
                })
                .build(),
            hints: Cache::new(HINTS),
            flights: Mutex::default(),
        }
    }

    /// One entry of a segment, from the cache or with those that follow it.
    /// Cancel-safe: a read that nobody waits for any more is abandoned.
    ///
    /// # Errors
    /// `DATA_UNAVAILABLE` when every replica answers that it cannot give it,
    /// `NOT_ENOUGH_BOOKIES` when one that might does not answer.
    pub async fn entry(&self, segment: &Segment, entry: EntryId) -> Result<Arc<StoredEntry>, Failure> {
        let key = (segment.ledger, entry);
        if let Some(found) = self.entries.get(&key) {
            return Ok(found);
        }
        let _waiting = Waiting { flights: &self.flights, place: key };
        let run = self.flight(segment, entry).await?;
        for (entry, stored) in (entry.0..).zip(run.iter()) {
            self.entries.insert((segment.ledger, EntryId(entry)), Arc::clone(stored));
        }
        run.first().cloned().ok_or_else(|| unavailable(segment, entry, "an empty answer"))
    }

    /// The headers of the entries of one group of [`HEADS`], as far as the
    /// segment may be read.
    ///
    /// # Errors
    /// As [`Cold::entry`].
    pub async fn heads(&self, segment: &Segment, group: u64) -> Result<Arc<Vec<EntryHeader>>, Failure> {
        let key = (segment.ledger, group);
        let (first, end) = (group * HEADS, segment.end.0.min((group + 1) * HEADS));
        let wanted = usize::try_from(end.saturating_sub(first)).unwrap_or(0);
        if let Some(found) = self.heads.get(&key)
            && found.len() >= wanted
        {
            return Ok(found);
        }
        let mut heads = Vec::with_capacity(wanted);
        while heads.len() < wanted {
            let from = EntryId(first + heads.len() as u64);
            let records = read(&self.bookies, segment, from, end, true).await?;
            for record in records {
                let bytes = record.payload.to_bytes();
                let (head, _) = EntryHeader::decode(&bytes)
                    .map_err(|error| unavailable(segment, record.header.entry, &error.to_string()))?;
                heads.push(head);
            }
        }
        let heads = Arc::new(heads);
        self.heads.insert(key, Arc::clone(&heads));
        Ok(heads)
    }

    /// Where this offset was expected to be found.
    #[must_use]
    pub fn hint(&self, ledger: LedgerId, offset: Offset) -> Option<EntryId> {
        self.hints.get(&(ledger, offset))
    }

    /// Reading will go on at this offset, in this entry.
    pub fn expect(&self, ledger: LedgerId, offset: Offset, entry: EntryId) {
        self.hints.insert((ledger, offset), entry);
    }

    fn flight(&self, segment: &Segment, entry: EntryId) -> Shared<Reading> {
        let place = (segment.ledger, entry);
        let mut flights = lock(&self.flights);
        if let Some(flight) = flights.get(&place).and_then(WeakShared::upgrade) {
            return flight;
        }
        let (bookies, segment) = (Arc::clone(&self.bookies), segment.clone());
        let flight = async move { read_run(&bookies, &segment, entry).await.map(Arc::new) }.boxed().shared();
        // It was not polled, so it is there.
        flights.extend(flight.downgrade().map(|flight| (place, flight)));
        flight
    }
}

fn lock(flights: &Flights) -> MutexGuard<'_, HashMap<Place, WeakShared<Reading>>> {
    flights.lock().unwrap_or_else(PoisonError::into_inner)
}

fn weight(bytes: usize) -> u32 {
    u32::try_from(bytes + OVERHEAD).unwrap_or(u32::MAX)
}

async fn read_run(
    bookies: &Bookies,
    segment: &Segment,
    from: EntryId,
) -> Result<Vec<Arc<StoredEntry>>, Failure> {
    let records = read(bookies, segment, from, segment.end.0, false).await?;
    metrics::counter!("quire_broker_cold_reads_total").increment(1);
    records
        .into_iter()
        .map(|record| {
            let entry = record.header.entry;
            // Copied, so that what is cached pins no larger buffer.
            let bytes = match record.payload.pieces() {
                [one] => Bytes::copy_from_slice(one),
                _ => record.payload.to_bytes(),
            };
            metrics::counter!("quire_broker_cold_read_bytes_total").increment(bytes.len() as u64);
            let stored = StoredEntry::decode(bytes);
            stored.map(Arc::new).map_err(|error| unavailable(segment, entry, &error.to_string()))
        })
        .collect()
}

/// Asks one replica after another. Entries at or past `end` are cut off (I5).
async fn read(
    bookies: &Bookies,
    segment: &Segment,
    from: EntryId,
    end: u64,
    prefix: bool,
) -> Result<Vec<Record>, Failure> {
    let max_entries = u32::try_from(end.saturating_sub(from.0)).unwrap_or(u32::MAX);
    let max_entries = if prefix { max_entries } else { max_entries.min(READ_ENTRIES) };
    let request = Read { ledger: segment.ledger, from, max_entries, max_bytes: READ_BYTES, prefix };
    let mut causes = Vec::new();
    let mut all_answered = true;
    for &bookie in segment.replicas.iter() {
        let cause = match bookies.call(bookie, Request::Read(request)).await {
            Ok(Response::Entries(mut records)) => match check(&request, &records) {
                Ok(()) => {
                    records.truncate(max_entries as usize);
                    return Ok(records);
                }
                Err(cause) => {
                    alarm(segment.ledger, bookie, cause);
                    cause.to_owned()
                }
            },
            Ok(Response::Absent) => "it does not hold the entry".to_owned(),
            Ok(Response::Deleted) => "the ledger is deleted there".to_owned(),
            Ok(Response::Unknown(why)) => why,
            Ok(other) => format!("it answered {other:?}"),
            Err(error) => {
                all_answered = false;
                error.cause
            }
        };
        causes.push(format!("bookie {bookie}: {cause}"));
    }
    let causes = causes.join("; ");
    Err(if all_answered { unavailable(segment, from, &causes) } else { away(segment, from, &causes) })
}

/// A record that is not the one that was asked for is never taken for it.
///
/// # Errors
/// What is wrong.
pub fn check(read: &Read, records: &[Record]) -> Result<(), &'static str> {
    if records.is_empty() {
        return Err("it answered with no entry");
    }
    for (entry, record) in (read.from.0..).zip(records) {
        if record.header.ledger != read.ledger || record.header.entry.0 != entry {
            return Err("it answered with another entry");
        }
        if !read.prefix && record.verify().is_err() {
            return Err("the entry's checksum does not match");
        }
    }
    Ok(())
}

/// A bookie gave what was not asked for.
pub fn alarm(ledger: LedgerId, bookie: BookieId, cause: &str) {
    metrics::counter!("quire_broker_bad_reads_total").increment(1);
    tracing::error!(%ledger, %bookie, cause, "a bookie answered a read wrongly");
}

fn unavailable(segment: &Segment, entry: EntryId, cause: &str) -> Failure {
    let message = format!("entry {entry} of ledger {} cannot be read: {cause}", segment.ledger);
    Failure::new(ErrorReason::DataUnavailable, message)
}

/// One of the bookies that did not answer may have it.
fn away(segment: &Segment, entry: EntryId, cause: &str) -> Failure {
    let message =
        format!("entry {entry} of ledger {} cannot be read now: {cause}; try again", segment.ledger);
    Failure::new(ErrorReason::NotEnoughBookies, message)
}

#[cfg(test)]
mod tests;
