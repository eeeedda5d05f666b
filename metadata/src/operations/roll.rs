//! W3: the roll. One transaction seals a partition's last ledger and binds the
//! next one; the first open and the idle seal are rolls with one side missing.

use quire_proto::fault::{Fault, planted};
use quire_proto::id::{BookieId, LedgerId, Offset};

use crate::chain::{ChainSequence, Segment};
use crate::delete_intent::DeleteIntent;
use crate::id_block::IdKind;
use crate::key::Keys;
use crate::ledger::{LedgerMetadata, LedgerState, Sealed};
use crate::operation::{Operation, Verdict, incomplete_evidence};
use crate::operations::ids::HeldBlock;
use crate::partition::Leadership;
use crate::store::{Guard, KeyValue, Revision, StoreError, Txn};
use crate::typed::{Typed, Versioned};

/// The last segment of a partition's chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Last {
    /// Its place.
    pub sequence: ChainSequence,
    /// The segment.
    pub segment: Segment,
    /// Its ledger, as this leader last read or wrote it.
    pub ledger: Versioned<LedgerMetadata>,
}

/// The ledger that a roll binds. It has been created on all its replicas (B2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLedger {
    /// Its id, of `block`.
    pub id: LedgerId,
    /// The bookies that hold it.
    pub replicas: Vec<BookieId>,
    /// How many of them must have an entry before it is committed.
    pub ack_quorum: u32,
    /// Milliseconds since 1970.
    pub created_ms: i64,
    /// The block of its id: it must still be held when the roll applies.
    pub block: HeldBlock,
}

/// A roll. It is never abandoned: run the same one again until its outcome is
/// known (W4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roll {
    leadership: Leadership,
    last: Option<Last>,
    seal: Option<Sealed>,
    open: Option<NewLedger>,
}

/// A roll that contradicts the protocol: a bug of its maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRoll {
    /// Neither seals nor opens.
    #[error("the roll neither seals nor opens a ledger")]
    Nothing,
    /// There is nothing to seal.
    #[error("the roll seals a ledger that is sealed or missing")]
    NothingToSeal,
    /// The last ledger would stay open in the middle of the chain.
    #[error("the roll opens a ledger behind one that is not sealed")]
    Unsealed,
    /// The last ledger is not this partition's, or not of this epoch.
    #[error("the last ledger belongs to another partition or epoch")]
    Foreign,
    /// The segment would end before it begins.
    #[error("the seal's next offset is below the segment's base offset")]
    Backwards,
    /// The new id is not of the block.
    #[error("the new ledger's id is not of the block that is held")]
    NotHeld,
    /// No replicas, or an ack quorum out of their range.
    #[error("the new ledger's ack quorum does not fit its replicas")]
    Quorum,
}

/// What a roll leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rolled {
    /// The segment that was opened: the chain's last from now on.
    pub opened: Option<Last>,
    /// The segment that was the last, as it is sealed now; none when there was
    /// none, or when it was empty and has been removed.
    pub previous: Option<Last>,
    /// The ledger of the empty segment that was removed.
    pub removed: Option<LedgerId>,
}

/// Why a roll never happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RollRefused {
    /// A higher epoch was minted: the writer is deposed.
    #[error("another leader has taken the partition over")]
    Deposed,
    /// The block of the new id was released: draw another id.
    #[error("the block of the new ledger's id was released")]
    BlockReleased,
    /// The old ledger changed or the chain's next place is taken though the
    /// epoch is this leader's: something else went wrong; read the chain anew.
    #[error("the chain was changed by another while this leader's epoch stood")]
    ChainChanged,
}

impl Roll {
    /// A roll of the chain that ends with `last`.
    ///
    /// # Errors
    /// When it contradicts the protocol.
    pub fn new(
        leadership: Leadership,
        last: Option<Last>,
        seal: Option<Sealed>,
        open: Option<NewLedger>,
    ) -> Result<Self, InvalidRoll> {
        let roll = Self { leadership, last, seal, open };
        roll.check()?;
        Ok(roll)
    }

