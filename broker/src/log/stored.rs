//! An entry as it is read, and the cutting of it into batches.

use std::sync::OnceLock;

use bytes::Bytes;
use quire_ledger::record::Payload;
use quire_proto::id::Offset;

use crate::entry::{EntryError, EntryHeader, EntryKind};
use crate::log::tail::Share;

/// A committed entry with its bytes.
#[derive(Debug)]
pub struct StoredEntry {
    pub header: EntryHeader,
    payload: Payload,
    prefix_len: usize,
    /// Of what the tails hold, while it is in one.
    share: OnceLock<Share>,
}

/// Batches, collected for an answer.
#[derive(Clone, Debug)]
pub struct Batches {
    /// Their bytes, in pieces that need not end where batches end.
    pub pieces: Vec<Bytes>,
    /// Bytes of all pieces.
    pub bytes: usize,
    /// The first batch is taken up to this many bytes, whatever the limit of all.
    pub first_max: usize,
    /// Whether they are slices of records that are charged: of a tail.
    pub pins_records: bool,
    /// Whether there may be more, for which there was no room.
    pub is_full: bool,
}

impl Default for Batches {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Batches {
    /// Nothing yet. The first batch is taken if it has at most this many bytes,
    /// whatever the limit of all.
    #[must_use]
    pub fn new(first_max: usize) -> Self {
        Self { pieces: Vec::new(), bytes: 0, first_max, pins_records: false, is_full: false }
    }

    fn push(&mut self, piece: Bytes) {
        self.bytes += piece.len();
        self.pieces.push(piece);
    }

    /// What was added since there were so many pieces is copied, if what it was
    /// sliced from, of so many bytes, is much larger: that has no memory.
    pub fn unpin(&mut self, pieces: usize, from: usize) {
        let added = &mut self.pieces[pieces..];
        if added.iter().map(Bytes::len).sum::<usize>() < from / 2 {
            added.iter_mut().for_each(|piece| *piece = Bytes::copy_from_slice(piece));
        }
    }

    /// The bytes in one piece; copies only when there are several.
    #[must_use]
    pub fn into_bytes(mut self) -> Bytes {
        if self.pieces.len() == 1
            && let Some(only) = self.pieces.pop()
        {
            return only;
        }
        let mut joined = Vec::with_capacity(self.bytes);
        self.pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
        joined.into()
    }
}

impl StoredEntry {
    /// An entry that this broker has just appended, in the pieces it came in.
    #[must_use]
    pub fn appended(header: EntryHeader, payload: Payload) -> Self {
        let prefix_len = EntryHeader::len_of(header.lines.len());
        Self { header, payload, prefix_len, share: OnceLock::new() }
    }

    /// An entry that was read back.
    ///
    /// # Errors
    /// When the bytes are not an entry.
    pub fn decode(bytes: Bytes) -> Result<Self, EntryError> {
        let (header, prefix_len) = EntryHeader::decode(&bytes)?;
        if bytes.len() - prefix_len != header.body_len as usize {
            return Err(EntryError::Short);
        }
        Ok(Self { header, payload: Payload::from(bytes), prefix_len, share: OnceLock::new() })
    }

    /// It came into a tail, which it leaves at the latest when it is gone.
    pub fn count(&self, share: Share) {
        _ = self.share.set(share);
    }

    /// Bytes of the entry, header included.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.payload.len()
    }

    /// The payload without the header.
    #[must_use]
    pub fn body(&self) -> Bytes {
        self.slice(self.prefix_len, self.payload.len()).into_bytes()
    }

    /// Collects the batches that end at or after `from`, while they fit
    /// `max_bytes` in all; the very first is taken up to `first_max`. Tells the
    /// offset to go on from.
    pub fn collect(&self, from: Offset, max_bytes: usize, out: &mut Batches) -> Offset {
        if self.header.kind != EntryKind::Data {
            return from.max(self.header.next_offset());
        }
        let mut next = from;
        for (line, span) in self.header.lines.iter().zip(self.header.spans()) {
            if line.last_offset < from {
                continue;
            }
            let limit = if out.bytes == 0 { out.first_max } else { max_bytes };
            if out.bytes + span.len() > limit {
                out.is_full = true;
                break;
            }
            let cut = self.slice(self.prefix_len + span.start, self.prefix_len + span.end);
            cut.pieces.into_iter().for_each(|piece| out.push(piece));
            next = line.last_offset.next();
        }
        next
    }

