//! Drives the recovery machine for one ledger: carries out what it asks for
//! until the ledger is sealed (T3 to T6).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quire_ledger::ensemble::Ensemble;
use quire_ledger::link::{AppendSink, BookieLink};
use quire_ledger::message::{Append, AppendEvent};
use quire_ledger::recovery::{self, Action, Event, Outcome, Recovery, Seal, State, View};
use quire_metadata::ledger::{LedgerMetadata, LedgerState, Sealed};
use quire_metadata::operation;
use quire_metadata::operations::recovery::{InvalidStep, RecoveryStep, StepRefused};
use quire_metadata::operations::roll::Last;
use quire_metadata::partition::Leadership;
use quire_metadata::typed::Versioned;
use quire_metadata::view;
use quire_proto::id::BookieId;
use rand::seq::SliceRandom;
use tokio::sync::{Notify, watch};

use crate::clock::wall_ms;
use crate::context::{Backoff, Context};
use crate::leadership::scan::Scan;
use crate::log::partition::Segment;

/// What a recovery came to.
#[derive(Clone, Debug)]
pub enum Recovered {
    /// The ledger is sealed, as metadata shows it now.
    Sealed(Versioned<LedgerMetadata>),
    /// Another leads the partition, or the ledger is gone.
    Superseded,
}

/// What an operator can see of a recovery that waits, and tell it.
#[derive(Debug, Default)]
pub struct Patience {
    blocked: Mutex<Option<String>>,
    accept_loss: watch::Sender<bool>,
}

impl Patience {
    /// Why the recovery cannot go on, if it cannot.
    #[must_use]
    pub fn blocked(&self) -> Option<String> {
        self.blocked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The operator accepts that entries may be lost.
    pub fn accept_loss(&self) {
        self.accept_loss.send_replace(true);
    }

    fn set_blocked(&self, blocked: Option<String>) {
        *self.blocked.lock().unwrap_or_else(PoisonError::into_inner) = blocked;
    }
}

/// Append events of the copies, until the machine takes them.
#[derive(Debug, Default)]
struct Mailbox {
    events: Mutex<HashMap<BookieId, Vec<AppendEvent>>>,
    broken: Mutex<Vec<BookieId>>,
    wake: Notify,
}

impl AppendSink for Mailbox {
    fn deliver(&self, bookie: BookieId, event: AppendEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let events = events.entry(bookie).or_default();
        // One ledger only: a later length tells what an earlier one did.
        if matches!(event, AppendEvent::Durable(_)) {
            events.retain(|event| !matches!(event, AppendEvent::Durable(_)));
        }
        events.push(event);
        self.wake.notify_one();
    }

    fn broken(&self, bookie: BookieId) {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).push(bookie);
        self.wake.notify_one();
    }
}

type Work = BoxFuture<'static, Done>;

/// What work that was started came to.
enum Done {
    Event(Event),
    Metadata(Result<Option<Versioned<LedgerMetadata>>, StepRefused>),
    Linked(BookieId, Option<Arc<dyn BookieLink>>),
}

/// One recovery under way.
struct Driver {
    context: Arc<Context>,
    leadership: Leadership,
    last: Last,
    patience: Arc<Patience>,
    mailbox: Arc<Mailbox>,
    links: HashMap<BookieId, Option<Arc<dyn BookieLink>>>,
    work: FuturesUnordered<Work>,
}

/// Recovers the chain's last ledger under the epoch that was minted. Returns
/// when it is sealed or another leads; a recovery that is blocked waits on.
pub async fn recover(
    context: Arc<Context>,
    leadership: Leadership,
    last: Last,
    patience: Arc<Patience>,
) -> Recovered {
    let driver = Driver {
        context,
        leadership,
        last,
        patience,
        mailbox: Arc::default(),
        links: HashMap::new(),
        work: FuturesUnordered::new(),
    };
    driver.run().await
}

impl Driver {
    async fn run(mut self) -> Recovered {
        let Some(view) = view_of(&self.last.ledger.value) else {
            tracing::error!(ledger = %self.last.segment.ledger, "the ledger's replicas are no ensemble");
            return Recovered::Superseded;
        };
        let mut actions = Vec::new();
        let options = recovery::Options::default();
        let now = self.context.clock.millis();
        let mut machine = Recovery::start(now, self.leadership.epoch, view, options, &mut actions);
        let mut accept_loss = self.patience.accept_loss.subscribe();
        loop {
            for action in actions.drain(..) {
                if let Action::Done(outcome) = action {
                    return self.finish(&outcome);
                }
                self.start(action);
            }
            self.patience.set_blocked(machine.blocked().map(ToString::to_string));
            let events = self.wait(&machine, &mut accept_loss).await;
            let now = self.context.clock.millis();
            events.into_iter().for_each(|event| machine.step(now, event, &mut actions));
        }
    }

