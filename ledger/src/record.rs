//! The record: what a broker sends to a bookie and what the bookie writes to
//! its log are the same bytes.
//!
//! A record is a header of [`HEADER_LEN`] bytes, little-endian, and a payload.
//!
//! | at | size | field |
//! |---:|---:|---|
//! | 0 | 4 | CRC-32C of bytes 4 to 64 |
//! | 4 | 1 | kind |
//! | 5 | 3 | zero |
//! | 8 | 8 | ledger |
//! | 16 | 8 | own epoch: the one the ledger was opened with |
//! | 24 | 8 | epoch of the sender |
//! | 32 | 8 | entry |
//! | 40 | 8 | committed: entries of the ledger that the sender knows committed |
//! | 48 | 4 | prefix length: what a prefix read returns of the payload |
//! | 52 | 4 | payload length |
//! | 56 | 4 | CRC-32C of the payload |
//! | 60 | 4 | zero |

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quire_proto::id::{EntryId, Epoch, LedgerId};
use smallvec::SmallVec;

/// Bytes of a record's header.
pub const HEADER_LEN: usize = 64;

/// A payload may have at most this many bytes: 16 MiB.
pub const PAYLOAD_MAX: usize = 16 << 20;

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// An entry of a ledger.
    Append = 1,
    /// A ledger was created (B2). Payload: the creator's nonce, 16 bytes.
    Create = 2,
    /// A ledger was fenced at `epoch` (B4).
    Fence = 3,
    /// The log's tail was lost (B6): ids below `ledger` are uncertain for good.
    Mark = 4,
    /// The ledgers `ledger` to `entry`, both included, are deleted (B8).
    Tombstone = 5,
    /// A ledger's repair began (B7).
    Import = 6,
    /// An entry that was moved within the log; everything but the kind is as it
    /// was appended.
    Copied = 7,
}

impl Kind {
    /// The kind with this number, if there is one.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Append,
            2 => Self::Create,
            3 => Self::Fence,
            4 => Self::Mark,
            5 => Self::Tombstone,
            6 => Self::Import,
            7 => Self::Copied,
            _ => return None,
        })
    }
}

/// A record's header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the record does.
    pub kind: Kind,
    /// The ledger it speaks of.
    pub ledger: LedgerId,
    /// The epoch that the ledger was opened with.
    pub own_epoch: Epoch,
    /// The sender's epoch: above `own_epoch` in recovery.
    pub epoch: Epoch,
    /// The entry's place.
    pub entry: EntryId,
    /// Number of entries of this ledger that the sender knew committed.
    pub committed: EntryId,
    /// Bytes that a prefix read returns, at most `payload_len`.
    pub prefix_len: u32,
    /// Bytes of the payload, at most [`PAYLOAD_MAX`].
    pub payload_len: u32,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
}

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The header's checksum does not match.
    #[error("the record header's checksum does not match")]
    HeaderCrc,
    /// The payload's checksum does not match.
    #[error("the record payload's checksum does not match")]
    PayloadCrc,
    /// No such kind, a length above the limit, or reserved bytes in use.
    #[error("the record header is malformed")]
    Malformed,
    /// Fewer bytes than the header says.
    #[error("the record is cut short")]
    Short,
}

impl Header {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let mut at = &mut bytes[4..];
        at.put_u8(self.kind as u8);
        at.put_bytes(0, 3);
        at.put_u64_le(self.ledger.0);
        at.put_u64_le(self.own_epoch.0);
        at.put_u64_le(self.epoch.0);
        at.put_u64_le(self.entry.0);
        at.put_u64_le(self.committed.0);
        at.put_u32_le(self.prefix_len);
        at.put_u32_le(self.payload_len);
        at.put_u32_le(self.payload_crc);
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes and checks a header.
    ///
    /// # Errors
    /// When the bytes are not a header.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, DecodeError> {
        let mut at = &bytes[..];
        if at.get_u32_le() != crc32c::crc32c(&bytes[4..]) {
            return Err(DecodeError::HeaderCrc);
        }
        let kind = Kind::from_u8(at.get_u8()).ok_or(DecodeError::Malformed)?;
        let reserved = [at.get_u8(), at.get_u8(), at.get_u8()];
        let header = Self {
            kind,
            ledger: LedgerId(at.get_u64_le()),
            own_epoch: Epoch(at.get_u64_le()),
            epoch: Epoch(at.get_u64_le()),
            entry: EntryId(at.get_u64_le()),
            committed: EntryId(at.get_u64_le()),
            prefix_len: at.get_u32_le(),
            payload_len: at.get_u32_le(),
            payload_crc: at.get_u32_le(),
        };
        let well_formed = reserved == [0; 3]
            && at.get_u32_le() == 0
            && header.payload_len as usize <= PAYLOAD_MAX
            && header.prefix_len <= header.payload_len;
        well_formed.then_some(header).ok_or(DecodeError::Malformed)
    }

    /// Bytes of the whole record.
    #[must_use]
    pub const fn record_len(&self) -> usize {
        HEADER_LEN + self.payload_len as usize
    }
}

/// The bytes of an entry, in as many pieces as they came in: they are joined
/// only when the bookie copies them into its commit buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    pieces: SmallVec<[Bytes; 4]>,
    len: usize,
}

