use bytes::{Buf, BufMut};

use super::BatchError;
use crate::codec::Compression;
use crate::id::Offset;

/// The attribute bits of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes(pub u16);

impl Attributes {
    const CODEC: u16 = 0b111;
    const LOG_APPEND_TIME: u16 = 1 << 3;
    const TRANSACTIONAL: u16 = 1 << 4;
    const CONTROL: u16 = 1 << 5;
    const DELETE_HORIZON: u16 = 1 << 6;

    /// How the records are compressed.
    ///
    /// # Errors
    /// [`BatchError::Codec`] when the bits name none.
    pub const fn compression(self) -> Result<Compression, BatchError> {
        let id = (self.0 & Self::CODEC) as u8;
        match Compression::from_id(id) {
            Some(compression) => Ok(compression),
            None => Err(BatchError::Codec(id)),
        }
    }

    /// These attributes with another codec.
    #[must_use]
    pub const fn with_compression(self, compression: Compression) -> Self {
        Self(self.0 & !Self::CODEC | compression.id() as u16)
    }

    /// Whether the broker's clock at append is every record's timestamp.
    #[must_use]
    pub const fn is_log_append_time(self) -> bool {
        self.0 & Self::LOG_APPEND_TIME != 0
    }

    /// These attributes with the broker's clock as timestamp.
    #[must_use]
    pub const fn with_log_append_time(self) -> Self {
        Self(self.0 | Self::LOG_APPEND_TIME)
    }

    /// Whether the batch belongs to a transaction.
    #[must_use]
    pub const fn is_transactional(self) -> bool {
        self.0 & Self::TRANSACTIONAL != 0
    }

    /// Whether the batch is a marker of the broker's, not data.
    #[must_use]
    pub const fn is_control(self) -> bool {
        self.0 & Self::CONTROL != 0
    }

    /// Whether the base timestamp is the time from which tombstones may go.
    /// Only compaction sets it.
    #[must_use]
    pub const fn has_delete_horizon(self) -> bool {
        self.0 & Self::DELETE_HORIZON != 0
    }

    /// Whether any bit is set that has no meaning.
    #[must_use]
    pub const fn has_reserved(self) -> bool {
        self.0 >> 7 != 0
    }
}

/// The header of a batch, decoded. The magic byte is not in it: it is always
/// [`Header::MAGIC`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Offset of the first record: 0 in what a producer sends.
    pub base_offset: Offset,
    /// Bytes after the length field: 49 or more.
    pub batch_length: u32,
    /// The epoch of the leader that appended it. A producer's is not looked at.
    pub leader_epoch: i32,
    /// CRC-32C of the bytes from [`Header::CRC_FROM`] on.
    pub crc: u32,
    /// Codec and kind.
    pub attributes: Attributes,
    /// Offset of the last record, less the base offset. Stays as it is when
    /// compaction takes records out.
    pub last_offset_delta: u32,
    /// Milliseconds since the epoch that the records' deltas count from.
    pub base_timestamp_ms: i64,
    /// The greatest timestamp of its records.
    pub max_timestamp_ms: i64,
    /// The idempotent producer, -1 for none.
    pub producer_id: i64,
    /// Its epoch, -1 for none.
    pub producer_epoch: i16,
    /// Sequence of the first record, -1 for none. Wraps to 0 after `i32::MAX`.
    pub base_sequence: i32,
    /// Records in the batch.
    pub record_count: u32,
}

impl Header {
    /// Bytes of a header.
    pub const LEN: usize = 61;
    /// The version of the format.
    pub const MAGIC: i8 = 2;
    /// Bytes up to and including the length field, which does not count them.
    pub const LENGTH_END: usize = 12;
    /// Where the checksum's cover begins; it goes to the end of the batch.
    pub const CRC_FROM: usize = 21;
    /// Bytes at the front that the broker stamps: base offset, length, epoch.
    pub const STAMPED_LEN: usize = 16;

    const MAGIC_AT: usize = 16;

    /// Decodes the header at the front of these bytes. Its numbers are in range
    /// afterwards; nothing else is checked, the rest of the batch need not be
    /// there.
    ///
    /// # Errors
    /// `Short`, `Version`, `Length` or `Field`.
    pub fn parse(bytes: &[u8]) -> Result<Self, BatchError> {
        let short = BatchError::Short { need: Self::LEN, have: bytes.len() };
        match bytes.get(Self::MAGIC_AT) {
            None => return Err(short),
            Some(&magic) if magic.cast_signed() != Self::MAGIC => {
                return Err(BatchError::Version(magic.cast_signed()));
            }
            Some(_) if bytes.len() < Self::LEN => return Err(short),
            Some(_) => {}
        }
        let mut at = bytes;
        let base_offset = u64::try_from(at.get_i64()).map_err(|_| BatchError::Field("base offset"))?;
        let length = at.get_i32();
        let least = Self::LEN - Self::LENGTH_END;
        let batch_length =
            u32::try_from(length).ok().filter(|&n| n as usize >= least).ok_or(BatchError::Length(length))?;
        let leader_epoch = at.get_i32();
        at.advance(1);
        let header = Self {
            base_offset: Offset(base_offset),
            batch_length,
            leader_epoch,
            crc: at.get_u32(),
            attributes: Attributes(at.get_u16()),
            last_offset_delta: u32::try_from(at.get_i32())
                .map_err(|_| BatchError::Field("last offset delta"))?,
            base_timestamp_ms: at.get_i64(),
            max_timestamp_ms: at.get_i64(),
            producer_id: at.get_i64(),
            producer_epoch: at.get_i16(),
            base_sequence: at.get_i32(),
            record_count: u32::try_from(at.get_i32()).map_err(|_| BatchError::Field("record count"))?,
        };
        let end = base_offset.checked_add(u64::from(header.last_offset_delta) + 1);
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            return Err(BatchError::Field("base offset"));
        }
        Ok(header)
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let mut at = &mut bytes[..];
        at.put_u64(self.base_offset.0);
        at.put_u32(self.batch_length);
        at.put_i32(self.leader_epoch);
        at.put_i8(Self::MAGIC);
        at.put_u32(self.crc);
        at.put_u16(self.attributes.0);
        at.put_u32(self.last_offset_delta);
        at.put_i64(self.base_timestamp_ms);
        at.put_i64(self.max_timestamp_ms);
        at.put_i64(self.producer_id);
        at.put_i16(self.producer_epoch);
        at.put_i32(self.base_sequence);
        at.put_u32(self.record_count);
        bytes
    }

    /// Bytes of the whole batch, its header included.
    #[must_use]
    pub const fn total_len(&self) -> usize {
        Self::LENGTH_END + self.batch_length as usize
    }

    /// Offset of the last record.
    #[must_use]
    pub const fn last_offset(&self) -> Offset {
        Offset(self.base_offset.0 + self.last_offset_delta as u64)
    }

    /// Offset of what comes after this batch.
    #[must_use]
    pub const fn next_offset(&self) -> Offset {
        self.last_offset().next()
    }

    /// Whether an idempotent producer sent it.
    #[must_use]
    pub const fn is_idempotent(&self) -> bool {
        self.producer_id >= 0
    }
}
