//! The task of a shard: takes what came in, steps the machines of the
//! partitions concerned, and carries out what they ask for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use quire_ledger::chain::{self, ChainWriter};
use quire_ledger::clock::Millis;
use quire_ledger::link::BookieLink;
use quire_ledger::message::{AppendEvent, Request, Response};
use quire_metadata::ledger::Sealed;
use quire_metadata::operation::Outcome;
use quire_metadata::operations::roll::{self, Last, RollRefused, Rolled};
use quire_metadata::partition::Leadership;
use quire_metadata::store::StoreError;
use quire_proto::id::{BookieId, Epoch, LedgerId, PartitionId};
use quire_proto::v1::ErrorReason;
use rand::RngExt;
use smallvec::SmallVec;

use crate::clock::wall_ms;
use crate::context::{Backoff, Context};
use crate::failure::{self, Failure};
use crate::leadership::Deposed;
use crate::leadership::manager::Open;
use crate::log::PartitionLog;
use crate::log::partition::{Segment, Standing};
use crate::pool::{LedgerPool, NoLedger, Spare, Target};
use crate::shard::inbox::{Arrived, Inbox, Produce, Reports};
use crate::shard::links::Links;
use crate::shard::piece::Piece;
use crate::shard::timers::Timers;
use crate::shard::writer::{Now, PartitionWriter, Restored};

/// A partition that this process took over, for its shard.
#[derive(Debug)]
pub struct Install {
    pub log: Arc<PartitionLog>,
    pub leadership: Leadership,
    /// The chain's last segment, sealed.
    pub last: Option<Last>,
    /// The whole chain.
    pub segments: Vec<Segment>,
    pub restored: Restored,
    /// The take-over, which ends here.
    pub open: Open,
}

/// What comes into a shard beside produce requests and reports of bookies.
#[derive(Debug)]
pub enum Control {
    /// Lead this partition.
    Install(Box<Install>),
    /// The topic is gone: stop leading it.
    Remove(PartitionId),
    /// A ledger that was asked for.
    Ledger { partition: PartitionId, epoch: Epoch, spare: Spare },
    /// There is none yet.
    NoLedger { partition: PartitionId, epoch: Epoch, cause: NoLedger },
    /// What became of a roll.
    Rolled { partition: PartitionId, epoch: Epoch, result: Box<RollResult> },
    /// A bookie's answer about a ledger.
    State {
        partition: PartitionId,
        epoch: Epoch,
        bookie: BookieId,
        ledger: LedgerId,
        answer: Option<Response>,
    },
    /// A link was made.
    Linked { link: Arc<dyn BookieLink>, number: u64 },
    /// The metadata store answered a read that was sent then (W4).
    MetadataAnswered { sent: Millis },
    /// Seal everything and end.
    Close,
}

/// How a roll's transaction ended.
pub type RollResult = Result<Outcome<Rolled, RollRefused>, StoreError>;

/// A partition of this shard.
#[derive(Debug)]
struct Slot {
    writer: PartitionWriter,
    leadership: Leadership,
    last: Option<Last>,
    target: Target,
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
    reserved: Option<Spare>,
    /// Ledgers that the chain has and that are not published yet.
    offered: SmallVec<[Spare; 1]>,
    wants_probe: bool,
    dirty: bool,
    armed: Option<Millis>,
}

impl Slot {
    /// Whether an append is certain to find a ledger.
    fn has_ledger(&self) -> bool {
        let chain = &self.writer.chain;
        chain.ledger().is_some() || chain.is_rolling() || self.reserved.is_some() || !self.offered.is_empty()
    }

    fn due(&self) -> Option<Millis> {
        self.writer.chain.deadline().into_iter().chain(self.waiting_until).min()
    }
}

/// The shard's own state; lives in its task.
#[derive(Debug)]
pub struct Shard {
    context: Arc<Context>,
    pool: Arc<LedgerPool>,
    inbox: Arc<Inbox>,
    deposed: Arc<Deposed>,
    links: Links,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    index: HashMap<PartitionId, usize>,
    /// Which partition writes which open ledger.
    ledgers: HashMap<LedgerId, usize>,
    timers: Timers,
    dirty: Vec<usize>,
    probing: bool,
    closing: bool,
    now: Now,
    /// Reused, so that a step allocates nothing.
    scratch: Vec<chain::Action>,
}

