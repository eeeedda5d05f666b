//! Batches that wait for one partition become one entry.

use bytes::{BufMut, Bytes, BytesMut};
use quire_ledger::record::Payload;
use quire_proto::id::{Epoch, Offset};
use smallvec::SmallVec;

use crate::entry::{EntryHeader, EntryKind, Line};

/// An entry is closed when it has this many bytes; a larger batch goes alone.
pub const ENTRY_BYTES: usize = 1 << 20;

/// Bytes of a batch that hold base offset, length and leader epoch. They lie
/// outside its CRC.
const STAMP_LEN: usize = 16;

/// A finished entry.
#[derive(Clone, Debug)]
pub struct Built {
    pub header: EntryHeader,
    /// Header and batches; the batches' bytes are shared, not copied.
    pub payload: Payload,
    /// Bytes of the header: what a prefix read returns.
    pub prefix_len: u32,
}

/// Collects batches of one partition in offset order.
#[derive(Debug, Default)]
pub struct EntryBuilder {
    lines: SmallVec<[Line; 2]>,
    batches: SmallVec<[Bytes; 2]>,
    body_len: usize,
}

impl EntryBuilder {
    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Whether a batch of this many bytes still fits. The first always does.
    #[must_use]
    pub fn fits(&self, bytes: usize) -> bool {
        self.is_empty() || (self.body_len + bytes <= ENTRY_BYTES && self.lines.len() < EntryHeader::LINES_MAX)
    }

    /// Adds a sealed batch, whose line's position is filled in here.
    pub fn push(&mut self, batch: Bytes, line: Line) {
        let position = u32::try_from(self.body_len).unwrap_or(u32::MAX);
        self.body_len += batch.len();
        self.lines.push(Line { position, ..line });
        self.batches.push(batch);
    }

    /// Closes the entry. Base offsets and leader epoch are stamped beside the
    /// shared bytes: one allocation an entry.
    ///
    /// Nothing is returned when nothing was added.
    pub fn build(
        &mut self,
        base_offset: Offset,
        epoch: Epoch,
        running_max_ms: i64,
        appended_ms: i64,
    ) -> Option<Built> {
        let last_offset = self.lines.last()?.last_offset;
        let header = EntryHeader {
            kind: EntryKind::Data,
            base_offset,
            last_offset,
            running_max_ms,
            appended_ms,
            body_len: u32::try_from(self.body_len).unwrap_or(u32::MAX),
            lines: std::mem::take(&mut self.lines),
        };
        let prefix_len = EntryHeader::len_of(header.lines.len());
        let mut own = BytesMut::with_capacity(prefix_len + self.batches.len() * STAMP_LEN);
        header.encode(&mut own);
        for (batch, base) in self.batches.iter().zip(header.base_offsets()) {
            own.put_u64(base.0);
            own.put_slice(&batch[8..12]);
            own.put_u32(stamp_of(epoch));
        }
        let mut own = own.freeze();
        let mut payload = Payload::default();
        for (index, batch) in self.batches.drain(..).enumerate() {
            let stamp = if index == 0 { prefix_len + STAMP_LEN } else { STAMP_LEN };
            payload.push(own.split_to(stamp));
            payload.push(batch.slice(STAMP_LEN..));
        }
        self.body_len = 0;
        Some(Built { header, payload, prefix_len: u32::try_from(prefix_len).unwrap_or(u32::MAX) })
    }
}

/// A batch's leader epoch is a positive i32; ours is wider and wraps.
const fn stamp_of(epoch: Epoch) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "masked to 31 bits")]
    {
        (epoch.0 & 0x7fff_ffff) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(last_offset: u64) -> Line {
        Line {
            position: 0,
            last_offset: Offset(last_offset),
            max_timestamp_ms: 5,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 1,
            attributes: 0,
            control_type: -1,
        }
    }

    #[test]
    fn batches_are_stamped_and_otherwise_as_they_came() {
        let mut builder = EntryBuilder::default();
        builder.push(Bytes::from(vec![0xaa; 100]), line(10));
        builder.push(Bytes::from(vec![0xbb; 61]), line(12));
        let built = builder.build(Offset(10), Epoch(3), 5, 6).unwrap();
        let bytes = built.payload.to_bytes();
        let (header, len) = EntryHeader::decode(&bytes).unwrap();
        assert_eq!((&header, len), (&built.header, built.prefix_len as usize));
        let body = &bytes[len..];
        assert_eq!(body.len(), 161);
        let spans: Vec<_> = header.spans().collect();
        assert_eq!(spans, [0..100, 100..161]);
        for (span, base, filler) in [(0..100, 10u64, 0xaa), (100..161, 11, 0xbb)] {
            let batch = &body[span];
            assert_eq!(batch[..8], base.to_be_bytes());
            assert_eq!(batch[8..12], [filler; 4]);
            assert_eq!(batch[12..16], [0, 0, 0, 3]);
            assert!(batch[16..].iter().all(|byte| *byte == filler));
        }
        assert!(builder.is_empty());
        assert!(builder.build(Offset(13), Epoch(3), 5, 6).is_none());
    }

    #[test]
    fn an_entry_is_bounded_but_one_large_batch_goes_alone() {
        let mut builder = EntryBuilder::default();
        assert!(builder.fits(2 * ENTRY_BYTES));
        builder.push(Bytes::from(vec![0; ENTRY_BYTES]), line(0));
        assert!(!builder.fits(1));
    }
}