    fn finish(&self, outcome: &Outcome) -> Recovered {
        self.patience.set_blocked(None);
        match outcome {
            Outcome::Sealed { .. } if self.last.ledger.value.sealed().is_some() => {
                Recovered::Sealed(self.last.ledger.clone())
            }
            _ => Recovered::Superseded,
        }
    }

    /// Starts what the machine asks for; what comes of it is an event.
    fn start(&mut self, action: Action) {
        match action {
            Action::Claim { .. } => self.step(RecoveryStep::start(self.leadership, self.last.ledger.clone())),
            Action::NameTargets { count, .. } => {
                let targets = self.targets(count);
                self.step(RecoveryStep::name_targets(self.leadership, self.last.ledger.clone(), targets));
            }
            Action::ReadMetadata { .. } => self.work.push(self.read_metadata()),
            Action::Call { bookie, request } => {
                let bookies = Arc::clone(&self.context.bookies);
                self.work.push(
                    async move {
                        let result = bookies.call(bookie, request.clone()).await;
                        let result = result.map_err(|error| error.cause);
                        Done::Event(Event::Called { bookie, request, result })
                    }
                    .boxed(),
                );
            }
            Action::Append { bookie, append } => self.append(bookie, append),
            Action::Seal(seal) => self.work.push(self.seal(seal)),
            Action::Blocked(blocked) => {
                tracing::error!(%blocked, "a ledger cannot be recovered for now");
            }
            Action::Alarm(alarm) => tracing::error!(%alarm, "recovery found something that must not be"),
            Action::Done(_) => {}
        }
    }

    fn step(&mut self, step: Result<RecoveryStep, InvalidStep>) {
        let step = match step {
            Ok(step) => step,
            // Metadata is not as this driver knows it: look again.
            Err(_) => return self.work.push(self.read_metadata()),
        };
        let context = Arc::clone(&self.context);
        self.work.push(async move { settle(&context, &step).await }.boxed());
    }

    fn read_metadata(&self) -> Work {
        let (context, ledger) = (Arc::clone(&self.context), self.last.segment.ledger);
        async move {
            let mut backoff = Backoff::default();
            loop {
                match view::get(&*context.store, &context.keys.ledger(ledger)).await {
                    Ok(found) => return Done::Metadata(Ok(found)),
                    Err(error) => tracing::warn!(%ledger, %error, "a ledger's metadata cannot be read"),
                }
                backoff.pause().await;
            }
        }
        .boxed()
    }

    /// T6: what the seal says beside the end is read from the entries' headers.
    fn seal(&self, seal: Seal) -> Work {
        let (context, leadership) = (Arc::clone(&self.context), self.leadership);
        let last = self.last.clone();
        async move {
            let segment =
                Segment { end: seal.end, replicas: seal.complete.clone().into(), ..Segment::of(&last) };
            let mut backoff = Backoff::default();
            let scan = loop {
                match Scan::read(&context.bookies, &segment).await {
                    Ok(scan) => break scan,
                    Err(error) => tracing::error!(%error, "a recovered ledger cannot be read"),
                }
                backoff.pause().await;
            };
            let sealed = Sealed {
                end: seal.end,
                next_offset: scan.next_offset.unwrap_or(last.segment.base_offset),
                bytes: scan.bytes,
                complete: seal.complete,
                max_timestamp_ms: scan.max_timestamp_ms,
                sealed_ms: wall_ms(),
            };
            match RecoveryStep::seal(leadership, last.ledger, seal.replicas, sealed) {
                Ok(step) => settle(&context, &step).await,
                Err(error) => {
                    tracing::error!(%error, "a seal contradicts the protocol");
                    Done::Event(Event::Deposed)
                }
            }
        }
        .boxed()
    }

    fn append(&mut self, bookie: BookieId, append: Append) {
        let sent = match self.links.get(&bookie) {
            Some(Some(link)) => link.append(append).is_ok(),
            Some(None) => false,
            None => {
                self.connect(bookie);
                false
            }
        };
        if !sent {
            self.work.push(async move { Done::Event(Event::LinkBroken { bookie }) }.boxed());
        }
    }

    fn connect(&mut self, bookie: BookieId) {
        self.links.insert(bookie, None);
        let connector = self.context.bookies.connector();
        let sink = Arc::clone(&self.mailbox);
        self.work.push(
            async move {
                match connector.connect(bookie, sink).await {
                    Ok(link) => Done::Linked(bookie, Some(link)),
                    Err(error) => {
                        tracing::debug!(%bookie, error = error.cause, "no link for a copy");
                        Backoff::default().pause().await;
                        Done::Linked(bookie, None)
                    }
                }
            }
            .boxed(),
        );
    }

