//! The task of a shard: takes what came in, steps the machines of the
//! partitions concerned, and carries out what they ask for.

use std::collections::HashMap;
use std::sync::Arc;

use quire_ledger::chain;
use quire_ledger::clock::Millis;
use quire_ledger::link::BookieLink;
use quire_ledger::message::{AppendEvent, Request, Response};
use quire_metadata::operation::Outcome;
use quire_metadata::operations::roll;
use quire_proto::id::{BookieId, Epoch, LedgerId, PartitionId};
use quire_proto::v1::ErrorReason;
use rand::RngExt;
use smallvec::SmallVec;

use crate::bookies;
use crate::context::{Backoff, Context};
use crate::failure::Failure;
use crate::leadership::manager::Open;
use crate::leadership::{Deposed, Promoted};
use crate::log::partition::Standing;
use crate::pool::{LedgerPool, NoLedger, Spare, Target};
use crate::shard::inbox::{Arrived, Inbox, Produce, Reports};
use crate::shard::leader::{Effect, Effects, Leader, RollResult};
use crate::shard::links::Links;
use crate::shard::piece::Piece;
use crate::shard::timers::Timers;
use crate::shard::writer::Now;

/// What comes into a shard beside produce requests and reports of bookies.
#[derive(Debug)]
pub enum Control {
    /// Lead this partition. Its take-over ends here.
    Install { promoted: Box<Promoted>, open: Open },
    /// The topic is gone: stop leading it.
    Remove(PartitionId),
    /// A ledger that was asked for.
    Ledger { partition: PartitionId, epoch: Epoch, target: Target, spare: Spare },
    /// There is none yet.
    NoLedger { partition: PartitionId, epoch: Epoch, cause: NoLedger },
    /// What became of a roll.
    Rolled { partition: PartitionId, epoch: Epoch, result: Box<RollResult> },
    /// What became of a question about a ledger, over the link of this number.
    State {
        partition: PartitionId,
        epoch: Epoch,
        bookie: BookieId,
        number: u64,
        ledger: LedgerId,
        result: Result<Response, String>,
    },
    /// A link was made.
    Linked { link: Arc<dyn BookieLink>, number: u64 },
    /// The link to this bookie broke, and another is being made.
    LinkBroken { bookie: BookieId },
    /// The metadata store answered a read that was sent then (W4).
    MetadataAnswered { sent: Millis },
    /// Seal everything and end.
    Close,
}

