//! The entry header. Opaque to ledgers and bookies, which only know its length:
//! a prefix read returns it without the batches. It alone is enough to index,
//! to seek and to rebuild producer state.
//!
//! Little-endian, [`EntryHeader::FIXED_LEN`] bytes and one line a batch:
//!
//! | at | size | field |
//! |---:|---:|---|
//! | 0 | 4 | magic `QENT` |
//! | 4 | 1 | version, 1 |
//! | 5 | 1 | kind: 1 data, 2 snapshot |
//! | 6 | 1 | 1 on the last part of a snapshot, else 0 |
//! | 7 | 1 | zero |
//! | 8 | 8 | base offset; of a snapshot: the offset that follows it |
//! | 16 | 8 | last offset; of a snapshot: as base offset |
//! | 24 | 8 | running maximum of batch timestamps, this entry included |
//! | 32 | 8 | when it was appended, the partition's clock, milliseconds |
//! | 40 | 4 | bytes of the body |
//! | 44 | 4 | number of lines |
//! | 48 | 4 | CRC-32C of everything else in the header |
//!
//! A line, [`Line::LEN`] bytes: position in the body (4), last offset (8),
//! maximum timestamp (8), producer id (8), producer epoch (2), base sequence
//! (4), record count (4), attributes (2), control type (2), zero (2).

use bytes::{Buf, BufMut, BytesMut};
use quire_proto::id::Offset;
use smallvec::SmallVec;

const MAGIC: u32 = u32::from_le_bytes(*b"QENT");
const VERSION: u8 = 1;
const CRC_AT: usize = 48;

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Batches.
    Data,
    /// A part of the partition's state as of the entries below.
    Snapshot {
        /// Whether no further part follows.
        last: bool,
    },
}

/// One batch of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Where the batch begins in the body.
    pub position: u32,
    /// Offset of its last record.
    pub last_offset: Offset,
    /// Greatest timestamp of its records, milliseconds.
    pub max_timestamp_ms: i64,
    /// -1: no idempotence.
    pub producer_id: i64,
    pub producer_epoch: i16,
    pub base_sequence: i32,
    pub record_count: u32,
    /// As in the batch.
    pub attributes: u16,
    /// Of a control batch; -1 for others.
    pub control_type: i16,
}

impl Line {
    /// Bytes of a line.
    pub const LEN: usize = 44;

    fn encode(&self, out: &mut BytesMut) {
        out.put_u32_le(self.position);
        out.put_u64_le(self.last_offset.0);
        out.put_i64_le(self.max_timestamp_ms);
        out.put_i64_le(self.producer_id);
        out.put_i16_le(self.producer_epoch);
        out.put_i32_le(self.base_sequence);
        out.put_u32_le(self.record_count);
        out.put_u16_le(self.attributes);
        out.put_i16_le(self.control_type);
        out.put_u16_le(0);
    }

    fn decode(at: &mut &[u8]) -> Self {
        let line = Self {
            position: at.get_u32_le(),
            last_offset: Offset(at.get_u64_le()),
            max_timestamp_ms: at.get_i64_le(),
            producer_id: at.get_i64_le(),
            producer_epoch: at.get_i16_le(),
            base_sequence: at.get_i32_le(),
            record_count: at.get_u32_le(),
            attributes: at.get_u16_le(),
            control_type: at.get_i16_le(),
        };
        at.advance(2);
        line
    }
}

/// An entry's header, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    pub kind: EntryKind,
    /// Offset of the first record; of a snapshot, the offset that follows it.
    pub base_offset: Offset,
    /// Offset of the last record; of a snapshot, as `base_offset`.
    pub last_offset: Offset,
    /// Greatest batch timestamp of the partition up to here. `i64::MIN` before
    /// the first batch.
    pub running_max_ms: i64,
    /// The partition's clock when the entry was appended, which is not the wall's.
    pub appended_ms: i64,
    /// Bytes that follow the header.
    pub body_len: u32,
    /// In offset order, none for a snapshot.
    pub lines: SmallVec<[Line; 2]>,
}

/// Why bytes are not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("the entry is cut short")]
    Short,
    #[error("the entry does not begin with an entry header")]
    Magic,
    #[error("the entry has version {0}, which this broker does not know")]
    Version(u8),
    #[error("the entry header's checksum does not match")]
    Crc,
    #[error("the entry header contradicts itself")]
    Malformed,
}

