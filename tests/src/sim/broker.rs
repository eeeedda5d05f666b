//! A broker of a run: its links, calls, ledger pool and slots.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quire_broker::leadership::promotion::{self, Event};
use quire_broker::leadership::take_over::{self, Taken};
use quire_broker::log::PartitionLog;
use quire_broker::shard::leader::{self, RollResult};
use quire_broker::shard::writer::Now;
use quire_broker::topic::{Topic, TopicConfig};
use quire_ledger::chain;
use quire_ledger::clock::Millis;
use quire_ledger::message::{Append, Request, Response};
use quire_ledger::replica::RequestId;
use quire_metadata::key::Keys;
use quire_metadata::operation::{self, Operation, Outcome};
use quire_metadata::operations::roll::RollRefused;
use quire_metadata::partition::Partition;
use quire_metadata::process::Process;
use quire_metadata::store::{Store, StoreError};
use quire_metadata::topic::TopicName;
use quire_metadata::typed::{Typed, Versioned};
use quire_metadata::view;
use quire_proto::id::{BookieId, Epoch, LedgerId, PartitionId};

use super::client::{Produce, Produced, Refused};
use super::gate::{Answer, Ask, Gate, Tasks};
use super::history::PartitionNumber;
use super::network::{End, LinkId, ProcessNumber};
use super::plan::Trouble;
use super::pool::{Creation, Pool};
use super::reading::ColdRead;
use super::scheduler::Micros;
use super::slot::{Asked, Effect, Settings, Slot};
use super::violation::Checked;
use super::world::{Asker, Happening, ToBookie, ToBroker, World, note};

/// One broker.
#[derive(Debug)]
pub struct SimBroker {
    pub index: usize,
    pub number: ProcessNumber,
    pub process: Process,
    pub alive: bool,
    pub paused_since: Option<Micros>,
    pub stash: VecDeque<Happening>,
    pub gate: Gate,
    pub tasks: Tasks<Done>,
    links: BTreeMap<usize, LinkState>,
    calls: BTreeMap<RequestId, Calling>,
    next_call: u64,
    pub slots: BTreeMap<PartitionNumber, Slot>,
    pub pool: Pool,
    pub reads: BTreeMap<u64, ColdRead>,
    pub next_read: u64,
    wake_at: Option<Micros>,
    pub probing: bool,
}

#[derive(Clone, Copy, Debug)]
enum LinkState {
    Connecting,
    Up(LinkId),
}

#[derive(Debug)]
struct Calling {
    link: LinkId,
    bookie: usize,
    purpose: Purpose,
}

/// What a call is for.
#[derive(Clone, Debug)]
pub enum Purpose {
    Slot(PartitionNumber, Option<Epoch>, Asked),
    Create(LedgerId),
    Read(u64),
}

/// What a task of a broker came to.
#[derive(Debug)]
pub enum Done {
    TakenOver(PartitionNumber, Result<Box<Taken>, StoreError>),
    /// For the slot that asked, while it has this epoch.
    Slot(PartitionNumber, Option<Epoch>, ForSlot),
    Probed(Millis),
    Block(Result<quire_metadata::operations::ids::HeldBlock, StoreError>),
}

/// What a task for a slot came to.
#[derive(Debug)]
pub enum ForSlot {
    Rolled(Box<RollResult>),
    Promotion(Box<Event>),
}

impl World {
    /// A new run of a broker.
    pub fn new_broker(&mut self, index: usize) -> SimBroker {
        let number = ProcessNumber(self.processes);
        self.processes += 1;
        #[expect(clippy::expect_used, reason = "a name that is valid")]
        let broker = format!("broker-{index}").parse().expect("a valid broker name");
        SimBroker {
            index,
            number,
            process: Process { broker, nonce: self.random.nonce() },
            alive: true,
            paused_since: None,
            stash: VecDeque::new(),
            gate: Gate::default(),
            tasks: Tasks::default(),
            links: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            slots: BTreeMap::new(),
            pool: Pool::default(),
            reads: BTreeMap::new(),
            next_read: 0,
            wake_at: None,
            probing: false,
        }
    }

    /// A broker's clock.
    #[must_use]
    pub fn clock(&self) -> Now {
        let millis = self.scheduler.now() / 1000;
        Now { millis: Millis(millis), wall_ms: i64::try_from(millis).unwrap_or(i64::MAX) }
    }

