//! One partition on a broker of a run: the shipped machines, stepped one after
//! another, and nothing that waits.
//!
//! A slot goes from take-over (T1, T2) to recovery (T3 to T6), restores the
//! state that the entries made (snapshot and headers), and then leads (T7).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use quire_broker::call::{Call, Outcome as Answered};
use quire_broker::leadership::scan::Scan;
use quire_broker::log::PartitionLog;
use quire_broker::log::partition::{Segment, Standing};
use quire_broker::shard::piece::{Acks as PieceAcks, Piece};
use quire_broker::shard::writer::{Now, PartitionWriter, Restored};
use quire_ledger::chain::{self, ChainWriter, NewLedger, Window};
use quire_ledger::clock::Millis;
use quire_ledger::ensemble::Ensemble;
use quire_ledger::fault::{self, Fault};
use quire_ledger::message::{Append, AppendEvent, Read, Request, Response};
use quire_ledger::recovery::{self, Recovery, State as LedgerStanding, View};
use quire_metadata::ledger::{LedgerMetadata, LedgerState, Sealed};
use quire_metadata::operation::Outcome;
use quire_metadata::operations::ids::HeldBlock;
use quire_metadata::operations::recovery::{InvalidStep, RecoveryStep, StepRefused};
use quire_metadata::operations::roll::{self, Last, RollRefused, Rolled};
use quire_metadata::operations::take_over::TakenOver;
use quire_metadata::partition::Leadership;
use quire_metadata::store::StoreError;
use quire_metadata::typed::Versioned;
use quire_metadata::view::PartitionView;
use quire_proto::batch::Batch;
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId};
use smallvec::smallvec;
use tokio::sync::oneshot;

use super::batches;
use super::client::{Acks, Produce};

/// A ledger that is created on all its replicas and that nobody names.
#[derive(Clone, Debug)]
pub struct Spare {
    pub ledger: LedgerId,
    pub ensemble: Ensemble,
    pub block: HeldBlock,
}

/// What a slot wants done.
#[derive(Debug)]
pub enum Effect {
    Send(BookieId, Append),
    Call(BookieId, Request, Asked),
    NeedLedger,
    ReturnLedger(Spare),
    ProbeMetadata,
    Roll(Box<roll::Roll>),
    Step(Box<RecoveryStep>),
    ReadLedger(LedgerId),
    /// Name so many bookies as targets.
    NameTargets(usize),
    /// For the trace and the counters.
    Note(&'static str, String),
    /// Another leads: the slot is of no use any more.
    Over,
}

/// What a call is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The recovery machine.
    Recovery(Request),
    /// The chain's writer asks for a replica's state.
    State(LedgerId),
    /// The headers of a ledger, from this entry on.
    Scan(EntryId),
}

/// A slot's clock and settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub roll_entries: u64,
    pub idle_ms: u64,
}

/// A partition on a broker.
#[derive(Debug)]
pub struct Slot {
    pub log: Arc<PartitionLog>,
    settings: Settings,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    TakingOver,
    Recovering(Box<Recovering>),
    Restoring(Box<Restoring>),
    Leading(Box<Leading>),
    Over,
}

#[derive(Debug)]
struct Recovering {
    leadership: Leadership,
    last: Last,
    segments: Vec<Segment>,
    machine: Recovery,
    sealing: Option<(recovery::Seal, Headers)>,
}

#[derive(Debug)]
struct Restoring {
    leadership: Leadership,
    last: Option<Last>,
    segments: Vec<Segment>,
    /// Which of the segments is read; counted from the front.
    at: usize,
    headers: Headers,
}

/// The headers of a ledger, being read.
#[derive(Debug)]
struct Headers {
    ledger: LedgerId,
    end: EntryId,
    sources: Vec<BookieId>,
    source: usize,
    from: EntryId,
    scan: Scan,
    /// No source gave it: wait until then.
    retry_at: Option<Millis>,
    under_way: bool,
}

#[derive(Debug)]
struct Leading {
    leadership: Leadership,
    last: Option<Last>,
    writer: PartitionWriter,
    requested: bool,
    asked: bool,
    offered: Vec<Spare>,
    rolling: bool,
    wants_probe: bool,
    replies: VecDeque<(Produce, oneshot::Receiver<Vec<Answered>>)>,
}

/// A produce request that was answered.
pub type Reply = (Produce, Answered);

