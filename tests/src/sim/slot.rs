//! One partition on a broker of a run: which of the shipped machines it is at,
//! from a take-over (T1, T2) over its [`Promotion`] (T3 to T7) to its [`Leader`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_broker::call::{Call, Outcome as Answered};
use quire_broker::leadership::promotion::{self, Event, Promotion};
use quire_broker::leadership::scan;
use quire_broker::leadership::take_over::Taken;
use quire_broker::log::PartitionLog;
use quire_broker::log::partition::Standing;
use quire_broker::pool::{NoLedger, Spare};
use quire_broker::shard::leader::{self, Effects, Leader, RollResult};
use quire_broker::shard::piece::{Acks as PieceAcks, Piece};
use quire_broker::shard::writer::Now;
use quire_ledger::chain::{self, Window};
use quire_ledger::clock::Millis;
use quire_ledger::message::{AppendEvent, Request, Response};
use quire_ledger::recovery;
use quire_proto::batch::Batch;
use quire_proto::id::{BookieId, Epoch, LedgerId};
use smallvec::smallvec;
use tokio::sync::oneshot;

use super::batches;
use super::client::{Acks, Produce};

/// What is not appended in this time fails.
const PRODUCE_TIMEOUT_MS: u64 = 400;

/// What a slot wants done.
#[derive(Debug)]
pub enum Effect {
    Promotion(promotion::Effect),
    Leader(leader::Effect),
    /// For the trace and the counters.
    Note(&'static str, String),
    /// Another leads: the slot is of no use any more.
    Over,
}

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    Promotion(Request),
    /// The leader asks for a replica's state.
    State(LedgerId),
}

/// A slot's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub roll_entries: u64,
    pub idle_ms: u64,
}

/// A produce request that was answered.
pub type Reply = (Produce, Answered);

/// A partition on a broker.
#[derive(Debug)]
pub struct Slot {
    pub log: Arc<PartitionLog>,
    settings: Settings,
    phase: Phase,
    /// Requests that may not be answered yet.
    replies: VecDeque<(Produce, oneshot::Receiver<Vec<Answered>>)>,
    effects: Effects,
}

#[derive(Debug)]
enum Phase {
    TakingOver,
    Promotion(Box<Promotion>),
    Leading(Box<Leader>),
    Over,
}

impl Slot {
    /// A partition that is about to be taken over.
    #[must_use]
    pub fn new(log: Arc<PartitionLog>, settings: Settings) -> Self {
        let phase = Phase::TakingOver;
        Self { log, settings, phase, replies: VecDeque::new(), effects: Effects::default() }
    }

    /// Whether it leads.
    #[must_use]
    pub const fn is_leading(&self) -> bool {
        matches!(self.phase, Phase::Leading(_))
    }

