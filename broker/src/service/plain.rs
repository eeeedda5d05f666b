//! Batches as plain messages.

use bytes::Bytes;
use prost::Message as _;
use quire_proto::batch::{Batch, Batches, Record};
use quire_proto::codec::Compression;
use quire_proto::id::Offset;
use quire_proto::v1::{self, ErrorReason};

use crate::failure::Failure;
use crate::service::fetch::Fetched;

/// An answer has at most this many bytes of messages, of all its partitions, but
/// for the first of them.
pub const BYTES_MAX: usize = 8 << 20;

/// What a message takes beside its bytes.
const MESSAGE_OVERHEAD: usize = 64;

/// One batch may become at most this large.
const BATCH_BYTES_MAX: usize = 64 << 20;

/// What messages take in an answer.
#[must_use]
pub fn size(messages: &[v1::FetchedMessage]) -> usize {
    messages.iter().map(size_of).sum()
}

fn size_of(message: &v1::FetchedMessage) -> usize {
    message.encoded_len() + MESSAGE_OVERHEAD
}

/// What an answer may still take.
#[derive(Debug)]
pub struct Left {
    bytes: usize,
    is_empty: bool,
}

impl Left {
    /// At most so many bytes, but for the first message.
    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self { bytes, is_empty: true }
    }

    const fn is_full(&self) -> bool {
        self.bytes == 0
    }

    /// Whether there is room for a message. If not, then for none after it, which
    /// would take its place.
    fn take(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.bytes || self.is_empty;
        self.is_empty = false;
        self.bytes = if fits { self.bytes.saturating_sub(bytes) } else { 0 };
        fits
    }
}

/// Results with plain messages instead of batches, at most so many bytes. Whose
/// turn is first differs from time to time, so that one that is full does not
/// keep the others out.
#[must_use]
pub fn convert(mut fetched: Vec<Fetched>, bytes: usize) -> Vec<Fetched> {
    let mut left = Left::new(bytes);
    let first = rand::random_range(0..fetched.len().max(1));
    fetched.rotate_left(first);
    let mut plain: Vec<_> = fetched.into_iter().map(|fetched| fetched.into_plain(&mut left)).collect();
    plain.rotate_right(first);
    plain
}

/// The messages at or above `from`, and the offset to go on from: `next`, or
/// where it was cut because the messages are many times larger than the batches.
///
/// # Errors
/// When the first batch cannot be read: a producer compressed it wrongly.
pub fn messages(
    batches: Bytes,
    from: Offset,
    next: Offset,
    left: &mut Left,
) -> Result<(Vec<v1::FetchedMessage>, Offset), Failure> {
    let mut messages = Vec::new();
    for batch in Batches::new(batches) {
        let batch = batch?;
        let base_offset = batch.header.base_offset;
        if left.is_full() {
            return Ok((messages, base_offset.max(from)));
        }
        match decode(&batch, from, left, &mut messages) {
            Ok(None) => {}
            Ok(Some(next)) => return Ok((messages, next)),
            Err(_) if base_offset > from && !messages.is_empty() => return Ok((messages, base_offset)),
            Err(failure) => return Err(failure),
        }
    }
    Ok((messages, next))
}

/// Adds its messages; where `left` ends before the batch does, the offset of the
/// next.
fn decode(
    batch: &Batch,
    from: Offset,
    left: &mut Left,
    out: &mut Vec<v1::FetchedMessage>,
) -> Result<Option<Offset>, Failure> {
    if batch.header.attributes.is_control() {
        return Ok(None);
    }
    let before = out.len();
    let unreadable = |error: &dyn std::fmt::Display| {
        let Header { base_offset, last_offset } = Header::of(batch);
        Failure::new(
            ErrorReason::InvalidBatch,
            format!(
                "the batch at offsets {base_offset} to {last_offset} cannot be read: {error}; skip it by fetching from {}",
                last_offset.next()
            ),
        )
    };
    // Else one message would pin all that the batch was decompressed to.
    let is_copied = batch.header.attributes.compression() != Ok(Compression::None);
    let records = batch.records(BATCH_BYTES_MAX).map_err(|error| unreadable(&error))?;
    for record in records {
        match record {
            Ok(record) if record.offset >= from => {
                let message = message(record, is_copied);
                if !left.take(size_of(&message)) {
                    return Ok(Some(Offset(message.offset)));
                }
                out.push(message);
            }
            Ok(_) => {}
            Err(error) => {
                out.truncate(before);
                return Err(unreadable(&error));
            }
        }
    }
    Ok(None)
}

struct Header {
    base_offset: Offset,
    last_offset: Offset,
}

impl Header {
    fn of(batch: &Batch) -> Self {
        let base_offset = batch.header.base_offset;
        Self { base_offset, last_offset: Offset(base_offset.0 + u64::from(batch.header.last_offset_delta)) }
    }
}

fn message(record: Record, is_copied: bool) -> v1::FetchedMessage {
    let own = |bytes: Bytes| if is_copied { Bytes::copy_from_slice(&bytes) } else { bytes };
    v1::FetchedMessage {
        offset: record.offset.0,
        timestamp_ms: record.timestamp_ms,
        headers: record
            .headers
            .iter()
            .map(|header| v1::Header {
                key: String::from_utf8_lossy(&header.key).into_owned(),
                value: header.value.map(own),
            })
            .collect(),
        key: record.key.map(own),
        value: record.value.map(own),
    }
}

#[cfg(test)]
mod tests {
    use quire_proto::batch::{Builder, NO_HEADERS, Producer};
    use quire_proto::id::Epoch;

    use super::*;

    /// Five records, together 5 MiB of zeros.
    fn batch(base_offset: u64) -> Vec<u8> {
        let mut builder = Builder::with_capacity(1024);
        for _ in 0..5 {
            builder.append(0, None, Some(&[0; 1 << 20]), NO_HEADERS).unwrap();
        }
        let batch = builder.seal(Compression::Gzip, Producer::NONE).unwrap();
        batch.stamp(Offset(base_offset), Epoch(1)).concat()
    }

    #[test]
    fn an_answer_has_a_limit_over_all_its_partitions() {
        let batches = Bytes::from([batch(0), batch(5), batch(10)].concat());
        let mut left = Left::new(BYTES_MAX);
        let (first, next) = messages(batches.clone(), Offset(0), Offset(15), &mut left).unwrap();
        assert_eq!((first.len(), next), (7, Offset(7)), "also within a batch");
        let (second, next) = messages(batches.clone(), Offset(7), Offset(15), &mut left).unwrap();
        assert_eq!((second.len(), next), (0, Offset(7)), "nothing is left for the second");
        let (rest, next) =
            messages(batches.clone(), Offset(8), Offset(15), &mut Left::new(BYTES_MAX)).unwrap();
        assert_eq!((rest.first().map(|message| message.offset), next), (Some(8), Offset(15)));
        let (large, next) = messages(batches, Offset(0), Offset(15), &mut Left::new(1)).unwrap();
        assert_eq!((large.len(), next), (1, Offset(1)), "the first is taken however large it is");
    }
}
