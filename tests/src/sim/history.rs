//! What the clients of a run saw, and whether it can be so.
//!
//! The history knows nothing of brokers and bookies: it judges only what was
//! sent, acknowledged, refused and read. What it cannot see from there, the
//! [`inspector`](super::inspector) checks.

use std::collections::BTreeMap;

use super::violation::{Checked, Invariant, Violation};

/// A batch that a producer made, once, whatever the number of times it was
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchId(pub u32);

/// One record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId {
    pub batch: BatchId,
    pub index: u32,
}

/// A partition of the run, by number.
pub type PartitionNumber = usize;

/// A reader of the run, by number.
pub type Reader = usize;

/// What a producer asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub partition: PartitionNumber,
    /// The producer and the batch's first sequence, when it is idempotent.
    pub sequence: Option<(u64, i32)>,
    pub records: u32,
    /// Whether its acknowledgement promises anything.
    pub acks_all: bool,
}

#[derive(Debug)]
struct Batch {
    sent: Sent,
    acknowledged: Option<u64>,
    refused: bool,
    /// Where it was found first.
    place: Option<u64>,
}

/// How an offset's record is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    Acknowledged,
    Served,
}

/// The history of a run.
#[derive(Debug, Default)]
pub struct History {
    batches: Vec<Batch>,
    logs: BTreeMap<PartitionNumber, BTreeMap<u64, (RecordId, Evidence)>>,
    latest: BTreeMap<(Reader, PartitionNumber), u64>,
    acknowledged: u64,
}

impl History {
    /// A producer made a batch.
    pub fn sent(&mut self, sent: Sent) -> BatchId {
        let id = BatchId(u32::try_from(self.batches.len()).unwrap_or(u32::MAX));
        self.batches.push(Batch { sent, acknowledged: None, refused: false, place: None });
        id
    }

    /// Batches acknowledged with acks=all.
    #[must_use]
    pub const fn acknowledged_batches(&self) -> u64 {
        self.acknowledged
    }

    /// Whether the batch was acknowledged.
    #[must_use]
    pub fn is_acknowledged(&self, id: BatchId) -> bool {
        self.batches.get(id.0 as usize).is_some_and(|batch| batch.acknowledged.is_some())
    }

    /// The first offset that no acknowledged record of the partition reaches.
    #[must_use]
    pub fn acknowledged_end(&self, partition: PartitionNumber) -> u64 {
        self.acknowledged_records(partition).next_back().map_or(0, |(offset, _)| offset + 1)
    }

