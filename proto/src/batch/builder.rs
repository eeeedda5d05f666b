use bytes::{BufMut, Bytes, BytesMut};

use super::{Attributes, Batch, BatchError, Header, varint};
use crate::codec::Compression;
use crate::id::Offset;

/// For [`Builder::append`] of a record that has no headers.
pub const NO_HEADERS: [(&[u8], Option<&[u8]>); 0] = [];

/// A batch has at most this many bytes: its length field is an `i32`.
const BATCH_MAX: usize = i32::MAX as usize;

/// A producer has at most this many batches of a partition unresolved: leaders
/// remember as many, and recognise them when they come again.
pub const UNRESOLVED_MAX: usize = 16;

/// Who sends a batch, and its place in what they send to the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Producer {
    /// Unique in the cluster, -1 for none.
    pub id: i64,
    /// -1 for none.
    pub epoch: i16,
    /// Of the batch's first record, -1 for none.
    pub base_sequence: i32,
}

impl Producer {
    /// No idempotence.
    pub const NONE: Self = Self { id: -1, epoch: -1, base_sequence: -1 };
}

/// Encodes records straight into the buffer that becomes the batch: the bytes
/// after a header's room, so that sealing an uncompressed batch copies nothing.
///
/// A builder is reused: after [`Builder::seal`] it is empty. The next batch is
/// given room for as many bytes as the last one had.
#[derive(Debug)]
pub struct Builder {
    buffer: BytesMut,
    count: u32,
    base_timestamp_ms: i64,
    max_timestamp_ms: i64,
    last_size: usize,
}

impl Builder {
    /// An empty builder with room for `bytes` of a batch, its header included.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            count: 0,
            base_timestamp_ms: 0,
            max_timestamp_ms: 0,
            last_size: bytes.max(Header::LEN),
        }
    }

    /// Records so far.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Whether there are no records.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the batch so far, its header included, before compression.
    #[must_use]
    pub fn size(&self) -> usize {
        self.buffer.len().max(Header::LEN)
    }

    /// Bytes of memory that it holds.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// [`Builder::size`] after a record with these fields: exact.
    #[must_use]
    pub fn size_with<'a, H>(
        &self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: H,
    ) -> usize
    where
        H: IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    {
        let body = self.body_len(timestamp_ms, key, value, headers.into_iter()).0;
        self.size() + varint::len(length(body)) + body
    }

    /// Adds a record and returns its place in the batch, from 0.
    ///
    /// `timestamp_ms` is milliseconds since the epoch. No allocation but for the
    /// buffer's growth.
    ///
    /// # Errors
    /// [`BatchError::Full`] when the batch would be larger than its length field
    /// can say; nothing is added then.
    pub fn append<'a, H>(
        &mut self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: H,
    ) -> Result<u32, BatchError>
    where
        H: IntoIterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        H::IntoIter: Clone,
    {
        let headers = headers.into_iter();
        let (body, header_count) = self.body_len(timestamp_ms, key, value, headers.clone());
        let record = varint::len(length(body)) + body;
        if record > BATCH_MAX - self.size() {
            return Err(BatchError::Full);
        }
        self.make_room(record);
        if self.count == 0 {
            self.base_timestamp_ms = timestamp_ms;
            self.max_timestamp_ms = timestamp_ms;
        }
        let buffer = &mut self.buffer;
        varint::put(buffer, length(body));
        buffer.put_u8(0);
        varint::put(buffer, timestamp_ms.wrapping_sub(self.base_timestamp_ms));
        varint::put(buffer, i64::from(self.count));
        put_nullable(buffer, key);
        put_nullable(buffer, value);
        varint::put(buffer, length(header_count));
        for (key, value) in headers {
            put_nullable(buffer, Some(key));
            put_nullable(buffer, value);
        }
        self.max_timestamp_ms = self.max_timestamp_ms.max(timestamp_ms);
        self.count += 1;
        Ok(self.count - 1)
    }

    /// Bytes of a record after its length, and how many headers it has.
    fn body_len<'a>(
        &self,
        timestamp_ms: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
    ) -> (usize, usize) {
        let base = if self.count == 0 { timestamp_ms } else { self.base_timestamp_ms };
        let (mut header_bytes, mut header_count) = (0_usize, 0_usize);
        for (key, value) in headers {
            header_bytes += nullable_len(Some(key)) + nullable_len(value);
            header_count += 1;
        }
        let body = 1
            + varint::len(timestamp_ms.wrapping_sub(base))
            + varint::len(i64::from(self.count))
            + nullable_len(key)
            + nullable_len(value)
            + varint::len(length(header_count))
            + header_bytes;
        (body, header_count)
    }

    fn make_room(&mut self, record: usize) {
        if self.buffer.is_empty() {
            self.buffer.reserve(self.last_size.max(Header::LEN + record));
            self.buffer.put_bytes(0, Header::LEN);
        } else {
            self.buffer.reserve(record);
        }
    }

    /// The batch, and an empty builder. Where compressing gains nothing the batch
    /// is left uncompressed. None when there are no records.
    #[must_use]
    pub fn seal(&mut self, compression: Compression, producer: Producer) -> Option<Batch> {
        let last_offset_delta = self.count.checked_sub(1)?;
        self.last_size = self.buffer.len();
        let compressed = self.compress(compression);
        let compression = if compressed.is_some() { compression } else { Compression::None };
        let mut bytes = match compressed {
            Some(compressed) => {
                self.buffer.clear();
                compressed
            }
            None => self.buffer.split(),
        };
        let mut header = Header {
            base_offset: Offset(0),
            batch_length: u32::try_from(bytes.len() - Header::LENGTH_END).unwrap_or(u32::MAX),
            leader_epoch: -1,
            crc: 0,
            attributes: Attributes::default().with_compression(compression),
            last_offset_delta,
            base_timestamp_ms: self.base_timestamp_ms,
            max_timestamp_ms: self.max_timestamp_ms,
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            base_sequence: producer.base_sequence,
            record_count: self.count,
        };
        self.count = 0;
        bytes[..Header::LEN].copy_from_slice(&header.encode());
        header.crc = crc32c::crc32c(&bytes[Header::CRC_FROM..]);
        bytes[..Header::LEN].copy_from_slice(&header.encode());
        Some(Batch { header, bytes: bytes.freeze() })
    }

    /// A header's room and the compressed records, when they are smaller.
    fn compress(&self, compression: Compression) -> Option<BytesMut> {
        if compression == Compression::None {
            return None;
        }
        let mut out = BytesMut::with_capacity(self.buffer.len() / 2 + Header::LEN);
        out.put_bytes(0, Header::LEN);
        compression.compress(&self.buffer[Header::LEN..], &mut out).ok()?;
        (out.len() < self.buffer.len()).then_some(out)
    }
}

/// Lengths come from slices, which are never longer than `isize::MAX`.
#[allow(clippy::cast_possible_wrap)]
const fn length(bytes: usize) -> i64 {
    bytes as i64
}

fn nullable_len(field: Option<&[u8]>) -> usize {
    field.map_or(1, |field| varint::len(length(field.len())) + field.len())
}

fn put_nullable(buffer: &mut BytesMut, field: Option<&[u8]>) {
    match field {
        None => varint::put(buffer, -1),
        Some(field) => {
            varint::put(buffer, length(field.len()));
            buffer.put_slice(field);
        }
    }
}

impl From<Batch> for Bytes {
    fn from(batch: Batch) -> Self {
        batch.bytes
    }
}