impl Slot {
    /// A partition that is about to be taken over.
    #[must_use]
    pub const fn new(log: Arc<PartitionLog>, settings: Settings) -> Self {
        Self { log, settings, phase: Phase::TakingOver }
    }

    /// Whether it leads.
    #[must_use]
    pub const fn is_leading(&self) -> bool {
        matches!(self.phase, Phase::Leading(_))
    }

    /// Whether it is of no use any more.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// The epoch that it minted.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        match &self.phase {
            Phase::Recovering(recovering) => Some(recovering.leadership.epoch),
            Phase::Restoring(restoring) => Some(restoring.leadership.epoch),
            Phase::Leading(leading) => Some(leading.leadership.epoch),
            Phase::TakingOver | Phase::Over => None,
        }
    }

    /// What it is at, for the trace.
    #[must_use]
    pub const fn phase(&self) -> &'static str {
        match self.phase {
            Phase::TakingOver => "taking over",
            Phase::Recovering(_) => "recovering",
            Phase::Restoring(_) => "restoring",
            Phase::Leading(_) => "leading",
            Phase::Over => "over",
        }
    }

    /// Why its recovery waits, if it does.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        match &self.phase {
            Phase::Recovering(recovering) => recovering.machine.blocked().map(ToString::to_string),
            _ => None,
        }
    }

    /// Targets that its ledger names already, and its replicas.
    #[must_use]
    pub fn named(&self) -> Vec<BookieId> {
        match &self.phase {
            Phase::Recovering(recovering) => {
                let ledger = &recovering.last.ledger.value;
                ledger.replicas.iter().chain(&ledger.targets).copied().collect()
            }
            _ => Vec::new(),
        }
    }

    /// When it wants to be ticked next.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        match &self.phase {
            Phase::Recovering(recovering) => {
                let headers = recovering.sealing.as_ref().and_then(|(_, headers)| headers.retry_at);
                recovering.machine.deadline().into_iter().chain(headers).min()
            }
            Phase::Restoring(restoring) => restoring.headers.retry_at,
            Phase::Leading(leading) => leading.writer.chain.deadline(),
            Phase::TakingOver | Phase::Over => None,
        }
    }

    /// T1 and T2 are done.
    pub fn taken_over(&mut self, now: Now, view: &PartitionView, taken: TakenOver, out: &mut Vec<Effect>) {
        let mut segments: Vec<Segment> = view
            .chain
            .iter()
            .map(|link| {
                let (sequence, segment) = (link.sequence, link.segment.value);
                Segment::of(&Last { sequence, segment, ledger: link.ledger.clone() })
            })
            .collect();
        self.log.recovering(taken.leadership.epoch, segments.clone());
        let mut last = view.last();
        if let (Some(last), Some(now)) = (&mut last, taken.last) {
            last.ledger = now;
        }
        let leadership = taken.leadership;
        match last {
            Some(last) if last.ledger.value.sealed().is_none() => {
                segments.pop();
                self.recover(now, leadership, last, segments, out);
            }
            last => self.restore(now, leadership, last, segments, out),
        }
    }

    /// The take-over came to nothing.
    pub fn not_taken_over(&mut self, out: &mut Vec<Effect>) {
        self.over(out);
    }

    fn over(&mut self, out: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        self.log.stopped(Standing::Deposed);
        out.push(Effect::Over);
    }

    fn recover(
        &mut self,
        now: Now,
        leadership: Leadership,
        last: Last,
        segments: Vec<Segment>,
        out: &mut Vec<Effect>,
    ) {
        let Some(view) = view_of(&last.ledger.value) else { return self.over(out) };
        let options = recovery::Options {
            retry_ms: 20,
            retry_max_ms: 200,
            grace_ms: 10,
            targets_after_ms: 150,
            read_entries: 4,
            ..recovery::Options::default()
        };
        let mut actions = Vec::new();
        let machine = Recovery::start(now.millis, leadership.epoch, view, options, &mut actions);
        let recovering = Recovering { leadership, last, segments, machine, sealing: None };
        self.phase = Phase::Recovering(Box::new(recovering));
        self.recovery_actions(now, actions, out);
    }

    fn recovery_step(&mut self, now: Now, event: recovery::Event, out: &mut Vec<Effect>) {
        let Phase::Recovering(recovering) = &mut self.phase else { return };
        let mut actions = Vec::new();
        recovering.machine.step(now.millis, event, &mut actions);
        self.recovery_actions(now, actions, out);
    }

    fn recovery_actions(&mut self, now: Now, actions: Vec<recovery::Action>, out: &mut Vec<Effect>) {
        for action in actions {
            let Phase::Recovering(recovering) = &mut self.phase else { return };
            match action {
                recovery::Action::Claim { .. } => {
                    let step = RecoveryStep::start(recovering.leadership, recovering.last.ledger.clone());
                    out.push(step_or_read(step, recovering.last.segment.ledger));
                }
                recovery::Action::ReadMetadata { ledger } => out.push(Effect::ReadLedger(ledger)),
                recovery::Action::NameTargets { count, .. } => out.push(Effect::NameTargets(count)),
                recovery::Action::Call { bookie, request } => {
                    out.push(Effect::Call(bookie, request.clone(), Asked::Recovery(request)));
                }
                recovery::Action::Append { bookie, append } => out.push(Effect::Send(bookie, append)),
                recovery::Action::Seal(seal) => {
                    let ledger = recovering.last.segment.ledger;
                    let headers = Headers::new(ledger, seal.end, seal.complete.clone());
                    recovering.sealing = Some((seal, headers));
                    self.read_headers(now, out);
                }
                recovery::Action::Blocked(blocked) => {
                    out.push(Effect::Note("a recovery was blocked", blocked.to_string()));
                }
                recovery::Action::Alarm(alarm) => {
                    out.push(Effect::Note("a recovery raised an alarm", alarm.to_string()));
                }
                recovery::Action::Done(outcome) => self.recovered(now, &outcome, out),
            }
        }
    }

    fn recovered(&mut self, now: Now, outcome: &recovery::Outcome, out: &mut Vec<Effect>) {
        let Phase::Recovering(recovering) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        let Recovering { leadership, last, mut segments, .. } = *recovering;
        match outcome {
            recovery::Outcome::Sealed { .. } if last.ledger.value.sealed().is_some() => {
                out.push(Effect::Note("a ledger was recovered", last.segment.ledger.to_string()));
                segments.push(Segment::of(&last));
                self.restore(now, leadership, Some(last), segments, out);
            }
            _ => self.over(out),
        }
    }

    /// Metadata of the ledger that is recovered, read after a step or for its
    /// own sake.
    pub fn ledger_read(&mut self, now: Now, found: Option<Versioned<LedgerMetadata>>, out: &mut Vec<Effect>) {
        let Phase::Recovering(recovering) = &mut self.phase else { return };
        let view = found.as_ref().and_then(|found| view_of(&found.value));
        if let Some(found) = found {
            recovering.last.ledger = found;
        }
        recovering.sealing = None;
        self.recovery_step(now, recovery::Event::Metadata(view), out);
    }

    /// What became of a step of the recovery.
    pub fn stepped(
        &mut self,
        now: Now,
        outcome: Outcome<Versioned<LedgerMetadata>, StepRefused>,
        out: &mut Vec<Effect>,
    ) {
        match outcome {
            Outcome::Done(found) => self.ledger_read(now, Some(found), out),
            Outcome::Lost(StepRefused::Sealed(found)) => self.ledger_read(now, Some(found), out),
            Outcome::Lost(StepRefused::Changed(found)) => self.ledger_read(now, found, out),
            Outcome::Lost(StepRefused::Deposed) => self.recovery_step(now, recovery::Event::Deposed, out),
        }
    }

    /// Bookies that may be named as targets.
    pub fn name_targets(&mut self, targets: Vec<BookieId>, out: &mut Vec<Effect>) {
        let Phase::Recovering(recovering) = &mut self.phase else { return };
        let all = recovering.last.ledger.value.targets.iter().copied().chain(targets).collect();
        let step = RecoveryStep::name_targets(recovering.leadership, recovering.last.ledger.clone(), all);
        out.push(step_or_read(step, recovering.last.segment.ledger));
    }

    fn headers(&mut self) -> Option<&mut Headers> {
        match &mut self.phase {
            Phase::Recovering(recovering) => recovering.sealing.as_mut().map(|(_, headers)| headers),
            Phase::Restoring(restoring) => Some(&mut restoring.headers),
            _ => None,
        }
    }

    fn read_headers(&mut self, now: Now, out: &mut Vec<Effect>) {
        let Some(headers) = self.headers() else { return };
        match headers.next() {
            Some((source, read)) => {
                out.push(Effect::Call(source, Request::Read(read), Asked::Scan(read.from)))
            }
            None if headers.is_done() => self.headers_read(now, out),
            None => {}
        }
    }

    fn scanned(
        &mut self,
        now: Now,
        bookie: BookieId,
        from: EntryId,
        result: Result<Response, String>,
        out: &mut Vec<Effect>,
    ) {
        if let Some(headers) = self.headers() {
            if let Err(why) = headers.answered(now, bookie, from, result) {
                out.push(Effect::Note("headers could not be read", why));
            }
            self.read_headers(now, out);
        }
    }

    fn headers_read(&mut self, now: Now, out: &mut Vec<Effect>) {
        match &mut self.phase {
            Phase::Recovering(recovering) => {
                let Some((seal, headers)) = recovering.sealing.take() else { return };
                let scan = headers.scan;
                let sealed = Sealed {
                    end: seal.end,
                    next_offset: scan.next_offset.unwrap_or(recovering.last.segment.base_offset),
                    bytes: scan.bytes,
                    complete: seal.complete,
                    max_timestamp_ms: scan.max_timestamp_ms,
                    sealed_ms: now.wall_ms,
                };
                let step = RecoveryStep::seal(
                    recovering.leadership,
                    recovering.last.ledger.clone(),
                    seal.replicas,
                    sealed,
                );
                out.push(step_or_read(step, recovering.last.segment.ledger));
            }
            Phase::Restoring(restoring) => match restoring.headers.scan.restored.take() {
                Some(restored) => self.restored(Some(restored), out),
                None if restoring.at > 0 => {
                    restoring.at -= 1;
                    restoring.headers = headers_of(&restoring.segments[restoring.at]);
                    self.read_headers(now, out);
                }
                None => self.restored(None, out),
            },
            _ => {}
        }
    }

    /// The state that the chain's entries made: the last whole snapshot and
    /// what follows it.
    fn restore(
        &mut self,
        now: Now,
        leadership: Leadership,
        last: Option<Last>,
        segments: Vec<Segment>,
        out: &mut Vec<Effect>,
    ) {
        let at = segments.len().saturating_sub(1);
        let headers = match segments.last() {
            Some(segment) => headers_of(segment),
            None => Headers::new(LedgerId(0), EntryId(0), Vec::new()),
        };
        self.phase = Phase::Restoring(Box::new(Restoring { leadership, last, segments, at, headers }));
        self.read_headers(now, out);
    }

    fn restored(&mut self, restored: Option<Restored>, out: &mut Vec<Effect>) {
        let Phase::Restoring(restoring) = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        let Restoring { leadership, last, segments, .. } = *restoring;
        let next_offset = segments.last().map(|last| last.next_offset).unwrap_or_default();
        let none = Restored { running_max_ms: i64::MIN, ..Restored::default() };
        let restored = Restored { next_offset, ..restored.unwrap_or(none) };
        let options = chain::Options {
            roll_entries: self.settings.roll_entries,
            idle_ms: self.settings.idle_ms,
            window: Window { bytes: 16 << 10, ms: 300 },
            metadata_fresh_ms: 100,
            drain_ms: 20,
            ..chain::Options::default()
        };
        let chain = ChainWriter::new(leadership.epoch, next_offset, options);
        self.log.leading(leadership.epoch, segments, next_offset);
        let writer = PartitionWriter::new(Arc::clone(&self.log), chain, restored, Duration::from_secs(3600));
        out.push(Effect::Note(
            "a partition is led",
            format!("epoch {} from {next_offset}", leadership.epoch),
        ));
        self.phase = Phase::Leading(Box::new(Leading {
            leadership,
            last,
            writer,
            requested: false,
            asked: false,
            offered: Vec::new(),
            rolling: false,
            wants_probe: false,
            replies: VecDeque::new(),
        }));
    }

    /// A produce request arrives. Nothing comes back when it is answered later.
    pub fn produce(&mut self, now: Now, produce: Produce, out: &mut Vec<Effect>) -> Option<Produce> {
        let Phase::Leading(leading) = &mut self.phase else { return Some(produce) };
        let bytes = batches::seal(produce.flight.batch, produce.flight.records, produce.flight.stamp);
        let batch = Batch::split(bytes).ok().and_then(|mut batches| batches.pop());
        let Some(batch) = batch else { return Some(produce) };
        let (_, mut replies, outcome) = Call::new(1);
        let Some(reply) = replies.pop() else { return Some(produce) };
        let acks = match produce.acks {
            Acks::All => PieceAcks::All,
            Acks::Leader => PieceAcks::Leader,
            Acks::None => PieceAcks::None,
        };
        let piece = Piece {
            partition: self.log.id,
            batches: smallvec![batch],
            acks,
            deadline: Millis(u64::MAX),
            reply,
        };
        leading.replies.push_back((produce, outcome));
        let mut actions = Vec::new();
        leading.writer.stage(now, piece, &mut actions);
        leading.writer.flush(now, &mut actions);
        self.chain_actions(now, actions, out);
        None
    }

    /// Requests that were answered since the last time, in the order they came.
    pub fn replies(&mut self) -> Vec<Reply> {
        let Phase::Leading(leading) = &mut self.phase else { return Vec::new() };
        let mut answered = Vec::new();
        let mut open = VecDeque::new();
        for (produce, mut outcome) in std::mem::take(&mut leading.replies) {
            match outcome.try_recv() {
                Ok(mut outcomes) => answered.extend(outcomes.pop().map(|outcome| (produce, outcome))),
                Err(_) => open.push_back((produce, outcome)),
            }
        }
        leading.replies = open;
        answered
    }

    fn chain_step(&mut self, now: Now, event: chain::Event, out: &mut Vec<Effect>) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        let mut actions = Vec::new();
        leading.writer.chain.step(now.millis, event, &mut actions);
        self.chain_actions(now, actions, out);
    }

    fn chain_actions(&mut self, now: Now, actions: Vec<chain::Action>, out: &mut Vec<Effect>) {
        let mut over = false;
        for action in actions {
            let Phase::Leading(leading) = &mut self.phase else { return };
            match action {
                chain::Action::Send { bookie, append } => out.push(Effect::Send(bookie, append)),
                chain::Action::AskState { bookie, ledger } => {
                    out.push(Effect::Call(bookie, Request::State { ledger }, Asked::State(ledger)));
                }
                chain::Action::FirstDurable { through } => leading.writer.first_durable(through),
                chain::Action::Committed { through, end, .. } => {
                    leading.writer.committed(through, end);
                }
                chain::Action::NeedLedger => {
                    leading.asked = true;
                    if !std::mem::replace(&mut leading.requested, true) {
                        out.push(Effect::NeedLedger);
                    }
                }
                chain::Action::ReturnLedger(ledger) => {
                    if let Some(at) = leading.offered.iter().position(|spare| spare.ledger == ledger.ledger) {
                        out.push(Effect::ReturnLedger(leading.offered.remove(at)));
                    }
                }
                chain::Action::ProbeMetadata => {
                    leading.wants_probe = true;
                    out.push(Effect::ProbeMetadata);
                }
                chain::Action::Roll(roll) => match leading.roll(now, &roll) {
                    Some(operation) => out.push(Effect::Roll(Box::new(operation))),
                    None => over = true,
                },
                chain::Action::GaveUp { bookie, ledger, cause } => {
                    let what =
                        if cause.is_alarm() { "a replica was distrusted" } else { "a replica was given up" };
                    out.push(Effect::Note(what, format!("ledger {ledger} on {bookie}: {cause}")));
                }
                chain::Action::Failed { from, through, determinate } => {
                    leading.writer.failed(from, through, determinate);
                }
                chain::Action::Deposed | chain::Action::Closed => over = true,
            }
        }
        if over {
            self.depose(out);
        }
    }

    /// The replies that are still open are for the caller to take first.
    fn depose(&mut self, out: &mut Vec<Effect>) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        leading.rolling = false;
        self.log.stopped(Standing::Deposed);
        out.push(Effect::Note("a leader was deposed", String::new()));
        out.push(Effect::Over);
    }

    /// After [`Effect::Over`] was carried out.
    pub fn end(&mut self) {
        self.phase = Phase::Over;
    }

    /// A ledger is there.
    pub fn ledger_ready(&mut self, now: Now, spare: Spare, out: &mut Vec<Effect>) {
        let Phase::Leading(leading) = &mut self.phase else {
            return out.push(Effect::ReturnLedger(spare));
        };
        leading.requested = false;
        leading.asked = false;
        let ledger = NewLedger { ledger: spare.ledger, ensemble: spare.ensemble.clone(), age_ms: 3_000 };
        leading.offered.push(spare);
        self.chain_step(now, chain::Event::LedgerReady(ledger), out);
    }

    /// There is none for now; the pool goes on trying.
    pub fn no_ledger(&mut self, now: Now, out: &mut Vec<Effect>) {
        self.chain_step(now, chain::Event::NoLedger, out);
    }

    /// Metadata answered a read that was sent then.
    pub fn metadata_answered(&mut self, now: Now, sent: Millis, out: &mut Vec<Effect>) {
        if let Phase::Leading(leading) = &mut self.phase
            && std::mem::take(&mut leading.wants_probe)
        {
            self.chain_step(now, chain::Event::MetadataAnswered { sent }, out);
        }
    }

    /// What became of a roll.
    pub fn rolled(
        &mut self,
        now: Now,
        result: Result<Outcome<Rolled, RollRefused>, StoreError>,
        out: &mut Vec<Effect>,
    ) {
        let Phase::Leading(leading) = &mut self.phase else { return };
        match result {
            Ok(Outcome::Done(rolled)) => match leading.apply_roll(now, rolled) {
                Some(snapshot) => self.chain_step(now, chain::Event::RollApplied { snapshot }, out),
                None => self.chain_step(now, chain::Event::Deposed, out),
            },
            Ok(Outcome::Lost(RollRefused::BlockReleased)) => {
                leading.offered.clear();
                out.push(Effect::Note("a roll found its block released", String::new()));
                self.chain_step(now, chain::Event::BlockReleased, out);
            }
            Ok(Outcome::Lost(_)) | Err(_) => self.chain_step(now, chain::Event::Deposed, out),
        }
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
            Asked::Recovery(request) => {
                self.recovery_step(now, recovery::Event::Called { bookie, request, result }, out);
            }
            Asked::State(ledger) => {
                let event = match result {
                    Ok(response) => chain::Event::State { bookie, ledger, response },
                    Err(_) => chain::Event::LinkBroken { bookie },
                };
                self.chain_step(now, event, out);
            }
            Asked::Scan(from) => self.scanned(now, bookie, from, result, out),
        }
    }

    /// Something about an append stream.
    pub fn appended(&mut self, now: Now, bookie: BookieId, event: &AppendEvent, out: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Leading(leading) => {
                let Some(current) = leading.writer.chain.ledger() else { return };
                if let Some(event) = chain_event(bookie, current, event) {
                    self.chain_step(now, event, out);
                }
            }
            Phase::Recovering(recovering) => {
                if let Some(event) = recovery_event(bookie, recovering.machine.ledger(), event) {
                    self.recovery_step(now, event, out);
                }
            }
            _ => {}
        }
    }

    /// The link to a bookie broke, or there is none.
    pub fn link_broken(&mut self, now: Now, bookie: BookieId, out: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Leading(_) => self.chain_step(now, chain::Event::LinkBroken { bookie }, out),
            Phase::Recovering(_) => self.recovery_step(now, recovery::Event::LinkBroken { bookie }, out),
            _ => {}
        }
    }

    /// There is a link to a bookie again.
    pub fn link_up(&mut self, now: Now, bookie: BookieId, out: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Leading(_) => self.chain_step(now, chain::Event::LinkUp { bookie }, out),
            Phase::Recovering(_) => self.recovery_step(now, recovery::Event::LinkUp { bookie }, out),
            _ => {}
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Now, out: &mut Vec<Effect>) {
        if let Some(headers) = self.headers()
            && headers.retry_at.is_some_and(|at| at <= now.millis)
        {
            headers.retry_at = None;
            self.read_headers(now, out);
        }
        match &self.phase {
            Phase::Leading(_) => self.chain_step(now, chain::Event::Tick, out),
            Phase::Recovering(_) => self.recovery_step(now, recovery::Event::Tick, out),
            _ => {}
        }
    }

    /// The driver wants the ledger rolled, or gives a bookie up.
    pub fn nudge(&mut self, now: Now, event: chain::Event, out: &mut Vec<Effect>) {
        self.chain_step(now, event, out);
    }
}