impl EntryHeader {
    /// Bytes before the lines.
    pub const FIXED_LEN: usize = 52;

    /// An entry has at most this many batches.
    pub const LINES_MAX: usize = 4096;

    /// Bytes of a header with this many lines.
    #[must_use]
    pub const fn len_of(lines: usize) -> usize {
        Self::FIXED_LEN + lines * Line::LEN
    }

    /// The offset after this entry.
    #[must_use]
    pub const fn next_offset(&self) -> Offset {
        match self.kind {
            EntryKind::Data => self.last_offset.next(),
            EntryKind::Snapshot { .. } => self.base_offset,
        }
    }

    /// Appends the header's bytes.
    pub fn encode(&self, out: &mut BytesMut) {
        let start = out.len();
        let (kind, last_part) = match self.kind {
            EntryKind::Data => (1, 0),
            EntryKind::Snapshot { last } => (2, u8::from(last)),
        };
        out.put_u32_le(MAGIC);
        out.put_u8(VERSION);
        out.put_u8(kind);
        out.put_u8(last_part);
        out.put_u8(0);
        out.put_u64_le(self.base_offset.0);
        out.put_u64_le(self.last_offset.0);
        out.put_i64_le(self.running_max_ms);
        out.put_i64_le(self.appended_ms);
        out.put_u32_le(self.body_len);
        out.put_u32_le(u32::try_from(self.lines.len()).unwrap_or(u32::MAX));
        out.put_u32_le(0);
        self.lines.iter().for_each(|line| line.encode(out));
        let crc = checksum(&out[start..]);
        out[start + CRC_AT..start + CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Decodes a header, whatever follows it, and tells its length.
    ///
    /// # Errors
    /// [`EntryError`]; lengths are checked before anything is allocated.
    pub fn decode(bytes: &[u8]) -> Result<(Self, usize), EntryError> {
        let mut at = bytes;
        if at.len() < Self::FIXED_LEN {
            return Err(EntryError::Short);
        }
        if at.get_u32_le() != MAGIC {
            return Err(EntryError::Magic);
        }
        let version = at.get_u8();
        if version != VERSION {
            return Err(EntryError::Version(version));
        }
        let kind = match (at.get_u8(), at.get_u8(), at.get_u8()) {
            (1, 0, 0) => EntryKind::Data,
            (2, last @ (0 | 1), 0) => EntryKind::Snapshot { last: last == 1 },
            _ => return Err(EntryError::Malformed),
        };
        let base_offset = Offset(at.get_u64_le());
        let last_offset = Offset(at.get_u64_le());
        let running_max_ms = at.get_i64_le();
        let appended_ms = at.get_i64_le();
        let body_len = at.get_u32_le();
        let lines = at.get_u32_le() as usize;
        let crc = at.get_u32_le();
        if lines > Self::LINES_MAX {
            return Err(EntryError::Malformed);
        }
        let len = Self::len_of(lines);
        if bytes.len() < len {
            return Err(EntryError::Short);
        }
        if checksum(&bytes[..len]) != crc {
            return Err(EntryError::Crc);
        }
        let lines = (0..lines).map(|_| Line::decode(&mut at)).collect();
        let header = Self { kind, base_offset, last_offset, running_max_ms, appended_ms, body_len, lines };
        header.is_consistent().then_some((header, len)).ok_or(EntryError::Malformed)
    }

    /// Where each batch begins and ends in the body.
    pub fn spans(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let ends = self.lines.iter().skip(1).map(|line| line.position).chain([self.body_len]);
        self.lines.iter().zip(ends).map(|(line, end)| line.position as usize..end as usize)
    }

    /// The offset that each batch begins with.
    pub fn base_offsets(&self) -> impl Iterator<Item = Offset> + '_ {
        std::iter::once(self.base_offset).chain(self.lines.iter().map(|line| line.last_offset.next()))
    }

    fn is_consistent(&self) -> bool {
        match self.kind {
            EntryKind::Snapshot { .. } => self.lines.is_empty() && self.last_offset == self.base_offset,
            EntryKind::Data => {
                let ordered = self.lines.windows(2).all(|pair| {
                    pair[0].position < pair[1].position && pair[0].last_offset < pair[1].last_offset
                });
                let first = self.lines.first().is_some_and(|line| {
                    line.position == 0
                        && line.last_offset >= self.base_offset
                        && self.last_offset.0 < u64::MAX
                });
                let last = self.lines.last().is_some_and(|line| {
                    line.position < self.body_len && line.last_offset == self.last_offset
                });
                ordered && first && last
            }
        }
    }
}

/// Over the header without the checksum itself.
fn checksum(header: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..CRC_AT]), &header[CRC_AT + 4..])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines() -> impl Strategy<Value = Vec<Line>> {
        let line =
            (1u32..1000, 1u64..50, any::<i64>(), any::<i64>(), any::<i16>(), any::<i32>(), any::<u16>());
        prop::collection::vec(line, 1..40).prop_map(|parts| {
            let mut position = 0;
            let mut next = 100;
            parts
                .into_iter()
                .map(
                    |(
                        len,
                        count,
                        max_timestamp_ms,
                        producer_id,
                        producer_epoch,
                        base_sequence,
                        attributes,
                    )| {
                        let line = Line {
                            position,
                            last_offset: Offset(next + count - 1),
                            max_timestamp_ms,
                            producer_id,
                            producer_epoch,
                            base_sequence,
                            record_count: u32::try_from(count).unwrap(),
                            attributes,
                            control_type: -1,
                        };
                        position += len;
                        next += count;
                        line
                    },
                )
                .collect()
        })
    }

    fn data(lines: Vec<Line>) -> EntryHeader {
        EntryHeader {
            kind: EntryKind::Data,
            base_offset: Offset(100),
            last_offset: lines.last().unwrap().last_offset,
            running_max_ms: 7,
            appended_ms: 9,
            body_len: lines.last().unwrap().position + 61,
            lines: lines.into_iter().collect(),
        }
    }

    fn encoded(header: &EntryHeader) -> BytesMut {
        let mut out = BytesMut::new();
        header.encode(&mut out);
        out
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(lines in lines(), body in prop::collection::vec(any::<u8>(), 0..20)) {
            let header = data(lines);
            let mut bytes = encoded(&header);
            let len = bytes.len();
            bytes.extend_from_slice(&body);
            prop_assert_eq!(EntryHeader::decode(&bytes), Ok((header, len)));
        }

        #[test]
        fn a_flipped_bit_is_noticed(lines in lines(), at in any::<prop::sample::Index>(), bit in 0..8) {
            let mut bytes = encoded(&data(lines));
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(EntryHeader::decode(&bytes).is_err());
        }

        #[test]
        fn a_cut_header_is_short(lines in lines(), at in any::<prop::sample::Index>()) {
            let bytes = encoded(&data(lines));
            prop_assert_eq!(EntryHeader::decode(&bytes[..at.index(bytes.len())]), Err(EntryError::Short));
        }

        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(EntryHeader::decode(&bytes).is_err());
        }
    }

    #[test]
    fn spans_cover_the_body() {
        let header = data(vec![
            Line { position: 0, last_offset: Offset(101), ..line() },
            Line { position: 70, last_offset: Offset(105), ..line() },
        ]);
        assert_eq!(header.spans().collect::<Vec<_>>(), [0..70, 70..131]);
        assert_eq!(header.base_offsets().take(2).collect::<Vec<_>>(), [Offset(100), Offset(102)]);
        assert_eq!(header.next_offset(), Offset(106));
    }

    #[test]
    fn a_header_that_contradicts_itself_is_refused() {
        let good = data(vec![line(), Line { position: 70, last_offset: Offset(105), ..line() }]);
        let bad: [fn(&mut EntryHeader); 5] = [
            |header| header.lines.clear(),
            |header| header.lines[1].position = 0,
            |header| header.lines[1].last_offset = Offset(101),
            |header| header.last_offset = Offset(200),
            |header| header.body_len = 70,
        ];
        assert!(EntryHeader::decode(&encoded(&good)).is_ok());
        for spoil in bad {
            let mut header = good.clone();
            spoil(&mut header);
            assert_eq!(EntryHeader::decode(&encoded(&header)), Err(EntryError::Malformed), "{header:?}");
        }
    }

    fn line() -> Line {
        Line {
            position: 0,
            last_offset: Offset(101),
            max_timestamp_ms: 0,
            producer_id: -1,
            producer_epoch: -1,
            base_sequence: -1,
            record_count: 2,
            attributes: 0,
            control_type: -1,
        }
    }
}
