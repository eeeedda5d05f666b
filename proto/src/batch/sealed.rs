use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::record::RECORD_LEAST;
use super::{BatchError, Header, Producer, Records};
use crate::codec::Compression;
use crate::id::{Epoch, Offset};

/// One sealed batch: its bytes and, decoded, its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The header at the front of `bytes`.
    pub header: Header,
    /// The whole batch: `header.total_len()` bytes.
    pub bytes: Bytes,
}

impl Batch {
    /// Takes one batch from the front, leaving what comes after it.
    ///
    /// # Errors
    /// When there is no whole batch at the front; the bytes stay as they were.
    pub fn take(bytes: &mut Bytes) -> Result<Self, BatchError> {
        let header = Header::parse(bytes)?;
        let need = header.total_len();
        if bytes.len() < need {
            return Err(BatchError::Short { need, have: bytes.len() });
        }
        Ok(Self { header, bytes: bytes.split_to(need) })
    }

    /// Cuts a run of batches apart, without copying. No bytes are no batches.
    ///
    /// # Errors
    /// When the bytes are anything but whole batches. Checksums are not looked
    /// at: see [`Batch::check`] and [`Batch::verify_crc`].
    pub fn split(bytes: Bytes) -> Result<Vec<Self>, BatchError> {
        Batches::new(bytes).collect()
    }

    /// Checks a batch as a producer sends it: size, checksum, counts, codec,
    /// kind, producer; and, when it is not compressed, every record. Compressed
    /// records stay as they are: whoever reads them finds out.
    ///
    /// `max_bytes` is the limit for the whole batch, its header included.
    ///
    /// # Errors
    /// The first thing that is wrong, in the order of Kafka's own checks.
    pub fn check(&self, max_bytes: usize) -> Result<(), BatchError> {
        let header = &self.header;
        if self.bytes.len() > max_bytes {
            return Err(BatchError::TooLarge { size: self.bytes.len(), limit: max_bytes });
        }
        if header.base_offset != Offset(0) {
            return Err(BatchError::Field("base offset"));
        }
        self.verify_crc()?;
        if header.attributes.is_control() {
            return Err(BatchError::Control);
        }
        let compression = header.attributes.compression()?;
        self.check_counts(compression)?;
        self.check_producer()?;
        match compression {
            Compression::None => self.walk(),
            _ => Ok(()),
        }
    }

    /// Compares the checksum.
    ///
    /// # Errors
    /// [`BatchError::Crc`].
    pub fn verify_crc(&self) -> Result<(), BatchError> {
        let actual = crc32c::crc32c(&self.bytes[Header::CRC_FROM..]);
        let stated = self.header.crc;
        if stated == actual { Ok(()) } else { Err(BatchError::Crc { stated, actual }) }
    }

    fn check_counts(&self, compression: Compression) -> Result<(), BatchError> {
        let &Header { record_count: count, last_offset_delta: last_delta, .. } = &self.header;
        let room = (self.bytes.len() - Header::LEN) / RECORD_LEAST;
        let fits = compression != Compression::None || count as usize <= room;
        if count == 0 || last_delta != count - 1 || !fits {
            return Err(BatchError::Counts { count, last_delta });
        }
        Ok(())
    }

    /// What only brokers set must not be set, and a producer id comes with an
    /// epoch and a sequence.
    const fn check_producer(&self) -> Result<(), BatchError> {
        let header = &self.header;
        let attributes = header.attributes;
        if attributes.is_log_append_time() {
            return Err(BatchError::Field("timestamp type"));
        }
        // There are no transactions.
        if attributes.is_transactional() || attributes.has_delete_horizon() || attributes.has_reserved() {
            return Err(BatchError::Field("attributes"));
        }
        if header.producer_id < -1 {
            return Err(BatchError::Field("producer id"));
        }
        if header.is_idempotent() && header.producer_epoch < 0 {
            return Err(BatchError::Field("producer epoch"));
        }
        if header.is_idempotent() && header.base_sequence < 0 {
            return Err(BatchError::Field("base sequence"));
        }
        Ok(())
    }

    /// The first [`Header::STAMPED_LEN`] bytes with this base offset and leader
    /// epoch. Both lie outside the checksum. An epoch above `i32::MAX`, the most
    /// that the field can say, is written as that.
    #[must_use]
    pub fn stamped_head(&self, base_offset: Offset, epoch: Epoch) -> [u8; Header::STAMPED_LEN] {
        let mut head = [0; Header::STAMPED_LEN];
        let mut at = &mut head[..];
        at.put_u64(base_offset.0);
        at.put_u32(self.header.batch_length);
        at.put_i32(i32::try_from(epoch.0).unwrap_or(i32::MAX));
        head
    }

    /// The batch with this base offset and leader epoch, in two pieces: the
    /// stamped front, and the rest, which is shared and not copied.
    #[must_use]
    pub fn stamp(&self, base_offset: Offset, epoch: Epoch) -> [Bytes; 2] {
        let head = Bytes::copy_from_slice(&self.stamped_head(base_offset, epoch));
        [head, self.bytes.slice(Header::STAMPED_LEN..)]
    }

    /// The batch with the broker's clock as the timestamp of all its records.
    /// The checksum is made anew: check it first.
    #[must_use]
    pub fn with_log_append_time(self, now_ms: i64) -> Self {
        self.rewrite(|header| {
            header.attributes = header.attributes.with_log_append_time();
            header.max_timestamp_ms = now_ms;
        })
    }

    /// The batch under another producer id, epoch and sequence. The checksum is
    /// made anew. The bytes are copied only when others hold them too.
    #[must_use]
    pub fn with_producer(self, producer: Producer) -> Self {
        self.rewrite(|header| {
            header.producer_id = producer.id;
            header.producer_epoch = producer.epoch;
            header.base_sequence = producer.base_sequence;
        })
    }

    fn rewrite(self, change: impl FnOnce(&mut Header)) -> Self {
        let Self { mut header, bytes } = self;
        change(&mut header);
        let mut bytes = BytesMut::from(bytes);
        bytes[..Header::LEN].copy_from_slice(&header.encode());
        header.crc = crc32c::crc32c(&bytes[Header::CRC_FROM..]);
        bytes[..Header::LEN].copy_from_slice(&header.encode());
        Self { header, bytes: bytes.freeze() }
    }

    /// The records inside, decompressed to at most `max_bytes`. The checksum is
    /// not looked at: see [`Batch::verify_crc`].
    ///
    /// # Errors
    /// `Codec`, `Decompress`, or `Counts` when the bytes cannot hold as many
    /// records as the header says.
    pub fn records(&self, max_bytes: usize) -> Result<Records, BatchError> {
        let compressed = self.bytes.slice(Header::LEN..);
        let bytes = match self.header.attributes.compression()? {
            Compression::None => compressed,
            compression => compression.decompress(&compressed, max_bytes)?,
        };
        let &Header { record_count: count, last_offset_delta: last_delta, .. } = &self.header;
        if count as usize > bytes.len() / RECORD_LEAST || count > last_delta.saturating_add(1) {
            return Err(BatchError::Counts { count, last_delta });
        }
        Ok(Records::new(self.header, bytes))
    }
}

/// The batches of a run, one by one. An error is the last item.
#[derive(Clone, Debug)]
pub struct Batches {
    rest: Bytes,
}

impl Batches {
    /// The batches of these bytes.
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self { rest: bytes }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let batch = Batch::take(&mut self.rest);
        if batch.is_err() {
            self.rest.advance(self.rest.len());
        }
        Some(batch)
    }
}
