//! A partition that this process leads: its writer, the ledgers that it will
//! write to, and its rolls. A machine without I/O, as [`PartitionWriter`] and
//! [`ChainWriter`], which it steps: each call says what happened, and [`Effects`]
//! says what its driver is to do, in that order.
//!
//! A piece is appended once an entry is certain to find a ledger; until then it
//! waits here, where its deadline can still fail it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_ledger::chain::{self, ChainWriter};
use quire_ledger::clock::Millis;
use quire_ledger::message::{Append, Response};
use quire_ledger::writer::Cause;
use quire_metadata::ledger::Sealed;
use quire_metadata::operation::Outcome;
use quire_metadata::operations::roll::{self, InvalidRoll, Last, RollRefused, Rolled};
use quire_metadata::partition::Leadership;
use quire_metadata::store::StoreError;
use quire_proto::id::{BookieId, Epoch, LedgerId};
use quire_proto::v1::ErrorReason;
use smallvec::SmallVec;

use crate::failure::{self, Failure};
use crate::leadership::Promoted;
use crate::log::partition::Standing;
use crate::log::{PartitionLog, StoredEntry};
use crate::pool::{NoLedger, Spare};
use crate::shard::piece::Piece;
use crate::shard::writer::{Now, PartitionWriter};

/// How a roll's transaction ended.
pub type RollResult = Result<Outcome<Rolled, RollRefused>, StoreError>;

/// What a leader wants done.
#[derive(Debug)]
pub enum Effect {
    /// Send this append, or answer with [`chain::Event::LinkBroken`].
    Send { bookie: BookieId, append: Append },
    /// Send [`quire_ledger::message::Request::State`], and answer with
    /// [`Leader::state_answered`], or with [`chain::Event::LinkBroken`] when there
    /// is no link.
    AskState { bookie: BookieId, ledger: LedgerId },
    /// Take a ledger from the pool: [`Leader::ledger_ready`], after
    /// [`Leader::no_ledger`] while there is none.
    RequestLedger,
    /// Put this ledger back into the pool.
    ReturnLedger(Spare),
    /// Answer with [`Leader::metadata_answered`].
    ProbeMetadata,
    /// Run this transaction until its outcome is known, and answer with
    /// [`Leader::rolled`] (W4).
    Roll(Box<roll::Roll>),
    /// A roll has applied: `closed` is not written any more, reports about
    /// `opened` are for this leader.
    Rolled { closed: Option<LedgerId>, opened: Option<LedgerId> },
    /// These entries are committed and in the log's tail.
    Committed(Vec<Arc<StoredEntry>>),
    /// This replica gets nothing more of this ledger.
    GaveUp { bookie: BookieId, ledger: LedgerId, cause: Cause },
    /// Somebody has to look at this. The leader steps down.
    Alarm(Alarm),
    /// The last effect: another leads, or everything is sealed and the partition
    /// closed. [`Leader::stop`] follows.
    Ended,
}

/// What must not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    /// The chain is not as this leader knows it.
    #[error("a roll contradicts the protocol: {0}")]
    Roll(#[from] InvalidRoll),
    /// A snapshot would be of another offset.
    #[error("the writer's state is not that of the chain's end")]
    State,
}

/// What leaders want done, in order. Reused, so that a step allocates nothing.
#[derive(Debug, Default)]
pub struct Effects {
    list: Vec<Effect>,
    actions: Vec<chain::Action>,
}

impl Effects {
    /// Takes everything out.
    pub fn drain(&mut self) -> impl Iterator<Item = Effect> {
        self.list.drain(..)
    }

    #[cfg(test)]
    pub fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }
}

/// A ledger of the pool.
#[derive(Debug)]
struct Offered {
    spare: Spare,
    age_ms: u64,
}

/// A partition that this process leads.
#[derive(Debug)]
pub struct Leader {
    writer: PartitionWriter,
    leadership: Leadership,
    /// The chain's last segment.
    last: Option<Last>,
    /// Pieces that wait for a ledger to be had; nothing of them is appended.
    waiting: VecDeque<Piece>,
    /// The first of their deadlines.
    waiting_until: Option<Millis>,
    /// Why there is no ledger, while there is none.
    shortage: Option<NoLedger>,
    /// The pool was asked.
    requested: bool,
    /// The chain asked, and has not been answered.
    asked: bool,
    /// A ledger for the chain's next request.
    reserved: Option<Offered>,
    /// Ledgers that the chain has and that are not published yet.
    offered: SmallVec<[Spare; 1]>,
    /// The chain waits for metadata to answer.
    wants_probe: bool,
    /// No piece is taken any more.
    closing: bool,
}

