//! A partition's committed state as bytes: the first entries of every ledger,
//! so that a take-over reads one ledger and no more.
//!
//! The state is exactly the effect of the entries below it in the chain. It is
//! cut into parts that each fit an entry; the header of the last says so.
//!
//! Little-endian: version (1), zero (3), number of producers (4), then for each
//! producer, by id: id (8), appended, milliseconds (8), epoch (2), number of
//! batches (2), and for each batch: base sequence (4), last sequence (4), base
//! offset (8), last offset (8).

use std::collections::HashMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use quire_ledger::record::Payload;
use quire_proto::batch::UNRESOLVED_MAX;
use quire_proto::id::Offset;
use smallvec::SmallVec;

use crate::entry::{EntryHeader, EntryKind};
use crate::producer::table::{PRODUCERS_MAX, Producer, Remembered};

const VERSION: u8 = 1;
const PRODUCER_LEN: usize = 20;
const BATCH_LEN: usize = 24;

/// A part has at most this many bytes of state.
pub const PART_BYTES: usize = 512 << 10;

/// The state of a partition up to an offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The offset that follows.
    pub next_offset: Offset,
    /// Greatest batch timestamp below, `i64::MIN` when there is none.
    pub running_max_ms: i64,
    pub producers: HashMap<i64, Producer>,
}

/// Why parts are not a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    #[error("the snapshot is cut short")]
    Short,
    #[error("the snapshot has version {0}, which this broker does not know")]
    Version(u8),
    #[error("the snapshot contradicts itself")]
    Malformed,
}

impl Snapshot {
    /// The payloads of the snapshot's entries, at least one. Each is to be
    /// appended with its whole length as the prefix.
    #[must_use]
    pub fn encode(&self, now_ms: i64) -> Vec<Payload> {
        let state = self.encode_state();
        let parts = state.len().div_ceil(PART_BYTES);
        (0..parts)
            .map(|part| {
                let from = part * PART_BYTES;
                let body = state.slice(from..state.len().min(from + PART_BYTES));
                self.entry(body, part + 1 == parts, now_ms)
            })
            .collect()
    }

    fn entry(&self, body: Bytes, last: bool, now_ms: i64) -> Payload {
        let mut header = BytesMut::with_capacity(EntryHeader::FIXED_LEN);
        EntryHeader {
            kind: EntryKind::Snapshot { last },
            base_offset: self.next_offset,
            last_offset: self.next_offset,
            running_max_ms: self.running_max_ms,
            appended_ms: now_ms,
            body_len: u32::try_from(body.len()).unwrap_or(u32::MAX),
            lines: SmallVec::new(),
        }
        .encode(&mut header);
        let mut payload = Payload::from(header.freeze());
        payload.push(body);
        payload
    }

