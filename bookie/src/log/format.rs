//! Log files and commit batches, byte by byte (L2, L3). All numbers are
//! little-endian.
//!
//! A file begins with one block:
//!
//! | at | size | field |
//! |---:|---:|---|
//! | 0 | 8 | `quirelog` |
//! | 8 | 4 | version |
//! | 12 | 4 | block: what batches are aligned to |
//! | 16 | 8 | generation of the file |
//! | 24 | 8 | salt |
//! | 32 | 8 | sequence of its first batch: older files end before it |
//! | 40 | 16 | bookie |
//! | 56 | 4 | zero |
//! | 60 | 4 | CRC-32C of bytes 0 to 60 |
//!
//! A commit batch starts on a block and is padded with zeros to one:
//!
//! | at | size | field |
//! |---:|---:|---|
//! | 0 | 4 | `QBAT` |
//! | 4 | 1 | kind |
//! | 5 | 3 | zero |
//! | 8 | 8 | generation of the file |
//! | 16 | 8 | sequence |
//! | 24 | 8 | durable mark: all batches below this sequence are durable |
//! | 32 | 8 | argument, by kind |
//! | 40 | 4 | length: header and body, without padding |
//! | 44 | 4 | number of records |
//! | 48 | 4 | header CRC of the batch before it in this file; of the first, the file header's |
//! | 52 | 4 | body CRC |
//! | 56 | 4 | zero |
//! | 60 | 4 | header CRC: CRC-32C of bytes 0 to 60, seeded with the salt |
//!
//! The body CRC of records covers their headers, which hold the CRCs of their
//! payloads: all bytes are covered, and each is summed once. Of a snapshot it
//! covers the body.

use bytes::{Buf, BufMut};
use quire_ledger::record::{HEADER_LEN, Header};
use quire_proto::id::BookieId;
use uuid::Uuid;

/// Bytes of a batch's header.
pub const BATCH_HEADER_LEN: usize = 64;

const FILE_MAGIC: &[u8; 8] = b"quirelog";
const FILE_HEADER_LEN: usize = 64;
const BATCH_MAGIC: &[u8; 4] = b"QBAT";
const VERSION: u32 = 1;

/// A log file's number. Each file has another, later files higher ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// A commit batch's number, dense over the whole log. As a mark or an end it is
/// one past the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Generation {
    /// The next file's.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Sequence {
    /// The next batch's.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// How a file begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Batches are aligned to this.
    pub block: u32,
    /// Which file it is.
    pub generation: Generation,
    /// Random: what an earlier use of the file left is never taken for its own.
    pub salt: u64,
    /// Of its first batch.
    pub first_sequence: Sequence,
    /// Whose log it is.
    pub bookie: BookieId,
}

impl FileHeader {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; FILE_HEADER_LEN] {
        let mut bytes = [0; FILE_HEADER_LEN];
        let mut at = &mut bytes[..];
        at.put_slice(FILE_MAGIC);
        at.put_u32_le(VERSION);
        at.put_u32_le(self.block);
        at.put_u64_le(self.generation.0);
        at.put_u64_le(self.salt);
        at.put_u64_le(self.first_sequence.0);
        at.put_slice(self.bookie.0.as_bytes());
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes and checks it; nothing when it is none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..FILE_HEADER_LEN)?;
        if (&bytes[60..]).get_u32_le() != crc32c::crc32c(&bytes[..60]) {
            return None;
        }
        let mut at = bytes.strip_prefix(FILE_MAGIC)?;
        if at.get_u32_le() != VERSION {
            return None;
        }
        let header = Self {
            block: at.get_u32_le(),
            generation: Generation(at.get_u64_le()),
            salt: at.get_u64_le(),
            first_sequence: Sequence(at.get_u64_le()),
            bookie: BookieId(Uuid::from_slice(at.get(..16)?).ok()?),
        };
        header.block.is_power_of_two().then_some(header)
    }

    /// What the CRCs of its batches are seeded with.
    #[must_use]
    pub fn seed(&self) -> u32 {
        crc32c::crc32c(&self.salt.to_le_bytes())
    }

    /// What its first batch names as the one before it.
    #[must_use]
    pub fn crc(&self) -> u32 {
        (&self.encode()[60..]).get_u32_le()
    }
}

/// What a batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Records; none in a batch that only tells the mark.
    Records,
    /// A part of the snapshot of all ledger states.
    Snapshot {
        /// Whether it is the last part.
        last: bool,
    },
    /// The log goes on in this file.
    Continues(Generation),
    /// The first batch after a boot: older files end before this sequence. It
    /// holds what was good above the durable mark there (L4).
    Cut(Sequence),
}

/// How a batch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchHeader {
    /// What it holds.
    pub content: Content,
    /// The file it belongs to.
    pub generation: Generation,
    /// Which batch it is.
    pub sequence: Sequence,
    /// All batches below were durable when it was written.
    pub mark: Sequence,
    /// Bytes of header and body.
    pub length: u32,
    /// Number of records.
    pub records: u32,
    /// Header CRC of the batch before it.
    pub previous: u32,
    /// Body CRC.
    pub body: u32,
}

