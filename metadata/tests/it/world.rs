//! A store with something in it, and what every operation must stand.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use quire_metadata::embedded::{Fault, VolatileStore};
use quire_metadata::id_block::IdKind;
use quire_metadata::key::Keys;
use quire_metadata::ledger::Sealed;
use quire_metadata::operation::{self, Operation, Outcome};
use quire_metadata::operations::ids::{AllocateBlock, HeldBlock};
use quire_metadata::operations::roll::{Last, NewLedger, Roll};
use quire_metadata::operations::take_over::{TakeOver, TakenOver};
use quire_metadata::operations::topics::CreateTopic;
use quire_metadata::process::Process;
use quire_metadata::store::{KeyValue, Revision, Store, StoreError, Txn, TxnOutcome};
use quire_metadata::topic::Topic;
use quire_metadata::typed::{Typed, Versioned};
use quire_metadata::view::{self, PartitionView};
use quire_proto::id::{BookieId, EntryId, LedgerId, Nonce, Offset, PartitionId, PartitionIndex, TopicId};
use uuid::Uuid;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) store: Arc<VolatileStore>,
    pub(crate) keys: Keys,
}

pub(crate) const T: TopicId = TopicId(Uuid::from_u128(0x70));

pub(crate) fn partition(index: u32) -> PartitionId {
    PartitionId { topic: T, index: PartitionIndex(index) }
}

pub(crate) fn bookie(n: u128) -> BookieId {
    BookieId(Uuid::from_u128(0xb0_0000 + n))
}

pub(crate) fn nonce(n: u128) -> Nonce {
    Nonce(Uuid::from_u128(n))
}

pub(crate) fn process(name: &str, run: u128) -> Process {
    Process { broker: name.parse().unwrap(), nonce: nonce(run) }
}

pub(crate) fn topic(name: &str) -> Topic {
    Topic {
        id: T,
        name: name.parse().unwrap(),
        partitions: 3,
        replicas: 3,
        ack_quorum: 2,
        config: [("segment.ms".to_owned(), "1000".to_owned())].into(),
        created_ms: 1,
    }
}

pub(crate) fn sealed(end: u64, next_offset: u64) -> Sealed {
    Sealed {
        end: EntryId(end),
        next_offset: Offset(next_offset),
        bytes: 100 * end,
        complete: vec![bookie(1), bookie(2)],
        max_timestamp_ms: 7,
        sealed_ms: 9,
    }
}

impl World {
    pub(crate) fn new() -> Self {
        Self { store: Arc::default(), keys: Keys::new("c").unwrap() }
    }

    pub(crate) fn put(&self, key: String, value: Bytes) -> Revision {
        self.apply_txn(&Txn::default().put(key, value))
    }

    #[track_caller]
    pub(crate) fn apply_txn(&self, txn: &Txn) -> Revision {
        match self.store.transact_now(txn) {
            Ok(TxnOutcome::Applied(revision)) => revision,
            other => panic!("not applied: {other:?}: {txn:?}"),
        }
    }

    /// Applies an operation that nothing stands against.
    #[track_caller]
    pub(crate) fn apply<O: Operation>(&self, operation: &O) -> O::Done {
        operation.done(self.apply_txn(&operation.txn(&self.keys)))
    }

    pub(crate) async fn run<O: Operation>(
        &self,
        operation: &O,
    ) -> Result<Outcome<O::Done, O::Lost>, StoreError> {
        operation::run(&*self.store, &self.keys, operation).await
    }

