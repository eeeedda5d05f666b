//! The end of a run: everything is healed, everything must move again, and the
//! whole of every chain is read.

use quire_ledger::message::{Read, Response};
use quire_ledger::record::Record;
use quire_metadata::ledger::LedgerMetadata;
use quire_proto::id::EntryId;

use super::bookie::SimBookie;
use super::client::Acks;
use super::history::PartitionNumber;
use super::replay::Replay;
use super::scheduler::Micros;
use super::slot::Slot;
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
        (0..self.plan.partitions).all(|number| self.is_moving(number)) && self.bookies.iter().all(has_started)
    }

    /// Whether a partition is led, and none of its producers waits.
    fn is_moving(&self, number: PartitionNumber) -> bool {
        let slot = self.led_by(number).and_then(|at| self.brokers[at].slots.get(&number));
        let mut producers = self.producers.iter().filter(|producer| producer.partition == number);
        slot.is_some_and(Slot::is_leading)
            && producers.all(|producer| producer.acks != Acks::All || producer.flights.is_empty())
    }

    /// A partition may stand still where too few undamaged copies are left of
    /// what a new leader needs. Everything else must move.
    fn stuck(&mut self) -> Checked {
        let still: Vec<_> = (0..self.plan.partitions).filter(|number| !self.is_moving(*number)).collect();
        let why = self.standing(&still);
        let excused = |number: &PartitionNumber| self.inspector.may_stand_still(self.partition(*number));
        if still.iter().all(excused) && self.bookies.iter().all(has_started) {
            self.hits.hit("a standstill beyond repair");
            note!(self, "too many copies are damaged, so that this does not move: {why}");
            return Ok(());
        }
        Violation::of(Invariant::Liveness, why)
    }

    /// What these partitions, and all bookies, are at.
    fn standing(&self, partitions: &[PartitionNumber]) -> String {
        let mut why = String::new();
        for number in partitions {
            for broker in &self.brokers {
                if let Some(slot) = broker.slots.get(number) {
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
        why
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
        let mut replay = Replay::default();
        let mut end_is_known = true;
        for (segment, ledger) in self.inspector.chain(self.partition(number)) {
            replay.begin(&segment)?;
            match self.end_of(number, &ledger) {
                Some(end) => self.read_ledger(number, &ledger, end, &mut replay)?,
                None if self.inspector.may_hold_up(&ledger) => {
                    self.hits.hit("an end beyond repair");
                    end_is_known = false;
                }
                None => return unreadable(number, &ledger, "nobody knows its end"),
            }
        }
        note!(self, "partition {number} reads to {}", replay.records().len());
        self.history.whole(number, replay.records(), end_is_known)
    }

    fn read_ledger(
        &mut self,
        number: PartitionNumber,
        ledger: &LedgerMetadata,
        end: EntryId,
        replay: &mut Replay,
    ) -> Checked {
        for entry in (0..end.0).map(EntryId) {
            match self.read_entry(ledger, entry)? {
                Some(record) => replay.add(&record)?,
                None if self.inspector.may_be_lost(ledger, entry) => {
                    self.hits.hit("an entry beyond repair");
                    replay.lose();
                }
                None => return unreadable(number, ledger, &format!("entry {entry} of {end}")),
            }
        }
        replay.end(ledger.sealed().map(|sealed| sealed.next_offset))
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
}

fn has_started(bookie: &SimBookie) -> bool {
    bookie.is_up() || bookie.is_refused()
}

fn unreadable(number: PartitionNumber, ledger: &LedgerMetadata, what: &str) -> Checked {
    Violation::of(
        Invariant::AcknowledgedIsReadable,
        format!("partition {number}: {what} cannot be read, of {ledger:?}"),
    )
}