impl Leading {
    fn roll(&mut self, now: Now, roll: &chain::Roll) -> Option<roll::Roll> {
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
                block: spare.block.clone(),
            })
        });
        self.rolling = true;
        roll::Roll::new(self.leadership, self.last.clone(), seal, open).ok()
    }

    /// The snapshot that the new ledger begins with; none needed without one.
    fn apply_roll(&mut self, now: Now, rolled: Rolled) -> Option<Vec<chain::Entry>> {
        self.rolling = false;
        let before = self.last.as_ref().map(|last| last.segment.ledger).unwrap_or_default();
        let sealed = rolled.previous.as_ref().filter(|_| self.last.is_some());
        self.writer.log.rolled(before, sealed, rolled.opened.as_ref());
        let snapshot = match &rolled.opened {
            Some(opened) => {
                self.offered.retain(|spare| spare.ledger != opened.segment.ledger);
                self.writer.snapshot(opened.segment.base_offset, now)
            }
            None => Some(Vec::new()),
        };
        self.writer.segment_began();
        self.last = rolled.opened.or(rolled.previous);
        snapshot
    }
}

impl Headers {
    fn new(ledger: LedgerId, end: EntryId, sources: Vec<BookieId>) -> Self {
        // Planted: what stands beyond the end is taken for the state too.
        let end = if fault::planted(Fault::StateRebuiltBeyondEnd) && end > EntryId(0) {
            EntryId(u64::MAX)
        } else {
            end
        };
        let scan = Scan::new();
        Self { ledger, end, sources, source: 0, from: EntryId(0), scan, retry_at: None, under_way: false }
    }

