//! The end of a run: everything is healed, everything must move again, and the
//! whole of every chain is read.

use std::collections::BTreeMap;

use quire_broker::entry::{EntryHeader, EntryKind};
use quire_broker::producer::{Append, Producers, Snapshot};
use quire_ledger::message::{Read, Response};
use quire_ledger::record::Record;
use quire_metadata::ledger::LedgerMetadata;
use quire_proto::id::{EntryId, LedgerId, Offset};

use super::batches;
use super::client::Acks;
use super::history::{PartitionNumber, RecordId};
use super::scheduler::Micros;
use super::violation::{Checked, Invariant, Violation};
use super::world::{Happening, World, note};

/// With everything healed, everything must be acknowledged within this time.
const DEADLINE: Micros = 30_000_000;

impl World {
    /// Ends all trouble, and waits until everything moves again.
    ///
    /// # Errors
    /// When it does not, in bounded time.
    pub fn heal(&mut self) -> Checked {
        note!(self, "everything is healed");
        self.healed = true;
        self.idle_until = 0;
        self.store.away = false;
        self.network.heal();
        for index in 0..self.bookies.len() {
            self.resume_bookie(index)?;
            self.scheduler.after(0, Happening::BookieStarts(index));
        }
        for index in 0..self.brokers.len() {
            self.resume_broker(index)?;
            self.start_broker(index);
        }
        for number in 0..self.producers.len() {
            self.make_batch(number);
        }
        let deadline = self.scheduler.now() + DEADLINE;
        while !self.is_calm() {
            if self.scheduler.now() > deadline {
                return self.stuck();
            }
            self.advance()?;
        }
        self.hits.hit("everything moved again after healing");
        Ok(())
    }

    /// Whether every partition is led and nothing is waited for.
    fn is_calm(&self) -> bool {
        let served = (0..self.plan.partitions).all(|number| {
            let leader = self.led_by(number);
            leader.is_some_and(|at| {
                self.brokers[at].slots.get(&number).is_some_and(super::slot::Slot::is_leading)
            })
        });
        let answered =
            self.producers.iter().all(|producer| producer.acks != Acks::All || producer.flights.is_empty());
        let up = self.bookies.iter().all(|bookie| bookie.is_up() || bookie.is_refused());
        served && answered && up
    }

    /// Only bookies that lost too much excuse a standstill.
    fn stuck(&mut self) -> Checked {
        let mut why = String::new();
        for number in 0..self.plan.partitions {
            for broker in &self.brokers {
                if let Some(slot) = broker.slots.get(&number) {
                    why += &format!("partition {number} on broker {}: {} ", broker.index, slot.phase());
                    why += &slot.blocked().unwrap_or_default();
                    why += "; ";
                }
            }
        }
        for (number, producer) in self.producers.iter().enumerate() {
            if !producer.flights.is_empty() && producer.acks == Acks::All {
                why += &format!("producer {number} waits for {:?}; ", producer.flights);
            }
        }
        for bookie in &self.bookies {
            why += &format!("bookie {} up {}; ", bookie.index, bookie.is_up());
        }
        if self.inspector.is_beyond_repair() {
            self.hits.hit("a standstill beyond repair");
            note!(self, "nothing moves, as too many disks are damaged: {why}");
            return Ok(());
        }
        Violation::of(Invariant::Liveness, why)
    }

    /// Reads the whole of every chain.
    ///
    /// # Errors
    /// When something acknowledged is missing, or anything is not as it was.
    pub fn finale(&mut self) -> Checked {
        for number in 0..self.plan.partitions {
            self.read_whole(number)?;
        }
        Ok(())
    }

    fn read_whole(&mut self, number: PartitionNumber) -> Checked {
        let id = self.partition(number);
        let mut found: Vec<RecordId> = Vec::new();
        let mut state = Replayed::default();
        for (segment, ledger) in self.inspector.chain(id) {
            let base = found.len() as u64;
            if segment.base_offset.0 != base {
                return Violation::of(
                    Invariant::ChainIsDense,
                    format!("{segment:?} of partition {number} begins after offset {base}"),
                );
            }
            let Some(end) = self.end_of(number, &ledger) else {
                return self.unreadable(number, &ledger, "nobody knows its end");
            };
            for entry in 0..end.0 {
                let Some(record) = self.read_entry(&ledger, EntryId(entry))? else {
                    return self.unreadable(number, &ledger, &format!("entry {entry} of {end}"));
                };
                state.add(segment.ledger, &record)?;
                found.extend(records_of(&record)?);
            }
            let next = ledger.sealed().map(|sealed| sealed.next_offset.0);
            if next.is_some_and(|next| next != found.len() as u64) {
                return Violation::of(
                    Invariant::ChainIsDense,
                    format!("ledger {} is sealed at {next:?} and ends at {}", segment.ledger, found.len()),
                );
            }
        }
        note!(self, "partition {number} reads to {}", found.len());
        self.history.whole(number, &found)
    }