    /// The broker that this process is a run of, if it still runs.
    #[must_use]
    pub fn running(&self, process: ProcessNumber) -> Option<usize> {
        self.brokers.iter().position(|broker| broker.number == process && broker.alive)
    }

    /// The running broker of this process; what comes for a paused one is kept
    /// for later.
    pub fn awake(&mut self, process: ProcessNumber, happening: impl FnOnce() -> Happening) -> Option<usize> {
        let index = self.running(process)?;
        if self.brokers[index].paused_since.is_some() {
            self.brokers[index].stash.push_back(happening());
            return None;
        }
        Some(index)
    }

    /// A broker that was down starts as another process.
    pub fn start_broker(&mut self, index: usize) {
        if !self.brokers[index].alive {
            self.brokers[index] = self.new_broker(index);
            note!(self, "broker {index} starts as process {}", self.brokers[index].number.0);
        }
    }

    /// A broker's process ends.
    pub fn crash_broker(&mut self, index: usize) {
        let number = self.brokers[index].number;
        note!(self, "broker {index} crashes, process {}", number.0);
        self.hits.hit("a broker crashed");
        self.brokers[index].alive = false;
        self.brokers[index].stash.clear();
        self.brokers[index].slots.clear();
        for link in self.network.open_links(End::Broker, |link| link.process == number) {
            self.network.close(link, End::Broker);
            let delay = self.network.delay(&mut self.random);
            self.scheduler.after(delay, Happening::Broken(link, End::Bookie));
        }
        let outage = self.random.delay(50_000, 800_000);
        self.scheduler.after(outage, Happening::BrokerStarts(index));
    }