    fn is_done(&self) -> bool {
        self.from >= self.end
    }

    fn next(&mut self) -> Option<(BookieId, Read)> {
        if self.is_done() || self.under_way || self.retry_at.is_some() {
            return None;
        }
        let source = *self.sources.get(self.source)?;
        self.under_way = true;
        let max_entries = u32::try_from((self.end.0 - self.from.0).min(16)).unwrap_or(16);
        let read =
            Read { ledger: self.ledger, from: self.from, max_entries, max_bytes: 64 << 10, prefix: true };
        Some((source, read))
    }

    fn answered(
        &mut self,
        now: Now,
        bookie: BookieId,
        from: EntryId,
        result: Result<Response, String>,
    ) -> Result<(), String> {
        if !self.under_way || from != self.from || self.sources.get(self.source) != Some(&bookie) {
            return Ok(());
        }
        self.under_way = false;
        let failed = match result {
            Ok(Response::Entries(records)) => {
                for record in records {
                    self.scan.add(&record)?;
                    self.from = self.from.next();
                }
                return Ok(());
            }
            Ok(Response::Absent) if fault::planted(Fault::StateRebuiltBeyondEnd) => {
                self.end = self.from;
                return Ok(());
            }
            Ok(other) => format!("{other:?}"),
            Err(why) => why,
        };
        self.source += 1;
        if self.source == self.sources.len() {
            self.source = 0;
            self.retry_at = Some(now.millis + 30);
        }
        Err(failed)
    }
}