impl Payload {
    /// Adds a piece at the end.
    pub fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        if !piece.is_empty() {
            self.pieces.push(piece);
        }
    }

    /// Bytes in all pieces.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The pieces, none of them empty.
    #[must_use]
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// CRC-32C over all pieces.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.pieces.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece))
    }

    /// The bytes in one piece; copies only when there are several.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        match &self.pieces[..] {
            [] => Bytes::new(),
            [one] => one.clone(),
            many => {
                let mut joined = BytesMut::with_capacity(self.len);
                many.iter().for_each(|piece| joined.extend_from_slice(piece));
                joined.freeze()
            }
        }
    }
}

impl From<Bytes> for Payload {
    fn from(piece: Bytes) -> Self {
        let mut payload = Self::default();
        payload.push(piece);
        payload
    }
}

/// A record: a header whose length and CRC speak of the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The header.
    pub header: Header,
    /// The payload, `header.payload_len` bytes.
    pub payload: Payload,
}

impl Record {
    /// Checks that the payload is the one the header speaks of.
    ///
    /// # Errors
    /// [`DecodeError::Short`] or [`DecodeError::PayloadCrc`].
    pub fn verify(&self) -> Result<(), DecodeError> {
        if self.payload.len() != self.header.payload_len as usize {
            return Err(DecodeError::Short);
        }
        if self.payload.crc() != self.header.payload_crc {
            return Err(DecodeError::PayloadCrc);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn headers() -> impl Strategy<Value = Header> {
        let numbers = (any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<u64>());
        let payload = (0..=u32::try_from(PAYLOAD_MAX).unwrap(), any::<prop::sample::Index>(), any::<u32>());
        (1_u8..=7, numbers, payload).prop_map(|(kind, numbers, (payload_len, prefix, payload_crc))| Header {
            kind: Kind::from_u8(kind).unwrap(),
            ledger: LedgerId(numbers.0),
            own_epoch: Epoch(numbers.1),
            epoch: Epoch(numbers.2),
            entry: EntryId(numbers.3),
            committed: EntryId(numbers.4),
            prefix_len: u32::try_from(prefix.index(payload_len as usize + 1)).unwrap(),
            payload_len,
            payload_crc,
        })
    }

    /// The header's bytes with a checksum that matches.
    fn sealed(mut bytes: [u8; HEADER_LEN]) -> [u8; HEADER_LEN] {
        let crc = crc32c::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    proptest! {
        #[test]
        fn a_header_is_decoded_as_it_was_encoded(header in headers()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_flipped_bit_in_a_header_is_noticed(header in headers(), bit in 0..HEADER_LEN * 8) {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Header::decode(&bytes), Err(DecodeError::HeaderCrc));
        }

        #[test]
        fn pieces_make_no_difference_to_a_payload(
            bytes in vec(any::<u8>(), 0..200),
            cuts in vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let whole = Bytes::from(bytes);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
            cuts.extend([0, whole.len()]);
            cuts.sort_unstable();
            let mut payload = Payload::default();
            cuts.windows(2).for_each(|cut| payload.push(whole.slice(cut[0]..cut[1])));
            prop_assert_eq!(payload.len(), whole.len());
            prop_assert_eq!(payload.crc(), crc32c::crc32c(&whole));
            prop_assert_eq!(payload.to_bytes(), whole);
            prop_assert!(payload.pieces().iter().all(|piece| !piece.is_empty()));
        }
    }

    #[test]
    fn a_header_that_lies_is_malformed_though_its_checksum_matches() {
        let payload = Payload::from(Bytes::from_static(b"apple"));
        let header = Header {
            kind: Kind::Append,
            ledger: LedgerId(1),
            own_epoch: Epoch(1),
            epoch: Epoch(1),
            entry: EntryId(0),
            committed: EntryId(0),
            prefix_len: 2,
            payload_len: 5,
            payload_crc: payload.crc(),
        };
        let sound = header.encode();
        let too_long = u32::try_from(PAYLOAD_MAX + 1).unwrap().to_le_bytes();
        for (what, at, bytes) in [
            ("no such kind", 4, &[0][..]),
            ("no such kind", 4, &[8]),
            ("a reserved byte", 6, &[1]),
            ("reserved bytes at the end", 61, &[1]),
            ("a payload above the limit", 52, &too_long),
            ("a prefix longer than the payload", 48, &[6]),
        ] {
            let mut lying = sound;
            lying[at..at + bytes.len()].copy_from_slice(bytes);
            assert_eq!(Header::decode(&sealed(lying)), Err(DecodeError::Malformed), "{what}");
        }
        assert_eq!(Header::decode(&sealed(sound)), Ok(header));
    }

    #[test]
    fn a_record_is_its_header_s_payload_or_not_sound() {
        let header = |payload: &Payload| Header {
            kind: Kind::Append,
            ledger: LedgerId(1),
            own_epoch: Epoch(1),
            epoch: Epoch(1),
            entry: EntryId(0),
            committed: EntryId(0),
            prefix_len: 0,
            payload_len: u32::try_from(payload.len()).unwrap(),
            payload_crc: payload.crc(),
        };
        let apple = Payload::from(Bytes::from_static(b"apple"));
        for (bytes, expected) in [
            (&b"apple"[..], Ok(())),
            (b"appla", Err(DecodeError::PayloadCrc)),
            (b"appl", Err(DecodeError::Short)),
            (b"apples", Err(DecodeError::Short)),
        ] {
            let payload = Payload::from(Bytes::copy_from_slice(bytes));
            assert_eq!(Record { header: header(&apple), payload }.verify(), expected);
        }
    }
}