    /// The payload from `start` to `end`, shared.
    fn slice(&self, start: usize, end: usize) -> Batches {
        let mut out = Batches::default();
        let mut at = 0;
        for piece in self.payload.pieces() {
            let (from, to) = (start.max(at), end.min(at + piece.len()));
            if from < to {
                out.push(piece.slice(from - at..to - at));
            }
            at += piece.len();
            if at >= end {
                break;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use quire_proto::batch::{Batch, Builder, NO_HEADERS, Producer};
    use quire_proto::codec::Compression;
    use quire_proto::id::Epoch;

    use super::*;
    use crate::entry::EntryBuilder;
    use crate::testing::line;

    /// Every batch has as many bytes.
    fn batch(filler: u8) -> Batch {
        let mut builder = Builder::with_capacity(100);
        builder.append(5, None, Some(&[filler; 32]), NO_HEADERS).unwrap();
        let batch = builder.seal(Compression::None, Producer::NONE).unwrap();
        assert_eq!(batch.bytes.len(), LEN);
        batch
    }

    const LEN: usize = 100;

    fn entry() -> StoredEntry {
        let mut builder = EntryBuilder::default();
        for (filler, last) in [(1, 11), (2, 12), (3, 15)] {
            builder.push(batch(filler), line(last));
        }
        let built = builder.build(Offset(10), Epoch(1), 0, 0).unwrap();
        StoredEntry::appended(built.header, built.payload)
    }

    #[track_caller]
    fn check(from: u64, max_bytes: usize, fillers: &[u8], next: u64) {
        let appended = entry();
        let read_back = StoredEntry::decode(appended.payload.to_bytes()).unwrap();
        for entry in [appended, read_back] {
            let mut out = Batches::default();
            let went_on = entry.collect(Offset(from), max_bytes, &mut out);
            let bytes = out.into_bytes();
            let found: Vec<u8> = bytes.chunks(LEN).map(|batch| batch[LEN - 5]).collect();
            assert_eq!((&found[..], went_on), (fillers, Offset(next)));
        }
    }

    #[test]
    fn whole_batches_from_the_one_that_holds_the_offset() {
        check(10, 1000, &[1, 2, 3], 16);
        check(11, 1000, &[1, 2, 3], 16);
        check(12, 1000, &[2, 3], 16);
        check(14, 1000, &[3], 16);
        check(16, 1000, &[], 16);
    }

    #[test]
    fn the_limit_holds_but_for_the_first_batch() {
        check(10, 200, &[1, 2], 13);
        check(10, 199, &[1], 12);
        check(10, 1, &[1], 12);
    }

    #[test]
    fn a_cut_entry_is_refused() {
        let bytes = entry().payload.to_bytes();
        let cut = bytes.slice(..bytes.len() - 1);
        assert_eq!(StoredEntry::decode(cut).unwrap_err(), EntryError::Short);
    }

    #[test]
    fn a_small_part_does_not_pin_what_it_was_cut_from() {
        let whole = Bytes::from(vec![7; 1000]);
        for (taken, is_copied) in [(100, true), (499, true), (500, false), (1000, false)] {
            let mut out = Batches::default();
            out.push(whole.slice(..10));
            out.push(whole.slice(..taken));
            out.unpin(1, whole.len());
            assert_eq!(out.pieces[1], whole.slice(..taken));
            assert_eq!(out.pieces[1].as_ptr() != whole.as_ptr(), is_copied, "{taken} bytes");
            assert_eq!(out.pieces[0].as_ptr(), whole.as_ptr());
        }
    }
}