impl BatchHeader {
    /// Its bytes; the last four are its CRC.
    #[must_use]
    pub fn encode(&self, seed: u32) -> [u8; BATCH_HEADER_LEN] {
        let (kind, argument) = match self.content {
            Content::Records => (1, 0),
            Content::Snapshot { last } => (2, u64::from(last)),
            Content::Continues(generation) => (3, generation.0),
            Content::Cut(sequence) => (4, sequence.0),
        };
        let mut bytes = [0; BATCH_HEADER_LEN];
        let mut at = &mut bytes[..];
        at.put_slice(BATCH_MAGIC);
        at.put_u8(kind);
        at.put_bytes(0, 3);
        at.put_u64_le(self.generation.0);
        at.put_u64_le(self.sequence.0);
        at.put_u64_le(self.mark.0);
        at.put_u64_le(argument);
        at.put_u32_le(self.length);
        at.put_u32_le(self.records);
        at.put_u32_le(self.previous);
        at.put_u32_le(self.body);
        let crc = crc32c::crc32c_append(seed, &bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes and checks it; nothing when it is none of this file's.
    #[must_use]
    pub fn decode(bytes: &[u8], file: &FileHeader) -> Option<Self> {
        let bytes = bytes.get(..BATCH_HEADER_LEN)?;
        let mut at = bytes.strip_prefix(BATCH_MAGIC)?;
        if header_crc(bytes) != crc32c::crc32c_append(file.seed(), &bytes[..60]) {
            return None;
        }
        let kind = at.get_u8();
        at.advance(3);
        let generation = Generation(at.get_u64_le());
        let sequence = Sequence(at.get_u64_le());
        let mark = Sequence(at.get_u64_le());
        let argument = at.get_u64_le();
        let content = match kind {
            1 => Content::Records,
            2 => Content::Snapshot { last: argument == 1 },
            3 => Content::Continues(Generation(argument)),
            4 => Content::Cut(Sequence(argument)),
            _ => return None,
        };
        let header = Self {
            content,
            generation,
            sequence,
            mark,
            length: at.get_u32_le(),
            records: at.get_u32_le(),
            previous: at.get_u32_le(),
            body: at.get_u32_le(),
        };
        let sane = generation == file.generation && header.length as usize >= BATCH_HEADER_LEN;
        sane.then_some(header)
    }
}

/// The header CRC of an encoded batch header.
#[must_use]
pub fn header_crc(header: &[u8]) -> u32 {
    header.get(60..64).map_or(0, |mut crc| crc.get_u32_le())
}

/// A record in a batch's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its header.
    pub header: Header,
    /// Where it begins, counted from the batch's first byte.
    pub at: usize,
}

/// Takes a whole batch apart and checks every byte of it; nothing when it is
/// bad.
#[must_use]
pub fn check_batch(header: &BatchHeader, batch: &[u8], seed: u32) -> Option<Vec<Found>> {
    let batch = batch.get(..header.length as usize)?;
    if let Content::Snapshot { .. } = header.content {
        let crc = crc32c::crc32c_append(seed, &batch[BATCH_HEADER_LEN..]);
        return (crc == header.body).then(Vec::new);
    }
    let mut found = Vec::with_capacity((header.records as usize).min(batch.len() / HEADER_LEN));
    let (mut at, mut crc) = (BATCH_HEADER_LEN, seed);
    for _ in 0..header.records {
        let encoded: &[u8; HEADER_LEN] = batch.get(at..at + HEADER_LEN)?.try_into().ok()?;
        let record = Header::decode(encoded).ok()?;
        let payload = batch.get(at + HEADER_LEN..at + record.record_len())?;
        if crc32c::crc32c(payload) != record.payload_crc {
            return None;
        }
        crc = crc32c::crc32c_append(crc, encoded);
        found.push(Found { header: record, at });
        at += record.record_len();
    }
    (crc == header.body && at == batch.len()).then_some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(generation: u64, salt: u64) -> FileHeader {
        FileHeader {
            block: 4096,
            generation: Generation(generation),
            salt,
            first_sequence: Sequence(9),
            bookie: BookieId(Uuid::from_u128(5)),
        }
    }

    fn batch(content: Content) -> BatchHeader {
        BatchHeader {
            content,
            generation: Generation(3),
            sequence: Sequence(12),
            mark: Sequence(11),
            length: 64,
            records: 0,
            previous: 7,
            body: 8,
        }
    }

    #[test]
    fn headers_come_back_as_they_were_written() {
        let file = file(3, 99);
        assert_eq!(FileHeader::decode(&file.encode()), Some(file));
        for content in [
            Content::Records,
            Content::Snapshot { last: true },
            Content::Snapshot { last: false },
            Content::Continues(Generation(4)),
            Content::Cut(Sequence(5)),
        ] {
            let header = batch(content);
            assert_eq!(BatchHeader::decode(&header.encode(file.seed()), &file), Some(header));
        }
    }

    #[test]
    fn what_an_earlier_use_of_the_file_left_is_no_batch() {
        let encoded = batch(Content::Records).encode(file(3, 99).seed());
        assert_eq!(BatchHeader::decode(&encoded, &file(3, 98)), None, "another salt");
        assert_eq!(BatchHeader::decode(&encoded, &file(4, 99)), None, "another generation");
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_noticed(bit in 0..512usize) {
            let file = file(3, 99);
            let mut encoded = file.encode();
            encoded[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(FileHeader::decode(&encoded), None);
            let mut encoded = batch(Content::Records).encode(file.seed());
            encoded[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(BatchHeader::decode(&encoded, &file), None);
        }
    }
}