    pub(crate) async fn lost<O: Operation<Done: Debug>>(&self, operation: &O) -> O::Lost {
        match self.run(operation).await.unwrap() {
            Outcome::Lost(lost) => lost,
            Outcome::Done(done) => panic!("it happened: {done:?}"),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<KeyValue> {
        self.store.get(key).now_or_never().unwrap().unwrap()
    }

    pub(crate) fn read<V: Typed>(&self, key: &str) -> Option<Versioned<V>> {
        Versioned::read_option(self.get(key).as_ref()).unwrap()
    }

    pub(crate) fn view(&self, id: PartitionId) -> PartitionView {
        view::partition(&*self.store, &self.keys, id).now_or_never().unwrap().unwrap()
    }

    /// Everything there is.
    pub(crate) fn dump(&self) -> Vec<KeyValue> {
        self.store.range("", "", 1_000, None).now_or_never().unwrap().unwrap().keys
    }

    /// Writes a key without changing what it says, or makes it.
    pub(crate) fn disturb(&self, key: &str) {
        match self.get(key) {
            Some(KeyValue { value, lease: Some(lease), .. }) => {
                self.apply_txn(&Txn::default().put_leased(key.to_owned(), value, lease));
            }
            Some(KeyValue { value, .. }) => drop(self.put(key.to_owned(), value)),
            None => drop(self.put(key.to_owned(), Bytes::new())),
        }
    }

    pub(crate) fn with_topic() -> (Self, Versioned<Topic>) {
        let world = Self::new();
        let topic = world.apply(&CreateTopic { topic: topic("t") });
        (world, topic)
    }

    pub(crate) fn take_over(&self, topic: &Versioned<Topic>, index: u32, by: &Process) -> TakenOver {
        let candidate = self.view(partition(index)).candidate(topic.clone());
        let packed = TakeOver::pack(by, vec![candidate]);
        self.apply(&packed[0]).remove(0)
    }

    pub(crate) fn block(&self, holder: &Process, count: u64) -> HeldBlock {
        let allocator = self.read(&self.keys.id_next(IdKind::Ledgers));
        let attempt = nonce(u128::from(self.store.revision().unwrap().0));
        let kind = IdKind::Ledgers;
        self.apply(&AllocateBlock { kind, count, holder: holder.clone(), attempt, allocator })
    }

    /// A led partition 0 whose chain ends with an open ledger, base offset 0.
    pub(crate) fn with_open_ledger() -> Led {
        let (world, topic) = Self::with_topic();
        let me = process("me", 1);
        let led = world.take_over(&topic, 0, &me);
        let block = world.block(&me, 10);
        let roll = Roll::new(led.leadership, None, None, Some(new_ledger(&block, 0))).unwrap();
        let last = world.apply(&roll).opened.unwrap();
        Led { world, topic, me, led, block, last }
    }
}

/// A world with a led partition.
#[derive(Debug)]
pub(crate) struct Led {
    pub(crate) world: World,
    pub(crate) topic: Versioned<Topic>,
    pub(crate) me: Process,
    pub(crate) led: TakenOver,
    pub(crate) block: HeldBlock,
    pub(crate) last: Last,
}

/// The `n`th id of a block as a ledger.
pub(crate) fn new_ledger(block: &HeldBlock, n: u64) -> NewLedger {
    NewLedger {
        id: LedgerId(block.block.value.first + n),
        replicas: vec![bookie(1), bookie(2), bookie(3)],
        ack_quorum: 2,
        created_ms: 5,
        block: block.clone(),
    }
}

/// An operation that nothing stands against ends the same, and once, whatever
/// happens to its transactions on the way.
pub(crate) async fn settles<O>(make: impl Fn() -> (World, O))
where
    O: Operation<Done: PartialEq + Debug, Lost: Debug>,
{
    let (world, operation) = make();
    let expected = operation.done(world.apply_txn(&operation.txn(&world.keys)));
    let left = world.dump();
    for faults in [
        vec![Fault::None],
        vec![Fault::UnknownApplied],
        vec![Fault::UnknownLost],
        vec![Fault::Twice],
        vec![Fault::UnknownLost, Fault::UnknownApplied],
        vec![Fault::UnknownLost, Fault::Twice],
    ] {
        let (world, operation) = make();
        world.store.inject(faults.clone());
        match world.run(&operation).await {
            Ok(Outcome::Done(done)) => assert_eq!(done, expected, "{faults:?}"),
            other => panic!("{faults:?}: {other:?}"),
        }
        assert_eq!(world.dump(), left, "{faults:?}");
    }
    says_what_it_does_not_know(make).await;
}

/// When neither an answer nor a reading back is to be had, that is said.
async fn says_what_it_does_not_know<O>(make: impl Fn() -> (World, O))
where
    O: Operation<Done: PartialEq + Debug, Lost: Debug>,
{
    for (faults, failing_reads) in [
        (vec![Fault::UnknownApplied], 1),
        (vec![Fault::UnknownLost], 1),
        (vec![Fault::UnknownLost, Fault::Unavailable], 0),
        (vec![Fault::UnknownLost; 3], 0),
    ] {
        let (world, operation) = make();
        world.store.inject(faults.clone());
        world.store.fail_requests(failing_reads);
        match world.run(&operation).await {
            Err(StoreError::Unknown(_)) => {}
            other => panic!("{faults:?}: {other:?}"),
        }
        // Running it again, unchanged, settles it.
        match world.run(&operation).await {
            Ok(Outcome::Done(_)) => {}
            other => panic!("again after {faults:?}: {other:?}"),
        }
    }
    let (world, operation) = make();
    world.store.inject([Fault::Unavailable]);
    let outcome = world.run(&operation).await;
    assert!(matches!(outcome, Err(StoreError::Unavailable(_))), "{outcome:?}");
}

/// Each of these keys is guarded: when it changed since the operation was made,
/// the transaction changes nothing.
pub(crate) fn is_guarded_by<O: Operation>(
    make: impl Fn() -> (World, O),
    guarded: impl Fn(&Keys) -> Vec<String>,
) {
    let (world, _) = make();
    for key in guarded(&world.keys) {
        let (world, operation) = make();
        world.disturb(&key);
        let before = world.dump();
        match world.store.transact_now(&operation.txn(&world.keys)) {
            Ok(TxnOutcome::Refused(_)) => {}
            other => panic!("{key} is not guarded: {other:?}"),
        }
        assert_eq!(world.dump(), before);
    }
    let (world, operation) = make();
    let guards = operation.txn(&world.keys).guards.len();
    assert_eq!(guards, guarded(&world.keys).len(), "every guard is named");
}
