//! Offset or time → entry, by binary search over entry headers. Those that cannot
//! be read are passed over, unless what is looked for may be in them.

use std::ops::Range;
use std::sync::Arc;

use quire_proto::id::{EntryId, Offset};

use crate::entry::{EntryHeader, EntryKind};
use crate::failure::Failure;
use crate::log::cold::{Cold, HEADS, Head};
use crate::log::partition::Segment;

/// Finds things in a segment.
#[derive(Debug)]
pub struct Seek<'a> {
    cold: &'a Cold,
    segment: &'a Segment,
}

impl<'a> Seek<'a> {
    /// In this segment.
    #[must_use]
    pub const fn new(cold: &'a Cold, segment: &'a Segment) -> Self {
        Self { cold, segment }
    }

    /// The entry that holds this offset, which the segment covers; `None` when
    /// there is none, which is a hole.
    ///
    /// # Errors
    /// As [`Cold::entry`].
    pub async fn offset(&self, offset: Offset) -> Result<Option<EntryId>, Failure> {
        // The first entry that ends above it.
        let after = match self.first(|head| head.next_offset() > offset).await? {
            Some((entry, head)) if head.base_offset <= offset => return Ok(Some(entry)),
            Some((entry, _)) => entry,
            None => self.segment.end,
        };
        self.check_before(after).await?;
        Ok(None)
    }

    /// Where the first entry begins that is all above this offset, of those whose
    /// headers can be read.
    ///
    /// # Errors
    /// As [`Cold::heads`].
    pub async fn behind(&self, offset: Offset) -> Result<Option<Offset>, Failure> {
        Ok(self.first(|head| head.base_offset > offset).await?.map(|(_, head)| head.base_offset))
    }

    /// The base offset of the first batch whose greatest timestamp is at or
    /// above `timestamp_ms`.
    ///
    /// # Errors
    /// As [`Cold::entry`].
    pub async fn timestamp(&self, timestamp_ms: i64) -> Result<Option<Offset>, Failure> {
        let reached = self.first(|head| head.running_max_ms >= timestamp_ms).await?;
        let EntryId(mut at) = reached.map_or(self.segment.end, |(entry, _)| entry);
        self.check_before(EntryId(at)).await?;
        // The running maximum may have been reached by a segment that is gone
        // since: from here on each batch is looked at.
        while at < self.segment.end.0 {
            let (group, place) = place_of(EntryId(at));
            for head in self.cold.heads(self.segment, group).await?.iter().skip(place) {
                if let Some(found) = first_batch(head.as_ref().map_err(Failure::clone)?, timestamp_ms) {
                    return Ok(Some(found));
                }
            }
            at = (group + 1) * HEADS;
        }
        Ok(None)
    }

    /// The first entry that can be read and that `reached` holds for; once it
    /// holds it holds for all later ones.
    async fn first(
        &self,
        reached: impl Fn(&EntryHeader) -> bool,
    ) -> Result<Option<(EntryId, EntryHeader)>, Failure> {
        // The first group whose last entry has reached it.
        let (mut low, mut high) = (0, self.segment.end.0.div_ceil(HEADS));
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            match self.readable(middle..high).await? {
                Some((group, heads)) if !heads.iter().flatten().next_back().is_some_and(&reached) => {
                    low = group + 1;
                }
                readable => {
                    found = readable.or(found);
                    high = middle;
                }
            }
        }
        let Some((group, heads)) = found else { return Ok(None) };
        let first = (group * HEADS..).zip(heads.iter()).find_map(|(entry, head)| {
            let head = head.as_ref().ok().filter(|head| reached(head))?;
            Some((EntryId(entry), head.clone()))
        });
        Ok(first)
    }

    /// The first of these groups of which anything can be read.
    async fn readable(&self, groups: Range<u64>) -> Result<Option<(u64, Arc<Vec<Head>>)>, Failure> {
        for group in groups {
            let heads = self.cold.heads(self.segment, group).await?;
            if heads.iter().any(Result::is_ok) {
                return Ok(Some((group, heads)));
            }
        }
        Ok(None)
    }

    /// What is not in this entry may be in the one before it.
    ///
    /// # Errors
    /// When that cannot be read.
    async fn check_before(&self, entry: EntryId) -> Result<(), Failure> {
        let Some(before) = entry.0.checked_sub(1) else { return Ok(()) };
        let (group, place) = place_of(EntryId(before));
        match self.cold.heads(self.segment, group).await?.get(place) {
            Some(Err(failure)) => Err(failure.clone()),
            Some(Ok(_)) | None => Ok(()),
        }
    }
}

/// The group of an entry and its place in it.
fn place_of(EntryId(entry): EntryId) -> (u64, usize) {
    (entry / HEADS, usize::try_from(entry % HEADS).unwrap_or(usize::MAX))
}

/// The base offset of the first batch that is as late.
fn first_batch(head: &EntryHeader, timestamp_ms: i64) -> Option<Offset> {
    if head.kind != EntryKind::Data {
        return None;
    }
    let mut batches = head.lines.iter().zip(head.base_offsets());
    let (_, base_offset) = batches.find(|(line, _)| line.max_timestamp_ms >= timestamp_ms)?;
    Some(base_offset)
}

#[cfg(test)]
mod tests;