    /// A broker goes on after a pause, as if nothing had been.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn resume_broker(&mut self, index: usize) -> Checked {
        if self.brokers[index].paused_since.take().is_none() {
            return Ok(());
        }
        note!(self, "broker {index} goes on");
        self.hits.hit("a broker went on after a pause");
        for happening in std::mem::take(&mut self.brokers[index].stash) {
            self.scheduler.after(0, happening);
        }
        Ok(())
    }

    /// A broker is asked to lead a partition (T1).
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn told_to_take_over(&mut self, process: ProcessNumber, number: PartitionNumber) -> Checked {
        let Some(at) = self.awake(process, || Happening::TakeOver(process, number)) else { return Ok(()) };
        if self.brokers[at].slots.get(&number).is_some_and(|slot| !slot.is_leading()) {
            return Ok(());
        }
        note!(self, "broker {at} takes partition {number} over");
        self.hits.hit("a take-over");
        self.fail_replies(at, number)?;
        let id = self.partition(number);
        let settings = Settings { roll_entries: self.plan.roll_entries, idle_ms: self.plan.idle_ms };
        let log = PartitionLog::new(id, self.broker_topic());
        let broker = &mut self.brokers[at];
        broker.slots.insert(number, Slot::new(log, settings));
        let (gate, keys, process) = (broker.gate.clone(), self.keys.clone(), broker.process.clone());
        let name = self.topic.name.clone();
        broker.tasks.start(async move {
            Done::TakenOver(number, take_over(gate, keys, process, name, id).await.map(Box::new))
        });
        self.poll(at)
    }

    fn broker_topic(&self) -> Arc<Topic> {
        Arc::new(Topic {
            id: self.topic.id,
            name: self.topic.name.clone(),
            partitions: self.topic.partitions,
            replicas: self.topic.replicas,
            ack_quorum: self.topic.ack_quorum,
            config: TopicConfig::default(),
        })
    }

    /// Lets the broker's tasks go on.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn poll(&mut self, at: usize) -> Checked {
        loop {
            let broker = &mut self.brokers[at];
            let done = broker.tasks.poll();
            let (number, asked) = (broker.number, broker.gate.take_asked());
            self.forward_questions(Asker::Broker(number), asked);
            if done.is_empty() {
                return Ok(());
            }
            for done in done {
                self.task_done(at, done)?;
            }
        }
    }

    /// The store answered a broker.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn told_broker(
        &mut self,
        process: ProcessNumber,
        ask: Ask,
        answer: Result<Answer, StoreError>,
    ) -> Checked {
        let again = answer.clone();
        let happening = || Happening::Told(Asker::Broker(process), ask, again);
        let Some(at) = self.awake(process, happening) else { return Ok(()) };
        self.brokers[at].gate.answer(ask, answer);
        self.poll(at)
    }

    fn task_done(&mut self, at: usize, done: Done) -> Checked {
        let now = self.clock();
        let mut out = Vec::new();
        let number = match done {
            Done::Block(result) => return self.block_allocated(at, result),
            Done::Probed(sent) => {
                self.brokers[at].probing = false;
                let numbers: Vec<_> = self.brokers[at].slots.keys().copied().collect();
                for number in numbers {
                    if let Some(slot) = self.brokers[at].slots.get_mut(&number) {
                        slot.leader_step(
                            now,
                            |leader, now, effects| leader.metadata_answered(now, sent, effects),
                            &mut out,
                        );
                    }
                    self.effects(at, number, std::mem::take(&mut out))?;
                }
                return Ok(());
            }
            Done::TakenOver(number, result) => {
                let Some(slot) = self.brokers[at].slots.get_mut(&number) else { return Ok(()) };
                match result {
                    Ok(taken) => slot.taken_over(now, *taken, &mut out),
                    Err(error) => {
                        slot.not_taken_over(&mut out);
                        note!(self, "broker {at} did not take partition {number} over: {error}");
                    }
                }
                number
            }
            Done::Slot(number, epoch, done) => {
                if let ForSlot::Rolled(result) = &done {
                    note!(self, "broker {at} rolled partition {number}: {}", brief(result));
                    if matches!(&**result, Ok(Outcome::Lost(RollRefused::BlockReleased))) {
                        self.hits.hit("a roll found its block released");
                    }
                }
                let Some(slot) = self.slot_of(at, number, epoch) else { return Ok(()) };
                match done {
                    ForSlot::Rolled(result) => slot.rolled(now, *result, &mut out),
                    ForSlot::Promotion(event) => slot.promotion_step(now, *event, &mut out),
                }
                number
            }
        };
        self.effects(at, number, out)
    }

    /// The slot, unless it has been taken over anew since it had this epoch.
    fn slot_of(&mut self, at: usize, number: PartitionNumber, epoch: Option<Epoch>) -> Option<&mut Slot> {
        self.brokers[at].slots.get_mut(&number).filter(|slot| slot.epoch() == epoch)
    }

    /// Carries out what a slot wants, and answers what it answered.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn effects(&mut self, at: usize, number: PartitionNumber, effects: Vec<Effect>) -> Checked {
        let mut broken: Vec<BookieId> = Vec::new();
        let mut over = false;
        for effect in effects {
            match effect {
                Effect::Leader(leader::Effect::Send { bookie, append })
                | Effect::Promotion(promotion::Effect::Append { bookie, append }) => {
                    if !self.send_append(at, bookie, append) && !broken.contains(&bookie) {
                        broken.push(bookie);
                    }
                }
                Effect::Leader(effect) => self.leader_effect(at, number, effect)?,
                Effect::Promotion(effect) => self.promotion_effect(at, number, effect)?,
                Effect::Note(what, more) => {
                    self.hits.hit(what);
                    note!(self, "broker {at}, partition {number}: {what} {more}");
                }
                Effect::Over => over = true,
            }
        }
        self.answer_replies(at, number)?;
        if over {
            return self.slot_over(at, number);
        }
        for bookie in broken {
            let now = self.clock();
            let mut out = Vec::new();
            if let Some(slot) = self.brokers[at].slots.get_mut(&number) {
                slot.link_broken(now, bookie, &mut out);
            }
            self.effects(at, number, out)?;
        }
        self.arm(at);
        Ok(())
    }

    fn leader_effect(&mut self, at: usize, number: PartitionNumber, effect: leader::Effect) -> Checked {
        let broker = &mut self.brokers[at];
        let epoch = broker.slots.get(&number).and_then(Slot::epoch);
        let (gate, keys) = (broker.gate.clone(), self.keys.clone());
        match effect {
            leader::Effect::AskState { bookie, ledger } => {
                let purpose = Purpose::Slot(number, epoch, Asked::State(ledger));
                return self.call(at, bookie, Request::State { ledger }, purpose);
            }
            leader::Effect::RequestLedger => return self.need_ledger(at, number),
            leader::Effect::ReturnLedger(spare) => broker.pool.put_back(spare),
            leader::Effect::ProbeMetadata => {
                let sent = Millis(self.scheduler.now() / 1000);
                if std::mem::replace(&mut broker.probing, true) {
                    return Ok(());
                }
                broker.tasks.start(async move {
                    while gate.get(&keys.cluster()).await.is_err() {}
                    Done::Probed(sent)
                });
            }
            leader::Effect::Roll(roll) => {
                self.hits.hit("a roll");
                self.brokers[at].tasks.start(async move {
                    let result = settle(&gate, &keys, &*roll).await;
                    Done::Slot(number, epoch, ForSlot::Rolled(Box::new(result)))
                });
            }
            // The slot has seen to these.
            leader::Effect::Send { .. }
            | leader::Effect::Rolled { .. }
            | leader::Effect::Committed(_)
            | leader::Effect::GaveUp { .. }
            | leader::Effect::Alarm(_)
            | leader::Effect::Ended => {}
        }
        self.poll(at)
    }

    fn promotion_effect(&mut self, at: usize, number: PartitionNumber, effect: promotion::Effect) -> Checked {
        let id = self.partition(number);
        let broker = &mut self.brokers[at];
        let epoch = broker.slots.get(&number).and_then(Slot::epoch);
        let (gate, keys) = (broker.gate.clone(), self.keys.clone());
        let done = move |event| Done::Slot(number, epoch, ForSlot::Promotion(Box::new(event)));
        match effect {
            promotion::Effect::Call { bookie, request } => {
                let purpose = Purpose::Slot(number, epoch, Asked::Promotion(request.clone()));
                return self.call(at, bookie, request, purpose);
            }
            promotion::Effect::Step(step) => {
                broker.tasks.start(async move {
                    done(settle(&gate, &keys, &*step).await.map_or(Event::Failed, Event::Stepped))
                });
            }
            promotion::Effect::ReadLedger(ledger) => {
                broker.tasks.start(async move {
                    done(read(&gate, &keys.ledger(ledger)).await.map_or(Event::Failed, Event::Ledger))
                });
            }
            promotion::Effect::ReadEpoch => {
                broker.tasks.start(async move {
                    let found = read::<Partition>(&gate, &keys.partition(id)).await;
                    let epoch = found.map(|found| found.map(|found| found.value.epoch));
                    done(epoch.map_or(Event::Failed, Event::Epoch))
                });
            }
            promotion::Effect::ChooseTargets { count, except } => {
                return self.choose_targets(at, number, count, &except);
            }
            // The slot has seen to these.
            promotion::Effect::Append { .. }
            | promotion::Effect::Blocked(_)
            | promotion::Effect::ReadFailed(_)
            | promotion::Effect::Alarm(_)
            | promotion::Effect::Recovered(_)
            | promotion::Effect::Promoted(_)
            | promotion::Effect::Deposed => {}
        }
        self.poll(at)
    }

    fn promotion_step(&mut self, at: usize, number: PartitionNumber, event: Event) -> Checked {
        let now = self.clock();
        let mut out = Vec::new();
        if let Some(slot) = self.brokers[at].slots.get_mut(&number) {
            slot.promotion_step(now, event, &mut out);
        }
        self.effects(at, number, out)
    }

    fn choose_targets(
        &mut self,
        at: usize,
        number: PartitionNumber,
        count: usize,
        except: &[BookieId],
    ) -> Checked {
        let usable = self.bookies.iter().filter(|bookie| bookie.is_up() && !except.contains(&bookie.id));
        let chosen: Vec<_> = usable.map(|bookie| bookie.id).take(count).collect();
        self.hits.hit("targets were asked for");
        if !chosen.is_empty() {
            self.hits.hit("targets were named");
        }
        self.promotion_step(at, number, Event::Targets(chosen))
    }

    fn slot_over(&mut self, at: usize, number: PartitionNumber) -> Checked {
        self.fail_replies(at, number)?;
        self.brokers[at].slots.remove(&number);
        Ok(())
    }

    /// Answers the requests that the slot has answered.
    fn answer_replies(&mut self, at: usize, number: PartitionNumber) -> Checked {
        let Some(slot) = self.brokers[at].slots.get_mut(&number) else { return Ok(()) };
        for (produce, outcome) in slot.replies() {
            let result = outcome
                .map(|placed| placed.base_offset.0)
                .map_err(|failure| Refused { determinate: failure.is_determinate(), reason: failure.reason });
            self.reply(at, &produce, result)?;
        }
        Ok(())
    }

    /// What a slot that ends has not answered fails.
    fn fail_replies(&mut self, at: usize, number: PartitionNumber) -> Checked {
        let broker = &mut self.brokers[at];
        broker.pool.forget(number);
        if let Some(spare) = broker.slots.get_mut(&number).and_then(Slot::stop) {
            broker.pool.put_back(spare);
        }
        self.answer_replies(at, number)
    }

    /// Sends an answer to a producer. That is the moment at which it must be
    /// true.
    pub fn reply(&mut self, at: usize, produce: &Produce, result: Result<u64, Refused>) -> Checked {
        let Produce { producer, connection, flight, partition, .. } = produce;
        note!(self, "broker {at} answers {:?} of producer {producer}: {result:?}", flight.batch);
        if let Ok(base) = result {
            self.check_acknowledged(produce, base)?;
        }
        let _ = partition;
        let answer = Produced { producer: *producer, connection: *connection, batch: flight.batch, result };
        if self.plan.strikes(Trouble::ClientRetry, &mut self.random) && !self.healed {
            self.hits.hit("an answer to a producer lost");
            return Ok(());
        }
        let delay = self.network.delay(&mut self.random);
        self.scheduler.after(delay, Happening::Produced(answer));
        Ok(())
    }

    fn send_append(&mut self, at: usize, bookie: BookieId, append: Append) -> bool {
        let Some(to) = self.bookies.iter().position(|other| other.id == bookie) else { return false };
        let Some(link) = self.link(at, to) else { return false };
        if !self.healed && self.plan.strikes(Trouble::MessageLost, &mut self.random) {
            // A stream that lost something is broken: its end hears so later.
            self.hits.hit("an append was lost");
            let delay = self.random.between(1_000..=60_000);
            self.scheduler.after(delay, Happening::Broken(link, End::Broker));
            return true;
        }
        if !self.healed && self.plan.strikes(Trouble::MessageRepeated, &mut self.random) {
            self.hits.hit("an append came twice");
            let late = self.random.between(1_000..=300_000);
            self.scheduler.after(late, Happening::ToBookie(link, ToBookie::Append(append.clone())));
        }
        self.send_to_bookie(link, ToBookie::Append(append));
        true
    }

    fn send_to_bookie(&mut self, link: LinkId, message: ToBookie) {
        let now = self.scheduler.now();
        let arrival = self.network.arrival(link, End::Bookie, now, &mut self.random);
        self.scheduler.at(arrival, Happening::ToBookie(link, message));
    }

    /// The link to a bookie; none leads to an attempt to make one.
    fn link(&mut self, at: usize, to: usize) -> Option<LinkId> {
        match self.brokers[at].links.get(&to) {
            Some(LinkState::Up(link)) => Some(*link),
            Some(LinkState::Connecting) => None,
            None => {
                self.brokers[at].links.insert(to, LinkState::Connecting);
                let delay = self.network.delay(&mut self.random);
                let number = self.brokers[at].number;
                self.scheduler.after(delay, Happening::Connect(number, to));
                None
            }
        }
    }

    /// Sends a request. Without a link it fails at once.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn call(&mut self, at: usize, bookie: BookieId, request: Request, purpose: Purpose) -> Checked {
        let to = self.bookies.iter().position(|other| other.id == bookie);
        let link = to.and_then(|to| self.link(at, to).map(|link| (to, link)));
        let Some((to, link)) = link else {
            return self.called(at, bookie, purpose, Err("there is no link".to_owned()));
        };
        let broker = &mut self.brokers[at];
        let id = RequestId(broker.next_call);
        broker.next_call += 1;
        broker.calls.insert(id, Calling { link, bookie: to, purpose });
        self.send_to_bookie(link, ToBookie::Request(id, request));
        Ok(())
    }

    /// What became of a call.
    fn called(
        &mut self,
        at: usize,
        bookie: BookieId,
        purpose: Purpose,
        result: Result<Response, String>,
    ) -> Checked {
        let now = self.clock();
        match purpose {
            Purpose::Slot(number, epoch, asked) => {
                let mut out = Vec::new();
                if let Some(slot) = self.slot_of(at, number, epoch) {
                    slot.answered(now, bookie, asked, result, &mut out);
                }
                self.effects(at, number, out)
            }
            Purpose::Create(ledger) => self.created(at, ledger, bookie, result),
            Purpose::Read(read) => self.read_answered(at, read, result),
        }
    }

    /// A broker's attempt to connect reaches the bookie.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn connect(&mut self, process: ProcessNumber, to: usize) -> Checked {
        let Some(at) = self.awake(process, || Happening::Connect(process, to)) else { return Ok(()) };
        if matches!(self.brokers[at].links.get(&to), Some(LinkState::Up(_))) {
            return Ok(());
        }
        if !self.bookies[to].is_up() || self.bookies[to].paused || self.network.is_parted(at, to) {
            let pause = self.random.between(5_000..=30_000);
            self.scheduler.after(pause, Happening::Connect(process, to));
            return Ok(());
        }
        let now = self.scheduler.now();
        let link = self.network.open(process, to, now);
        self.brokers[at].links.insert(to, LinkState::Up(link));
        self.hits.hit("a link was made");
        let bookie = self.bookies[to].id;
        self.all_slots(at, |slot, now, out| slot.link_up(now, bookie, out))
    }

    /// Steps every slot of a broker.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn all_slots(&mut self, at: usize, step: impl Fn(&mut Slot, Now, &mut Vec<Effect>)) -> Checked {
        let now = self.clock();
        let numbers: Vec<_> = self.brokers[at].slots.keys().copied().collect();
        for number in numbers {
            let mut out = Vec::new();
            if let Some(slot) = self.brokers[at].slots.get_mut(&number) {
                step(slot, now, &mut out);
            }
            self.effects(at, number, out)?;
        }
        Ok(())
    }

    /// A broker learns that a link broke.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn broken_at_broker(&mut self, link: LinkId) -> Checked {
        let Some(process) = self.network.link(link).map(|link| link.process) else { return Ok(()) };
        if !self.network.is_open(link, End::Broker) {
            return Ok(());
        }
        let Some(at) = self.awake(process, || Happening::Broken(link, End::Broker)) else {
            return Ok(());
        };
        self.hits.hit("a link broke");
        self.network.close(link, End::Broker);
        let delay = self.network.delay(&mut self.random);
        self.scheduler.after(delay, Happening::Broken(link, End::Bookie));
        let broker = &mut self.brokers[at];
        let Some(to) = broker.links.iter().find_map(|(to, state)| match state {
            LinkState::Up(up) if *up == link => Some(*to),
            _ => None,
        }) else {
            return Ok(());
        };
        broker.links.remove(&to);
        let lost: Vec<_> =
            broker.calls.iter().filter(|(_, call)| call.link == link).map(|(id, _)| *id).collect();
        let bookie = self.bookies[to].id;
        self.link(at, to);
        self.all_slots(at, |slot, now, out| slot.link_broken(now, bookie, out))?;
        for id in lost {
            if let Some(call) = self.brokers[at].calls.remove(&id) {
                let bookie = self.bookies[call.bookie].id;
                self.called(at, bookie, call.purpose, Err("the link broke".to_owned()))?;
            }
        }
        Ok(())
    }

    /// A message of a bookie arrives.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn to_broker(&mut self, link: LinkId, message: ToBroker) -> Checked {
        let Some((process, to)) = self.network.link(link).map(|link| (link.process, link.bookie)) else {
            return Ok(());
        };
        if !self.network.is_open(link, End::Broker) {
            return Ok(());
        }
        let again = message.clone();
        let Some(at) = self.awake(process, || Happening::ToBroker(link, again)) else { return Ok(()) };
        let bookie = self.bookies[to].id;
        match message {
            ToBroker::Append(event) => {
                note!(self, "broker {at} hears of bookie {to}: {event:?}");
                self.all_slots(at, |slot, now, out| slot.appended(now, bookie, &event, out))
            }
            ToBroker::Response(id, response) => {
                let Some(call) = self.brokers[at].calls.remove(&id) else { return Ok(()) };
                self.called(at, bookie, call.purpose, Ok(response))
            }
        }
    }

    /// Wakes the broker at its slots' next deadline.
    fn arm(&mut self, at: usize) {
        let broker = &mut self.brokers[at];
        let Some(due) = broker.slots.values().filter_map(Slot::deadline).min() else { return };
        let due = (due.0 * 1000).max(self.scheduler.now() + 1);
        if broker.wake_at.is_none_or(|wake| wake > due || wake <= self.scheduler.now()) {
            broker.wake_at = Some(due);
            self.scheduler.at(due, Happening::Wake(broker.number, due));
        }
    }

    /// A broker's timer.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn wake(&mut self, process: ProcessNumber, due: Micros) -> Checked {
        let Some(at) = self.awake(process, || Happening::Wake(process, due)) else { return Ok(()) };
        if self.brokers[at].wake_at != Some(due) {
            return Ok(());
        }
        self.brokers[at].wake_at = None;
        self.all_slots(at, |slot, now, out| slot.tick(now, out))?;
        self.arm(at);
        Ok(())
    }

    /// A produce request arrives.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn produce(&mut self, process: ProcessNumber, produce: Produce) -> Checked {
        let again = produce.clone();
        let Some(at) = self.awake(process, || Happening::Produce(process, again)) else { return Ok(()) };
        let (now, number) = (self.clock(), produce.partition);
        let mut out = Vec::new();
        let refused = match self.brokers[at].slots.get_mut(&number) {
            Some(slot) => slot.produce(now, produce, &mut out),
            None => Some(produce),
        };
        if let Some(produce) = refused {
            let not_leader = Refused { reason: quire_proto::v1::ErrorReason::NotLeader, determinate: true };
            return self.reply(at, &produce, Err(not_leader));
        }
        self.effects(at, number, out)
    }

    /// A slot's chain is nudged from outside.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn nudge(&mut self, at: usize, number: PartitionNumber, event: chain::Event) -> Checked {
        let now = self.clock();
        let mut out = Vec::new();
        if let Some(slot) = self.brokers[at].slots.get_mut(&number) {
            slot.chain_step(now, event, &mut out);
        }
        self.effects(at, number, out)
    }

    /// What a creation of the pool came to.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn creation_done(&mut self, at: usize, creation: Creation) -> Checked {
        let now = self.clock();
        for number in creation.wanted_by {
            let mut out = Vec::new();
            let spare = self.brokers[at].pool.take();
            let unused = match (self.brokers[at].slots.get_mut(&number), spare) {
                (Some(slot), Some(spare)) => slot.ledger_ready(now, spare, &mut out),
                (_, spare) => spare,
            };
            if let Some(spare) = unused {
                self.brokers[at].pool.put_back(spare);
            }
            self.effects(at, number, out)?;
        }
        Ok(())
    }
}

