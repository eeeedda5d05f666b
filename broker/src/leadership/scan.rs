//! A ledger's entry headers, read once from the first to the last: what they say
//! of its end, and the partition's state if the ledger begins with a whole
//! snapshot.

use quire_ledger::record::Record;
use quire_proto::id::{EntryId, Offset};
use quire_proto::v1::ErrorReason;

use crate::bookies::Bookies;
use crate::entry::{EntryHeader, EntryKind};
use crate::failure::Failure;
use crate::log::cold;
use crate::log::partition::Segment;
use crate::producer::{Producers, Snapshot};
use crate::shard::writer::{Restored, line_append};

/// What a ledger's headers say.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The partition's state after the last entry; `None` when the ledger ends
    /// before its snapshot does. Then it holds no batch.
    pub restored: Option<Restored>,
    /// The offset after the last entry; `None` without entries.
    pub next_offset: Option<Offset>,
    /// Greatest batch timestamp, `i64::MIN` without batches.
    pub max_timestamp_ms: i64,
    /// Payload bytes of all entries.
    pub bytes: u64,
    snapshot: Vec<u8>,
}

impl Scan {
    /// Nothing was read yet.
    #[must_use]
    pub fn new() -> Self {
        Self { max_timestamp_ms: i64::MIN, ..Self::default() }
    }

    /// Reads the headers of all entries below the segment's end.
    ///
    /// # Errors
    /// `DATA_UNAVAILABLE`
    pub async fn read(bookies: &Bookies, segment: &Segment) -> Result<Self, Failure> {
        let mut scan = Self::new();
        let mut from = EntryId(0);
        while from < segment.end {
            let records = cold::read_prefixes(bookies, segment, from).await?;
            for record in &records {
                scan.add(record).map_err(|cause| malformed(segment, from, &cause))?;
                from = from.next();
            }
        }
        scan.snapshot = Vec::new();
        Ok(scan)
    }

    /// Adds the next entry.
    ///
    /// # Errors
    /// When it is none, or does not follow.
    pub fn add(&mut self, record: &Record) -> Result<(), String> {
        self.bytes += u64::from(record.header.payload_len);
        let prefix = record.payload.to_bytes();
        let (header, len) = EntryHeader::decode(&prefix).map_err(|error| error.to_string())?;
        if self.next_offset.is_some_and(|next| next != header.base_offset) {
            return Err("its offset does not follow the one before".to_owned());
        }
        self.next_offset = Some(header.next_offset());
        match header.kind {
            EntryKind::Snapshot { last } => {
                self.snapshot.extend_from_slice(&prefix[len..]);
                if last {
                    self.restore(&header)?;
                }
                Ok(())
            }
            EntryKind::Data => self.apply(&header),
        }
    }

    fn restore(&mut self, header: &EntryHeader) -> Result<(), String> {
        let snapshot = Snapshot::decode(header.base_offset, header.running_max_ms, &self.snapshot)
            .map_err(|error| error.to_string())?;
        self.snapshot = Vec::new();
        self.restored = Some(Restored {
            next_offset: snapshot.next_offset,
            running_max_ms: snapshot.running_max_ms,
            producers: Producers::of(snapshot.producers),
        });
        Ok(())
    }

    fn apply(&mut self, header: &EntryHeader) -> Result<(), String> {
        let Some(state) = &mut self.restored else {
            return Err("batches come before the snapshot".to_owned());
        };
        for (line, base_offset) in header.lines.iter().zip(header.base_offsets()) {
            self.max_timestamp_ms = self.max_timestamp_ms.max(line.max_timestamp_ms);
            if line.producer_id >= 0 {
                state.producers.commit(&line_append(line), base_offset, line.last_offset, header.appended_ms);
            }
        }
        state.next_offset = header.next_offset();
        state.running_max_ms = header.running_max_ms;
        Ok(())
    }
}

fn malformed(segment: &Segment, entry: EntryId, cause: &str) -> Failure {
    let message = format!("entry {entry} of ledger {} is malformed: {cause}", segment.ledger);
    Failure::new(ErrorReason::DataUnavailable, message)
}