    fn check(&self) -> Result<(), InvalidRoll> {
        if self.seal.is_none() && self.open.is_none() {
            return Err(InvalidRoll::Nothing);
        }
        self.check_last()?;
        let Some(open) = &self.open else { return Ok(()) };
        let block = &open.block;
        if block.kind != IdKind::Ledgers || !block.block.value.ids().contains(&open.id.0) {
            return Err(InvalidRoll::NotHeld);
        }
        let quorum = open.ack_quorum as usize;
        if quorum == 0 || quorum > open.replicas.len() {
            return Err(InvalidRoll::Quorum);
        }
        Ok(())
    }

    fn check_last(&self) -> Result<(), InvalidRoll> {
        let Some(last) = &self.last else {
            return if self.seal.is_some() { Err(InvalidRoll::NothingToSeal) } else { Ok(()) };
        };
        let ledger = &last.ledger.value;
        if ledger.owner != self.leadership.partition || ledger.id != last.segment.ledger {
            return Err(InvalidRoll::Foreign);
        }
        let next_offset = match (&ledger.state, &self.seal) {
            (LedgerState::Sealed(_), Some(_)) => return Err(InvalidRoll::NothingToSeal),
            (LedgerState::Sealed(sealed), None) => sealed.next_offset,
            (LedgerState::Open, Some(seal)) if ledger.epoch == self.leadership.epoch => seal.next_offset,
            (LedgerState::Open, Some(_)) => return Err(InvalidRoll::Foreign),
            (LedgerState::Open, None) | (LedgerState::Recovering(_), _) => return Err(InvalidRoll::Unsealed),
        };
        if next_offset < last.segment.base_offset {
            return Err(InvalidRoll::Backwards);
        }
        Ok(())
    }

    /// The place in the chain that the roll fills, or leaves empty.
    #[must_use]
    pub fn next_sequence(&self) -> ChainSequence {
        self.last.as_ref().map_or(ChainSequence(0), |last| last.sequence.next())
    }

    /// The place of the new segment: the chain's next one, or that of an empty
    /// predecessor. A place that was taken is never empty again while the chain
    /// ends there: a late copy of a transaction that found it empty, an earlier
    /// roll's or a take-over's, must not find it so once more.
    fn place(&self) -> ChainSequence {
        self.removed().map_or_else(|| self.next_sequence(), |removed| removed.sequence)
    }

    fn base_offset(&self) -> Offset {
        let sealed = self.sealed_last().and_then(|last| last.sealed().map(|sealed| sealed.next_offset));
        sealed.unwrap_or_default()
    }

    /// The last ledger as it is after the roll.
    fn sealed_last(&self) -> Option<LedgerMetadata> {
        let ledger = self.last.as_ref()?.ledger.value.clone();
        Some(match &self.seal {
            Some(seal) => LedgerMetadata { state: LedgerState::Sealed(seal.clone()), ..ledger },
            None => ledger,
        })
    }

    /// The last segment, when it is empty and there will be another: its offset
    /// lives on as the base of the next.
    fn removed(&self) -> Option<&Last> {
        let last = self.last.as_ref()?;
        (self.open.is_some() && last.segment.base_offset == self.base_offset()).then_some(last)
    }

    fn new_segment(&self) -> Option<(Segment, LedgerMetadata)> {
        let open = self.open.as_ref()?;
        let ledger = LedgerMetadata {
            id: open.id,
            owner: self.leadership.partition,
            epoch: self.leadership.epoch,
            replicas: open.replicas.clone(),
            ack_quorum: open.ack_quorum,
            targets: Vec::new(),
            former: Vec::new(),
            state: LedgerState::Open,
            created_ms: open.created_ms,
        };
        Some((Segment { base_offset: self.base_offset(), ledger: open.id }, ledger))
    }

    fn end_last(&self, txn: Txn, keys: &Keys) -> Txn {
        let (Some(_), Some(sealed)) = (&self.last, self.sealed_last()) else { return txn };
        let key = keys.ledger(sealed.id);
        if self.removed().is_some() {
            return txn.delete(key).put(keys.delete(sealed.id), DeleteIntent::of(&sealed).encode());
        }
        match self.seal {
            Some(_) => txn.put(key, sealed.encode()),
            None => txn,
        }
    }