fn brief(result: &RollResult) -> String {
    match result {
        Ok(Outcome::Done(rolled)) => {
            format!("opened {:?}", rolled.opened.as_ref().map(|opened| opened.segment.ledger.0))
        }
        Ok(Outcome::Lost(refused)) => refused.to_string(),
        Err(error) => error.to_string(),
    }
}

/// Runs an operation until its outcome is known, however long the store is
/// away.
async fn settle<O: Operation>(
    store: &Gate,
    keys: &Keys,
    operation: &O,
) -> Result<Outcome<O::Done, O::Lost>, StoreError> {
    loop {
        match operation::run(store, keys, operation).await {
            Err(error) if error.is_retryable() => {}
            settled => return settled,
        }
    }
}

/// Reads one value, however long the store is away.
async fn read<T: Typed>(store: &Gate, key: &str) -> Result<Option<Versioned<T>>, StoreError> {
    loop {
        match view::get(store, key).await {
            Err(error) if error.is_retryable() => {}
            read => return read,
        }
    }
}

/// T1 and T2.
async fn take_over(
    store: Gate,
    keys: Keys,
    process: Process,
    topic: TopicName,
    id: PartitionId,
) -> Result<Taken, StoreError> {
    let gone = || StoreError::Invalid("the topic is gone".to_owned());
    let topic = view::topic(&store, &keys, &topic).await?.ok_or_else(gone)?;
    let (mut left, mut done) = (vec![id], Vec::new());
    take_over::attempt(&store, &keys, &process, &topic, &mut left, &mut done).await?;
    let overtaken = || StoreError::Unavailable("another took the partition over".to_owned());
    done.pop().ok_or_else(overtaken)
}