    /// How far a ledger may be read: to its end, or as its leader says.
    fn end_of(&self, number: PartitionNumber, ledger: &LedgerMetadata) -> Option<EntryId> {
        if let Some(sealed) = ledger.sealed() {
            return Some(sealed.end);
        }
        let slot = self.brokers[self.led_by(number)?].slots.get(&number)?;
        if !slot.is_leading() {
            return None;
        }
        let segments = slot.log.segments();
        let known = segments.iter().find(|segment| segment.ledger == ledger.id);
        // A ledger whose roll its writer has not heard of yet holds nothing.
        Some(known.map_or(EntryId(0), |segment| segment.end))
    }

    /// I2 and I3: an entry from the replicas that metadata names, all of which
    /// agree.
    fn read_entry(&mut self, ledger: &LedgerMetadata, entry: EntryId) -> Result<Option<Record>, Violation> {
        let read = Read { ledger: ledger.id, from: entry, max_entries: 1, max_bytes: 1 << 20, prefix: false };
        let mut found: Option<Record> = None;
        for bookie in self.bookies.iter().filter(|bookie| ledger.replicas.contains(&bookie.id)) {
            let Some(Response::Entries(records)) = bookie.read(&read) else { continue };
            let Some(record) = records.into_iter().next() else { continue };
            if record.verify().is_err() {
                return Err(Violation {
                    invariant: Invariant::DamageNoticed,
                    detail: format!("bookie {} serves {:?} with a bad checksum", bookie.index, record.header),
                });
            }
            match &found {
                Some(first) if first.header.payload_crc != record.header.payload_crc => {
                    return Err(Violation {
                        invariant: Invariant::ReplicasAgree,
                        detail: format!("{:?} and {:?}", first.header, record.header),
                    });
                }
                Some(_) => {}
                None => found = Some(record),
            }
        }
        Ok(found)
    }

    fn unreadable(&mut self, number: PartitionNumber, ledger: &LedgerMetadata, what: &str) -> Checked {
        if self.inspector.is_beyond_repair() {
            self.hits.hit("a chain beyond repair");
            return Ok(());
        }
        Violation::of(
            Invariant::AcknowledgedIsReadable,
            format!("partition {number}: {what} cannot be read, of {ledger:?}"),
        )
    }
}

fn records_of(record: &Record) -> Result<Vec<RecordId>, Violation> {
    let bytes = record.payload.to_bytes();
    let malformed = |why: String| Violation { invariant: Invariant::ReplicasAgree, detail: why };
    let (header, length) = EntryHeader::decode(&bytes).map_err(|error| malformed(error.to_string()))?;
    if header.kind != EntryKind::Data {
        return Ok(Vec::new());
    }
    let found = batches::open(bytes.slice(length..))?;
    Ok(found.map(|(_, records)| records).unwrap_or_default())
}

/// The state that the entries of a chain make, computed from the first one on:
/// a snapshot must say exactly that.
#[derive(Default)]
struct Replayed {
    producers: Producers,
    parts: BTreeMap<LedgerId, Vec<u8>>,
}

impl Replayed {
    fn add(&mut self, ledger: LedgerId, record: &Record) -> Checked {
        let bytes = record.payload.to_bytes();
        let Ok((header, length)) = EntryHeader::decode(&bytes) else { return Ok(()) };
        match header.kind {
            EntryKind::Data => {
                for (line, base) in header.lines.iter().zip(header.base_offsets()) {
                    if line.producer_id >= 0 {
                        let append = Append {
                            producer_id: line.producer_id,
                            producer_epoch: line.producer_epoch,
                            base_sequence: line.base_sequence,
                            record_count: line.record_count,
                        };
                        self.producers.commit(&append, base, line.last_offset, header.appended_ms);
                    }
                }
                Ok(())
            }
            EntryKind::Snapshot { last } => {
                let body = self.parts.entry(ledger).or_default();
                body.extend_from_slice(&bytes[length..]);
                if last { self.compare(ledger, header.base_offset) } else { Ok(()) }
            }
        }
    }

    fn compare(&mut self, ledger: LedgerId, next: Offset) -> Checked {
        let body = self.parts.remove(&ledger).unwrap_or_default();
        let said = Snapshot::decode(next, 0, &body).map(|snapshot| snapshot.producers);
        if said.as_ref() == Ok(self.producers.committed()) {
            return Ok(());
        }
        Violation::of(
            Invariant::Idempotence,
            format!(
                "the snapshot of ledger {ledger} says {said:?}, the entries {:?}",
                self.producers.committed()
            ),
        )
    }
}
