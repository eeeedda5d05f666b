//! A whole run: bookies, brokers, clients and the store under one clock.

use std::fmt;

use quire_ledger::message::{Append, AppendEvent, Request, Response};
use quire_ledger::replica::RequestId;
use quire_metadata::key::Keys;
use quire_metadata::store::{Event, StoreError, Txn};
use quire_metadata::topic::{Topic, TopicName};
use quire_metadata::typed::Typed;
use quire_proto::id::{PartitionId, PartitionIndex, TopicId};
use uuid::Uuid;

use super::bookie::{BookieDoes, Run, SimBookie};
use super::broker::SimBroker;
use super::client::{Connection, Producer, ProducerNumber};
use super::client::{Produce, Produced, Reader};
use super::gate::{Answer, Ask, Question};
use super::history::{History, PartitionNumber};
use super::hits::Hits;
use super::inspector::Inspector;
use super::network::{End, LinkId, Network, ProcessNumber};
use super::plan::Plan;
use super::random::Random;
use super::reading::{Fetch, Fetched};
use super::scheduler::{Micros, Scheduler};
use super::store::{Fate, SimStore};
use super::trace::Trace;
use super::trouble::Blow;
use super::violation::{Checked, Invariant, Violation};

/// What a broker sends over a link.
#[derive(Clone, Debug)]
pub enum ToBookie {
    Append(Append),
    Request(RequestId, Request),
}

/// What a bookie sends over a link.
#[derive(Clone, Debug)]
pub enum ToBroker {
    Append(AppendEvent),
    Response(RequestId, Response),
}

/// Who asks the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    Broker(ProcessNumber),
    Bookie(usize, Run),
}

/// Something that happens at a moment.
#[derive(Clone, Debug)]
pub enum Happening {
    /// The next step of workload and trouble.
    Step,
    /// The next look of whoever assigns partitions to brokers.
    Assign,
    ToBookie(LinkId, ToBookie),
    ToBroker(LinkId, ToBroker),
    /// An end of a link learns that it broke.
    Broken(LinkId, End),
    /// A broker's attempt to connect reaches the bookie.
    Connect(ProcessNumber, usize),
    /// Something that a bookie does by itself.
    Bookie(usize, Run, BookieDoes),
    /// A bookie that is down starts.
    BookieStarts(usize),
    BookieResumes(usize),
    BrokerStarts(usize),
    BrokerResumes(usize),
    Asked(Asker, Ask, Question),
    Told(Asker, Ask, Result<Answer, StoreError>),
    /// A transaction that nobody waits for any more applies.
    Applies(Txn),
    StoreReturns,
    /// A broker's timer.
    Wake(ProcessNumber, Micros),
    /// A broker is asked to lead a partition.
    TakeOver(ProcessNumber, PartitionNumber),
    /// A pause of a broker's ledger pool is over.
    PoolRetries(ProcessNumber),
    Produce(ProcessNumber, Produce),
    Produced(Produced),
    /// A producer tries again.
    Retry(ProducerNumber, Connection),
    Fetch(ProcessNumber, Fetch),
    Fetched(Fetched),
    /// Whoever carries out deletions looks at these ids, of a released block.
    Reclaims(std::ops::Range<u64>),
    /// Whoever carries out deletions looks at the intents.
    Deletes,
    /// A parting of a broker and a bookie ends.
    Rejoin(usize, usize),
    /// Trouble that was to strike at this moment.
    Struck(Blow),
}

/// How a run went.
#[derive(Debug)]
pub struct Report {
    pub seed: u64,
    pub violation: Option<Violation>,
    pub trace: Trace,
    pub hits: Hits,
    pub operations: u64,
    pub acknowledged: u64,
}

/// A run.
#[derive(Debug)]
pub struct World {
    pub plan: Plan,
    pub random: Random,
    pub scheduler: Scheduler<Happening>,
    pub trace: Trace,
    pub hits: Hits,
    pub network: Network,
    pub keys: Keys,
    pub topic: Topic,
    pub store: SimStore,
    pub history: History,
    pub inspector: Inspector,
    pub bookies: Vec<SimBookie>,
    pub brokers: Vec<SimBroker>,
    pub producers: Vec<Producer>,
    pub readers: Vec<Reader>,
    pub operations: u64,
    pub processes: u32,
    pub producer_ids: i64,
    /// Producers make nothing until then.
    pub idle_until: Micros,
    /// Nothing goes wrong any more.
    pub healed: bool,
}

/// Traces an event: nothing is formatted twice, and the order of lines is the
/// order of what happened.
macro_rules! note {
    ($world:expr, $($arguments:tt)*) => {
        {
            let line = format!($($arguments)*);
            $world.trace.line($world.scheduler.now(), &line);
        }
    };
}
pub(crate) use note;