    /// Bookies that could be filled, none of the ledger's own among them.
    fn targets(&self, count: usize) -> Vec<BookieId> {
        let ledger = &self.last.ledger.value;
        let mut targets: Vec<BookieId> = self
            .context
            .bookies
            .live()
            .borrow()
            .iter()
            .filter(|(bookie, live)| !live.read_only && !ledger.replicas.contains(bookie))
            .map(|(bookie, _)| *bookie)
            .filter(|bookie| !ledger.targets.contains(bookie))
            .collect();
        targets.shuffle(&mut rand::rng());
        targets.truncate(count);
        targets.extend(ledger.targets.iter().copied());
        targets
    }

    /// Waits for something to happen.
    async fn wait(&mut self, machine: &Recovery, accept_loss: &mut watch::Receiver<bool>) -> Vec<Event> {
        let clock = self.context.clock;
        let due = machine.deadline().map(|due| clock.instant(due));
        let tick = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            Some(done) = self.work.next() => self.done(done),
            () = self.mailbox.wake.notified() => self.mail(),
            Ok(()) = accept_loss.changed() => vec![Event::AcceptLoss],
            () = tick => vec![Event::Tick],
        }
    }

    fn done(&mut self, done: Done) -> Vec<Event> {
        match done {
            Done::Event(event) => vec![event],
            Done::Linked(bookie, Some(link)) => {
                self.links.insert(bookie, Some(link));
                vec![Event::LinkUp { bookie }]
            }
            Done::Linked(bookie, None) => {
                self.links.remove(&bookie);
                vec![Event::LinkBroken { bookie }]
            }
            Done::Metadata(Ok(found) | Err(StepRefused::Changed(found))) => self.metadata(found),
            Done::Metadata(Err(StepRefused::Sealed(found))) => self.metadata(Some(found)),
            Done::Metadata(Err(StepRefused::Deposed)) => vec![Event::Deposed],
        }
    }

    fn metadata(&mut self, found: Option<Versioned<LedgerMetadata>>) -> Vec<Event> {
        let view = found.as_ref().and_then(|found| view_of(&found.value));
        if let Some(found) = found {
            self.last.ledger = found;
        }
        vec![Event::Metadata(view)]
    }

    fn mail(&mut self) -> Vec<Event> {
        let ledger = self.last.segment.ledger;
        let arrived =
            std::mem::take(&mut *self.mailbox.events.lock().unwrap_or_else(PoisonError::into_inner));
        let broken = std::mem::take(&mut *self.mailbox.broken.lock().unwrap_or_else(PoisonError::into_inner));
        let mut events = Vec::new();
        for (bookie, arrived) in arrived {
            for event in arrived {
                match event {
                    AppendEvent::Durable(lengths) => {
                        let own = lengths.into_iter().filter(|(of, _)| *of == ledger);
                        events.extend(own.map(|(_, durable)| Event::Durable { bookie, durable }));
                    }
                    AppendEvent::Gap { attempt, accepted, .. } => {
                        events.push(Event::Gap { bookie, attempt, accepted });
                    }
                    AppendEvent::Refused { attempt, reason, .. } => {
                        events.push(Event::Refused { bookie, attempt, reason });
                    }
                }
            }
        }
        for bookie in broken {
            self.links.remove(&bookie);
            events.push(Event::LinkBroken { bookie });
        }
        events
    }
}

async fn settle(context: &Context, step: &RecoveryStep) -> Done {
    match context.settle(step).await {
        Ok(operation::Outcome::Done(ledger)) => Done::Metadata(Ok(Some(ledger))),
        Ok(operation::Outcome::Lost(refused)) => Done::Metadata(Err(refused)),
        Err(error) => {
            tracing::error!(%error, "a recovery step cannot be carried out");
            Done::Event(Event::Deposed)
        }
    }
}

/// The ledger as the machine sees it.
fn view_of(ledger: &LedgerMetadata) -> Option<View> {
    Some(View {
        ledger: ledger.id,
        own_epoch: ledger.epoch,
        ensemble: Ensemble::new(&ledger.replicas, ledger.ack_quorum as usize).ok()?,
        targets: ledger.targets.iter().copied().collect(),
        state: match &ledger.state {
            LedgerState::Open => State::Open,
            LedgerState::Recovering(epoch) => State::Recovering(*epoch),
            LedgerState::Sealed(sealed) => State::Sealed(sealed.end),
        },
    })
}
