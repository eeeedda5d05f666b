use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quire_proto::error::Failure;
use quire_proto::id::Offset;
use quire_proto::v1::{
    self, ErrorReason, InitProducerRequest, ProducePartition, ProduceRequest, ProduceResponse, ProduceResult,
};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::accumulator::{Accumulator, Limits, Pending, Ticket};
use super::delivery::Outcome;
use super::link::{Link, Sent};
use super::sequencer::{Identity, Rules, Sequencer, Token};
use super::{Acks, ProducerOptions};
use crate::Error;
use crate::client::Shared;
use crate::connections::{Repeat, log_client};
use crate::metadata::{TopicAnswer, TopicView};

/// A request is closed when it has this many bytes of batches; a single batch
/// may be larger.
const REQUEST_BYTES: usize = 1 << 20;

/// Events that wait for the driver; links wait when there are more.
const EVENTS_MAX: usize = 256;

/// A topic that is missing from this many answers in a row is gone; from fewer,
/// the broker may not have heard of it yet.
const MISSING_MAX: u32 = 3;

/// What the producer's handle and its driver share.
#[derive(Debug)]
pub(crate) struct Core {
    accumulator: Mutex<Accumulator>,
    /// The driver has something to do.
    pub(crate) wake: Notify,
    /// Batches were resolved, reports were added or memory became free.
    pub(crate) settled: Notify,
}

