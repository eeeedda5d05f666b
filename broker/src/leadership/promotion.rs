//! From a partition that was taken over (T1, T2) to one that is led: the chain's
//! last ledger is recovered (T3 to T6), then the state that the chain's entries
//! made is restored, out of the last whole snapshot and the headers behind it.
//!
//! A machine without I/O. Its driver carries out the effects in order:
//!
//! - [`Effect::Step`] is run until its outcome is known, and answered by
//!   [`Event::Stepped`], or by [`Event::Failed`] when no retry helps;
//! - [`Effect::ReadLedger`] is answered by [`Event::Ledger`],
//!   [`Effect::ReadEpoch`] by [`Event::Epoch`], both with what a linearizable
//!   read shows, or by [`Event::Failed`];
//! - [`Effect::ChooseTargets`] is answered by [`Event::Targets`];
//! - [`Effect::Call`] is answered by [`Event::Called`], with the same request;
//! - [`Effect::Append`] gets append events, or [`Event::LinkBroken`] when there
//!   is no link.

use std::sync::Arc;

use quire_ledger::clock::Millis;
use quire_ledger::ensemble::Ensemble;
use quire_ledger::message::{Append, AppendEvent, Request, Response};
use quire_ledger::recovery::{self, Action, Blocked, Recovery, Seal, View};
use quire_metadata::ledger::{LedgerMetadata, LedgerState, Sealed};
use quire_metadata::operation::Outcome;
use quire_metadata::operations::recovery::{InvalidStep, RecoveryStep, StepRefused};
use quire_metadata::operations::roll::Last;
use quire_metadata::operations::take_over::TakenOver;
use quire_metadata::partition::Leadership;
use quire_metadata::typed::Versioned;
use quire_metadata::view::PartitionView;
use quire_proto::fault::{Fault, planted};
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Offset};

use crate::leadership::scan::{self, Headers, ReadFailed, Scan, Unreadable};
use crate::log::PartitionLog;
use crate::log::partition::{Segment, Standing};
use crate::shard::writer::{Now, Restored};

/// How long a promotion waits, and how much it reads at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    pub recovery: recovery::Options,
    pub scan: scan::Options,
}

/// A partition that is ready to be led.
#[derive(Debug)]
pub struct Promoted {
    pub log: Arc<PartitionLog>,
    pub leadership: Leadership,
    /// The chain's last segment, sealed.
    pub last: Option<Last>,
    /// The whole chain.
    pub segments: Vec<Segment>,
    /// What its entries made.
    pub restored: Restored,
}

/// What happens to a promotion.
#[derive(Debug)]
pub enum Event {
    /// The answer to [`Effect::Step`].
    Stepped(Outcome<Versioned<LedgerMetadata>, StepRefused>),
    /// The answer to [`Effect::ReadLedger`]. `None`: it is gone.
    Ledger(Option<Versioned<LedgerMetadata>>),
    /// The answer to [`Effect::ReadEpoch`]. `None`: the partition is gone.
    Epoch(Option<Epoch>),
    /// Metadata cannot be read or written, and no retry helps.
    Failed,
    /// The answer to [`Effect::ChooseTargets`]: as many as there are.
    Targets(Vec<BookieId>),
    /// The answer to [`Effect::Call`]. `Err` says why the bookie could not be
    /// reached, or did not answer in time.
    Called { bookie: BookieId, request: Request, result: Result<Response, String> },
    /// A bookie reports about appends, perhaps of other ledgers.
    Appended { bookie: BookieId, event: AppendEvent },
    /// The append link to the bookie broke, or there is none.
    LinkBroken { bookie: BookieId },
    /// There is an append link to the bookie.
    LinkUp { bookie: BookieId },
    /// An operator accepts the loss that this states (T3), which
    /// [`Promotion::waiting`] once was. It does not hold for another one.
    AcceptLoss(Waiting),
    /// Time has passed: [`Promotion::deadline`] says when this is of use.
    Tick,
}

