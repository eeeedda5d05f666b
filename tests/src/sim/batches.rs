//! The batches that producers of a run send, and what they are when they come
//! back.
//!
//! Each record says in its value which one it is; the batch's timestamp is its
//! number, so that entry headers, which hold no values, tell it as well.

use bytes::Bytes;
use quire_broker::entry::{EntryHeader, EntryKind};
use quire_ledger::record::Record;
use quire_proto::batch::{Batch, Batches, Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;

use super::history::{BatchId, RecordId};
use super::inspector::Entry;
use super::violation::{Invariant, Violation};

/// Bytes that a batch of a run may have when it is unpacked.
const UNPACKED_MAX: usize = 1 << 20;

/// The sealed batch of this number.
///
/// # Panics
/// Never: the batch has at least one record, and records are small.
#[must_use]
pub fn seal(id: BatchId, records: u32, producer: Producer) -> Bytes {
    let mut builder = Builder::with_capacity(1 << 10);
    for index in 0..records {
        let value = format!("{}:{index}", id.0);
        let _ = builder.append(i64::from(id.0), None, Some(value.as_bytes()), NO_HEADERS);
    }
    builder.seal(Compression::None, producer).map(|batch| batch.bytes).unwrap_or_default()
}

/// The records of batches that were read, from the first offset on.
///
/// # Errors
/// When the bytes are no batches of a run, or their offsets are not dense.
pub fn open(bytes: Bytes) -> Result<Option<(u64, Vec<RecordId>)>, Violation> {
    let wrong = |why: String| Violation { invariant: Invariant::NothingRefused, detail: why };
    let mut first = None;
    let mut found = Vec::new();
    for batch in Batches::new(bytes) {
        let batch: Batch = batch.map_err(|error| wrong(error.to_string()))?;
        batch.verify_crc().map_err(|error| wrong(error.to_string()))?;
        let base = batch.header.base_offset.0;
        let expected = *first.get_or_insert(base) + found.len() as u64;
        if base != expected {
            return Err(Violation {
                invariant: Invariant::ChainIsDense,
                detail: format!("a batch begins at offset {base}, after {expected}"),
            });
        }
        for record in batch.records(UNPACKED_MAX).map_err(|error| wrong(error.to_string()))? {
            let value = record.map_err(|error| wrong(error.to_string()))?.value.unwrap_or_default();
            found.push(record_of(&value).ok_or_else(|| wrong(format!("a record holds {value:?}")))?);
        }
    }
    Ok(first.map(|first| (first, found)))
}

fn record_of(value: &[u8]) -> Option<RecordId> {
    let (batch, index) = std::str::from_utf8(value).ok()?.split_once(':')?;
    Some(RecordId { batch: BatchId(batch.parse().ok()?), index: index.parse().ok()? })
}

/// An entry as the inspector wants it.
///
/// # Errors
/// When it is no entry of a broker.
pub fn inspect(record: &Record) -> Result<Entry, Violation> {
    let (header, _) = EntryHeader::decode(&record.payload.to_bytes()).map_err(|error| Violation {
        invariant: Invariant::ReplicasAgree,
        detail: format!("a bookie holds what no broker wrote, {:?}: {error}", record.header),
    })?;
    let batches = match header.kind {
        EntryKind::Snapshot { .. } => Vec::new(),
        EntryKind::Data => header
            .lines
            .iter()
            .zip(header.base_offsets())
            .map(|(line, base)| (BatchId(u32::try_from(line.max_timestamp_ms).unwrap_or(u32::MAX)), base.0))
            .collect(),
    };
    Ok(Entry {
        payload_crc: record.header.payload_crc,
        epoch: record.header.epoch,
        base_offset: header.base_offset.0,
        next_offset: header.next_offset().0,
        batches,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_back_as_it_was_sent() {
        let sealed = [seal(BatchId(7), 2, Producer::NONE), seal(BatchId(8), 1, Producer::NONE)];
        let (one, two) = (Batch::split(sealed[0].clone()).unwrap(), Batch::split(sealed[1].clone()).unwrap());
        let epoch = quire_proto::id::Epoch(1);
        let stamped: Vec<u8> = one[0]
            .stamp(quire_proto::id::Offset(5), epoch)
            .into_iter()
            .chain(two[0].stamp(quire_proto::id::Offset(7), epoch))
            .flatten()
            .collect();
        let (base, records) = open(stamped.into()).unwrap().unwrap();
        assert_eq!(base, 5);
        assert_eq!(
            records.iter().map(|record| (record.batch.0, record.index)).collect::<Vec<_>>(),
            [(7, 0), (7, 1), (8, 0)]
        );
    }

    #[test]
    fn batches_with_a_hole_between_them_are_found() {
        let sealed = [seal(BatchId(1), 2, Producer::NONE), seal(BatchId(2), 1, Producer::NONE)].concat();
        assert_eq!(open(sealed.into()).unwrap_err().invariant, Invariant::ChainIsDense);
    }
}
