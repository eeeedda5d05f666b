//! A cluster to be worked on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use quire_controller::{Controller, Options};
use quire_metadata::bookie::{BookieRegistration, LogPosition};
use quire_metadata::delete_intent::DeleteIntent;
use quire_metadata::embedded::VolatileStore;
use quire_metadata::id_block::IdKind;
use quire_metadata::key::Keys;
use quire_metadata::operation::Operation;
use quire_metadata::operations::ids::{AllocateBlock, HeldBlock};
use quire_metadata::operations::register::RegisterBroker;
use quire_metadata::operations::roll::{NewLedger, Roll};
use quire_metadata::operations::take_over::TakeOver;
use quire_metadata::operations::topics::{CreateTopic, DeleteTopic};
use quire_metadata::process::{Broker, Process};
use quire_metadata::store::{KeyValue, LeaseId, Revision, Store, Txn, TxnOutcome};
use quire_metadata::topic::Topic;
use quire_metadata::typed::{Typed, Versioned};
use quire_metadata::view;
use quire_proto::id::{BookieId, LedgerId, Nonce, PartitionId, PartitionIndex, TopicId};
use tokio::time::Instant;
use uuid::Uuid;

use crate::bookies::Bookies;

pub(crate) const GRACE: Duration = Duration::from_secs(30);

/// Of virtual time.
const DEADLINE: Duration = Duration::from_secs(1_000);

pub(crate) fn bookie(n: u128) -> BookieId {
    BookieId(Uuid::from_u128(n))
}

pub(crate) fn process(name: &str, run: u128) -> Process {
    Process { broker: name.parse().unwrap(), nonce: Nonce(Uuid::from_u128(run)) }
}

pub(crate) const T: TopicId = TopicId(Uuid::from_u128(0x70));

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) store: Arc<VolatileStore>,
    pub(crate) keys: Keys,
    pub(crate) bookies: Bookies,
}

impl World {
    /// Three registered bookies.
    pub(crate) fn new() -> Self {
        let world =
            Self { store: Arc::default(), keys: Keys::new("c").unwrap(), bookies: Bookies::default() };
        (1..=3).for_each(|n| world.register_bookie(bookie(n)));
        world
    }

    pub(crate) fn options(&self, run: u128) -> Options {
        Options { process_grace: GRACE, ..Options::new(self.keys.clone(), process("controller", run)) }
    }

    pub(crate) fn controller(&self, run: u128) -> Controller {
        self.controller_on(run, Arc::clone(&self.store) as Arc<dyn Store>)
    }

    pub(crate) fn controller_on(&self, run: u128, store: Arc<dyn Store>) -> Controller {
        Controller::start(self.options(run), store, Arc::new(self.bookies.clone())).unwrap()
    }

    #[track_caller]
    fn apply_txn(&self, txn: &Txn) -> Revision {
        match self.store.transact_now(txn) {
            Ok(TxnOutcome::Applied(revision)) => revision,
            other => panic!("not applied: {other:?}"),
        }
    }

    #[track_caller]
    pub(crate) fn apply<O: Operation>(&self, operation: &O) -> O::Done {
        operation.done(self.apply_txn(&operation.txn(&self.keys)))
    }

    pub(crate) fn put(&self, key: String, value: Bytes) {
        self.apply_txn(&Txn::default().put(key, value));
    }

    pub(crate) fn remove(&self, key: String) {
        self.apply_txn(&Txn::default().delete(key));
    }

    pub(crate) fn get(&self, key: &str) -> Option<KeyValue> {
        self.store.get(key).now_or_never().unwrap().unwrap()
    }

    pub(crate) fn read<V: Typed>(&self, key: &str) -> Option<Versioned<V>> {
        Versioned::read_option(self.get(key).as_ref()).unwrap()
    }

    /// The names of all keys there are, without the cluster's root.
    pub(crate) fn names(&self) -> Vec<String> {
        let page = self.store.range("", "", 1_000, None).now_or_never().unwrap().unwrap();
        page.keys.iter().map(|found| found.key.strip_prefix(self.keys.root()).unwrap().to_owned()).collect()
    }

    pub(crate) fn register_bookie(&self, bookie: BookieId) {
        let registration = BookieRegistration {
            generation: 1,
            nonce: Nonce::default(),
            rack: String::new(),
            durable: LogPosition::default(),
        };
        self.put(self.keys.bookie_registration(bookie), registration.encode());
    }

    pub(crate) fn intend_delete(&self, ledger: u64, bookies: &[u128]) {
        let intent =
            DeleteIntent { bookies: bookies.iter().copied().map(bookie).collect(), confirmed: Vec::new() };
        self.put(self.keys.delete(LedgerId(ledger)), intent.encode());
    }

    pub(crate) fn intent(&self, ledger: u64) -> Option<DeleteIntent> {
        self.read(&self.keys.delete(LedgerId(ledger))).map(|found| found.value)
    }

    pub(crate) fn block(&self, kind: IdKind, holder: &Process, count: u64) -> HeldBlock {
        let allocator = self.read(&self.keys.id_next(kind));
        let attempt = Nonce(Uuid::from_u128(self.store.revision().unwrap().0.into()));
        self.apply(&AllocateBlock { kind, count, holder: holder.clone(), attempt, allocator })
    }

    pub(crate) fn register_broker(&self, process: &Process) -> LeaseId {
        let lease = self.store.grant(Duration::from_secs(3600)).now_or_never().unwrap().unwrap();
        let broker = Broker { process: process.clone(), address: "a".to_owned(), rack: String::new() };
        self.apply(&RegisterBroker { broker, lease });
        lease
    }

    /// A topic of this many partitions, each with one open ledger: the first ids
    /// of the block.
    pub(crate) fn topic(&self, partitions: u32, leader: &Process, block: &HeldBlock) -> Versioned<Topic> {
        let topic = Topic {
            id: T,
            name: "t".parse().unwrap(),
            partitions,
            replicas: 3,
            ack_quorum: 2,
            config: [].into(),
            created_ms: 0,
        };
        let topic = self.apply(&CreateTopic { topic });
        for index in 0..partitions {
            let id = PartitionId { topic: T, index: PartitionIndex(index) };
            let partition = view::partition(&*self.store, &self.keys, id).now_or_never().unwrap().unwrap();
            let candidate = partition.candidate(topic.clone());
            let taken = self.apply(&TakeOver::pack(leader, vec![candidate])[0]).remove(0);
            let open = NewLedger {
                id: LedgerId(block.block.value.first + u64::from(index)),
                replicas: vec![bookie(1), bookie(2), bookie(3)],
                ack_quorum: 2,
                created_ms: 0,
                block: block.clone(),
            };
            self.apply(&Roll::new(taken.leadership, None, None, Some(open)).unwrap());
        }
        topic
    }

    pub(crate) fn delete_topic(&self, topic: Versioned<Topic>) {
        self.apply(&DeleteTopic { topic });
    }
}

/// Waits until it is so, with a deadline in virtual time.
#[track_caller]
pub(crate) fn eventually(mut so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let start = Instant::now();
        while !so() {
            assert!(start.elapsed() < DEADLINE, "it did not come to be: {caller}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// It stays so for a long while of virtual time.
#[track_caller]
pub(crate) fn stays(mut so: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..500 {
            assert!(so(), "it did not stay so: {caller}");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}
