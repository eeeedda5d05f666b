//! Drives the promotion of one partition: carries out what the machine asks for
//! until the partition can be led.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quire_ledger::link::{AppendSink, BookieLink};
use quire_ledger::message::{Append, AppendEvent};
use quire_metadata::operations::recovery::RecoveryStep;
use quire_metadata::partition::Partition;
use quire_metadata::store::StoreError;
use quire_metadata::typed::{Typed, Versioned};
use quire_metadata::view;
use quire_proto::id::{BookieId, Epoch};
use rand::seq::SliceRandom;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};

use crate::context::{Backoff, Context};
use crate::leadership::promotion::{Effect, Event, Promoted, Promotion, Waiting};
use crate::leadership::scan::ReadFailed;
use crate::log::cold;

/// Waits of a partition that are remembered by their names.
const WAITS_MAX: usize = 8;

/// What an operator can see of a partition's promotions that wait, and tell them.
#[derive(Debug, Default)]
pub struct Patience {
    waits: Mutex<Waits>,
    accept_loss: watch::Sender<Option<Waiting>>,
}

#[derive(Debug, Default)]
struct Waits {
    /// Those of late, the last one last: at most [`WAITS_MAX`].
    stated: VecDeque<Wait>,
    /// Whether the last one goes on.
    is_present: bool,
    /// How many there were.
    count: u64,
}

/// Why a promotion cannot go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// What an operator accepts its loss by: no wait of the partition in which
    /// more may be lost has the same, whichever broker it is of.
    pub name: String,
    pub waiting: Waiting,
}

impl Patience {
    /// Why the promotion cannot go on, if it cannot.
    #[must_use]
    pub fn wait(&self) -> Option<Wait> {
        let waits = self.lock();
        waits.stated.back().filter(|_| waits.is_present).cloned()
    }

    /// The wait of this name, if it was one of the last few. A bookie may answer
    /// now and then, so that the present one is another.
    #[must_use]
    pub fn stated(&self, name: &str) -> Option<Wait> {
        self.lock().stated.iter().find(|wait| wait.name == name).cloned()
    }

    /// The operator accepts the loss that this states.
    pub fn accept_loss(&self, loss: Waiting) {
        self.accept_loss.send_replace(Some(loss));
    }

