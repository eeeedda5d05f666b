//! Batches as plain messages.

use bytes::Bytes;
use prost::Message as _;
use quire_proto::batch::{Batch, Batches, Record};
use quire_proto::id::Offset;
use quire_proto::v1::{self, ErrorReason};

use crate::failure::Failure;
use crate::service::fetch::Fetched;

/// An answer has at most this many bytes of messages, of all its partitions, but
/// for the message that goes beyond.
pub const BYTES_MAX: usize = 8 << 20;

/// What a message takes beside its bytes.
const MESSAGE_OVERHEAD: usize = 64;

/// One batch may become at most this large.
const BATCH_BYTES_MAX: usize = 64 << 20;

/// Results with plain messages instead of batches, at most so many bytes. Whose
/// turn is first differs from time to time, so that one that is full does not
/// keep the others out.
#[must_use]
pub fn convert(mut fetched: Vec<Fetched>, mut left: usize) -> Vec<Fetched> {
    let first = rand::random_range(0..fetched.len().max(1));
    fetched.rotate_left(first);
    let mut plain: Vec<_> = fetched.into_iter().map(|fetched| fetched.into_plain(&mut left)).collect();
    plain.rotate_right(first);
    plain
}

/// The messages at or above `from`, and the offset to go on from: `next`, or
/// where it was cut because the messages are many times larger than the batches.
/// `left` is what the answer may still take.
///
/// # Errors
/// When the first batch cannot be read: a producer compressed it wrongly.
pub fn messages(
    batches: Bytes,
    from: Offset,
    next: Offset,
    left: &mut usize,
) -> Result<(Vec<v1::FetchedMessage>, Offset), Failure> {
    let mut messages = Vec::new();
    for batch in Batches::new(batches) {
        let batch = batch?;
        let base_offset = batch.header.base_offset;
        if *left == 0 {
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
    left: &mut usize,
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
    let records = batch.records(BATCH_BYTES_MAX).map_err(|error| unreadable(&error))?;
    for record in records {
        match record {
            Ok(record) if record.offset >= from => {
                if *left == 0 {
                    return Ok(Some(record.offset));
                }
                let message = message(record);
                *left = left.saturating_sub(message.encoded_len() + MESSAGE_OVERHEAD);
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

fn message(record: Record) -> v1::FetchedMessage {
    v1::FetchedMessage {
        offset: record.offset.0,
        timestamp_ms: record.timestamp_ms,
        headers: record
            .headers
            .iter()
            .map(|header| v1::Header {
                key: String::from_utf8_lossy(&header.key).into_owned(),
                value: header.value,
            })
            .collect(),
        key: record.key,
        value: record.value,
    }
}

#[cfg(test)]
mod tests {
    use quire_proto::batch::{Builder, NO_HEADERS, Producer};
    use quire_proto::codec::Compression;
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
        let mut left = BYTES_MAX;
        let (first, next) = messages(batches.clone(), Offset(0), Offset(15), &mut left).unwrap();
        assert_eq!((first.len(), next), (8, Offset(8)), "also within a batch");
        let (second, next) = messages(batches.clone(), Offset(7), Offset(15), &mut left).unwrap();
        assert_eq!((second.len(), next), (0, Offset(7)), "nothing is left for the second");
        let (rest, next) = messages(batches, Offset(8), Offset(15), &mut BYTES_MAX.clone()).unwrap();
        assert_eq!((rest.first().map(|message| message.offset), next), (Some(8), Offset(15)));
    }
}