    /// The epoch that it minted.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        match &self.phase {
            Phase::Promotion(promotion) => Some(promotion.epoch()),
            Phase::Leading(leader) => Some(leader.epoch()),
            Phase::TakingOver | Phase::Over => None,
        }
    }

    /// What it is at, for the trace.
    #[must_use]
    pub fn phase(&self) -> &'static str {
        match &self.phase {
            Phase::TakingOver => "taking over",
            Phase::Promotion(promotion) if promotion.unsealed().is_some() => "recovering",
            Phase::Promotion(_) => "restoring",
            Phase::Leading(_) => "leading",
            Phase::Over => "over",
        }
    }

    /// Why its recovery waits, if it does.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        match &self.phase {
            Phase::Promotion(promotion) => promotion.waiting().map(|waiting| waiting.to_string()),
            _ => None,
        }
    }

    /// When it wants to be ticked next.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        match &self.phase {
            Phase::Promotion(promotion) => promotion.deadline(),
            Phase::Leading(leader) => leader.deadline(),
            Phase::TakingOver | Phase::Over => None,
        }
    }

    /// T1 and T2 are done.
    pub fn taken_over(&mut self, now: Now, Taken { view, taken }: Taken, out: &mut Vec<Effect>) {
        let recovery = recovery::Options {
            retry_ms: 20,
            retry_max_ms: 200,
            grace_ms: 10,
            targets_after_ms: 150,
            read_entries: 4,
            ..recovery::Options::default()
        };
        let scan = scan::Options {
            read_entries: 16,
            read_bytes: 64 << 10,
            retry_ms: 20,
            retry_max_ms: 100,
            ..scan::Options::default()
        };
        let options = promotion::Options { recovery, scan };
        let mut promotion = Promotion::new(Arc::clone(&self.log), &view, taken, options);
        let mut effects = Vec::new();
        promotion.start(now, &mut effects);
        self.phase = Phase::Promotion(Box::new(promotion));
        self.promotion_effects(effects, out);
    }

    /// The take-over came to nothing.
    pub fn not_taken_over(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        self.log.stopped(Standing::Deposed);
        out.push(Effect::Over);
    }

    /// Something for the promotion, if it is at that.
    pub fn promotion_step(&mut self, now: Now, event: Event, out: &mut Vec<Effect>) {
        let Phase::Promotion(promotion) = &mut self.phase else { return };
        let mut effects = Vec::new();
        promotion.step(now, event, &mut effects);
        self.promotion_effects(effects, out);
    }

    fn promotion_effects(&mut self, effects: Vec<promotion::Effect>, out: &mut Vec<Effect>) {
        for effect in effects {
            out.push(match effect {
                promotion::Effect::Blocked(blocked) => {
                    Effect::Note("a recovery was blocked", blocked.to_string())
                }
                promotion::Effect::Alarm(alarm) => {
                    Effect::Note("a promotion raised an alarm", alarm.to_string())
                }
                promotion::Effect::ReadFailed(failed) => {
                    Effect::Note("headers could not be read", failed.to_string())
                }
                promotion::Effect::Recovered(ledger) => {
                    Effect::Note("a ledger was recovered", ledger.to_string())
                }
                promotion::Effect::Promoted(promoted) => self.lead(*promoted),
                promotion::Effect::Deposed => {
                    self.phase = Phase::Over;
                    Effect::Over
                }
                effect => Effect::Promotion(effect),
            });
        }
    }

    fn lead(&mut self, promoted: promotion::Promoted) -> Effect {
        let options = chain::Options {
            roll_entries: self.settings.roll_entries,
            idle_ms: self.settings.idle_ms,
            window: Window { bytes: 16 << 10, ms: 300 },
            metadata_fresh_ms: 100,
            drain_ms: 20,
            ..chain::Options::default()
        };
        let (epoch, next_offset) = (promoted.leadership.epoch, promoted.restored.next_offset);
        self.phase = Phase::Leading(Box::new(Leader::new(promoted, options, Duration::from_secs(3600))));
        Effect::Note("a partition is led", format!("epoch {epoch} from {next_offset}"))
    }

    /// Something for the leader, if it is one.
    pub fn leader_step(
        &mut self,
        now: Now,
        step: impl FnOnce(&mut Leader, Now, &mut Effects),
        out: &mut Vec<Effect>,
    ) {
        let Phase::Leading(leader) = &mut self.phase else { return };
        step(leader, now, &mut self.effects);
        for effect in self.effects.drain() {
            match effect {
                leader::Effect::GaveUp { bookie, ledger, cause } => {
                    let what =
                        if cause.is_alarm() { "a replica was distrusted" } else { "a replica was given up" };
                    out.push(Effect::Note(what, format!("ledger {ledger} on {bookie}: {cause}")));
                }
                leader::Effect::Alarm(alarm) => {
                    out.push(Effect::Note("a leader raised an alarm", alarm.to_string()));
                }
                leader::Effect::Ended => {
                    out.push(Effect::Note("a leader was deposed", String::new()));
                    out.push(Effect::Over);
                }
                leader::Effect::Rolled { .. } | leader::Effect::Committed(_) => {}
                effect => out.push(Effect::Leader(effect)),
            }
        }
    }

    /// A produce request arrives. Nothing comes back when it is answered later.
    pub fn produce(&mut self, now: Now, produce: Produce, out: &mut Vec<Effect>) -> Option<Produce> {
        if !self.is_leading() {
            return Some(produce);
        }
        let bytes = batches::seal(produce.flight.batch, produce.flight.records, produce.flight.stamp);
        let batch = Batch::split(bytes).ok().and_then(|mut batches| batches.pop());
        let Some(batch) = batch else { return Some(produce) };
        let (_, mut replies, outcome) = Call::new(1, None);
        let Some(reply) = replies.pop() else { return Some(produce) };
        let acks = match produce.acks {
            Acks::All => PieceAcks::All,
            Acks::Leader => PieceAcks::Leader,
            Acks::None => PieceAcks::None,
        };
        let deadline = now.millis + PRODUCE_TIMEOUT_MS;
        let piece = Piece { partition: self.log.id, batches: smallvec![batch], acks, deadline, reply };
        self.replies.push_back((produce, outcome));
        self.leader_step(
            now,
            |leader, now, effects| {
                if leader.produce(now, piece, effects) {
                    leader.flush(now, effects);
                }
            },
            out,
        );
        None
    }

    /// Requests that were answered since the last time, in the order they came.
    pub fn replies(&mut self) -> Vec<Reply> {
        let mut answered = Vec::new();
        let mut open = VecDeque::new();
        for (produce, mut outcome) in std::mem::take(&mut self.replies) {
            match outcome.try_recv() {
                Ok(mut outcomes) => answered.extend(outcomes.pop().map(|outcome| (produce, outcome))),
                Err(_) => open.push_back((produce, outcome)),
            }
        }
        self.replies = open;
        answered
    }

    /// It is of no use any more: everything that is open is answered. A ledger
    /// that was not used comes back.
    pub fn stop(&mut self) -> Option<Spare> {
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Leading(leader) => leader.stop(Standing::Deposed),
            Phase::TakingOver | Phase::Promotion(_) | Phase::Over => None,
        }
    }

    /// A ledger is there. One that nobody waits for any more comes back.
    pub fn ledger_ready(&mut self, now: Now, spare: Spare, out: &mut Vec<Effect>) -> Option<Spare> {
        if !self.is_leading() {
            return Some(spare);
        }
        self.leader_step(now, |leader, now, effects| leader.ledger_ready(now, spare, 3_000, effects), out);
        None
    }

    /// There is none yet; the pool goes on trying.
    pub fn no_ledger(&mut self, now: Now, cause: NoLedger, out: &mut Vec<Effect>) {
        self.leader_step(now, |leader, now, effects| leader.no_ledger(now, cause, effects), out);
    }

    /// What became of a roll.
    pub fn rolled(&mut self, now: Now, result: RollResult, out: &mut Vec<Effect>) {
        self.leader_step(now, |leader, now, effects| leader.rolled(now, result, effects), out);
    }

    /// A bookie's answer.
    pub fn answered(
        &mut self,
        now: Now,
        bookie: BookieId,
        asked: Asked,
        result: Result<Response, String>,
        out: &mut Vec<Effect>,
    ) {
        match asked {
            Asked::Promotion(request) => {
                self.promotion_step(now, Event::Called { bookie, request, result }, out);
            }
            Asked::State(ledger) => self.leader_step(
                now,
                |leader, now, effects| leader.state_answered(now, bookie, ledger, result, effects),
                out,
            ),
        }
    }

    /// Something for the leader's chain, if it is one.
    pub fn chain_step(&mut self, now: Now, event: chain::Event, out: &mut Vec<Effect>) {
        self.leader_step(now, |leader, now, effects| leader.step(now, event, effects), out);
    }

    /// Something about an append stream.
    pub fn appended(&mut self, now: Now, bookie: BookieId, event: &AppendEvent, out: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Leading(leader) => {
                let Some(event) = leader.ledger().and_then(|ledger| chain_event(bookie, ledger, event))
                else {
                    return;
                };
                self.chain_step(now, event, out);
            }
            _ => self.promotion_step(now, Event::Appended { bookie, event: event.clone() }, out),
        }
    }

    /// The link to a bookie broke, or there is none.
    pub fn link_broken(&mut self, now: Now, bookie: BookieId, out: &mut Vec<Effect>) {
        self.promotion_step(now, Event::LinkBroken { bookie }, out);
        self.chain_step(now, chain::Event::LinkBroken { bookie }, out);
    }

    /// There is a link to a bookie again.
    pub fn link_up(&mut self, now: Now, bookie: BookieId, out: &mut Vec<Effect>) {
        self.promotion_step(now, Event::LinkUp { bookie }, out);
        self.chain_step(now, chain::Event::LinkUp { bookie }, out);
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.promotion_step(now, Event::Tick, out);
        self.leader_step(now, Leader::tick, out);
    }
}

/// What it says of the ledger that is written.
fn chain_event(bookie: BookieId, current: LedgerId, event: &AppendEvent) -> Option<chain::Event> {
    Some(match event {
        AppendEvent::Durable(lengths) => {
            let (ledger, durable) = *lengths.iter().find(|(ledger, _)| *ledger == current)?;
            chain::Event::Durable { bookie, ledger, durable }
        }
        &AppendEvent::Gap { ledger, attempt, accepted } => {
            chain::Event::Gap { bookie, ledger, attempt, accepted }
        }
        &AppendEvent::Refused { ledger, attempt, reason } => {
            chain::Event::Refused { bookie, ledger, attempt, reason }
        }
    })
}