    /// The promotion under this epoch waits so, or does not.
    fn set(&self, epoch: Epoch, waiting: Option<Waiting>) {
        let mut waits = self.lock();
        waits.is_present = waiting.is_some();
        let Some(waiting) = waiting else { return };
        // One that comes back keeps its name, whatever its words. One that has got
        // better has another: who hears of it has not heard of more.
        let is_same = |wait: &Wait| wait.waiting.covers(&waiting) && waiting.covers(&wait.waiting);
        let known = waits.stated.iter().position(is_same).and_then(|at| waits.stated.remove(at));
        let name = known.map_or_else(
            || {
                waits.count += 1;
                // Numbers begin anew in another process, which has another epoch (T1).
                format!("{epoch}.{}", waits.count)
            },
            |known| known.name,
        );
        waits.stated.push_back(Wait { name, waiting });
        if waits.stated.len() > WAITS_MAX {
            waits.stated.pop_front();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Append events of the copies, until the machine takes them.
#[derive(Debug, Default)]
struct Mailbox {
    events: Mutex<HashMap<BookieId, Vec<AppendEvent>>>,
    /// By bookie and the number of the link.
    broken: Mutex<Vec<(BookieId, u64)>>,
    wake: Notify,
}

/// Brings what one link says into the mailbox.
#[derive(Debug)]
struct Sink {
    mailbox: Arc<Mailbox>,
    /// Which of the promotion's links it is.
    number: u64,
}

impl AppendSink for Sink {
    fn deliver(&self, bookie: BookieId, event: AppendEvent) {
        let mut events = self.mailbox.events.lock().unwrap_or_else(PoisonError::into_inner);
        let events = events.entry(bookie).or_default();
        // One ledger only: a later length tells what an earlier one did.
        if matches!(event, AppendEvent::Durable(_)) {
            events.retain(|event| !matches!(event, AppendEvent::Durable(_)));
        }
        events.push(event);
        self.mailbox.wake.notify_one();
    }

    fn broken(&self, bookie: BookieId) {
        let mut broken = self.mailbox.broken.lock().unwrap_or_else(PoisonError::into_inner);
        broken.push((bookie, self.number));
        self.mailbox.wake.notify_one();
    }
}

/// What work that was started came to.
enum Done {
    Event(Event),
    /// The link of this number was made, or could not be.
    Linked(BookieId, u64, Option<Arc<dyn BookieLink>>),
}

/// The link to one bookie.
#[derive(Debug)]
struct Link {
    /// Counts the promotion's links: what one that broke says is late.
    number: u64,
    /// `None` while it is being made.
    link: Option<Arc<dyn BookieLink>>,
}

/// One promotion under way.
struct Driver {
    context: Arc<Context>,
    promotion: Promotion,
    patience: Arc<Patience>,
    mailbox: Arc<Mailbox>,
    /// Those that are there, and those that are being made. One that broke is not
    /// kept, whoever notices it first.
    links: HashMap<BookieId, Link>,
    /// How many were begun.
    links_begun: u64,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    /// What ended while a turn was waited for.
    early: Vec<Done>,
    turns: Arc<Semaphore>,
    turn: Option<OwnedSemaphorePermit>,
}

/// Brings a partition from taken over to ready to be led; `None` when another
/// leads it. A recovery that is blocked waits on. It works in its turn, which it
/// gives back while bookies hold it up: others may find theirs. Not cancel-safe: a
/// promotion that was dropped is begun anew by another take-over.
pub async fn promote(
    context: Arc<Context>,
    promotion: Promotion,
    patience: Arc<Patience>,
    turns: Arc<Semaphore>,
) -> Option<Box<Promoted>> {
    Driver::new(context, promotion, patience, turns).run().await
}

impl Driver {
    fn new(
        context: Arc<Context>,
        promotion: Promotion,
        patience: Arc<Patience>,
        turns: Arc<Semaphore>,
    ) -> Self {
        Self {
            context,
            promotion,
            patience,
            mailbox: Arc::default(),
            links: HashMap::new(),
            links_begun: 0,
            work: FuturesUnordered::new(),
            early: Vec::new(),
            turns,
            turn: None,
        }
    }

    async fn run(mut self) -> Option<Box<Promoted>> {
        let mut effects = Vec::new();
        let mut accept_loss = self.patience.accept_loss.subscribe();
        self.take_turn().await;
        if let Some(ledger) = self.promotion.unsealed() {
            tracing::info!(partition = self.promotion.log().name(), %ledger, "recovering the last ledger");
            metrics::counter!("quire_broker_recoveries_total").increment(1);
        }
        self.promotion.start(self.context.clock.now(), &mut effects);
        loop {
            if self.promotion.is_held_up() {
                self.turn = None;
            } else if self.turn.is_none() {
                self.take_turn().await;
            }
            for effect in effects.drain(..) {
                match effect {
                    Effect::Promoted(promoted) => return self.finish(Some(promoted)),
                    Effect::Deposed => return self.finish(None),
                    effect => self.carry_out(effect),
                }
            }
            self.tell(self.promotion.waiting());
            let events = self.wait(&mut accept_loss).await;
            let now = self.context.clock.now();
            events.into_iter().for_each(|event| self.promotion.step(now, event, &mut effects));
        }
    }

    /// What is under way goes on meanwhile: it may hold what others need.
    async fn take_turn(&mut self) {
        let mut turn = pin!(Arc::clone(&self.turns).acquire_owned());
        loop {
            tokio::select! {
                // The semaphore is never closed.
                taken = &mut turn => {
                    self.turn = taken.ok();
                    return;
                }
                Some(done) = self.work.next() => self.early.push(done),
            }
        }
    }

    fn finish(&self, promoted: Option<Box<Promoted>>) -> Option<Box<Promoted>> {
        self.tell(None);
        promoted
    }

    /// Tells operators and clients what this waits for.
    fn tell(&self, waiting: Option<Waiting>) {
        if self.patience.wait().map(|wait| wait.waiting) != waiting {
            self.promotion.log().set_stuck(waiting.as_ref().map(|waiting| match waiting.is_loss() {
                true => {
                    let ledger = waiting.ledger();
                    format!("{waiting}; if that copy is gone for good: quire ledger recover {ledger}")
                }
                false => waiting.to_string(),
            }));
            self.patience.set(self.promotion.epoch(), waiting);
        }
    }

    /// Starts what the machine asks for; what comes of it is an event.
    fn carry_out(&mut self, effect: Effect) {
        let context = Arc::clone(&self.context);
        match effect {
            Effect::Step(step) => self.work.push(settle(context, step).boxed()),
            Effect::ReadLedger(ledger) => {
                let key = context.keys.ledger(ledger);
                self.read(key, Event::Ledger);
            }
            Effect::ReadEpoch => {
                let key = context.keys.partition(self.promotion.log().id);
                self.read(key, |found: Option<Versioned<Partition>>| {
                    Event::Epoch(found.map(|found| found.value.epoch))
                });
            }
            Effect::ChooseTargets { count, except } => {
                let event = Event::Targets(self.choose_targets(count, &except));
                self.work.push(async move { Done::Event(event) }.boxed());
            }
            Effect::Call { bookie, request } => {
                let called = async move {
                    let result = context.bookies.call(bookie, request.clone()).await;
                    let result = result.map_err(|error| error.cause);
                    Done::Event(Event::Called { bookie, request, result })
                };
                self.work.push(called.boxed());
            }
            Effect::Append { bookie, append } => self.append(bookie, append),
            Effect::Blocked(blocked) => tracing::error!(%blocked, "a ledger cannot be recovered yet"),
            Effect::ReadFailed(ReadFailed { ledger, bookie, cause, is_wrong: true, .. }) => {
                cold::alarm(ledger, bookie, &cause);
            }
            Effect::ReadFailed(failed) => tracing::warn!(%failed, "the state cannot be restored yet"),
            Effect::Alarm(alarm) => {
                tracing::error!(partition = self.promotion.log().name(), %alarm, "recovery found something that must not be");
            }
            Effect::Recovered(ledger) => tracing::debug!(%ledger, "the last ledger is sealed"),
            Effect::Promoted(_) | Effect::Deposed => {}
        }
    }

    /// Reads one value, however long the store is away.
    fn read<T: Typed + Send + 'static>(
        &self,
        key: String,
        event: impl Fn(Option<Versioned<T>>) -> Event + Send + 'static,
    ) {
        let context = Arc::clone(&self.context);
        let read = async move {
            let mut backoff = Backoff::default();
            loop {
                match view::get(&*context.store, &key).await {
                    Ok(found) => return Done::Event(event(found)),
                    Err(error) => tracing::warn!(key, %error, "metadata cannot be read"),
                }
                backoff.pause().await;
            }
        };
        self.work.push(read.boxed());
    }

    fn append(&mut self, bookie: BookieId, append: Append) {
        let sent = match self.links.get(&bookie) {
            Some(Link { link: Some(link), .. }) => link.append(append).map_err(|error| {
                tracing::warn!(%bookie, error = error.cause, "the link of a copy broke");
                self.links.remove(&bookie);
            }),
            Some(Link { link: None, .. }) => Err(()),
            None => {
                self.connect(bookie);
                Err(())
            }
        };
        if sent.is_err() {
            self.work.push(async move { Done::Event(Event::LinkBroken { bookie }) }.boxed());
        }
    }

    fn connect(&mut self, bookie: BookieId) {
        self.links_begun += 1;
        let number = self.links_begun;
        self.links.insert(bookie, Link { number, link: None });
        let connector = self.context.bookies.connector();
        let sink = Sink { mailbox: Arc::clone(&self.mailbox), number };
        self.work.push(
            async move {
                match connector.connect(bookie, Arc::new(sink)).await {
                    Ok(link) => Done::Linked(bookie, number, Some(link)),
                    Err(error) => {
                        tracing::debug!(%bookie, error = error.cause, "no link for a copy");
                        Backoff::default().pause().await;
                        Done::Linked(bookie, number, None)
                    }
                }
            }
            .boxed(),
        );
    }

    /// Bookies that could be filled.
    fn choose_targets(&self, count: usize, except: &[BookieId]) -> Vec<BookieId> {
        let live = self.context.bookies.live();
        let live = live.borrow();
        let usable = live.iter().filter(|(bookie, live)| !live.read_only && !except.contains(bookie));
        let mut targets: Vec<BookieId> = usable.map(|(bookie, _)| *bookie).collect();
        targets.shuffle(&mut rand::rng());
        targets.truncate(count);
        targets
    }

    /// Waits for something to happen.
    async fn wait(&mut self, accept_loss: &mut watch::Receiver<Option<Waiting>>) -> Vec<Event> {
        let early = std::mem::take(&mut self.early);
        if !early.is_empty() {
            return early.into_iter().map(|done| self.done(done)).collect();
        }
        let due = self.promotion.deadline().map(|due| self.context.clock.instant(due));
        let tick = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(done) = self.work.next() => vec![self.done(done)],
            () = self.mailbox.wake.notified() => self.mail(),
            Ok(()) = accept_loss.changed() => {
                accept_loss.borrow_and_update().clone().map(Event::AcceptLoss).into_iter().collect()
            }
            () = tick => vec![Event::Tick],
        }
    }

    fn done(&mut self, done: Done) -> Event {
        match done {
            Done::Event(event) => event,
            Done::Linked(bookie, number, Some(made)) => match self.links.get_mut(&bookie) {
                Some(current) if current.number == number => {
                    current.link = Some(made);
                    Event::LinkUp { bookie }
                }
                // It broke before this was looked at.
                _ => Event::LinkBroken { bookie },
            },
            Done::Linked(bookie, number, None) => {
                self.drop_link(bookie, number);
                Event::LinkBroken { bookie }
            }
        }
    }

    /// Whether the link of this number was the bookie's. The next copy makes
    /// another.
    fn drop_link(&mut self, bookie: BookieId, number: u64) -> bool {
        let is_current = self.links.get(&bookie).is_some_and(|link| link.number == number);
        if is_current {
            self.links.remove(&bookie);
        }
        is_current
    }

    fn mail(&mut self) -> Vec<Event> {
        let arrived =
            std::mem::take(&mut *self.mailbox.events.lock().unwrap_or_else(PoisonError::into_inner));
        let broken = std::mem::take(&mut *self.mailbox.broken.lock().unwrap_or_else(PoisonError::into_inner));
        let mut events: Vec<Event> = arrived
            .into_iter()
            .flat_map(|(bookie, events)| {
                events.into_iter().map(move |event| Event::Appended { bookie, event })
            })
            .collect();
        for (bookie, number) in broken {
            if self.drop_link(bookie, number) {
                events.push(Event::LinkBroken { bookie });
            }
        }
        events
    }
}

async fn settle(context: Arc<Context>, step: Box<RecoveryStep>) -> Done {
    let settled: Result<_, StoreError> = context.settle(&*step).await;
    Done::Event(match settled {
        Ok(outcome) => Event::Stepped(outcome),
        Err(error) => {
            tracing::error!(%error, "a recovery step cannot be carried out");
            Event::Failed
        }
    })
}

#[cfg(test)]
mod tests;
