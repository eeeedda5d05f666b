//! Batches as plain messages.

use bytes::Bytes;
use quire_proto::batch::{Batch, Batches, Record};
use quire_proto::id::Offset;
use quire_proto::v1::{self, ErrorReason};

use crate::failure::Failure;

/// An answer has at most this many bytes of messages, but for those of its
/// first batch.
const BYTES_MAX: usize = 8 << 20;

/// One batch may become at most this large.
const BATCH_BYTES_MAX: usize = 64 << 20;

/// The messages at or above `from`, and the offset to go on from: `next`, or
/// where it was cut because the messages are many times larger than the batches.
///
/// # Errors
/// When the first batch cannot be read: a producer compressed it wrongly.
pub fn messages(
    batches: Bytes,
    from: Offset,
    next: Offset,
) -> Result<(Vec<v1::FetchedMessage>, Offset), Failure> {
    let mut messages = Vec::new();
    let mut bytes = 0;
    for batch in Batches::new(batches) {
        let batch = batch?;
        let base_offset = batch.header.base_offset;
        if bytes >= BYTES_MAX {
            return Ok((messages, base_offset));
        }
        match decode(&batch, from, &mut messages) {
            Ok(decoded) => bytes += decoded,
            Err(_) if base_offset > from && !messages.is_empty() => return Ok((messages, base_offset)),
            Err(failure) => return Err(failure),
        }
    }
    Ok((messages, next))
}

fn decode(batch: &Batch, from: Offset, out: &mut Vec<v1::FetchedMessage>) -> Result<usize, Failure> {
    if batch.header.attributes.is_control() {
        return Ok(0);
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
    let bytes = records.decompressed_len();
    for record in records {
        match record {
            Ok(record) if record.offset >= from => out.push(message(record)),
            Ok(_) => {}
            Err(error) => {
                out.truncate(before);
                return Err(unreadable(&error));
            }
        }
    }
    Ok(bytes)
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