/// A partition of this shard.
#[derive(Debug)]
struct Slot {
    leader: Leader,
    target: Target,
    /// Something is staged.
    dirty: bool,
    armed: Option<Millis>,
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
    effects: Effects,
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
            effects: Effects::default(),
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
            let is_broken = reports.broken;
            if self.links.is_current(bookie, number) {
                self.reported(bookie, reports);
            }
            if is_broken && self.links.broke(bookie, number) {
                self.link_broken(bookie);
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
            self.with(at, |leader, now, effects| leader.tick(now, effects));
        }
    }

    fn control(&mut self, message: Control) {
        match message {
            Control::Install { promoted, open } => self.install(*promoted, open),
            Control::Remove(partition) => {
                if let Some(&at) = self.index.get(&partition) {
                    self.remove(at, Standing::Deleted);
                }
            }
            Control::Ledger { partition, epoch, target, spare } => match self.find(partition, epoch) {
                Some(at) => self.ledger_ready(at, spare),
                None => {
                    tracing::debug!(ledger = %spare.ledger, "a ledger came too late");
                    self.pool.put_back(target, spare);
                }
            },
            Control::NoLedger { partition, epoch, cause } => {
                if let Some(at) = self.find(partition, epoch) {
                    tracing::warn!(%partition, %cause, "there is no ledger to write to");
                    self.with(at, |leader, now, effects| leader.no_ledger(now, cause, effects));
                }
            }
            Control::Rolled { partition, epoch, result } => {
                if let Some(at) = self.find(partition, epoch) {
                    self.rolled(at, *result);
                }
            }
            Control::State { partition, epoch, bookie, number, ledger, result } => {
                // What an earlier link said is asked of the next one again.
                if self.links.is_current(bookie, number)
                    && let Some(at) = self.find(partition, epoch)
                {
                    self.with(at, |leader, now, effects| {
                        leader.state_answered(now, bookie, ledger, result, effects);
                    });
                }
            }
            Control::Linked { link, number } => {
                let bookie = link.bookie();
                if self.links.linked(link, number) {
                    self.with_all(|leader, now, effects| {
                        leader.step(now, chain::Event::LinkUp { bookie }, effects)
                    });
                }
            }
            Control::LinkBroken { bookie } => self.link_broken(bookie),
            Control::MetadataAnswered { sent } => {
                self.probing = false;
                self.with_all(|leader, now, effects| leader.metadata_answered(now, sent, effects));
            }
            Control::Close => self.close(),
        }
    }

    fn install(&mut self, promoted: Promoted, open: Open) {
        let id = promoted.log.id;
        if let Some(&at) = self.index.get(&id) {
            self.remove(at, Standing::Deposed);
        }
        let topic = Arc::clone(&promoted.log.topic);
        let options = chain::Options {
            roll_bytes: topic.config.segment_bytes,
            roll_entries: self.context.options.roll_entries,
            idle_ms: u64::try_from(self.context.options.idle_seal.as_millis()).unwrap_or(u64::MAX),
            ..chain::Options::default()
        };
        let leader = Leader::new(promoted, options, self.context.options.producer_expiry);
        let target = Target { replicas: topic.replicas, ack_quorum: topic.ack_quorum };
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[at] = Some(Slot { leader, target, dirty: false, armed: None });
        self.index.insert(id, at);
        drop(open);
        if self.closing {
            self.with(at, Leader::close);
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
    }

    /// The link is every partition's.
    fn link_broken(&mut self, bookie: BookieId) {
        self.with_all(|leader, now, effects| {
            leader.step(now, chain::Event::LinkBroken { bookie }, effects);
        });
    }

    fn produce(&mut self, piece: Piece) {
        let Some(&at) = self.index.get(&piece.partition) else {
            return piece.reply.end(Err(Failure::new(
                ErrorReason::NotLeader,
                "this broker does not lead the partition, ask for metadata and try again",
            )));
        };
        let mut staged = false;
        self.with(at, |leader, now, effects| {
            staged = leader.produce(now, piece, effects);
        });
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        if staged && !std::mem::replace(&mut slot.dirty, true) {
            self.dirty.push(at);
        }
    }

    fn flush(&mut self, at: usize) {
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) {
            slot.dirty = false;
        }
        self.with(at, Leader::flush);
    }

    fn step(&mut self, at: usize, event: chain::Event) {
        self.with(at, |leader, now, effects| leader.step(now, event, effects));
    }

    fn with_all(&mut self, step: impl Fn(&mut Leader, Now, &mut Effects)) {
        for at in 0..self.slots.len() {
            self.with(at, &step);
        }
    }

    /// Steps a leader, carries out what it wants, and what follows from that.
    fn with(&mut self, at: usize, step: impl FnOnce(&mut Leader, Now, &mut Effects)) {
        let now = self.now;
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        let mut effects = std::mem::take(&mut self.effects);
        let mut broken: SmallVec<[BookieId; 2]> = SmallVec::new();
        step(&mut slot.leader, now, &mut effects);
        loop {
            for effect in effects.drain() {
                self.carry_out(at, effect, &mut broken);
            }
            let Some(bookie) = broken.pop() else { break };
            let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { break };
            slot.leader.step(now, chain::Event::LinkBroken { bookie }, &mut effects);
        }
        self.effects = effects;
        if let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) {
            let due = slot.leader.deadline();
            self.timers.arm(at, due, &mut slot.armed);
        }
    }

    fn carry_out(&mut self, at: usize, effect: Effect, broken: &mut SmallVec<[BookieId; 2]>) {
        let Some(slot) = self.slots.get_mut(at).and_then(Option::as_mut) else { return };
        match effect {
            Effect::Send { bookie, append } => {
                if self.links.send(bookie, append).is_err() && !broken.contains(&bookie) {
                    broken.push(bookie);
                }
            }
            Effect::AskState { bookie, ledger } => match self.links.get(bookie) {
                Ok((link, number)) => self.ask_state(at, link, number, ledger),
                Err(_) => broken.push(bookie),
            },
            Effect::RequestLedger => self.request_ledger(at),
            Effect::ReturnLedger(spare) => self.pool.put_back(slot.target, spare),
            Effect::ProbeMetadata => self.probe(),
            Effect::Roll(roll) => self.roll(at, *roll),
            Effect::Rolled { closed, opened } => {
                metrics::counter!("quire_broker_rolls_total").increment(1);
                closed.map(|closed| self.ledgers.remove(&closed));
                opened.map(|opened| self.ledgers.insert(opened, at));
            }
            Effect::Committed(entries) => {
                for entry in entries {
                    self.context.tails.added(slot.leader.log(), &entry);
                }
            }
            Effect::GaveUp { bookie, ledger, cause } => {
                let name = slot.leader.log().name();
                metrics::counter!("quire_broker_replicas_given_up_total").increment(1);
                if cause.is_alarm() {
                    tracing::error!(partition = name, %ledger, %bookie, %cause, "a replica is given up");
                } else {
                    tracing::warn!(partition = name, %ledger, %bookie, %cause, "a replica is given up");
                }
            }
            Effect::Alarm(alarm) => {
                tracing::error!(partition = slot.leader.log().name(), %alarm, "a leader steps down");
            }
            Effect::Ended => self.remove(at, Standing::Deposed),
        }
    }

    fn ledger_ready(&mut self, at: usize, spare: Spare) {
        let Some(slot) = self.slots.get(at).and_then(Option::as_ref) else { return };
        let age = &slot.leader.log().topic.config.segment_age;
        let age = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        // Up to a tenth earlier, so that ledgers of one age do not all roll at once.
        let age_ms = age - rand::rng().random_range(0..=age / 10);
        spare.ensemble.replicas().iter().for_each(|&bookie| self.links.ensure(bookie));
        self.with(at, |leader, now, effects| leader.ledger_ready(now, spare, age_ms, effects));
    }

    /// Asks the pool until there is a ledger, or nobody wants it any more.
    fn request_ledger(&self, at: usize) {
        let Some(slot) = self.slots.get(at).and_then(Option::as_ref) else { return };
        let log = Arc::clone(slot.leader.log());
        let (partition, epoch, target) = (slot.leader.log().id, slot.leader.epoch(), slot.target);
        let (pool, inbox, context) =
            (Arc::clone(&self.pool), Arc::clone(&self.inbox), Arc::clone(&self.context));
        self.context.spawn(async move {
            let mut live = context.bookies.live();
            let mut backoff = Backoff::default();
            let mut told = false;
            let is_over = || match log.standing() {
                (Standing::Deposed | Standing::Deleted, _) => true,
                (Standing::Recovering | Standing::Leading, now) => now > epoch,
            };
            while !is_over() {
                match pool.take(target).await {
                    Ok(spare) => return inbox.control(Control::Ledger { partition, epoch, target, spare }),
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

    fn ask_state(&self, at: usize, link: Arc<dyn BookieLink>, number: u64, ledger: LedgerId) {
        let Some(slot) = self.slots.get(at).and_then(Option::as_ref) else { return };
        let (partition, epoch) = (slot.leader.log().id, slot.leader.epoch());
        let (inbox, bookie) = (Arc::clone(&self.inbox), link.bookie());
        self.context.spawn(async move {
            let answered = bookies::call(&*link, Request::State { ledger }).await;
            let result = answered.map_err(|error| error.cause);
            inbox.control(Control::State { partition, epoch, bookie, number, ledger, result });
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
    fn roll(&self, at: usize, operation: roll::Roll) {
        let Some(slot) = self.slots.get(at).and_then(Option::as_ref) else { return };
        let (partition, epoch) = (slot.leader.log().id, slot.leader.epoch());
        let (context, inbox) = (Arc::clone(&self.context), Arc::clone(&self.inbox));
        self.context.spawn(async move {
            let result = Box::new(context.settle(&operation).await);
            inbox.control(Control::Rolled { partition, epoch, result });
        });
    }

    fn rolled(&mut self, at: usize, result: RollResult) {
        let Some(slot) = self.slots.get(at).and_then(Option::as_ref) else { return };
        let name = || slot.leader.log().name();
        match &result {
            Ok(Outcome::Done(_)) => {}
            Ok(Outcome::Lost(refused)) => {
                tracing::warn!(partition = name(), %refused, "a roll did not happen");
            }
            Err(error) => {
                tracing::error!(partition = name(), %error, "a roll's transaction cannot be carried out");
            }
        }
        self.with(at, |leader, now, effects| leader.rolled(now, result, effects));
    }

    fn close(&mut self) {
        self.closing = true;
        self.with_all(Leader::close);
    }

    fn remove(&mut self, at: usize, standing: Standing) {
        let Some(Slot { leader, target, .. }) = self.slots.get_mut(at).and_then(Option::take) else { return };
        let (log, epoch) = (Arc::clone(leader.log()), leader.epoch());
        self.free.push(at);
        self.index.remove(&log.id);
        self.ledgers.retain(|_, owner| *owner != at);
        if let Some(spare) = leader.stop(standing) {
            self.pool.put_back(target, spare);
        }
        if standing == Standing::Deposed && !self.closing {
            tracing::warn!(partition = log.name(), %epoch, "deposed");
            self.deposed.add(log.id);
        }
    }

    fn find(&self, partition: PartitionId, epoch: Epoch) -> Option<usize> {
        let &at = self.index.get(&partition)?;
        let slot = self.slots.get(at)?.as_ref()?;
        (slot.leader.epoch() == epoch).then_some(at)
    }
}

#[cfg(test)]
mod tests;