impl Leader {
    /// Goes on from where the last leader ended (T7).
    #[must_use]
    pub fn new(promoted: Promoted, options: chain::Options, producer_expiry: Duration) -> Self {
        let Promoted { log, leadership, last, segments, restored } = promoted;
        let chain = ChainWriter::new(leadership.epoch, restored.next_offset, options);
        log.leading(leadership.epoch, segments, restored.next_offset);
        Self {
            writer: PartitionWriter::new(log, chain, restored, producer_expiry),
            leadership,
            last,
            waiting: VecDeque::new(),
            waiting_until: None,
            shortage: None,
            requested: false,
            asked: false,
            reserved: None,
            offered: SmallVec::new(),
            wants_probe: false,
            closing: false,
        }
    }

    /// What readers see of the partition.
    #[must_use]
    pub const fn log(&self) -> &Arc<PartitionLog> {
        &self.writer.log
    }

    /// The epoch that it leads under.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.leadership.epoch
    }

    /// The ledger that is written, if one is open.
    #[must_use]
    pub fn ledger(&self) -> Option<LedgerId> {
        self.writer.chain.ledger()
    }

    /// When [`Leader::tick`] is of use next.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        self.writer.chain.deadline().into_iter().chain(self.waiting_until).min()
    }

    /// A piece of a produce request. True when something was staged: then
    /// [`Leader::flush`] is to follow, after the other pieces that are there.
    pub fn produce(&mut self, now: Now, piece: Piece, effects: &mut Effects) -> bool {
        if self.closing {
            piece.reply.end(Err(failure::shutting_down()));
            return false;
        }
        if self.waiting.is_empty() && self.has_ledger() {
            self.writer.stage(now, piece, &mut effects.actions);
            self.carry_out(now, effects);
            return true;
        }
        let until = self.waiting_until.map_or(piece.deadline, |until| until.min(piece.deadline));
        self.waiting_until = Some(until);
        self.waiting.push_back(piece);
        self.request_ledger(effects);
        false
    }

    /// What was staged becomes one entry and is appended.
    pub fn flush(&mut self, now: Now, effects: &mut Effects) {
        self.writer.flush(now, &mut effects.actions);
        self.carry_out(now, effects);
    }

    /// Something that concerns the chain alone: what bookies and links report,
    /// and wishes.
    pub fn step(&mut self, now: Now, event: chain::Event, effects: &mut Effects) {
        self.writer.chain.step(now.millis, event, &mut effects.actions);
        self.carry_out(now, effects);
    }

    /// What became of [`Effect::AskState`]; `Err` says why there is no answer. A
    /// question that fails on a link that stays, or is not answered in time, is
    /// asked again.
    pub fn state_answered(
        &mut self,
        now: Now,
        bookie: BookieId,
        ledger: LedgerId,
        result: Result<Response, String>,
        effects: &mut Effects,
    ) {
        let response = result.unwrap_or_else(Response::Unknown);
        self.step(now, chain::Event::State { bookie, ledger, response }, effects);
    }

    /// A ledger that was requested. It rolls at this age, which differs from
    /// ledger to ledger. What waited for it is staged and appended.
    pub fn ledger_ready(&mut self, now: Now, spare: Spare, age_ms: u64, effects: &mut Effects) {
        self.requested = false;
        self.shortage = None;
        self.writer.log.set_stuck(None);
        self.waiting_until = None;
        let offered = Offered { spare, age_ms };
        if self.asked {
            let ready = self.offer(offered);
            self.step(now, ready, effects);
        } else {
            self.reserved = Some(offered);
        }
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return;
        }
        for piece in waiting {
            self.writer.stage(now, piece, &mut effects.actions);
        }
        self.flush(now, effects);
    }

    /// There is no ledger yet; the request stands until there is one.
    pub fn no_ledger(&mut self, now: Now, cause: NoLedger, effects: &mut Effects) {
        self.writer.log.set_stuck(Some(cause.to_string()));
        self.shortage = Some(cause);
        if self.asked {
            self.step(now, chain::Event::NoLedger, effects);
        }
    }

    /// Metadata answered a read that was sent then (W4).
    pub fn metadata_answered(&mut self, now: Now, sent: Millis, effects: &mut Effects) {
        if std::mem::take(&mut self.wants_probe) {
            self.step(now, chain::Event::MetadataAnswered { sent }, effects);
        }
    }

    /// What became of a roll.
    pub fn rolled(&mut self, now: Now, result: RollResult, effects: &mut Effects) {
        let event = match result {
            Ok(Outcome::Done(rolled)) => self.apply_roll(now, rolled, effects),
            Ok(Outcome::Lost(RollRefused::BlockReleased)) => {
                self.offered.clear();
                chain::Event::BlockReleased
            }
            Ok(Outcome::Lost(RollRefused::Deposed | RollRefused::ChainChanged)) | Err(_) => {
                chain::Event::Deposed
            }
        };
        self.step(now, event, effects);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now, effects: &mut Effects) {
        self.expire_waiting(now.millis);
        self.step(now, chain::Event::Tick, effects);
    }

    /// Takes no more, finishes what there is, seals, and ends.
    pub fn close(&mut self, now: Now, effects: &mut Effects) {
        self.closing = true;
        self.waiting_until = None;
        let waiting = std::mem::take(&mut self.waiting);
        waiting.into_iter().for_each(|piece| piece.reply.end(Err(failure::shutting_down())));
        self.step(now, chain::Event::Close, effects);
    }

    /// Leads no longer, whatever is under way: what waits fails, and what is
    /// appended has an unknown outcome. A ledger that was not used comes back.
    pub fn stop(self, standing: Standing) -> Option<Spare> {
        self.writer.log.stopped(standing);
        let name = self.writer.log.name();
        self.waiting.into_iter().for_each(|piece| piece.reply.end(Err(failure::not_leader(&name))));
        self.reserved.map(|offered| offered.spare)
    }

    /// Whether an append is certain to find a ledger.
    fn has_ledger(&self) -> bool {
        let chain = &self.writer.chain;
        chain.ledger().is_some() || chain.is_rolling() || self.reserved.is_some() || !self.offered.is_empty()
    }

    fn request_ledger(&mut self, effects: &mut Effects) {
        if !std::mem::replace(&mut self.requested, true) {
            effects.list.push(Effect::RequestLedger);
        }
    }

    fn offer(&mut self, Offered { spare, age_ms }: Offered) -> chain::Event {
        self.asked = false;
        let ledger = chain::NewLedger { ledger: spare.ledger, ensemble: spare.ensemble.clone(), age_ms };
        self.offered.push(spare);
        chain::Event::LedgerReady(ledger)
    }

    /// Does what the chain asks for, as far as it is for the leader to do.
    fn carry_out(&mut self, now: Now, effects: &mut Effects) {
        let mut actions = std::mem::take(&mut effects.actions);
        let mut follow: SmallVec<[chain::Event; 1]> = SmallVec::new();
        loop {
            for action in actions.drain(..) {
                follow.extend(self.carry_out_one(now, action, effects));
            }
            if follow.is_empty() {
                break;
            }
            for event in follow.drain(..) {
                self.writer.chain.step(now.millis, event, &mut actions);
            }
        }
        effects.actions = actions;
    }

    /// What the chain is told at once.
    fn carry_out_one(
        &mut self,
        now: Now,
        action: chain::Action,
        effects: &mut Effects,
    ) -> Option<chain::Event> {
        let effect = match action {
            chain::Action::Send { bookie, append } => Effect::Send { bookie, append },
            chain::Action::AskState { bookie, ledger } => Effect::AskState { bookie, ledger },
            chain::Action::FirstDurable { through } => {
                self.writer.first_durable(through);
                return None;
            }
            chain::Action::Committed { through, end, .. } => {
                Effect::Committed(self.writer.committed(through, end))
            }
            chain::Action::NeedLedger => {
                self.asked = true;
                if let Some(offered) = self.reserved.take() {
                    return Some(self.offer(offered));
                }
                self.request_ledger(effects);
                return None;
            }
            chain::Action::ReturnLedger(ledger) => {
                let place = self.offered.iter().position(|spare| spare.ledger == ledger.ledger)?;
                Effect::ReturnLedger(self.offered.remove(place))
            }
            chain::Action::ProbeMetadata => {
                self.wants_probe = true;
                Effect::ProbeMetadata
            }
            chain::Action::Roll(roll) => match self.roll(now, &roll) {
                Ok(operation) => Effect::Roll(Box::new(operation)),
                Err(invalid) => {
                    effects.list.push(Effect::Alarm(invalid.into()));
                    return Some(chain::Event::Deposed);
                }
            },
            chain::Action::GaveUp { bookie, ledger, cause } => Effect::GaveUp { bookie, ledger, cause },
            chain::Action::Failed { from, through, determinate } => {
                self.writer.failed(from, through, determinate);
                return None;
            }
            chain::Action::Deposed | chain::Action::Closed => Effect::Ended,
        };
        effects.list.push(effect);
        None
    }

    fn roll(&self, now: Now, roll: &chain::Roll) -> Result<roll::Roll, InvalidRoll> {
        let seal = roll.seal.as_ref().map(|seal| Sealed {
            end: seal.end,
            next_offset: seal.next_offset,
            bytes: seal.bytes,
            complete: seal.complete.clone(),
            max_timestamp_ms: self.writer.segment_max_ms(),
            sealed_ms: now.wall_ms,
        });
        let open = roll.open.as_ref().and_then(|open| {
            let spare = self.offered.iter().find(|spare| spare.ledger == open.ledger)?;
            Some(roll::NewLedger {
                id: open.ledger,
                replicas: open.ensemble.replicas().to_vec(),
                ack_quorum: u32::try_from(open.ensemble.ack_quorum()).unwrap_or(u32::MAX),
                created_ms: now.wall_ms,
                block: (*spare.block).clone(),
            })
        });
        roll::Roll::new(self.leadership, self.last.clone(), seal, open)
    }

    fn apply_roll(&mut self, now: Now, rolled: Rolled, effects: &mut Effects) -> chain::Event {
        let closed = self.last.as_ref().map(|last| last.segment.ledger);
        let sealed = rolled.previous.as_ref().filter(|_| closed.is_some());
        self.writer.log.rolled(closed.unwrap_or_default(), sealed, rolled.opened.as_ref());
        let opened = rolled.opened.as_ref().map(|opened| opened.segment);
        effects.list.push(Effect::Rolled { closed, opened: opened.map(|opened| opened.ledger) });
        let snapshot = match opened {
            Some(opened) => {
                self.offered.retain(|spare| spare.ledger != opened.ledger);
                self.writer.snapshot(opened.base_offset, now)
            }
            None => Some(Vec::new()),
        };
        self.writer.segment_began();
        self.last = rolled.opened.or(rolled.previous);
        match snapshot {
            Some(snapshot) => chain::Event::RollApplied { snapshot },
            None => {
                effects.list.push(Effect::Alarm(Alarm::State));
                chain::Event::Deposed
            }
        }
    }

    fn expire_waiting(&mut self, now: Millis) {
        if self.waiting_until.is_none_or(|until| until > now) {
            return;
        }
        let name = self.writer.log.name();
        let failure = match &self.shortage {
            Some(cause) => Failure::new(shortage_reason(cause), format!("{name}: {cause}; try again")),
            None => {
                let text = format!("{name}: no ledger could be opened in time");
                Failure::new(ErrorReason::NotEnoughBookies, text)
            }
        };
        let (expired, waiting): (VecDeque<_>, _) =
            std::mem::take(&mut self.waiting).into_iter().partition(|piece| piece.deadline <= now);
        self.waiting = waiting;
        self.waiting_until = self.waiting.iter().map(|piece| piece.deadline).min();
        expired.into_iter().for_each(|piece| piece.reply.end(Err(failure.clone())));
    }
}

const fn shortage_reason(cause: &NoLedger) -> ErrorReason {
    match cause {
        NoLedger::Bookies { .. } | NoLedger::Refused(_) => ErrorReason::NotEnoughBookies,
        NoLedger::Full { .. } => ErrorReason::StorageFull,
        NoLedger::Store(_) => ErrorReason::MetadataUnavailable,
    }
}

#[cfg(test)]
pub mod tests;
