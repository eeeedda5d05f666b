//! What the entries of a chain make, in order, from its first one on.

use quire_broker::entry::{EntryHeader, EntryKind};
use quire_broker::producer::{Append, Producers, Snapshot};
use quire_ledger::record::Record;
use quire_metadata::chain::Segment;
use quire_proto::id::{LedgerId, Offset};

use super::batches;
use super::history::RecordId;
use super::violation::{Checked, Invariant, Violation};

/// The log of a partition: what is at each offset, and the state of its
/// producers, which a snapshot must say exactly. An entry that is lost leaves a
/// hole, and what it said of producers is not known until the next snapshot.
#[derive(Debug)]
pub struct Replay {
    records: Vec<Option<RecordId>>,
    ledger: LedgerId,
    /// None: not known since something was lost.
    producers: Option<Producers>,
    /// The parts of the ledger's snapshot, so far.
    snapshot: Vec<u8>,
    /// Something of the ledger that is read is lost.
    has_hole: bool,
}

impl Default for Replay {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            ledger: LedgerId(0),
            producers: Some(Producers::default()),
            snapshot: Vec::new(),
            has_hole: false,
        }
    }
}

impl Replay {
    /// The records by offset; none where they are lost.
    #[must_use]
    pub fn records(&self) -> &[Option<RecordId>] {
        &self.records
    }

    fn next_offset(&self) -> Offset {
        Offset(self.records.len() as u64)
    }

    /// The next ledger begins.
    ///
    /// # Errors
    /// When it does not begin where the one before ended.
    pub fn begin(&mut self, segment: &Segment) -> Checked {
        if segment.base_offset != self.next_offset() {
            return Violation::of(
                Invariant::ChainIsDense,
                format!("{segment:?} begins after offset {}", self.next_offset()),
            );
        }
        self.ledger = segment.ledger;
        self.snapshot.clear();
        self.has_hole = false;
        Ok(())
    }

    /// The next entry of the ledger.
    ///
    /// # Errors
    /// When it does not follow, or is no entry, or a snapshot that says
    /// something else than the entries before it.
    pub fn add(&mut self, record: &Record) -> Checked {
        let bytes = record.payload.to_bytes();
        let (header, length) = EntryHeader::decode(&bytes).map_err(|error| Violation {
            invariant: Invariant::ReplicasAgree,
            detail: format!("{:?}: {error}", record.header),
        })?;
        self.reach(header.base_offset)?;
        match header.kind {
            EntryKind::Data => {
                self.commit(&header);
                let found = batches::open(bytes.slice(length..))?;
                let records = found.map(|(_, records)| records).unwrap_or_default();
                self.records.extend(records.into_iter().map(Some));
                Ok(())
            }
            EntryKind::Snapshot { last } => {
                self.snapshot.extend_from_slice(&bytes[length..]);
                if last && !self.has_hole { self.compare() } else { Ok(()) }
            }
        }
    }

    /// The next entry of the ledger is lost.
    pub fn lose(&mut self) {
        self.has_hole = true;
        self.producers = None;
    }

    /// The ledger ends; where metadata says, if it is sealed.
    ///
    /// # Errors
    /// When its entries end elsewhere.
    pub fn end(&mut self, sealed: Option<Offset>) -> Checked {
        sealed.map_or(Ok(()), |next| self.reach(next))
    }

    /// Goes on at an offset: the next one, or behind a hole.
    fn reach(&mut self, offset: Offset) -> Checked {
        let next = self.next_offset();
        if offset < next || (offset > next && !self.has_hole) {
            return Violation::of(
                Invariant::ChainIsDense,
                format!("ledger {} comes to offset {offset} after {next}", self.ledger),
            );
        }
        self.records.resize(usize::try_from(offset.0).unwrap_or(usize::MAX), None);
        Ok(())
    }

    fn commit(&mut self, header: &EntryHeader) {
        let Some(producers) = &mut self.producers else { return };
        for (line, base) in header.lines.iter().zip(header.base_offsets()) {
            if line.producer_id >= 0 {
                let append = Append {
                    producer_id: line.producer_id,
                    producer_epoch: line.producer_epoch,
                    base_sequence: line.base_sequence,
                    record_count: line.record_count,
                };
                producers.commit(&append, base, line.last_offset, header.appended_ms);
            }
        }
    }

    fn compare(&mut self) -> Checked {
        let said = Snapshot::decode(self.next_offset(), 0, &self.snapshot).map(|snapshot| snapshot.producers);
        match (&self.producers, said) {
            (Some(producers), Ok(said)) if said == *producers.committed() => Ok(()),
            (None, Ok(said)) => {
                self.producers = Some(Producers::of(said));
                Ok(())
            }
            (producers, said) => {
                let made = producers.as_ref().map(Producers::committed);
                Violation::of(
                    Invariant::Idempotence,
                    format!("the snapshot of ledger {} says {said:?}, the entries {made:?}", self.ledger),
                )
            }
        }
    }
}