    /// Acknowledged records by offset.
    pub fn acknowledged_records(
        &self,
        partition: PartitionNumber,
    ) -> impl DoubleEndedIterator<Item = (u64, RecordId)> + '_ {
        let known = self.logs.get(&partition).into_iter().flatten();
        known.filter(|(_, (_, evidence))| *evidence == Evidence::Acknowledged).map(|(at, (id, _))| (*at, *id))
    }

    /// A producer was told where its batch is.
    ///
    /// # Errors
    /// When that contradicts what was known.
    pub fn acknowledged(&mut self, id: BatchId, base: u64) -> Checked {
        let batch = self.batch(id)?;
        if batch.refused {
            return Violation::of(
                Invariant::NothingRefused,
                format!("{id:?} was refused and then acknowledged"),
            );
        }
        if !batch.sent.acks_all {
            batch.acknowledged = Some(base);
            return Ok(());
        }
        if let Some(before) = batch.acknowledged.or(batch.place).filter(|before| *before != base) {
            return Violation::of(
                Invariant::Idempotence,
                format!("{id:?} is at {before} and was acknowledged at {base}"),
            );
        }
        let first = batch.acknowledged.replace(base).is_none();
        batch.place = Some(base);
        let sent = batch.sent;
        self.acknowledged += u64::from(first);
        let log = self.logs.entry(sent.partition).or_default();
        for index in 0..sent.records {
            let (offset, record) = (base + u64::from(index), RecordId { batch: id, index });
            match log.insert(offset, (record, Evidence::Acknowledged)) {
                Some((other, Evidence::Acknowledged)) if other != record => {
                    return Violation::of(
                        Invariant::OneWriter,
                        format!("offset {offset} was acknowledged to {other:?} and to {record:?}"),
                    );
                }
                Some((other, Evidence::Served)) if other != record => {
                    return Violation::of(
                        Invariant::NothingEarly,
                        format!("offset {offset} was served with {other:?}, then acknowledged to {record:?}"),
                    );
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A producer was told, for good, that its batch is not in the log.
    ///
    /// # Errors
    /// When it is known to be there.
    pub fn refused(&mut self, id: BatchId) -> Checked {
        let batch = self.batch(id)?;
        batch.refused = true;
        match batch.place {
            Some(place) => {
                Violation::of(Invariant::NothingRefused, format!("{id:?} is at {place}, and was refused"))
            }
            None => Ok(()),
        }
    }

    /// A reader was given these records, from `base` on.
    ///
    /// # Errors
    /// When they contradict what was known.
    pub fn served(&mut self, partition: PartitionNumber, base: u64, records: &[RecordId]) -> Checked {
        for (offset, record) in (base..).zip(records) {
            self.one_served(partition, offset, *record)?;
        }
        Ok(())
    }

    fn one_served(&mut self, partition: PartitionNumber, offset: u64, record: RecordId) -> Checked {
        let batch = self.batch(record.batch)?;
        let sent = batch.sent;
        if batch.refused || sent.partition != partition || record.index >= sent.records {
            return Violation::of(
                Invariant::NothingRefused,
                format!("{record:?} at offset {offset} of partition {partition}: {batch:?}"),
            );
        }
        let base = offset.checked_sub(u64::from(record.index));
        let elsewhere = batch.place.filter(|place| Some(*place) != base);
        match (elsewhere, base) {
            (Some(place), _) if sent.sequence.is_some() => {
                return Violation::of(
                    Invariant::Idempotence,
                    format!("{record:?} is at offset {offset} and its batch at {place}"),
                );
            }
            (_, None) => {
                return Violation::of(Invariant::ChainIsDense, format!("{record:?} at offset {offset}"));
            }
            (_, Some(base)) => batch.place = Some(base),
        }
        let log = self.logs.entry(partition).or_default();
        match log.get(&offset) {
            Some((other, evidence)) if *other != record => {
                let invariant = match evidence {
                    Evidence::Acknowledged => Invariant::AcknowledgedIsReadable,
                    Evidence::Served => Invariant::NothingEarly,
                };
                Violation::of(
                    invariant,
                    format!(
                        "offset {offset} of partition {partition} was {other:?} ({evidence:?}), now {record:?}"
                    ),
                )
            }
            Some(_) => Ok(()),
            None => {
                log.insert(offset, (record, Evidence::Served));
                Ok(())
            }
        }
    }

    /// A reader was told the partition's latest offset.
    ///
    /// # Errors
    /// When it was told a higher one before.
    pub fn latest(&mut self, reader: Reader, partition: PartitionNumber, offset: u64) -> Checked {
        let before = self.latest.entry((reader, partition)).or_default();
        if offset < *before {
            return Violation::of(
                Invariant::OffsetsForward,
                format!("reader {reader} was told {before}, then {offset}, of partition {partition}"),
            );
        }
        *before = offset;
        Ok(())
    }

    /// The partition's log was sealed, in metadata, at `next`: whatever was
    /// acknowledged is below (I1).
    ///
    /// # Errors
    /// When something is not.
    pub fn sealed(&self, partition: PartitionNumber, next: u64) -> Checked {
        let end = self.acknowledged_end(partition);
        if end > next {
            return Violation::of(
                Invariant::AcknowledgedIsBelowSeals,
                format!("partition {partition} is sealed at offset {next}, and acknowledged up to {end}"),
            );
        }
        Ok(())
    }

    /// The whole log of a partition as it reads when all is healed: by offset,
    /// with holes where every copy is damaged.
    ///
    /// # Errors
    /// When acknowledged records are missing or out of their producer's order.
    pub fn whole(
        &mut self,
        partition: PartitionNumber,
        records: &[Option<RecordId>],
        end_is_known: bool,
    ) -> Checked {
        for (offset, record) in (0..).zip(records) {
            record.map_or(Ok(()), |record| self.one_served(partition, offset, record))?;
        }
        let end = records.len() as u64;
        let beyond = self.logs.get(&partition).and_then(|log| log.range(end..).next());
        if let Some((offset, known)) = beyond.filter(|_| end_is_known) {
            return Violation::of(
                Invariant::AcknowledgedIsReadable,
                format!("partition {partition} ends at {end}, and {known:?} was at {offset}"),
            );
        }
        self.in_order(partition, records)
    }

    /// Each producer's sequences rise along the log, one by one but for holes.
    fn in_order(&mut self, partition: PartitionNumber, records: &[Option<RecordId>]) -> Checked {
        let mut last: BTreeMap<u64, (i64, u64)> = BTreeMap::new();
        let mut holes = 0;
        for (offset, record) in records.iter().enumerate() {
            let Some(record) = record else {
                holes += 1;
                continue;
            };
            let Some((producer, first)) = self.batch(record.batch)?.sent.sequence else { continue };
            let sequence = i64::from(first) + i64::from(record.index);
            let Some((before, holes_before)) = last.insert(producer, (sequence, holes)) else { continue };
            let follows = before + 1 == sequence || (before < sequence && holes_before < holes);
            if !follows {
                return Violation::of(
                    Invariant::Idempotence,
                    format!(
                        "partition {partition}, offset {offset}: sequence {sequence} of producer {producer} \
                         comes after {before}"
                    ),
                );
            }
        }
        Ok(())
    }

    fn batch(&mut self, id: BatchId) -> Result<&mut Batch, Violation> {
        self.batches.get_mut(id.0 as usize).ok_or_else(|| Violation {
            invariant: Invariant::NothingRefused,
            detail: format!("{id:?} was never sent"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Sent = Sent { partition: 0, sequence: None, records: 2, acks_all: true };

    fn sent(producer: u64, sequence: i32) -> Sent {
        Sent { sequence: Some((producer, sequence)), ..ALL }
    }

    fn record(batch: BatchId, index: u32) -> RecordId {
        RecordId { batch, index }
    }

    fn both(batch: BatchId) -> [RecordId; 2] {
        [record(batch, 0), record(batch, 1)]
    }

    /// Two batches of one producer, and the history that they made.
    fn two() -> (History, BatchId, BatchId) {
        let mut history = History::default();
        let (a, b) = (history.sent(sent(1, 0)), history.sent(sent(1, 2)));
        (history, a, b)
    }

    fn whole(history: &mut History, records: &[RecordId]) -> Checked {
        let records: Vec<_> = records.iter().copied().map(Some).collect();
        history.whole(0, &records, true)
    }

    #[track_caller]
    fn check(found: Checked, expected: Invariant) {
        assert_eq!(found.expect_err("nothing was found").invariant, expected);
    }

    #[test]
    fn a_history_without_fault_passes() {
        let (mut history, a, b) = two();
        history.acknowledged(a, 0).unwrap();
        history.served(0, 0, &both(a)).unwrap();
        history.served(0, 2, &both(b)).unwrap();
        history.acknowledged(b, 2).unwrap();
        history.acknowledged(b, 2).unwrap();
        history.latest(0, 0, 4).unwrap();
        history.sealed(0, 4).unwrap();
        whole(&mut history, &[both(a), both(b)].concat()).unwrap();
    }

    #[test]
    fn a_lost_record_is_found() {
        let (mut history, a, b) = two();
        history.acknowledged(a, 0).unwrap();
        history.acknowledged(b, 2).unwrap();
        check(whole(&mut history, &both(a)), Invariant::AcknowledgedIsReadable);
    }

    #[test]
    fn a_record_that_was_served_and_then_vanished_is_found() {
        let (mut history, a, b) = two();
        history.served(0, 0, &both(a)).unwrap();
        history.served(0, 2, &both(b)).unwrap();
        check(whole(&mut history, &both(a)), Invariant::AcknowledgedIsReadable);
    }

    #[test]
    fn a_hole_excuses_what_is_in_it_alone() {
        let (mut history, a, b) = two();
        history.acknowledged(a, 0).unwrap();
        history.acknowledged(b, 2).unwrap();
        let read = |batch| both(batch).map(Some).to_vec();
        history.whole(0, &[vec![None; 2], read(b)].concat(), true).unwrap();
        history.whole(0, &[None; 2], false).unwrap();
        check(history.whole(0, &[None; 2], true), Invariant::AcknowledgedIsReadable);
        check(history.whole(0, &[vec![None; 2], read(a)].concat(), true), Invariant::Idempotence);
    }

    #[test]
    fn a_producers_batches_out_of_order_around_a_hole_are_found() {
        let (mut history, a, b) = two();
        check(
            history.whole(
                0,
                &[both(b).map(Some).to_vec(), vec![None], both(a).map(Some).to_vec()].concat(),
                true,
            ),
            Invariant::Idempotence,
        );
    }

    #[test]
    fn a_seal_below_an_acknowledged_record_is_found() {
        let (mut history, a, _) = two();
        history.acknowledged(a, 0).unwrap();
        check(history.sealed(0, 1), Invariant::AcknowledgedIsBelowSeals);
    }

    #[test]
    fn an_offset_acknowledged_twice_is_found() {
        let (mut history, a, _) = two();
        let other = history.sent(sent(2, 0));
        history.acknowledged(a, 0).unwrap();
        check(history.acknowledged(other, 1), Invariant::OneWriter);
    }

    #[test]
    fn a_record_replaced_after_it_was_served_is_found() {
        let (mut history, a, _) = two();
        let other = history.sent(sent(2, 0));
        history.served(0, 0, &both(a)).unwrap();
        check(history.served(0, 0, &both(other)), Invariant::NothingEarly);
        check(history.acknowledged(other, 0), Invariant::NothingEarly);
    }

    #[test]
    fn a_record_replaced_after_it_was_acknowledged_is_found() {
        let (mut history, a, _) = two();
        let other = history.sent(sent(2, 0));
        history.acknowledged(a, 0).unwrap();
        check(history.served(0, 0, &both(other)), Invariant::AcknowledgedIsReadable);
    }

    #[test]
    fn a_duplicate_in_the_log_is_found() {
        let (mut history, a, _) = two();
        history.acknowledged(a, 0).unwrap();
        check(whole(&mut history, &[both(a), both(a)].concat()), Invariant::Idempotence);
    }

    #[test]
    fn a_duplicate_answered_with_another_offset_is_found() {
        let (mut history, a, _) = two();
        history.acknowledged(a, 0).unwrap();
        check(history.acknowledged(a, 2), Invariant::Idempotence);
    }

    #[test]
    fn a_duplicate_without_idempotence_is_no_fault() {
        let mut history = History::default();
        let a = history.sent(Sent { acks_all: false, ..ALL });
        history.served(0, 0, &both(a)).unwrap();
        whole(&mut history, &[both(a), both(a)].concat()).unwrap();
    }

    #[test]
    fn a_producers_batches_out_of_order_are_found() {
        let (mut history, a, b) = two();
        check(whole(&mut history, &[both(b), both(a)].concat()), Invariant::Idempotence);
    }

    #[test]
    fn a_refused_record_that_appears_is_found() {
        let (mut history, a, b) = two();
        history.refused(b).unwrap();
        check(history.served(0, 0, &both(b)), Invariant::NothingRefused);
        check(history.acknowledged(b, 0), Invariant::NothingRefused);
        history.served(0, 0, &both(a)).unwrap();
        check(history.refused(a), Invariant::NothingRefused);
    }

    #[test]
    fn a_record_that_was_never_sent_is_found() {
        let (mut history, a, b) = two();
        check(history.served(0, 0, &[record(BatchId(7), 0)]), Invariant::NothingRefused);
        check(history.served(0, 0, &[record(a, 2)]), Invariant::NothingRefused);
        check(history.served(1, 0, &both(b)), Invariant::NothingRefused);
    }

    #[test]
    fn a_batch_without_its_head_is_found() {
        let (mut history, a, _) = two();
        check(history.served(0, 0, &[record(a, 1)]), Invariant::ChainIsDense);
    }

    #[test]
    fn an_offset_that_goes_back_is_found() {
        let mut history = History::default();
        history.latest(0, 0, 4).unwrap();
        history.latest(1, 0, 3).unwrap();
        check(history.latest(0, 0, 3), Invariant::OffsetsForward);
    }

    #[test]
    fn what_acks_leader_loses_is_no_fault() {
        let mut history = History::default();
        let a = history.sent(Sent { acks_all: false, ..ALL });
        let b = history.sent(ALL);
        history.acknowledged(a, 0).unwrap();
        history.acknowledged(b, 0).unwrap();
        whole(&mut history, &both(b)).unwrap();
    }
}
