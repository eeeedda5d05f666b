//! Batches from an offset on: from the tail in memory, else from bookies.

use std::sync::Arc;

use quire_proto::id::{EntryId, Offset};
use quire_proto::v1::ErrorReason;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::failure::Failure;
use crate::log::cold::Cold;
use crate::log::partition::{Found, PartitionLog, Segment};
use crate::log::seek::Seek;
use crate::log::stored::Batches;

/// Requests that read from bookies at once: what they have read has no memory
/// until its size is known.
const COLD_READS: usize = 16;

/// Lookups by time at once: of headers only, which nobody waits for to be sent.
const SEEKS: usize = 16;

/// Reads partitions.
#[derive(Debug)]
pub struct Reader {
    cold: Arc<Cold>,
    cold_reads: Semaphore,
    seeks: Semaphore,
}

/// A request's right to read from bookies, from when it first does so.
#[derive(Debug, Default)]
pub struct Turn<'a>(Option<SemaphorePermit<'a>>);

impl Reader {
    /// Reads what is not in memory through these caches.
    #[must_use]
    pub fn new(cold: Arc<Cold>) -> Self {
        Self { cold, cold_reads: Semaphore::new(COLD_READS), seeks: Semaphore::new(SEEKS) }
    }

    /// Collects committed batches from the one that holds `offset` on, until
    /// `out` has `max_bytes` or the log ends. Tells the offset to go on from.
    ///
    /// # Errors
    /// When nothing could be collected: `OFFSET_OUT_OF_RANGE`, `NOT_READY`,
    /// `NOT_LEADER`, `NOT_ENOUGH_BOOKIES`, `DATA_UNAVAILABLE`.
    pub async fn read<'a>(
        &'a self,
        log: &PartitionLog,
        offset: Offset,
        max_bytes: usize,
        out: &mut Batches,
        turn: &mut Turn<'a>,
    ) -> Result<Offset, Failure> {
        let mut at = offset;
        while out.bytes < max_bytes.max(1) {
            let before = at;
            let step = match log.find(at, max_bytes, out) {
                Ok(Found::Tail(next)) => {
                    out.pins_records |= next > at;
                    return Ok(next);
                }
                Ok(Found::End) => return Ok(at),
                Ok(Found::Cold(segment)) => {
                    if turn.0.is_none() {
                        // The semaphore is never closed.
                        turn.0 = self.cold_reads.acquire().await.ok();
                    }
                    match self.read_cold(log, &segment, &mut at, max_bytes, out).await {
                        Err(failure) if at == offset => Err(self.with_way_on(&segment, at, failure).await),
                        step => step,
                    }
                }
                Err(failure) => Err(failure),
            };
            match step {
                Ok(()) if at == before => return Ok(at),
                Ok(()) => {}
                // What was collected before is good. The failure is told to
                // whoever asks for this offset first.
                Err(_) if at > offset => return Ok(at),
                Err(failure) => return Err(failure),
            }
        }
        out.is_full = true;
        Ok(at)
    }

    /// The base offset of the first batch whose greatest timestamp is at or
    /// above `timestamp_ms`.
    ///
    /// # Errors
    /// As [`Reader::read`].
    pub async fn offset_of(&self, log: &PartitionLog, timestamp_ms: i64) -> Result<Option<Offset>, Failure> {
        let _turn = self.seeks.acquire().await;
        for segment in log.segments().iter().filter(|segment| segment.max_timestamp_ms >= timestamp_ms) {
            if let Some(offset) = Seek::new(&self.cold, segment).timestamp(timestamp_ms).await? {
                return Ok(Some(offset));
            }
        }
        Ok(None)
    }

    /// The same from one segment. Moves `at` on with what is collected, also when
    /// it fails in the end.
    async fn read_cold(
        &self,
        log: &PartitionLog,
        segment: &Segment,
        at: &mut Offset,
        max_bytes: usize,
        out: &mut Batches,
    ) -> Result<(), Failure> {
        let mut entry = self.locate(log, segment, *at, max_bytes).await?;
        while entry < segment.end {
            let stored = self.cold.entry(segment, entry, max_bytes).await?;
            let pieces = out.pieces.len();
            *at = stored.collect(*at, max_bytes, out);
            out.unpin(pieces, stored.size());
            if *at < stored.header.next_offset() {
                break;
            }
            entry = entry.next();
            if out.bytes >= max_bytes {
                break;
            }
        }
        self.cold.expect(segment.ledger, *at, entry);
        Ok(())
    }

    /// Names the next offset behind what cannot be read.
    async fn with_way_on(&self, segment: &Segment, at: Offset, failure: Failure) -> Failure {
        if failure.reason != ErrorReason::DataUnavailable {
            return failure;
        }
        let Ok(behind) = Seek::new(&self.cold, segment).behind(at).await else { return failure };
        let next = behind.unwrap_or(segment.next_offset);
        Failure::new(failure.reason, format!("{}; skip it by fetching from {next}", failure.message))
    }

    /// The entry that holds this offset.
    async fn locate(
        &self,
        log: &PartitionLog,
        segment: &Segment,
        offset: Offset,
        wanted: usize,
    ) -> Result<EntryId, Failure> {
        // The first entry of a ledger is a snapshot.
        let first = (offset == segment.base_offset).then_some(EntryId(1));
        let hint = self.cold.hint(segment.ledger, offset).or(first).filter(|hint| *hint < segment.end);
        if let Some(hint) = hint
            && let Ok(stored) = self.cold.entry(segment, hint, wanted).await
            && stored.header.base_offset <= offset
            && offset < stored.header.next_offset()
        {
            return Ok(hint);
        }
        Seek::new(&self.cold, segment).offset(offset).await?.ok_or_else(|| {
            let ledger = segment.ledger;
            tracing::error!(partition = log.name(), %offset, %ledger, "the log has a hole");
            Failure::new(
                ErrorReason::DataUnavailable,
                format!("{}: offset {offset} is missing from ledger {ledger}", log.name()),
            )
        })
    }
}

#[cfg(test)]
mod tests;
