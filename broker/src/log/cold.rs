//! Entries that are read back from bookies: whole ones in a cache bounded by
//! bytes, headers in another. Those that want the same at once share one read.

use std::sync::Arc;

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;
use quire_ledger::message::{Read, Request, Response};
use quire_ledger::record::Record;
use quire_proto::id::{BookieId, EntryId, LedgerId, Offset};
use quire_proto::v1::ErrorReason;

use crate::bookies::Bookies;
use crate::entry::{EntryError, EntryHeader};
use crate::failure::Failure;
use crate::log::flights::Flights;
use crate::log::partition::Segment;
use crate::log::stored::StoredEntry;

/// Entries whose headers are read and cached together.
pub const HEADS: u64 = 128;

/// Of the budget, what headers may take: one part in this many.
const HEADS_SHARE: u64 = 8;

/// Bytes that one read asks for: what is asked for and read-ahead. Of many
/// partitions that are read together each is read a little ahead only: what is
/// theirs lies together.
const READ_BYTES: u32 = 1 << 20;
const READ_BYTES_MIN: u32 = 4 << 10;

/// Entries that one read asks for.
const READ_ENTRIES: u32 = 256;

/// What a cached thing costs beside its bytes.
const OVERHEAD: usize = 256;

/// Where an offset was found, to go on from. Never trusted over the data.
const HINTS: u64 = 16_384;

/// The header of an entry, or why it cannot be read.
pub type Head = Result<EntryHeader, Failure>;

/// Reads entries of ledgers.
#[derive(Debug)]
pub struct Cold {
    bookies: Arc<Bookies>,
    entries: Cache<(LedgerId, EntryId), Arc<StoredEntry>>,
    /// By group. Of these all entries can be read.
    heads: Cache<(LedgerId, u64), Arc<Vec<Head>>>,
    hints: Cache<(LedgerId, Offset), EntryId>,
    /// Reads of entries, by the first of them.
    runs: Flights<(LedgerId, EntryId), Vec<Arc<StoredEntry>>>,
    /// Reads of headers, by the first and the end.
    groups: Flights<(LedgerId, u64, u64), Vec<Head>>,
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
                // Reading moves on: what was read often is behind.
                .eviction_policy(EvictionPolicy::lru())
                .build(),
            heads: Cache::builder()
                .max_capacity(cache_bytes / HEADS_SHARE)
                .weigher(|_, heads: &Arc<Vec<Head>>| {
                    weight(
                        heads.iter().flatten().map(|head| 64 + EntryHeader::len_of(head.lines.len())).sum(),
                    )
                })
                .build(),
            hints: Cache::new(HINTS),
            runs: Flights::default(),
            groups: Flights::default(),
        }
    }

    /// One entry of a segment, from the cache or with those that follow it, about as
    /// many bytes as are wanted.
    /// Cancel-safe: a read that nobody waits for any more is abandoned.
    ///
    /// # Errors
    /// `DATA_UNAVAILABLE` when every replica answers that it cannot give it,
    /// `NOT_ENOUGH_BOOKIES` when one that might does not answer.
    pub async fn entry(
        &self,
        segment: &Segment,
        entry: EntryId,
        wanted: usize,
    ) -> Result<Arc<StoredEntry>, Failure> {
        let key = (segment.ledger, entry);
        if let Some(found) = self.entries.get(&key) {
            return Ok(found);
        }
        let bytes = u32::try_from(wanted).unwrap_or(u32::MAX).clamp(READ_BYTES_MIN, READ_BYTES);
        let read = || read_run(Arc::clone(&self.bookies), segment.clone(), entry, bytes);
        let run = self.runs.join(key, read).await?;
        for (entry, stored) in (entry.0..).zip(run.iter()) {
            self.entries.insert((segment.ledger, EntryId(entry)), Arc::clone(stored));
        }
        run.first().cloned().ok_or_else(|| unavailable(segment, entry, "an empty answer"))
    }

    /// The headers of the entries of one group of [`HEADS`], as far as the
    /// segment may be read. One that every replica answers it cannot give is
    /// `DATA_UNAVAILABLE` in its place. Cancel-safe, as [`Cold::entry`].
    ///
    /// # Errors
    /// `NOT_ENOUGH_BOOKIES` when a bookie that might give one does not answer.
    pub async fn heads(&self, segment: &Segment, group: u64) -> Result<Arc<Vec<Head>>, Failure> {
        let key = (segment.ledger, group);
        let (first, end) = (group * HEADS, segment.end.0.min((group + 1) * HEADS));
        let wanted = usize::try_from(end.saturating_sub(first)).unwrap_or(0);
        if let Some(found) = self.heads.get(&key)
            && found.len() >= wanted
        {
            return Ok(found);
        }
        let read = || read_heads(Arc::clone(&self.bookies), segment.clone(), first, end);
        let heads = self.groups.join((segment.ledger, first, end), read).await?;
        // What cannot be read may be mended: it is asked for again.
        if heads.iter().all(Result::is_ok) {
            self.heads.insert(key, Arc::clone(&heads));
        }
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
}