fn headers_of(segment: &Segment) -> Headers {
    Headers::new(segment.ledger, segment.end, segment.replicas.to_vec())
}

fn step_or_read(step: Result<RecoveryStep, InvalidStep>, ledger: LedgerId) -> Effect {
    step.map_or(Effect::ReadLedger(ledger), |step| Effect::Step(Box::new(step)))
}

fn view_of(ledger: &LedgerMetadata) -> Option<View> {
    Some(View {
        ledger: ledger.id,
        own_epoch: ledger.epoch,
        ensemble: Ensemble::new(&ledger.replicas, ledger.ack_quorum as usize).ok()?,
        targets: ledger.targets.iter().copied().collect(),
        state: match &ledger.state {
            LedgerState::Open => LedgerStanding::Open,
            LedgerState::Recovering(epoch) => LedgerStanding::Recovering(*epoch),
            LedgerState::Sealed(sealed) => LedgerStanding::Sealed(sealed.end),
        },
    })
}

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

fn recovery_event(bookie: BookieId, own: LedgerId, event: &AppendEvent) -> Option<recovery::Event> {
    Some(match event {
        AppendEvent::Durable(lengths) => {
            let (_, durable) = *lengths.iter().find(|(ledger, _)| *ledger == own)?;
            recovery::Event::Durable { bookie, durable }
        }
        &AppendEvent::Gap { ledger, attempt, accepted } if ledger == own => {
            recovery::Event::Gap { bookie, attempt, accepted }
        }
        &AppendEvent::Refused { ledger, attempt, reason } if ledger == own => {
            recovery::Event::Refused { bookie, attempt, reason }
        }
        AppendEvent::Gap { .. } | AppendEvent::Refused { .. } => return None,
    })
}