impl Core {
    pub(crate) fn new(limits: Limits) -> Self {
        let accumulator = Mutex::new(Accumulator::new(limits));
        Self { accumulator, wake: Notify::new(), settled: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Accumulator> {
        self.accumulator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What happens to a driver.
#[derive(Debug)]
pub(crate) enum Event {
    Answer { link: u64, response: ProduceResponse },
    Broken { link: u64, error: Error },
    Identity(Result<Identity, Error>),
    Metadata { asked: Vec<String>, answer: Result<Vec<TopicAnswer>, Error> },
}

/// Sends what the accumulator holds: one task a producer, stepped by events. It
/// never waits for anything but the next event or time.
pub(crate) struct Driver {
    shared: Arc<Shared>,
    core: Arc<Core>,
    options: ProducerOptions,
    /// One for each of the accumulator's slots.
    lanes: Vec<Lane>,
    links: HashMap<Route, Link>,
    tasks: JoinSet<()>,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    /// For lanes that have not used it yet.
    identity: Option<Identity>,
    asking_identity: bool,
    /// Topics whose leaders are to be asked for, and what came of it before.
    stale: BTreeMap<Arc<str>, u32>,
    refresh: Refresh,
    next_link: u64,
    next_correlation: u64,
    /// The lane that is served first: another one each time.
    first_lane: usize,
}

#[derive(Debug)]
struct Refresh {
    asking: bool,
    attempt: u32,
    not_before: Instant,
    /// All topics are asked for again at this time.
    all_at: Instant,
}

/// The way of one partition's batches.
struct Lane {
    topic: Arc<str>,
    topic_id: Bytes,
    partition: u32,
    sequencer: Sequencer<Ticket>,
    leader: Option<Arc<str>>,
    /// Its leader may be another by now: nothing is sent until that is known.
    suspect: bool,
    /// Its leader cannot be reached: any broker forwards.
    detour: bool,
    /// The link of what is under way.
    link: Option<u64>,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Route {
    address: Arc<str>,
    /// To the leader itself, not to a broker that forwards.
    direct: bool,
}

#[derive(Default)]
struct Parcel {
    partitions: Vec<ProducePartition>,
    parts: Vec<(usize, Token)>,
    bytes: usize,
}

impl Driver {
    pub(crate) fn new(shared: Arc<Shared>, core: Arc<Core>, options: ProducerOptions) -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let now = Instant::now();
        let all_at = now + shared.options.metadata_age;
        Self {
            shared,
            core,
            options,
            lanes: Vec::new(),
            links: HashMap::new(),
            tasks: JoinSet::new(),
            events,
            sender,
            identity: None,
            asking_identity: false,
            stale: BTreeMap::new(),
            refresh: Refresh { asking: false, attempt: 0, not_before: now, all_at },
            next_link: 0,
            next_correlation: 0,
            first_lane: 0,
        }
    }

    /// Runs until the producer is closed and all is known, or `stop` is
    /// cancelled: then what is left fails.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let now = Instant::now();
            let wake_at = self.step(now);
            if self.is_done() {
                return;
            }
            let core = Arc::clone(&self.core);
            tokio::select! {
                () = stop.cancelled() => return,
                event = self.events.recv() => self.take_events(event),
                () = core.wake.notified() => {}
                () = sleep_until(wake_at) => {}
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }

    fn is_done(&self) -> bool {
        let accumulator = self.core.lock();
        accumulator.is_closed() && accumulator.is_idle()
    }

    /// This event and those that are there already.
    fn take_events(&mut self, first: Option<Event>) {
        let now = Instant::now();
        let mut next = first;
        for _ in 0..EVENTS_MAX {
            let Some(event) = next else { return };
            self.take_event(event, now);
            next = self.events.try_recv().ok();
        }
        if let Some(event) = next {
            self.take_event(event, now);
            self.core.wake.notify_one();
        }
    }

    fn take_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Answer { link, response } => self.answered(link, response, now),
            Event::Broken { link, error } => self.broken(link, &error, now),
            Event::Identity(Ok(identity)) => {
                self.asking_identity = false;
                self.identity = Some(identity);
            }
            Event::Identity(Err(error)) => {
                self.asking_identity = false;
                self.unidentified(&error);
            }
            Event::Metadata { asked, answer } => self.learn(&asked, answer, now),
        }
    }

    /// Does what there is to do, and says when to do it again.
    fn step(&mut self, now: Instant) -> Instant {
        self.adopt_slots();
        self.watch_links(now);
        self.expire(now);
        self.identify();
        self.refill(now);
        self.settle();
        self.send(now);
        self.ask_leaders(now);
        self.plan(now)
    }

    /// A lane for each slot that is new.
    fn adopt_slots(&mut self) {
        let places: Vec<_> = {
            let accumulator = self.core.lock();
            (self.lanes.len()..accumulator.slots()).map(|at| accumulator.place(at)).collect()
        };
        let rules = Rules {
            window: self.options.window(),
            idempotent: self.options.is_idempotent(),
            backoff: self.options.backoff(),
            delivery_timeout: self.options.delivery_timeout,
        };
        for (topic, topic_id, partition) in places {
            let known = self.shared.known_topic(&topic);
            let leader = known.and_then(|view| view.leader(partition).cloned());
            if leader.is_none() {
                self.stale.entry(Arc::clone(&topic)).or_default();
            }
            let sequencer = Sequencer::new(rules);
            self.lanes.push(Lane {
                topic,
                topic_id,
                partition,
                sequencer,
                leader,
                suspect: false,
                detour: false,
                link: None,
            });
        }
    }

    /// Breaks links whose broker is silent.
    fn watch_links(&mut self, now: Instant) {
        let patience = self.patience();
        let silent = |link: &Link| link.unanswered().any(|sent| now >= sent.at + patience);
        let silent: Vec<_> = self
            .links
            .iter()
            .filter(|(_, link)| silent(link))
            .map(|(route, link)| (route.address.to_string(), link.id))
            .collect();
        for (address, id) in silent {
            let cause = format!("no answer within {} s", patience.as_secs());
            self.broken(id, &Error::Disconnected { address, cause }, now);
        }
    }

    /// A link whose broker is silent for this long is broken: a quarter longer
    /// than brokers are told to take.
    fn patience(&self) -> Duration {
        let limit = self.answer_limit();
        limit + limit / 4
    }

    /// How long a broker may try before it answers: early enough to tell why a
    /// record cannot be delivered before the time for that is over.
    fn answer_limit(&self) -> Duration {
        self.shared.connections.request_timeout().min(self.options.delivery_timeout / 2)
    }

    /// Fails what has waited too long, sealed or not.
    fn expire(&mut self, now: Instant) {
        let after = self.options.delivery_timeout;
        self.lanes.iter_mut().for_each(|lane| lane.sequencer.expire(now));
        let mut accumulator = self.core.lock();
        let mut any = false;
        for (at, lane) in self.lanes.iter().enumerate() {
            while accumulator.oldest(at).is_some_and(|opened_at| now >= opened_at + after) {
                let Some(pending) = accumulator.take_oldest(at) else { break };
                let last = lane.sequencer.last_error().cloned().map(Box::new);
                let what = "delivering a record".to_owned();
                accumulator
                    .resolve(pending.ticket, Err(Error::Timeout { what, after, last, determinate: true }));
                any = true;
            }
        }
        drop(accumulator);
        if any {
            self.core.settled.notify_waiters();
        }
    }

    /// Gives lanes that want one an identity, or asks for one.
    fn identify(&mut self) {
        let mut wanting = false;
        for lane in self.lanes.iter_mut().filter(|lane| lane.sequencer.wants_identity()) {
            match self.identity {
                Some(identity) if lane.sequencer.identity() != Some(identity) => {
                    lane.sequencer.identify(identity);
                }
                _ => wanting = true,
            }
        }
        if wanting && !self.asking_identity {
            self.asking_identity = true;
            let (shared, sender) = (Arc::clone(&self.shared), self.sender.clone());
            self.tasks.spawn(async move {
                let identity = ask_identity(&shared).await;
                // Fails only when the producer is gone.
                let _ = sender.send(Event::Identity(identity)).await;
            });
        }
    }

    /// No identity is to be had. What passes is waited out by asking again;
    /// otherwise what waits for it fails.
    fn unidentified(&mut self, error: &Error) {
        if error.is_retryable() {
            debug!(%error, "no producer id yet");
            return;
        }
        let mut accumulator = self.core.lock();
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            if lane.sequencer.wants_identity() {
                lane.sequencer.abandon(error, error);
                while let Some(pending) = accumulator.take_oldest(at) {
                    accumulator.resolve(pending.ticket, Err(error.clone()));
                }
            }
        }
        drop(accumulator);
        self.core.settled.notify_waiters();
    }

    /// Takes batches that are ready and seals them.
    fn refill(&mut self, now: Instant) {
        let mut taken: Vec<(usize, Pending)> = Vec::new();
        {
            let mut accumulator = self.core.lock();
            for (at, lane) in self.lanes.iter().enumerate() {
                let ready = std::iter::from_fn(|| accumulator.take_ready(at, now));
                taken.extend(ready.take(lane.sequencer.room()).map(|pending| (at, pending)));
            }
        }
        let mut sealed = Vec::with_capacity(taken.len());
        for (at, Pending { mut builder, opened_at, ticket }) in taken {
            let producer = self.lanes[at].sequencer.claim(builder.count());
            if let Some(batch) = builder.seal(self.options.compression, producer) {
                sealed.push((at, batch, opened_at, ticket));
            }
        }
        let mut accumulator = self.core.lock();
        for (at, batch, opened_at, mut ticket) in sealed {
            if batch.header.attributes.0 != 0 {
                accumulator.recharge(&mut ticket, batch.bytes.len());
            }
            self.lanes[at].sequencer.push(batch, opened_at, ticket);
        }
    }

    /// Tells what has become known.
    fn settle(&mut self) {
        let mut any = false;
        for lane in &mut self.lanes {
            while let Some((ticket, outcome)) = lane.sequencer.pop() {
                self.core.lock().resolve(ticket, outcome);
                any = true;
            }
        }
        if any {
            self.core.settled.notify_waiters();
        }
    }

    /// Sends what is due, a batch of each lane in turn.
    fn send(&mut self, now: Instant) {
        loop {
            let mut parcels: HashMap<Route, Parcel> = HashMap::new();
            let count = self.lanes.len();
            for at in (self.first_lane..count).chain(0..self.first_lane.min(count)) {
                self.pack(at, &mut parcels, now);
            }
            if parcels.is_empty() {
                break;
            }
            self.first_lane = if self.first_lane + 1 < count { self.first_lane + 1 } else { 0 };
            for (route, parcel) in parcels {
                self.dispatch(&route, parcel, now);
            }
        }
    }

    /// Puts the lane's next batch into the parcel for its route.
    fn pack(&mut self, at: usize, parcels: &mut HashMap<Route, Parcel>, now: Instant) {
        let Some(route) = self.route(at) else { return };
        let link = match self.open(&route) {
            Ok(link) if link.has_room() => link.id,
            Ok(_) => return,
            Err(error) => {
                warn!(address = %route.address, %error, "a broker's advertised address is unusable");
                self.lanes[at].detour = true;
                return;
            }
        };
        let lane = &mut self.lanes[at];
        if lane.sequencer.is_under_way() && lane.link != Some(link) {
            return;
        }
        let Some((token, batches)) = lane.sequencer.next(now) else { return };
        lane.link = Some(link);
        let parcel = parcels.entry(route.clone()).or_default();
        parcel.bytes += batches.len();
        parcel.parts.push((at, token));
        parcel.partitions.push(ProducePartition {
            topic: lane.topic.to_string(),
            topic_id: lane.topic_id.clone(),
            partition: lane.partition,
            batches,
            messages: Vec::new(),
        });
        if parcel.bytes >= REQUEST_BYTES
            && let Some(parcel) = parcels.remove(&route)
        {
            self.dispatch(&route, parcel, now);
        }
    }

    /// Where the lane's batches go now: nowhere while its leader is asked for.
    fn route(&self, at: usize) -> Option<Route> {
        let lane = &self.lanes[at];
        if lane.sequencer.is_idle() || lane.suspect {
            return None;
        }
        let leader = lane.leader.clone()?;
        if lane.detour {
            return Some(Route { address: self.shared.connections.directory.favourite(), direct: false });
        }
        Some(Route { address: leader, direct: true })
    }

    fn open(&mut self, route: &Route) -> Result<&mut Link, Error> {
        use std::collections::hash_map::Entry;
        match self.links.entry(route.clone()) {
            Entry::Occupied(link) => Ok(link.into_mut()),
            Entry::Vacant(vacant) => {
                self.next_link += 1;
                let (connections, sender) = (&self.shared.connections, self.sender.clone());
                let link = Link::open(self.next_link, &route.address, connections, sender, &mut self.tasks)?;
                Ok(vacant.insert(link))
            }
        }
    }

    fn dispatch(&mut self, route: &Route, parcel: Parcel, now: Instant) {
        let limit = self.answer_limit();
        let Some(link) = self.links.get_mut(route) else { return };
        self.next_correlation += 1;
        let acks: v1::Acks = self.options.acks.into();
        let request = ProduceRequest {
            correlation_id: self.next_correlation,
            acks: acks.into(),
            timeout_ms: u32::try_from(limit.as_millis()).unwrap_or(u32::MAX),
            direct: route.direct,
            partitions: parcel.partitions,
        };
        link.send(request, Sent { at: now, parts: parcel.parts });
    }

    fn answered(&mut self, link: u64, response: ProduceResponse, now: Instant) {
        let Some(link) = self.links.values_mut().find(|known| known.id == link) else { return };
        let Some(sent) = link.answered(response.correlation_id) else { return };
        let mut results = response.results.into_iter();
        for (at, token) in sent.parts {
            let outcome = self.outcome(at, results.next());
            if let Err(error) = &outcome {
                self.suspect(at, error);
            }
            self.lanes[at].sequencer.answered(token, outcome, now);
        }
    }

    fn outcome(&self, at: usize, result: Option<ProduceResult>) -> Outcome {
        let lane = &self.lanes[at];
        match result {
            Some(result) if result.topic == *lane.topic && result.partition == lane.partition => {
                match result.error {
                    Some(error) => Err(Failure::from(error).into()),
                    None => Ok((self.options.acks != Acks::None).then_some(Offset(result.base_offset))),
                }
            }
            _ => {
                let message =
                    format!("a broker's answer does not speak of {}/{}", lane.topic, lane.partition);
                Err(Failure::new(ErrorReason::Internal, message).into())
            }
        }
    }

    /// Asks for the leader anew when a failure says that it may be another.
    fn suspect(&mut self, at: usize, error: &Error) {
        use ErrorReason as R;
        let elsewhere = match error.reason() {
            Some(reason) => matches!(reason, R::NotLeader | R::NotReady | R::ShuttingDown),
            None => error.is_retryable(),
        };
        if elsewhere {
            self.lanes[at].suspect = true;
            self.stale.entry(Arc::clone(&self.lanes[at].topic)).or_default();
        }
    }

    fn broken(&mut self, link: u64, error: &Error, now: Instant) {
        let Some(route) =
            self.links.iter().find(|(_, known)| known.id == link).map(|(route, _)| route.clone())
        else {
            return;
        };
        let Some(link) = self.links.remove(&route) else { return };
        debug!(address = %route.address, %error, "a produce stream broke");
        let lanes: BTreeSet<usize> =
            link.unanswered().flat_map(|sent| sent.parts.iter().map(|&(at, _)| at)).collect();
        for at in lanes {
            let lane = &mut self.lanes[at];
            lane.sequencer.disconnected(error, now);
            lane.detour = matches!(error, Error::Connect { .. }) && route.direct;
            self.suspect(at, error);
        }
    }

    /// Asks for leaders that are not known, and now and then for all.
    fn ask_leaders(&mut self, now: Instant) {
        if now >= self.refresh.all_at {
            self.refresh.all_at = now + self.shared.options.metadata_age;
            for lane in &self.lanes {
                self.stale.entry(Arc::clone(&lane.topic)).or_default();
            }
        }
        if self.stale.is_empty() || self.refresh.asking || now < self.refresh.not_before {
            return;
        }
        self.refresh.asking = true;
        let asked: Vec<String> = self.stale.keys().map(ToString::to_string).collect();
        let (shared, sender) = (Arc::clone(&self.shared), self.sender.clone());
        self.tasks.spawn(async move {
            let answer = shared.refresh(asked.clone()).await;
            // Fails only when the producer is gone.
            let _ = sender.send(Event::Metadata { asked, answer }).await;
        });
    }

    fn learn(&mut self, asked: &[String], answer: Result<Vec<TopicAnswer>, Error>, now: Instant) {
        self.refresh.asking = false;
        match answer {
            Ok(answers) => answers.into_iter().for_each(|(topic, view)| self.learn_topic(&topic, view)),
            Err(error) => debug!(%error, "no metadata yet"),
        }
        let settled = asked.iter().all(|topic| !self.stale.contains_key(&**topic));
        self.refresh.attempt = if settled { 0 } else { self.refresh.attempt.saturating_add(1) };
        self.refresh.not_before = now + self.options.backoff().wait(self.refresh.attempt + 1);
    }

    fn learn_topic(&mut self, topic: &str, view: Result<Arc<TopicView>, Error>) {
        match view {
            Ok(view) => {
                let TopicView { id, max_message_bytes, .. } = &*view;
                let learnt = self.core.lock().learn(topic, id, view.partitions(), *max_message_bytes);
                if let Err(error) = learnt {
                    self.stale.remove(topic);
                    self.give_up(topic, &error);
                    return;
                }
                let mut complete = true;
                for lane in self.lanes.iter_mut().filter(|lane| *lane.topic == *topic) {
                    let leader = view.leader(lane.partition).cloned();
                    lane.detour &= leader == lane.leader;
                    complete &= leader.is_some();
                    lane.suspect = false;
                    lane.leader = leader;
                }
                if complete {
                    self.stale.remove(topic);
                }
            }
            Err(error) if error.is_retryable() => debug!(topic, %error, "no leader yet"),
            Err(error) => {
                let missing = self.stale.entry(Arc::from(topic)).or_default();
                *missing += 1;
                if *missing >= MISSING_MAX {
                    self.stale.remove(topic);
                    self.give_up(topic, &error);
                }
            }
        }
    }

    /// A topic is gone: what waits for it fails.
    fn give_up(&mut self, topic: &str, error: &Error) {
        let mut accumulator = self.core.lock();
        accumulator.forget(topic);
        for (at, lane) in self.lanes.iter_mut().enumerate().filter(|(_, lane)| *lane.topic == *topic) {
            lane.sequencer.abandon(error, error);
            while let Some(pending) = accumulator.take_oldest(at) {
                accumulator.resolve(pending.ticket, Err(error.clone()));
            }
        }
        drop(accumulator);
        self.core.settled.notify_waiters();
    }

    /// When there is something to do though nothing happens.
    fn plan(&self, now: Instant) -> Instant {
        let mut at = self.refresh.all_at;
        if !self.stale.is_empty() && !self.refresh.asking {
            at = at.min(self.refresh.not_before);
        }
        let patience = self.patience();
        for sent in self.links.values().flat_map(Link::unanswered) {
            at = at.min(sent.at + patience);
        }
        let mut accumulator = self.core.lock();
        for (slot, lane) in self.lanes.iter().enumerate() {
            at = lane.sequencer.wake_at(now).map_or(at, |wake_at| at.min(wake_at));
            let expiry = accumulator.oldest(slot).map(|opened_at| opened_at + self.options.delivery_timeout);
            at = expiry.map_or(at, |expiry| at.min(expiry));
            if lane.sequencer.room() > 0 {
                at = accumulator.ready_at(slot, now).map_or(at, |ready_at| at.min(ready_at));
            }
        }
        accumulator.driver_wakes_at = Some(at);
        at
    }
}

impl Drop for Driver {
    /// What is not resolved has failed: nothing is left waiting for ever.
    fn drop(&mut self) {
        let cause = "the producer was dropped".to_owned();
        let unknown = Error::Disconnected { address: "the broker".to_owned(), cause };
        for lane in &mut self.lanes {
            lane.sequencer.abandon(&Error::Closed, &unknown);
        }
        self.settle();
        let mut accumulator = self.core.lock();
        accumulator.close();
        for at in 0..accumulator.slots() {
            while let Some(pending) = accumulator.take_oldest(at) {
                accumulator.resolve(pending.ticket, Err(Error::Closed));
            }
        }
        drop(accumulator);
        self.core.settled.notify_waiters();
    }
}

async fn ask_identity(shared: &Shared) -> Result<Identity, Error> {
    let ask = |channel, request: InitProducerRequest| async move {
        log_client(channel).init_producer(request).await
    };
    // An id that is given out and not used harms nobody.
    let what = "asking for a producer id";
    let answer = shared.connections.call(what, Repeat::Safe, InitProducerRequest {}, ask).await?.into_inner();
    let epoch = i16::try_from(answer.producer_epoch).ok().filter(|_| answer.producer_id >= 0);
    match epoch {
        Some(epoch) => Ok(Identity { id: answer.producer_id, epoch }),
        None => {
            let message = "a broker gave out a producer id that is out of range";
            Err(Failure::new(ErrorReason::Internal, message).into())
        }
    }
}