    fn encode_state(&self) -> Bytes {
        let mut ids: Vec<i64> = self.producers.keys().copied().collect();
        ids.sort_unstable();
        let mut out = BytesMut::with_capacity(8 + ids.len() * (PRODUCER_LEN + UNRESOLVED_MAX * BATCH_LEN));
        out.put_u8(VERSION);
        out.put_bytes(0, 3);
        out.put_u32_le(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        for id in ids {
            let producer = &self.producers[&id];
            out.put_i64_le(id);
            out.put_i64_le(producer.appended_ms);
            out.put_i16_le(producer.epoch);
            out.put_u16_le(u16::try_from(producer.batches.len()).unwrap_or(u16::MAX));
            for batch in &producer.batches {
                out.put_i32_le(batch.base_sequence);
                out.put_i32_le(batch.last_sequence);
                out.put_u64_le(batch.base_offset.0);
                out.put_u64_le(batch.last_offset.0);
            }
        }
        out.freeze()
    }

    /// Reads the state back from the bodies of all parts, joined.
    ///
    /// # Errors
    /// [`SnapshotError`]; counts are checked before anything is allocated.
    pub fn decode(next_offset: Offset, running_max_ms: i64, state: &[u8]) -> Result<Self, SnapshotError> {
        let mut at = state;
        take(at, 8)?;
        let version = at.get_u8();
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        at.advance(3);
        let count = at.get_u32_le() as usize;
        if count > PRODUCERS_MAX || count * PRODUCER_LEN > at.len() {
            return Err(SnapshotError::Malformed);
        }
        let mut producers = HashMap::with_capacity(count);
        for _ in 0..count {
            let (id, producer) = decode_producer(&mut at)?;
            producers.insert(id, producer);
        }
        let whole = at.is_empty() && producers.len() == count;
        whole.then_some(Self { next_offset, running_max_ms, producers }).ok_or(SnapshotError::Malformed)
    }
}

fn decode_producer(at: &mut &[u8]) -> Result<(i64, Producer), SnapshotError> {
    take(at, PRODUCER_LEN)?;
    let id = at.get_i64_le();
    let appended_ms = at.get_i64_le();
    let epoch = at.get_i16_le();
    let count = usize::from(at.get_u16_le());
    if count > UNRESOLVED_MAX {
        return Err(SnapshotError::Malformed);
    }
    take(at, count * BATCH_LEN)?;
    let batches = (0..count)
        .map(|_| Remembered {
            base_sequence: at.get_i32_le(),
            last_sequence: at.get_i32_le(),
            base_offset: Offset(at.get_u64_le()),
            last_offset: Offset(at.get_u64_le()),
        })
        .collect();
    Ok((id, Producer { epoch, appended_ms, batches }))
}

const fn take(at: &[u8], len: usize) -> Result<(), SnapshotError> {
    if at.len() < len { Err(SnapshotError::Short) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn producers() -> impl Strategy<Value = HashMap<i64, Producer>> {
        let remembered = (any::<i32>(), any::<i32>(), any::<u64>(), any::<u64>()).prop_map(
            |(base_sequence, last_sequence, base, last)| Remembered {
                base_sequence,
                last_sequence,
                base_offset: Offset(base),
                last_offset: Offset(last),
            },
        );
        let producer =
            (any::<i16>(), any::<i64>(), prop::collection::vec(remembered, 0..=UNRESOLVED_MAX)).prop_map(
                |(epoch, appended_ms, batches)| Producer { epoch, appended_ms, batches: batches.into() },
            );
        prop::collection::hash_map(any::<i64>(), producer, 0..50)
    }

    fn joined(payloads: &[Payload]) -> Vec<u8> {
        payloads
            .iter()
            .flat_map(|payload| {
                let bytes = payload.to_bytes();
                let (header, len) = EntryHeader::decode(&bytes).unwrap();
                assert_eq!(header.body_len as usize, bytes.len() - len);
                bytes[len..].to_vec()
            })
            .collect()
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(producers in producers()) {
            let snapshot = Snapshot { next_offset: Offset(9), running_max_ms: 4, producers };
            let state = joined(&snapshot.encode(0));
            prop_assert_eq!(Snapshot::decode(Offset(9), 4, &state), Ok(snapshot));
        }

        #[test]
        fn a_cut_snapshot_is_refused(producers in producers(), at in any::<prop::sample::Index>()) {
            let snapshot = Snapshot { next_offset: Offset(9), running_max_ms: 4, producers };
            let state = joined(&snapshot.encode(0));
            prop_assert!(Snapshot::decode(Offset(9), 4, &state[..at.index(state.len())]).is_err());
        }
    }

    #[test]
    fn a_large_snapshot_is_cut_into_parts() {
        let producer = Producer { epoch: 0, appended_ms: 0, batches: SmallVec::new() };
        let producers: HashMap<_, _> = (0..60_000).map(|id| (id, producer.clone())).collect();
        let snapshot = Snapshot { next_offset: Offset(9), running_max_ms: 4, producers };
        let payloads = snapshot.encode(0);
        assert_eq!(payloads.len(), 3);
        let last: Vec<_> =
            payloads.iter().map(|payload| EntryHeader::decode(&payload.to_bytes()).unwrap().0.kind).collect();
        assert_eq!(last, [false, false, true].map(|last| EntryKind::Snapshot { last }));
        assert_eq!(Snapshot::decode(Offset(9), 4, &joined(&payloads)), Ok(snapshot));
    }
}