impl World {
    /// A run before anything happened: the topic exists, bookies and brokers
    /// are about to start.
    #[must_use]
    pub fn new(plan: Plan, trace: Trace) -> Self {
        let random = Random::new(plan.seed);
        let keys = keys();
        let topic = Topic {
            id: TopicId(Uuid::from_u128(0x70)),
            name: topic_name(),
            partitions: u32::try_from(plan.partitions).unwrap_or(1),
            replicas: u32::try_from(plan.replicas).unwrap_or(1),
            ack_quorum: u32::try_from(plan.ack_quorum).unwrap_or(1),
            config: std::collections::BTreeMap::new(),
            created_ms: 0,
        };
        let partitions: Vec<_> = topic.partition_ids().collect();
        let mut store = SimStore::default();
        let create = Txn::default().put(keys.topic(&topic.name), topic.encode());
        let (_, _) = store.apply(&create);
        let mut world = Self {
            bookies: (0..plan.bookies).map(SimBookie::new).collect(),
            brokers: Vec::new(),
            producers: Vec::new(),
            readers: Vec::new(),
            inspector: Inspector::new(keys.clone(), &partitions),
            network: Network::new(plan.delays),
            scheduler: Scheduler::default(),
            hits: Hits::default(),
            history: History::default(),
            operations: 0,
            processes: 0,
            producer_ids: 0,
            idle_until: 0,
            healed: false,
            random,
            trace,
            keys,
            topic,
            store,
            plan,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        let plan = self.plan.clone();
        note!(self, "plan {plan:?}");
        for index in 0..plan.bookies {
            self.scheduler.after(0, Happening::BookieStarts(index));
        }
        for index in 0..plan.brokers {
            let broker = self.new_broker(index);
            self.brokers.push(broker);
        }
        self.add_clients();
        self.scheduler.after(5_000, Happening::Assign);
        self.scheduler.after(10_000, Happening::Step);
        self.scheduler.after(40_000, Happening::Deletes);
    }

    /// The partition of this number.
    #[must_use]
    pub fn partition(&self, number: PartitionNumber) -> PartitionId {
        PartitionId { topic: self.topic.id, index: PartitionIndex(u32::try_from(number).unwrap_or(0)) }
    }

    /// Runs to the end: workload and trouble, healing, and the last look.
    #[must_use]
    pub fn run(mut self) -> Report {
        let violation = self.run_all().err();
        if let Some(violation) = &violation {
            note!(self, "VIOLATED {violation}");
        }
        Report {
            seed: self.plan.seed,
            violation,
            trace: self.trace,
            hits: self.hits,
            operations: self.operations,
            acknowledged: self.history.acknowledged_batches(),
        }
    }

    fn run_all(&mut self) -> Checked {
        while self.operations < self.plan.operations {
            self.advance()?;
        }
        self.heal()?;
        self.finale()
    }

    /// Lets the next thing happen.
    ///
    /// # Errors
    /// When it breaks a promise.
    pub fn advance(&mut self) -> Checked {
        match self.scheduler.advance() {
            Some(happening) => self.happen(happening),
            None => Violation::of(Invariant::Liveness, "nothing is left to happen"),
        }
    }

    fn happen(&mut self, happening: Happening) -> Checked {
        match happening {
            Happening::Step => self.step(),
            Happening::Assign => {
                self.assign();
                Ok(())
            }
            Happening::ToBookie(link, message) => self.to_bookie(link, message),
            Happening::ToBroker(link, message) => self.to_broker(link, message),
            Happening::Broken(link, End::Bookie) => self.broken_at_bookie(link),
            Happening::Broken(link, End::Broker) => self.broken_at_broker(link),
            Happening::Connect(process, bookie) => self.connect(process, bookie),
            Happening::Bookie(bookie, run, does) => self.bookie_does(bookie, run, does),
            Happening::BookieStarts(bookie) => self.start_bookie(bookie),
            Happening::BookieResumes(bookie) => self.resume_bookie(bookie),
            Happening::BrokerStarts(broker) => {
                self.start_broker(broker);
                Ok(())
            }
            Happening::BrokerResumes(broker) => self.resume_broker(broker),
            Happening::Asked(asker, ask, question) => self.asked(asker, ask, question),
            Happening::Told(asker, ask, answer) => self.told(asker, ask, answer),
            Happening::Applies(txn) => self.applies(&txn),
            Happening::StoreReturns => {
                self.store.away = false;
                note!(self, "the store is back");
                Ok(())
            }
            Happening::Wake(process, at) => self.wake(process, at),
            Happening::TakeOver(process, partition) => self.told_to_take_over(process, partition),
            Happening::PoolRetries(process) => self.pool_retries(process),
            Happening::Produce(process, produce) => self.produce(process, produce),
            Happening::Produced(produced) => self.produced(produced),
            Happening::Retry(producer, connection) => {
                self.retry(producer, connection);
                Ok(())
            }
            Happening::Fetch(process, fetch) => self.fetch(process, fetch),
            Happening::Fetched(fetched) => self.fetched(fetched),
            Happening::Reclaims(ids) => self.reclaim(ids),
            Happening::Deletes => self.carry_out_deletions(),
            Happening::Rejoin(broker, bookie) => {
                if self.network.is_parted(broker, bookie) {
                    self.network.toggle_parting(broker, bookie);
                }
                Ok(())
            }
            Happening::Struck(blow) => self.struck(blow),
        }
    }

    /// Sends what was asked at a gate on its way to the store.
    pub fn forward_questions(&mut self, asker: Asker, asked: Vec<(Ask, Question)>) {
        for (ask, question) in asked {
            let delay = self.network.delay(&mut self.random);
            self.scheduler.after(delay, Happening::Asked(asker, ask, question));
        }
    }

    fn asked(&mut self, asker: Asker, ask: Ask, question: Question) -> Checked {
        let (fate, changes) = self.store.serve(question, &self.plan, &mut self.random);
        self.changed(&changes)?;
        let delay = self.network.delay(&mut self.random);
        let unknown = || Err(StoreError::Unknown("no answer came".to_owned()));
        match fate {
            Fate::Answered(answer) => self.scheduler.after(delay, Happening::Told(asker, ask, answer)),
            Fate::Lost => {
                self.hits.hit("the store: an answer lost");
                let patience = self.random.between(20_000..=100_000);
                self.scheduler.after(patience, Happening::Told(asker, ask, unknown()));
            }
            Fate::LostAndLate(txn) => {
                self.hits.hit("the store: a transaction late");
                let patience = self.random.between(20_000..=60_000);
                let late = self.random.between(1_000..=300_000);
                self.scheduler.after(patience, Happening::Told(asker, ask, unknown()));
                self.scheduler.after(late, Happening::Applies(txn));
            }
            Fate::Twice(answer, txn) => {
                self.hits.hit("the store: a transaction twice");
                let late = self.random.between(1..=200_000);
                self.scheduler.after(late, Happening::Applies(txn.clone()));
                // The answer may be the second delivery's.
                let answer = if self.random.chance(500) {
                    let (second, changes) = self.store.apply(&txn);
                    self.changed(&changes)?;
                    second.map(Answer::Transact)
                } else {
                    answer
                };
                self.scheduler.after(delay, Happening::Told(asker, ask, answer));
            }
        }
        Ok(())
    }

    fn told(&mut self, asker: Asker, ask: Ask, answer: Result<Answer, StoreError>) -> Checked {
        match asker {
            Asker::Broker(process) => self.told_broker(process, ask, answer),
            Asker::Bookie(bookie, run) => self.told_bookie(bookie, run, ask, answer),
        }
    }

    fn applies(&mut self, txn: &Txn) -> Checked {
        let (outcome, changes) = self.store.apply(txn);
        if !changes.is_empty() {
            self.hits.hit("the store: a late transaction applied");
        }
        note!(self, "store applies late: {outcome:?}");
        self.changed(&changes)
    }

    /// A transaction applied.
    ///
    /// # Errors
    /// When it breaks a promise.
    pub fn changed(&mut self, changes: &[Event]) -> Checked {
        if changes.is_empty() {
            return Ok(());
        }
        note!(self, "store {}", Changes(self, changes));
        self.inspector.transaction(changes, &self.history)
    }
}

/// Changes for the trace.
struct Changes<'a>(&'a World, &'a [Event]);

impl fmt::Display for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let root = self.0.keys.root();
        for change in self.1 {
            match change {
                Event::Put(pair) => {
                    let key = pair.key.strip_prefix(root).unwrap_or(&pair.key);
                    write!(f, "[{}={key} {}] ", pair.mod_revision.0, self.0.inspector.describe(pair))?;
                }
                Event::Delete { key, revision } => {
                    write!(f, "[{}-{}] ", revision.0, key.strip_prefix(root).unwrap_or(key))?;
                }
            }
        }
        Ok(())
    }
}

fn keys() -> Keys {
    #[expect(clippy::expect_used, reason = "a name that is valid")]
    Keys::new("sim").expect("a valid cluster name")
}

fn topic_name() -> TopicName {
    #[expect(clippy::expect_used, reason = "a name that is valid")]
    "orders".parse().expect("a valid topic name")
}
