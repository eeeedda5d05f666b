//! Offset or time → entry, by binary search over entry headers.

use quire_proto::id::{EntryId, Offset};

use crate::entry::{EntryHeader, EntryKind};
use crate::failure::Failure;
use crate::log::cold::{Cold, HEADS};
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
    /// As [`Cold::heads`].
    pub async fn offset(&self, offset: Offset) -> Result<Option<EntryId>, Failure> {
        // The first entry that ends above it.
        let found = self.first(|head| head.next_offset() > offset).await?;
        Ok(found.map(|(entry, _)| entry))
    }

    /// The base offset of the first batch whose greatest timestamp is at or
    /// above `timestamp_ms`.
    ///
    /// # Errors
    /// As [`Cold::heads`].
    pub async fn timestamp(&self, timestamp_ms: i64) -> Result<Option<Offset>, Failure> {
        let Some((entry, _)) = self.first(|head| head.running_max_ms >= timestamp_ms).await? else {
            return Ok(None);
        };
        // The running maximum may have been reached by a segment that is gone
        // since: from here on each batch is looked at.
        for group in entry.0 / HEADS..self.groups() {
            let heads = self.cold.heads(self.segment, group).await?;
            let found = heads.iter().filter(|head| head.kind == EntryKind::Data).find_map(|head| {
                let batches = head.lines.iter().zip(head.base_offsets());
                batches
                    .into_iter()
                    .find(|(line, _)| line.max_timestamp_ms >= timestamp_ms)
                    .map(|(_, base_offset)| base_offset)
            });
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The first entry that `reached` holds for; once it holds it holds for all
    /// later ones.
    async fn first(
        &self,
        reached: impl Fn(&EntryHeader) -> bool,
    ) -> Result<Option<(EntryId, EntryHeader)>, Failure> {
        // The first group whose last entry has reached it.
        let (mut low, mut high) = (0, self.groups());
        while low < high {
            let middle = low + (high - low) / 2;
            let heads = self.cold.heads(self.segment, middle).await?;
            if heads.last().is_some_and(&reached) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        if low == self.groups() {
            return Ok(None);
        }
        let heads = self.cold.heads(self.segment, low).await?;
        let at = heads.partition_point(|head| !reached(head));
        Ok(heads.get(at).map(|head| (EntryId(low * HEADS + at as u64), head.clone())))
    }

    const fn groups(&self) -> u64 {
        self.segment.end.0.div_ceil(HEADS)
    }
}