/// What a promotion wants done, in this order.
#[derive(Debug)]
pub enum Effect {
    /// Run this step of the recovery.
    Step(Box<RecoveryStep>),
    /// Read this ledger's metadata.
    ReadLedger(LedgerId),
    /// Read the partition's epoch.
    ReadEpoch,
    /// Choose so many bookies to be filled, none of these (T5).
    ChooseTargets { count: usize, except: Vec<BookieId> },
    /// Send this request.
    Call { bookie: BookieId, request: Request },
    /// Send this append.
    Append { bookie: BookieId, append: Append },
    /// The recovery waits, and why. It asks again until it can go on.
    Blocked(Blocked),
    /// Headers could not be read from one replica. Others are asked.
    ReadFailed(ReadFailed),
    /// Somebody has to look at this.
    Alarm(Alarm),
    /// The last ledger is sealed.
    Recovered(LedgerId),
    /// The last effect: the partition can be led.
    Promoted(Box<Promoted>),
    /// The last effect: another leads, or will.
    Deposed,
}

/// Why a promotion waits. It asks again until it can go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Waiting {
    /// The last ledger cannot be sealed.
    #[error(transparent)]
    Recovery(Blocked),
    /// The state cannot be restored.
    #[error(transparent)]
    Restoring(Unreadable),
}

impl Waiting {
    /// The ledger that it is about.
    #[must_use]
    pub const fn ledger(&self) -> LedgerId {
        match self {
            Self::Recovery(blocked) => blocked.ledger(),
            Self::Restoring(unreadable) => unreadable.ledger,
        }
    }

    /// Whether an operator can accept a loss to end it.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        match self {
            Self::Recovery(blocked) => blocked.is_loss(),
            Self::Restoring(_) => true,
        }
    }

    /// Whether whoever accepts this has accepted that as well.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Recovery(this), Self::Recovery(other)) => this.covers(other),
            (Self::Restoring(this), Self::Restoring(other)) => this.covers(other),
            _ => false,
        }
    }
}

