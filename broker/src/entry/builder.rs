//! Batches that wait for one partition become one entry.

use bytes::{BufMut, BytesMut};
use quire_ledger::record::Payload;
use quire_proto::batch::{Batch, Header};
use quire_proto::id::{Epoch, Offset};
use smallvec::SmallVec;

use crate::entry::{EntryHeader, EntryKind, Line};

/// An entry is closed when it has this many bytes; a larger batch goes alone.
pub const ENTRY_BYTES: usize = 1 << 20;

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
    batches: SmallVec<[Batch; 2]>,
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
    pub fn push(&mut self, batch: Batch, line: Line) {
        let position = u32::try_from(self.body_len).unwrap_or(u32::MAX);
        self.body_len += batch.bytes.len();
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
        let mut own = BytesMut::with_capacity(prefix_len + self.batches.len() * Header::STAMPED_LEN);
        header.encode(&mut own);
        for (batch, base) in self.batches.iter().zip(header.base_offsets()) {
            own.put_slice(&batch.stamped_head(base, epoch));
        }
        let mut own = own.freeze();
        let mut payload = Payload::default();
        for (index, batch) in self.batches.drain(..).enumerate() {
            let stamp = if index == 0 { prefix_len + Header::STAMPED_LEN } else { Header::STAMPED_LEN };
            payload.push(own.split_to(stamp));
            payload.push(batch.bytes.slice(Header::STAMPED_LEN..));
        }
        self.body_len = 0;
        Some(Built { header, payload, prefix_len: u32::try_from(prefix_len).unwrap_or(u32::MAX) })
    }
}

#[cfg(test)]
mod tests {
    use quire_proto::batch::{Builder, NO_HEADERS, Producer};
    use quire_proto::codec::Compression;

    use super::*;
    use crate::testing::line;

    fn batch(value: &[u8]) -> Batch {
        let mut builder = Builder::with_capacity(100);
        builder.append(5, None, Some(value), NO_HEADERS).unwrap();
        builder.seal(Compression::None, Producer::NONE).unwrap()
    }

    #[test]
    fn batches_are_stamped_and_otherwise_as_they_came() {
        let batches = [batch(b"one"), batch(b"three")];
        let mut builder = EntryBuilder::default();
        batches.iter().zip([10, 11]).for_each(|(batch, last)| builder.push(batch.clone(), line(last)));
        let built = builder.build(Offset(10), Epoch(3), 5, 6).unwrap();
        let bytes = built.payload.to_bytes();
        let (header, len) = EntryHeader::decode(&bytes).unwrap();
        assert_eq!((&header, len), (&built.header, built.prefix_len as usize));
        let stored = Batch::split(bytes.slice(len..)).unwrap();
        assert_eq!(stored.len(), 2);
        for ((stored, sent), base) in stored.iter().zip(&batches).zip([10, 11]) {
            assert_eq!((stored.header.base_offset, stored.header.leader_epoch), (Offset(base), 3));
            assert_eq!(stored.bytes[Header::STAMPED_LEN..], sent.bytes[Header::STAMPED_LEN..]);
            assert_eq!(stored.verify_crc(), Ok(()));
        }
        assert!(builder.is_empty());
        assert!(builder.build(Offset(13), Epoch(3), 5, 6).is_none());
    }

    #[test]
    fn an_entry_is_bounded_but_one_large_batch_goes_alone() {
        let mut builder = EntryBuilder::default();
        assert!(builder.fits(2 * ENTRY_BYTES));
        builder.push(batch(&[0; ENTRY_BYTES]), line(0));
        assert!(!builder.fits(1));
    }
}