fn weight(bytes: usize) -> u32 {
    u32::try_from(bytes + OVERHEAD).unwrap_or(u32::MAX)
}

async fn read_run(
    bookies: Arc<Bookies>,
    segment: Segment,
    from: EntryId,
    max_bytes: u32,
) -> Result<Vec<Arc<StoredEntry>>, Failure> {
    let max_entries = u32::try_from(segment.end.0.saturating_sub(from.0)).unwrap_or(u32::MAX);
    let max_entries = max_entries.min(READ_ENTRIES);
    let request = Read { ledger: segment.ledger, from, max_entries, max_bytes, prefix: false };
    let records = read(&bookies, &segment, request).await?;
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
            stored.map(Arc::new).map_err(|error| unavailable(&segment, entry, &error.to_string()))
        })
        .collect()
}

async fn read_heads(
    bookies: Arc<Bookies>,
    segment: Segment,
    first: u64,
    end: u64,
) -> Result<Vec<Head>, Failure> {
    let mut heads: Vec<Head> = Vec::new();
    loop {
        let from = EntryId(first + heads.len() as u64);
        if from.0 >= end {
            return Ok(heads);
        }
        let max_entries = u32::try_from(end - from.0).unwrap_or(u32::MAX);
        let request = Read { ledger: segment.ledger, from, max_entries, max_bytes: READ_BYTES, prefix: true };
        match read(&bookies, &segment, request).await {
            Ok(records) => heads.extend(records.iter().map(|record| {
                let broken =
                    |error: EntryError| unavailable(&segment, record.header.entry, &error.to_string());
                head_of(record).map_err(broken)
            })),
            Err(failure) if failure.reason == ErrorReason::DataUnavailable => heads.push(Err(failure)),
            Err(failure) => return Err(failure),
        }
    }
}

fn head_of(record: &Record) -> Result<EntryHeader, EntryError> {
    EntryHeader::decode(&record.payload.to_bytes()).map(|(head, _)| head)
}

/// Asks one replica after another. Entries past `max_entries` are cut off (I5).
async fn read(bookies: &Bookies, segment: &Segment, request: Read) -> Result<Vec<Record>, Failure> {
    let from = request.from;
    let mut causes = Vec::new();
    let mut all_answered = true;
    for &bookie in segment.replicas.iter() {
        let cause = match bookies.call(bookie, Request::Read(request)).await {
            Ok(Response::Entries(records)) => match usable(&request, records) {
                Ok(records) => return Ok(records),
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

/// What an answer is good for. A bookie does not verify what it gives a prefix of:
/// the headers are good up to the first that cannot be decoded.
fn usable(read: &Read, mut records: Vec<Record>) -> Result<Vec<Record>, &'static str> {
    check(read, &records)?;
    records.truncate(read.max_entries as usize);
    if read.prefix {
        match records.iter().position(|record| head_of(record).is_err()) {
            Some(0) => return Err("the entry's header is damaged"),
            Some(at) => records.truncate(at),
            None => {}
        }
    }
    Ok(records)
}

/// A record that is not the one that was asked for is never taken for it. Its
/// checksum tells of the whole payload only: of a prefix that is less, the entry
/// header's own does.
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
        let is_whole = !read.prefix || record.header.prefix_len == record.header.payload_len;
        if is_whole && record.verify().is_err() {
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