impl Shard {
    /// A shard without partitions.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        pool: Arc<LedgerPool>,
        inbox: Arc<Inbox>,
        deposed: Arc<Deposed>,
    ) -> Self {
        Self {
            links: Links::new(Arc::clone(&context), Arc::clone(&inbox)),
            now: context.clock.now(),
            context,
            pool,
            inbox,
            deposed,
            slots: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            ledgers: HashMap::new(),
            timers: Timers::default(),
            dirty: Vec::new(),
            probing: false,
            closing: false,
            scratch: Vec::new(),
        }
    }

    /// Serves until it was told to close and everything is sealed.
    pub async fn run(mut self) {
        let inbox = Arc::clone(&self.inbox);
        while !(self.closing && self.index.is_empty()) {
            let due = self.timers.next().map(|due| self.context.clock.instant(due));
            let arrived = match due {
                Some(due) => tokio::time::timeout_at(due, inbox.take()).await.ok(),
                None => Some(inbox.take().await),
            };
            self.now = self.context.clock.now();
            if let Some(arrived) = arrived {
                self.arrived(arrived);
            }
            self.fire();
        }
    }

    fn arrived(&mut self, arrived: Arrived) {
        arrived.control.into_iter().for_each(|message| self.control(message));
        for ((bookie, number), reports) in arrived.reports {
            if self.links.is_current(bookie, number) {
                self.reported(bookie, reports);
            }
        }
        for Produce { pieces, .. } in arrived.produce {
            pieces.into_iter().for_each(|piece| self.produce(piece));
        }
        // What waited for one partition has become one entry.
        for at in std::mem::take(&mut self.dirty) {
            self.flush(at);
        }
    }

    fn fire(&mut self) {
        while let Some((due, at)) = self.timers.pop(self.now.millis) {
            let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { continue };
            if slot.armed != Some(due) {
                continue;
            }
            slot.armed = None;
            self.expire_waiting(at);
            self.step(at, chain::Event::Tick);
        }
    }

    fn control(&mut self, message: Control) {
        match message {
            Control::Install(install) => self.install(*install),
            Control::Remove(partition) => {
                if let Some(&at) = self.index.get(&partition) {
                    self.remove(at, Standing::Deleted);
                }
            }
            Control::Ledger { partition, epoch, spare } => match self.find(partition, epoch) {
                Some(at) => self.ledger_ready(at, spare),
                None => tracing::debug!(ledger = %spare.ledger, "a ledger came too late"),
            },
            Control::NoLedger { partition, epoch, cause } => {
                if let Some(at) = self.find(partition, epoch) {
                    self.no_ledger(at, cause);
                }
            }
            Control::Rolled { partition, epoch, result } => {
                if let Some(at) = self.find(partition, epoch) {
                    self.rolled(at, *result);
                }
            }
            Control::State { partition, epoch, bookie, ledger, answer } => {
                if let Some(at) = self.find(partition, epoch) {
                    self.step(
                        at,
                        match answer {
                            Some(response) => chain::Event::State { bookie, ledger, response },
                            None => chain::Event::LinkBroken { bookie },
                        },
                    );
                }
            }
            Control::Linked { link, number } => {
                let bookie = link.bookie();
                if self.links.linked(link, number) {
                    self.step_all(|_| Some(chain::Event::LinkUp { bookie }));
                }
            }
            Control::MetadataAnswered { sent } => {
                self.probing = false;
                self.step_all(|slot| {
                    std::mem::take(&mut slot.wants_probe).then_some(chain::Event::MetadataAnswered { sent })
                });
            }
            Control::Close => self.close(),
        }
    }

    fn install(&mut self, install: Install) {
        let Install { log, leadership, last, segments, restored, open } = install;
        let id = log.id;
        if let Some(&at) = self.index.get(&id) {
            self.remove(at, Standing::Deposed);
        }
        let config = &log.topic.config;
        let options = chain::Options {
            roll_bytes: config.segment_bytes,
            roll_entries: self.context.options.roll_entries,
            idle_ms: u64::try_from(self.context.options.idle_seal.as_millis()).unwrap_or(u64::MAX),
            ..chain::Options::default()
        };
        let chain = ChainWriter::new(leadership.epoch, restored.next_offset, options);
        log.leading(leadership.epoch, segments, restored.next_offset);
        let target = Target { replicas: log.topic.replicas, ack_quorum: log.topic.ack_quorum };
        let expiry = self.context.options.producer_expiry;
        let slot = Slot {
            writer: PartitionWriter::new(log, chain, restored, expiry),
            leadership,
            last,
            target,
            waiting: VecDeque::new(),
            waiting_until: None,
            shortage: None,
            requested: false,
            asked: false,
            reserved: None,
            offered: SmallVec::new(),
            wants_probe: false,
            dirty: false,
            armed: None,
        };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(slot);
        self.index.insert(id, at);
        drop(open);
        if self.closing {
            self.step(at, chain::Event::Close);
        }
    }

    fn reported(&mut self, bookie: BookieId, reports: Reports) {
        for (ledger, durable) in reports.durable {
            if let Some(&at) = self.ledgers.get(&ledger) {
                self.step(at, chain::Event::Durable { bookie, ledger, durable });
            }
        }
        for (ledger, event) in reports.refused {
            let Some(&at) = self.ledgers.get(&ledger) else { continue };
            match event {
                AppendEvent::Gap { ledger, attempt, accepted, .. } => {
                    self.step(at, chain::Event::Gap { bookie, ledger, attempt, accepted });
                }
                AppendEvent::Refused { ledger, attempt, reason, .. } => {
                    self.step(at, chain::Event::Refused { bookie, ledger, attempt, reason });
                }
                AppendEvent::Durable(_) => {}
            }
        }
        if reports.broken {
            self.links.reconnect(bookie);
            self.step_all(|_| Some(chain::Event::LinkBroken { bookie }));
        }
    }

    fn produce(&mut self, piece: Piece) {
        let Some(&at) = self.index.get(&piece.partition) else {
            return piece.reply.end(Err(Failure::new(
                ErrorReason::NotLeader,
                "this broker does not lead the partition, ask for metadata and try again",
            )));
        };
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        if self.closing {
            return piece.reply.end(Err(failure::shutting_down()));
        }
        if slot.waiting.is_empty() && slot.has_ledger() {
            self.stage(at, piece);
        } else {
            let until = slot.waiting_until.map_or(piece.deadline, |until| until.min(piece.deadline));
            slot.waiting_until = Some(until);
            slot.waiting.push_back(piece);
            self.request_ledger(at);
            self.arm(at);
        }
    }

    fn stage(&mut self, at: usize, piece: Piece) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        if !std::mem::replace(&mut slot.dirty, true) {
            self.dirty.push(at);
        }
        let mut actions = std::mem::take(&mut self.scratch);
        slot.writer.stage(self.now, piece, &mut actions);
        self.carry_out(at, actions);
    }

    fn flush(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        slot.dirty = false;
        let mut actions = std::mem::take(&mut self.scratch);
        slot.writer.flush(self.now, &mut actions);
        self.carry_out(at, actions);
    }

    fn step(&mut self, at: usize, event: chain::Event) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        let mut actions = std::mem::take(&mut self.scratch);
        slot.writer.chain.step(self.now.millis, event, &mut actions);
        self.carry_out(at, actions);
    }

    fn step_all(&mut self, event: impl Fn(&mut Slot) -> Option<chain::Event>) {
        for at in 0..self.slots.len() {
            if let Some(event) = self.slots[at].as_mut().and_then(&event) {
                self.step(at, event);
            }
        }
    }

    /// Carries out what a chain asks for, and what follows from that.
    fn carry_out(&mut self, at: usize, mut actions: Vec<chain::Action>) {
        let mut follow: SmallVec<[chain::Event; 2]> = SmallVec::new();
        loop {
            for action in actions.drain(..) {
                self.carry_out_one(at, action, &mut follow);
            }
            if follow.is_empty() {
                break;
            }
            let event = follow.remove(0);
            let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { break };
            slot.writer.chain.step(self.now.millis, event, &mut actions);
        }
        self.scratch = actions;
        self.arm(at);
    }

    fn carry_out_one(&mut self, at: usize, action: chain::Action, follow: &mut SmallVec<[chain::Event; 2]>) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        match action {
            chain::Action::Send { bookie, append } => {
                let broken = chain::Event::LinkBroken { bookie };
                if self.links.send(bookie, append).is_err() && !follow.contains(&broken) {
                    follow.push(broken);
                }
            }
            chain::Action::AskState { bookie, ledger } => match self.links.get(bookie) {
                Ok(link) => self.ask_state(at, &link, ledger),
                Err(_) => follow.push(chain::Event::LinkBroken { bookie }),
            },
            chain::Action::FirstDurable { through } => slot.writer.first_durable(through),
            chain::Action::Committed { through, end, .. } => {
                let entries = slot.writer.committed(through, end);
                for entry in entries {
                    self.context.tails.added(&slot.writer.log, entry.size());
                }
            }
            chain::Action::NeedLedger => {
                slot.asked = true;
                match slot.reserved.take() {
                    Some(spare) => follow.push(self.offer(at, spare)),
                    None => self.request_ledger(at),
                }
            }
            chain::Action::ReturnLedger(ledger) => {
                if let Some(place) = slot.offered.iter().position(|spare| spare.ledger == ledger.ledger) {
                    self.pool.put_back(slot.target, slot.offered.remove(place));
                }
            }
            chain::Action::ProbeMetadata => {
                slot.wants_probe = true;
                self.probe();
            }
            chain::Action::Roll(roll) => {
                if let Err(event) = self.roll(at, &roll) {
                    follow.push(event);
                }
            }
            chain::Action::GaveUp { bookie, ledger, cause } => {
                let name = slot.writer.log.name();
                metrics::counter!("quire_broker_replicas_given_up_total").increment(1);
                if cause.is_alarm() {
                    tracing::error!(partition = name, %ledger, %bookie, %cause, "a replica is given up");
                } else {
                    tracing::warn!(partition = name, %ledger, %bookie, %cause, "a replica is given up");
                }
            }
            chain::Action::Failed { from, through, determinate } => {
                slot.writer.failed(from, through, determinate);
            }
            chain::Action::Deposed => self.remove(at, Standing::Deposed),
            chain::Action::Closed => self.remove(at, Standing::Deposed),
        }
    }

    fn offer(&mut self, at: usize, spare: Spare) -> chain::Event {
        let age = self.slots[at].as_ref().map_or(u64::MAX, |slot| {
            u64::try_from(slot.writer.log.topic.config.segment_age.as_millis()).unwrap_or(u64::MAX)
        });
        // Up to a tenth earlier, so that ledgers of one age do not all roll at once.
        let age_ms = age - rand::rng().random_range(0..=age / 10);
        spare.ensemble.replicas().iter().for_each(|&bookie| self.links.ensure(bookie));
        let ledger = chain::NewLedger { ledger: spare.ledger, ensemble: spare.ensemble.clone(), age_ms };
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) {
            slot.asked = false;
            slot.offered.push(spare);
        }
        chain::Event::LedgerReady(ledger)
    }

    fn ledger_ready(&mut self, at: usize, spare: Spare) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        slot.requested = false;
        slot.shortage = None;
        slot.writer.log.set_stuck(None);
        slot.waiting_until = None;
        let waiting = std::mem::take(&mut slot.waiting);
        if slot.asked {
            let ready = self.offer(at, spare);
            self.step(at, ready);
        } else {
            slot.reserved = Some(spare);
        }
        for piece in waiting {
            self.stage(at, piece);
        }
    }

    fn no_ledger(&mut self, at: usize, cause: NoLedger) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        tracing::warn!(partition = slot.writer.log.name(), %cause, "there is no ledger to write to");
        slot.writer.log.set_stuck(Some(cause.to_string()));
        slot.shortage = Some(cause);
        if slot.asked {
            self.step(at, chain::Event::NoLedger);
        }
    }

    /// Asks the pool, which goes on trying until there is one.
    fn request_ledger(&mut self, at: usize) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        if std::mem::replace(&mut slot.requested, true) {
            return;
        }
        let (partition, epoch, target) = (slot.leadership.partition, slot.leadership.epoch, slot.target);
        let (pool, inbox, context) =
            (Arc::clone(&self.pool), Arc::clone(&self.inbox), Arc::clone(&self.context));
        self.context.spawn(async move {
            let mut live = context.bookies.live();
            let mut backoff = Backoff::default();
            let mut told = false;
            loop {
                match pool.take(target).await {
                    Ok(spare) => return inbox.control(Control::Ledger { partition, epoch, spare }),
                    Err(cause) if !told => {
                        told = true;
                        inbox.control(Control::NoLedger { partition, epoch, cause });
                    }
                    Err(cause) => tracing::debug!(%partition, %cause, "still no ledger"),
                }
                tokio::select! {
                    _ = live.changed() => {}
                    () = backoff.pause() => {}
                }
            }
        });
    }

    fn ask_state(&self, at: usize, link: &Arc<dyn BookieLink>, ledger: LedgerId) {
        let Some(slot) = self.slots.get(at).and_then(Option::as_ref) else { return };
        let Leadership { partition, epoch, .. } = slot.leadership;
        let (inbox, bookie) = (Arc::clone(&self.inbox), link.bookie());
        let call = link.call(Request::State { ledger });
        self.context.spawn(async move {
            let answer = call.await.ok();
            inbox.control(Control::State { partition, epoch, bookie, ledger, answer });
        });
    }

    /// One read for all partitions that want to know.
    fn probe(&mut self) {
        if std::mem::replace(&mut self.probing, true) {
            return;
        }
        let (context, inbox) = (Arc::clone(&self.context), Arc::clone(&self.inbox));
        self.context.spawn(async move {
            let mut backoff = Backoff::default();
            loop {
                let sent = context.clock.millis();
                match context.store.get(&context.keys.cluster()).await {
                    Ok(_) => return inbox.control(Control::MetadataAnswered { sent }),
                    Err(error) => tracing::warn!(%error, "metadata does not answer, rolls wait"),
                }
                backoff.pause().await;
            }
        });
    }

    /// Issues the roll's transaction: never abandoned (W4).
    fn roll(&mut self, at: usize, roll: &chain::Roll) -> Result<(), chain::Event> {
        let Some(slot) = self.slots.get(at).and_then(Option::as_ref) else { return Ok(()) };
        let seal = roll.seal.as_ref().map(|seal| Sealed {
            end: seal.end,
            next_offset: seal.next_offset,
            bytes: seal.bytes,
            complete: seal.complete.clone(),
            max_timestamp_ms: slot.writer.segment_max_ms(),
            sealed_ms: wall_ms(),
        });
        let open = roll.open.as_ref().and_then(|open| {
            let spare = slot.offered.iter().find(|spare| spare.ledger == open.ledger)?;
            Some(roll::NewLedger {
                id: open.ledger,
                replicas: open.ensemble.replicas().to_vec(),
                ack_quorum: u32::try_from(open.ensemble.ack_quorum()).unwrap_or(u32::MAX),
                created_ms: wall_ms(),
                block: (*spare.block).clone(),
            })
        });
        let operation = roll::Roll::new(slot.leadership, slot.last.clone(), seal, open);
        let operation = operation.map_err(|error| {
            tracing::error!(partition = slot.writer.log.name(), %error, "a roll contradicts the protocol");
            chain::Event::Deposed
        })?;
        let Leadership { partition, epoch, .. } = slot.leadership;
        let (context, inbox) = (Arc::clone(&self.context), Arc::clone(&self.inbox));
        self.context.spawn(async move {
            let result = Box::new(context.settle(&operation).await);
            inbox.control(Control::Rolled { partition, epoch, result });
        });
        Ok(())
    }

    fn rolled(&mut self, at: usize, result: RollResult) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        let name = slot.writer.log.name();
        match result {
            Ok(Outcome::Done(rolled)) => self.roll_applied(at, rolled),
            Ok(Outcome::Lost(RollRefused::BlockReleased)) => {
                slot.offered.clear();
                self.step(at, chain::Event::BlockReleased);
            }
            Ok(Outcome::Lost(refused)) => {
                tracing::warn!(partition = name, %refused, "the partition was rolled by another");
                self.step(at, chain::Event::Deposed);
            }
            Err(error) => {
                tracing::error!(partition = name, %error, "a roll's transaction cannot be carried out");
                self.step(at, chain::Event::Deposed);
            }
        }
    }

    fn roll_applied(&mut self, at: usize, rolled: Rolled) {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        metrics::counter!("quire_broker_rolls_total").increment(1);
        if let Some(before) = slot.last.as_ref().map(|last| last.segment.ledger) {
            self.ledgers.remove(&before);
            slot.writer.log.rolled(before, rolled.previous.as_ref(), rolled.opened.as_ref());
        } else {
            slot.writer.log.rolled(LedgerId::default(), None, rolled.opened.as_ref());
        }
        let snapshot = match &rolled.opened {
            Some(opened) => {
                let ledger = opened.segment.ledger;
                slot.offered.retain(|spare| spare.ledger != ledger);
                self.ledgers.insert(ledger, at);
                slot.writer.snapshot(opened.segment.base_offset, now)
            }
            None => Some(Vec::new()),
        };
        slot.writer.segment_began();
        slot.last = rolled.opened.or(rolled.previous);
        match snapshot {
            Some(snapshot) => self.step(at, chain::Event::RollApplied { snapshot }),
            None => {
                let name = slot.writer.log.name();
                tracing::error!(partition = name, "the writer's state is not that of the chain's end");
                self.step(at, chain::Event::Deposed);
            }
        }
    }

    fn expire_waiting(&mut self, at: usize) {
        let now = self.now.millis;
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        if slot.waiting_until.is_none_or(|until| until > now) {
            return;
        }
        let name = slot.writer.log.name();
        let failure = slot.shortage.as_ref().map_or_else(
            || {
                Failure::new(
                    ErrorReason::NotEnoughBookies,
                    format!("{name}: no ledger could be opened in time"),
                )
            },
            |cause| Failure::new(shortage_reason(cause), format!("{name}: {cause}; try again")),
        );
        let (expired, waiting): (VecDeque<_>, _) =
            std::mem::take(&mut slot.waiting).into_iter().partition(|piece| piece.deadline <= now);
        slot.waiting = waiting;
        slot.waiting_until = slot.waiting.iter().map(|piece| piece.deadline).min();
        expired.into_iter().for_each(|piece| piece.reply.end(Err(failure.clone())));
    }

    fn close(&mut self) {
        self.closing = true;
        for at in 0..self.slots.len() {
            let Some(slot) = self.slots[at].as_mut() else { continue };
            let waiting = std::mem::take(&mut slot.waiting);
            waiting.into_iter().for_each(|piece| piece.reply.end(Err(failure::shutting_down())));
            self.step(at, chain::Event::Close);
        }
    }

    fn remove(&mut self, at: usize, standing: Standing) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::take) else { return };
        let log = &slot.writer.log;
        self.free.push(at);
        self.index.remove(&log.id);
        self.ledgers.retain(|_, owner| *owner != at);
        log.stopped(standing);
        if let Some(spare) = slot.reserved {
            self.pool.put_back(slot.target, spare);
        }
        let name = log.name();
        for piece in slot.waiting {
            piece.reply.end(Err(failure::not_leader(&name)));
        }
        if standing == Standing::Deposed && !self.closing {
            tracing::warn!(partition = name, epoch = %slot.leadership.epoch, "deposed");
            self.deposed.add(log.id);
        }
    }

    fn find(&self, partition: PartitionId, epoch: Epoch) -> Option<usize> {
        let &at = self.index.get(&partition)?;
        let slot = self.slots.get(at)?.as_ref()?;
        (slot.leadership.epoch == epoch).then_some(at)
    }

    fn arm(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) {
            let due = slot.due();
            self.timers.arm(at, due, &mut slot.armed);
        }
    }
}

const fn shortage_reason(cause: &NoLedger) -> ErrorReason {
    match cause {
        NoLedger::Bookies { .. } | NoLedger::Refused(_) => ErrorReason::NotEnoughBookies,
        NoLedger::Full { .. } => ErrorReason::StorageFull,
        NoLedger::Store(_) => ErrorReason::MetadataUnavailable,
    }
}