    fn rolled(&self, at: Revision) -> Rolled {
        let previous = self.last.clone().zip(self.sealed_last()).map(|(last, value)| {
            let revision = if self.seal.is_some() { at } else { last.ledger.revision };
            Last { ledger: Versioned { value, revision }, ..last }
        });
        let opened = self.new_segment().map(|(segment, value)| Last {
            sequence: self.place(),
            segment,
            ledger: Versioned { value, revision: at },
        });
        let removed = self.removed().map(|removed| removed.segment.ledger);
        Rolled { opened, previous: previous.filter(|_| removed.is_none()), removed }
    }

    fn broken_guard(
        &self,
        [partition, block, ledger, next, _]: [Option<&KeyValue>; 5],
    ) -> Option<RollRefused> {
        let unchanged = |found: Option<&KeyValue>, revision: Revision| {
            found.is_some_and(|found| found.mod_revision == revision)
        };
        if !unchanged(partition, self.leadership.minted) {
            return Some(RollRefused::Deposed);
        }
        if self.open.as_ref().is_some_and(|open| !unchanged(block, open.block.block.revision)) {
            return Some(RollRefused::BlockReleased);
        }
        if self.last.as_ref().is_some_and(|last| !unchanged(ledger, last.ledger.revision)) || next.is_some() {
            return Some(RollRefused::ChainChanged);
        }
        None
    }

    /// When it has happened: the new id is in the chain's next place, which only
    /// this roll puts there; or, in an idle seal, the ledger is sealed as asked
    /// under an epoch that is still this leader's.
    fn happened(
        &self,
        [partition, _, ledger, _, place]: [Option<&KeyValue>; 5],
    ) -> Result<Option<Revision>, StoreError> {
        if let Some(open) = &self.open {
            let place = Versioned::<Segment>::read_option(place)?;
            return Ok(place.filter(|place| place.value.ledger == open.id).map(|place| place.revision));
        }
        let led = partition.is_some_and(|partition| partition.mod_revision == self.leadership.minted);
        let ledger = Versioned::<LedgerMetadata>::read_option(ledger)?;
        let sealed = ledger.filter(|ledger| led && Some(&ledger.value) == self.sealed_last().as_ref());
        Ok(sealed.map(|ledger| ledger.revision))
    }
}

impl Operation for Roll {
    type Done = Rolled;
    type Lost = RollRefused;

    fn txn(&self, keys: &Keys) -> Txn {
        let partition = self.leadership.partition;
        let next = keys.segment(partition, self.next_sequence());
        let mut txn = Txn::default().require(self.leadership.guard(keys)).require(Guard::Absent(next));
        if let Some(last) = &self.last {
            txn = txn.require(last.ledger.unchanged(keys.ledger(last.segment.ledger)));
        }
        txn = self.end_last(txn, keys);
        if let (Some(open), Some((segment, ledger))) = (&self.open, self.new_segment()) {
            if !planted(Fault::PublishFromReleasedBlock) {
                txn = txn.require(open.block.guard(keys));
            }
            if planted(Fault::NamingWithoutGuards) {
                txn.guards.clear();
            }
            txn = txn
                .put(keys.segment(partition, self.place()), segment.encode())
                .put(keys.ledger(open.id), ledger.encode());
        }
        txn
    }

    fn done(&self, at: Revision) -> Rolled {
        self.rolled(at)
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        let block = self.open.as_ref().map_or(0, |open| open.block.block.value.first);
        vec![
            keys.partition(self.leadership.partition),
            keys.id_block(IdKind::Ledgers, block),
            keys.ledger(self.last.as_ref().map(|last| last.segment.ledger).unwrap_or_default()),
            keys.segment(self.leadership.partition, self.next_sequence()),
            keys.segment(self.leadership.partition, self.place()),
        ]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Rolled, RollRefused>, StoreError> {
        let Ok(evidence) = <&[Option<KeyValue>; 5]>::try_from(found) else {
            return Err(incomplete_evidence());
        };
        let evidence = evidence.each_ref().map(Option::as_ref);
        if let Some(at) = self.happened(evidence)? {
            return Ok(Verdict::done(self.rolled(at)));
        }
        Ok(self.broken_guard(evidence).map_or(Verdict::Pending, Verdict::lost))
    }
}