/// What must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Alarm {
    #[error(transparent)]
    Recovery(#[from] recovery::Alarm),
    #[error("a seal contradicts the protocol: {0}")]
    Seal(#[from] InvalidStep),
    #[error("the replicas of ledger {0} are no ensemble")]
    Ensemble(LedgerId),
    #[error("the entries of ledger {ledger} end at offset {found}, metadata says {expected}")]
    End { ledger: LedgerId, found: Offset, expected: Offset },
}

/// The way of one partition from taken over to led.
#[derive(Debug)]
pub struct Promotion {
    log: Arc<PartitionLog>,
    leadership: Leadership,
    last: Option<Last>,
    segments: Vec<Segment>,
    options: Options,
    /// The entries whose loss was accepted: no scan asks for it again.
    accepted: Vec<Unreadable>,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Nothing was asked yet.
    New,
    Recovering(Box<Recovering>),
    /// The headers of the segment before this many are read.
    Restoring {
        left: usize,
        scan: Box<Scan>,
    },
    Over,
}

#[derive(Debug)]
struct Recovering {
    machine: Recovery,
    /// The seal that was asked for, until its ledger's headers are read (T6).
    sealing: Option<(Seal, Scan)>,
    /// What was read for the seal that is under way, if entries in the middle of
    /// the ledger were left out.
    scanned: Option<(Sealed, Headers)>,
}

impl Promotion {
    /// The partition was taken over when its chain was as in this view. What is
    /// below the last ledger may be read from now on (T2).
    #[must_use]
    pub fn new(log: Arc<PartitionLog>, view: &PartitionView, taken: TakenOver, options: Options) -> Self {
        let TakenOver { leadership, last: claimed } = taken;
        let link = |link: &quire_metadata::view::Link| Last {
            sequence: link.sequence,
            segment: link.segment.value,
            ledger: link.ledger.clone(),
        };
        let segments: Vec<Segment> = view.chain.iter().map(|found| Segment::of(&link(found))).collect();
        log.recovering(leadership.epoch, segments.clone());
        let mut last = view.last();
        if let (Some(last), Some(claimed)) = (&mut last, claimed) {
            last.ledger = claimed;
        }
        Self { log, leadership, last, segments, options, accepted: Vec::new(), phase: Phase::New }
    }

    /// What readers see of the partition.
    #[must_use]
    pub const fn log(&self) -> &Arc<PartitionLog> {
        &self.log
    }

    /// The epoch that was minted.
    #[must_use]
    pub const fn epoch(&self) -> Epoch {
        self.leadership.epoch
    }

    /// The ledger that is to be recovered, while it is not sealed.
    #[must_use]
    pub fn unsealed(&self) -> Option<LedgerId> {
        let last = self.last.as_ref()?;
        last.ledger.value.sealed().is_none().then_some(last.segment.ledger)
    }

    /// Why it waits, if it does.
    #[must_use]
    pub fn waiting(&self) -> Option<Waiting> {
        match &self.phase {
            Phase::Recovering(recovering) if recovering.sealing.is_none() => {
                recovering.machine.blocked().cloned().map(Waiting::Recovery)
            }
            Phase::Recovering(_) | Phase::Restoring { .. } => {
                self.scan()?.unreadable().cloned().map(Waiting::Restoring)
            }
            Phase::New | Phase::Over => None,
        }
    }

    /// Whether bookies hold it up: there is next to nothing to do until they give
    /// what it needs.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        match &self.phase {
            Phase::Recovering(recovering) => {
                let scan = recovering.sealing.as_ref().map(|(_, scan)| scan);
                recovering.machine.blocked().is_some() || scan.is_some_and(Scan::is_held_up)
            }
            Phase::Restoring { scan, .. } => scan.is_held_up(),
            Phase::New | Phase::Over => false,
        }
    }

    /// When [`Event::Tick`] is of use next.
    #[must_use]
    pub fn deadline(&self) -> Option<Millis> {
        match &self.phase {
            Phase::Recovering(recovering) => {
                let scan = recovering.sealing.as_ref().and_then(|(_, scan)| scan.deadline());
                recovering.machine.deadline().into_iter().chain(scan).min()
            }
            Phase::Restoring { scan, .. } => scan.deadline(),
            Phase::New | Phase::Over => None,
        }
    }

    /// Begins.
    pub fn start(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Some(ledger) = self.unsealed() else { return self.restore(now, effects) };
        let view = self.last.as_ref().and_then(|last| view_of(&last.ledger.value));
        let Some(view) = view else {
            effects.push(Effect::Alarm(Alarm::Ensemble(ledger)));
            return self.depose(effects);
        };
        let mut actions = Vec::new();
        let options = self.options.recovery;
        let machine = Recovery::start(now.millis, self.leadership.epoch, view, options, &mut actions);
        let recovering = Recovering { machine, sealing: None, scanned: None };
        self.phase = Phase::Recovering(Box::new(recovering));
        self.carry_out(now, actions, effects);
    }

    /// Takes an event in.
    pub fn step(&mut self, now: Now, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Stepped(Outcome::Done(found) | Outcome::Lost(StepRefused::Sealed(found))) => {
                self.ledger_read(now, Some(found), effects);
            }
            Event::Stepped(Outcome::Lost(StepRefused::Changed(found))) | Event::Ledger(found) => {
                self.ledger_read(now, found, effects);
            }
            Event::Stepped(Outcome::Lost(StepRefused::Deposed)) | Event::Failed => self.depose(effects),
            Event::Epoch(epoch) if epoch == Some(self.leadership.epoch) => {}
            Event::Epoch(_) => self.depose(effects),
            Event::Targets(chosen) => self.name_targets(chosen, effects),
            Event::Called { bookie, request: Request::Read(read), result }
                if self.scan().is_some_and(|scan| scan.awaits(bookie, &read)) =>
            {
                self.scanned(now, result, effects);
            }
            Event::Called { bookie, request, result } => {
                self.recovery_step(now, recovery::Event::Called { bookie, request, result }, effects);
            }
            Event::Appended { bookie, event } => {
                if let Some(event) = self.appended(bookie, &event) {
                    self.recovery_step(now, event, effects);
                }
            }
            Event::LinkBroken { bookie } => {
                self.recovery_step(now, recovery::Event::LinkBroken { bookie }, effects);
            }
            Event::LinkUp { bookie } => self.recovery_step(now, recovery::Event::LinkUp { bookie }, effects),
            Event::AcceptLoss(loss) => self.accept_loss(now, loss, effects),
            Event::Tick => {
                self.recovery_step(now, recovery::Event::Tick, effects);
                self.scan_on(now, effects);
            }
        }
    }

    /// T3: an acceptance holds for the wait that it names, not for what is waited
    /// for by now.
    fn accept_loss(&mut self, now: Now, loss: Waiting, effects: &mut Vec<Effect>) {
        if self.waiting().is_some_and(|waiting| !loss.covers(&waiting)) {
            return;
        }
        match loss {
            Waiting::Recovery(loss) => self.recovery_step(now, recovery::Event::AcceptLoss(loss), effects),
            Waiting::Restoring(loss) => {
                if let Some(scan) = self.scan_mut() {
                    scan.accept_loss(&loss);
                }
                self.accepted.push(loss);
                self.scan_on(now, effects);
            }
        }
    }

    fn depose(&mut self, effects: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Over) {
            self.phase = Phase::Over;
            self.log.stopped(Standing::Deposed);
            effects.push(Effect::Deposed);
        }
    }

    fn recovery_step(&mut self, now: Now, event: recovery::Event, effects: &mut Vec<Effect>) {
        let Phase::Recovering(recovering) = &mut self.phase else { return };
        let mut actions = Vec::new();
        recovering.machine.step(now.millis, event, &mut actions);
        self.carry_out(now, actions, effects);
    }

    fn carry_out(&mut self, now: Now, actions: Vec<Action>, effects: &mut Vec<Effect>) {
        for action in actions {
            if matches!(self.phase, Phase::Over) {
                return;
            }
            match action {
                Action::Claim { .. } => self.claim(effects),
                Action::ReadMetadata { ledger } => effects.push(Effect::ReadLedger(ledger)),
                Action::NameTargets { count, .. } => self.choose_targets(count, effects),
                Action::Call { bookie, request } => effects.push(Effect::Call { bookie, request }),
                Action::Append { bookie, append } => effects.push(Effect::Append { bookie, append }),
                Action::Seal(seal) => self.seal(now, seal, effects),
                Action::Blocked(blocked) => effects.push(Effect::Blocked(blocked)),
                Action::Alarm(alarm) => effects.push(Effect::Alarm(alarm.into())),
                Action::Done(outcome) => self.recovered(now, &outcome, effects),
            }
        }
    }

    /// T2, where the take-over did not include it.
    fn claim(&self, effects: &mut Vec<Effect>) {
        let Some(last) = &self.last else { return };
        effects.push(step_or_read(RecoveryStep::start(self.leadership, last.ledger.clone()), last));
    }

    fn choose_targets(&self, count: usize, effects: &mut Vec<Effect>) {
        let Some(last) = &self.last else { return };
        let ledger = &last.ledger.value;
        let except = ledger.replicas.iter().chain(&ledger.targets).copied().collect();
        effects.push(Effect::ChooseTargets { count, except });
    }

    /// T5: those that were named stay.
    fn name_targets(&self, chosen: Vec<BookieId>, effects: &mut Vec<Effect>) {
        let (Some(last), Phase::Recovering(_)) = (&self.last, &self.phase) else { return };
        let targets = last.ledger.value.targets.iter().copied().chain(chosen).collect();
        let step = RecoveryStep::name_targets(self.leadership, last.ledger.clone(), targets);
        effects.push(step_or_read(step, last));
    }

    /// T6: what the seal says beside the end is read from the entries' headers. A
    /// replica that is not complete may have one that the others cannot give.
    fn seal(&mut self, now: Now, seal: Seal, effects: &mut Vec<Effect>) {
        let (Some(last), Phase::Recovering(recovering)) = (&self.last, &mut self.phase) else { return };
        let others = seal.replicas.iter().filter(|&replica| !seal.complete.contains(replica));
        let replicas = seal.complete.iter().chain(others).copied().collect();
        let segment = Segment { end: seal.end, replicas, ..Segment::of(last) };
        let scan = Scan::new(&segment, self.options.scan).leaving_out(&self.accepted);
        recovering.sealing = Some((seal, scan));
        self.scan_on(now, effects);
    }

    fn ledger_read(&mut self, now: Now, found: Option<Versioned<LedgerMetadata>>, effects: &mut Vec<Effect>) {
        let Phase::Recovering(recovering) = &mut self.phase else { return };
        recovering.sealing = None;
        let view = found.as_ref().and_then(|found| view_of(&found.value));
        if let (Some(last), Some(found)) = (&mut self.last, found) {
            last.ledger = found;
        }
        self.recovery_step(now, recovery::Event::Metadata(view), effects);
    }

    fn recovered(&mut self, now: Now, outcome: &recovery::Outcome, effects: &mut Vec<Effect>) {
        let (Some(last), recovery::Outcome::Sealed { .. }) = (&self.last, outcome) else {
            return self.depose(effects);
        };
        let Some(sealed) = last.ledger.value.sealed() else { return self.depose(effects) };
        effects.push(Effect::Recovered(last.segment.ledger));
        let scanned = match &mut self.phase {
            Phase::Recovering(recovering) => recovering.scanned.take(),
            _ => None,
        };
        let headers = scanned.filter(|(seal, _)| seal == sealed).map(|(_, headers)| headers);
        self.segments.pop();
        self.segments.push(Segment::of(last));
        match headers.and_then(|headers| headers.restored) {
            // What was left out is not asked for again.
            Some(restored) => self.promote(restored, effects),
            None => self.restore(now, effects),
        }
    }

    /// Something about an append stream, as the recovery sees it.
    fn appended(&self, bookie: BookieId, event: &AppendEvent) -> Option<recovery::Event> {
        let Phase::Recovering(recovering) = &self.phase else { return None };
        let own = recovering.machine.ledger();
        match event {
            AppendEvent::Durable(lengths) => {
                let (_, durable) = *lengths.iter().find(|(ledger, _)| *ledger == own)?;
                Some(recovery::Event::Durable { bookie, durable })
            }
            &AppendEvent::Gap { ledger, attempt, accepted } => {
                (ledger == own).then_some(recovery::Event::Gap { bookie, attempt, accepted })
            }
            &AppendEvent::Refused { ledger, attempt, reason } => {
                (ledger == own).then_some(recovery::Event::Refused { bookie, attempt, reason })
            }
        }
    }

    /// The state is in the last ledger that holds a whole snapshot.
    fn restore(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.scan_segment_before(now, self.segments.len(), effects);
    }

    fn scan_segment_before(&mut self, now: Now, left: usize, effects: &mut Vec<Effect>) {
        let Some(segment) = left.checked_sub(1).and_then(|at| self.segments.get(at)) else {
            return self.promote(Restored { running_max_ms: i64::MIN, ..Restored::default() }, effects);
        };
        let scan = Box::new(Scan::new(segment, self.options.scan).leaving_out(&self.accepted));
        self.phase = Phase::Restoring { left, scan };
        self.scan_on(now, effects);
    }

    fn scan(&self) -> Option<&Scan> {
        match &self.phase {
            Phase::Recovering(recovering) => recovering.sealing.as_ref().map(|(_, scan)| scan),
            Phase::Restoring { scan, .. } => Some(scan),
            Phase::New | Phase::Over => None,
        }
    }

    fn scan_mut(&mut self) -> Option<&mut Scan> {
        match &mut self.phase {
            Phase::Recovering(recovering) => recovering.sealing.as_mut().map(|(_, scan)| scan),
            Phase::Restoring { scan, .. } => Some(scan),
            Phase::New | Phase::Over => None,
        }
    }

    /// Reads on, or goes on with what was read.
    fn scan_on(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Some(scan) = self.scan_mut() else { return };
        if let Some((bookie, read)) = scan.next(now.millis) {
            return effects.push(Effect::Call { bookie, request: Request::Read(read) });
        }
        if !scan.is_done() {
            return;
        }
        match &mut self.phase {
            Phase::Recovering(recovering) => {
                if let Some((seal, scan)) = recovering.sealing.take() {
                    self.seal_as_scanned(now, seal, scan.into_headers(), effects);
                }
            }
            Phase::Restoring { .. } => self.restore_as_scanned(now, effects),
            Phase::New | Phase::Over => {}
        }
    }

    /// A failure to read may be a sign that this process leads no more, and that
    /// the ledger was deleted.
    fn scanned(&mut self, now: Now, result: Result<Response, String>, effects: &mut Vec<Effect>) {
        let Some(scan) = self.scan_mut() else { return };
        if let Err(failed) = scan.answered(now.millis, result) {
            let is_last = failed.is_last;
            effects.push(Effect::ReadFailed(failed));
            if is_last {
                effects.push(Effect::ReadEpoch);
            }
        }
        self.scan_on(now, effects);
    }

    fn seal_as_scanned(&mut self, now: Now, seal: Seal, headers: Headers, effects: &mut Vec<Effect>) {
        let (Some(last), Phase::Recovering(recovering)) = (&self.last, &mut self.phase) else { return };
        // Where the loss of entries at the end was accepted, it ends before them.
        let sealed = Sealed {
            end: EntryId(seal.end.0.saturating_sub(headers.lost_at_end)),
            next_offset: headers.next_offset.unwrap_or(last.segment.base_offset),
            bytes: headers.bytes,
            complete: seal.complete,
            max_timestamp_ms: headers.max_timestamp_ms,
            sealed_ms: now.wall_ms,
        };
        // Entries that were left out at the end only are not in the ledger.
        let is_whole = headers.lost == headers.lost_at_end;
        recovering.scanned = (!is_whole).then(|| (sealed.clone(), headers));
        match RecoveryStep::seal(self.leadership, last.ledger.clone(), seal.replicas, sealed) {
            Ok(step) => effects.push(Effect::Step(Box::new(step))),
            Err(invalid) => {
                effects.push(Effect::Alarm(invalid.into()));
                self.depose(effects);
            }
        }
    }

    fn restore_as_scanned(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Phase::Restoring { left, scan } = std::mem::replace(&mut self.phase, Phase::Over) else { return };
        let headers = scan.into_headers();
        let Some(restored) = headers.restored else {
            return self.scan_segment_before(now, left - 1, effects);
        };
        let (found, expected) = (restored.next_offset, self.next_offset());
        if found == expected || headers.lost > 0 || planted(Fault::StateRebuiltBeyondEnd) {
            return self.promote(restored, effects);
        }
        let Some(segment) = self.segments.get(left - 1) else { return };
        effects.push(Effect::Alarm(Alarm::End { ledger: segment.ledger, found, expected }));
        effects.push(Effect::ReadEpoch);
        let scan = Scan::after_pause(now.millis, segment, self.options.scan).leaving_out(&self.accepted);
        let scan = Box::new(scan);
        self.phase = Phase::Restoring { left, scan };
    }

    /// The chain's next offset.
    fn next_offset(&self) -> Offset {
        self.segments.last().map(|last| last.next_offset).unwrap_or_default()
    }

    fn promote(&mut self, restored: Restored, effects: &mut Vec<Effect>) {
        self.phase = Phase::Over;
        let restored = Restored { next_offset: self.next_offset(), ..restored };
        effects.push(Effect::Promoted(Box::new(Promoted {
            log: Arc::clone(&self.log),
            leadership: self.leadership,
            last: self.last.take(),
            segments: std::mem::take(&mut self.segments),
            restored,
        })));
    }
}

/// Metadata is not as this machine knows it: look again.
fn step_or_read(step: Result<RecoveryStep, InvalidStep>, last: &Last) -> Effect {
    step.map_or(Effect::ReadLedger(last.segment.ledger), |step| Effect::Step(Box::new(step)))
}

/// The ledger as the recovery sees it.
fn view_of(ledger: &LedgerMetadata) -> Option<View> {
    Some(View {
        ledger: ledger.id,
        own_epoch: ledger.epoch,
        ensemble: Ensemble::new(&ledger.replicas, ledger.ack_quorum as usize).ok()?,
        targets: ledger.targets.iter().copied().collect(),
        state: match &ledger.state {
            LedgerState::Open => recovery::State::Open,
            LedgerState::Recovering(epoch) => recovery::State::Recovering(*epoch),
            LedgerState::Sealed(sealed) => recovery::State::Sealed(sealed.end),
        },
    })
}

#[cfg(test)]
pub mod tests;
