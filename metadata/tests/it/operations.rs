//! Every guarded transaction: what it does, what guards it, and that its
//! outcome is found out whatever happens on the way.

use quire_metadata::bookie::{BookieLiveness, BookieRegistration, LogPosition};
use quire_metadata::chain::{ChainSequence, Segment};
use quire_metadata::cluster::{Cluster, FORMAT_VERSION};
use quire_metadata::delete_intent::DeleteIntent;
use quire_metadata::id_block::{IdBlock, IdKind};
use quire_metadata::ledger::{LedgerMetadata, LedgerState};
use quire_metadata::operation::Outcome;
use quire_metadata::operations::bookie_start::{
    PublishBookie, PublishRefused, StartBookie, StartIntent, StartRefused, start_bookie,
};
use quire_metadata::operations::bootstrap::{Bootstrap, ClusterMismatch};
use quire_metadata::operations::deletion::{
    AdvanceDelete, Changed, DeposeLeaders, DropSegments, DroppedSegment, FinishTopic,
};
use quire_metadata::operations::election::{AnotherController, Elect, Elected, ElectedLost, Election};
use quire_metadata::operations::ids::{
    AllocateBlock, AllocatorMoved, BlockChanged, ReleaseBlock, RemoveBlock, allocate_block,
};
use quire_metadata::operations::recovery::{InvalidStep, RecoveryStep, StepRefused};
use quire_metadata::operations::register::{NameInUse, RegisterBroker};
use quire_metadata::operations::roll::{InvalidRoll, NewLedger, Roll, RollRefused};
use quire_metadata::operations::take_over::{Overtaken, TakeOver};
use quire_metadata::operations::topics::{CreateTopic, DeleteTopic, TopicChanged, TopicExists};
use quire_metadata::partition::Partition;
use quire_metadata::process::Broker;
use quire_metadata::store::{LeaseId, Store, TXN_OPERATIONS_MAX};
use quire_metadata::topic::Topic;
use quire_metadata::typed::{Typed, Versioned};
use quire_proto::id::{ClusterId, Epoch, LedgerId, Offset, PartitionId, PartitionIndex, TopicId};
use uuid::Uuid;

use crate::world::{
    Led, T, World, bookie, is_guarded_by, new_ledger, nonce, partition, process, sealed, settles, topic,
};

fn lease(world: &World) -> LeaseId {
    use futures_util::FutureExt;
    world.store.grant(std::time::Duration::from_secs(5)).now_or_never().unwrap().unwrap()
}

mod cluster {
    use super::*;

    fn bootstrap(id: u128) -> Bootstrap {
        Bootstrap {
            id: ClusterId(Uuid::from_u128(id)),
            expected: None,
            bucket: "b".to_owned(),
            prefix: "p".to_owned(),
        }
    }

    #[tokio::test]
    async fn the_first_starter_founds_it_and_others_join() {
        settles(|| (World::new(), bootstrap(1))).await;
        is_guarded_by(|| (World::new(), bootstrap(1)), |keys| vec![keys.cluster()]);

        let world = World::new();
        let founded = world.apply(&bootstrap(1));
        assert_eq!(world.run(&bootstrap(2)).await, Ok(Outcome::Done(founded.clone())));
        assert_eq!(founded.id, ClusterId(Uuid::from_u128(1)));
        let expected = Bootstrap { expected: Some(founded.id), ..bootstrap(3) };
        assert_eq!(world.run(&expected).await, Ok(Outcome::Done(founded)));
    }

    #[tokio::test]
    async fn a_mismatch_refuses_and_says_why() {
        let world = World::new();
        let founded = world.apply(&bootstrap(1));
        let other = ClusterId(Uuid::from_u128(9));
        let lost = world.lost(&Bootstrap { expected: Some(other), ..bootstrap(2) }).await;
        assert_eq!(lost, ClusterMismatch::Identity { found: founded.id, expected: other });
        let lost = world.lost(&Bootstrap { bucket: "other".to_owned(), ..bootstrap(2) }).await;
        assert!(matches!(lost, ClusterMismatch::Objects { .. }), "{lost:?}");

        let later = Cluster { format_version: FORMAT_VERSION + 1, ..founded };
        world.put(world.keys.cluster(), later.encode());
        let lost = world.lost(&bootstrap(1)).await;
        assert_eq!(lost, ClusterMismatch::Format { found: FORMAT_VERSION + 1 });
    }
}

mod broker {
    use super::*;

    fn register(world: &World, run: u128) -> RegisterBroker {
        let broker =
            Broker { process: process("b1", run), address: "127.0.0.1:9650".to_owned(), rack: String::new() };
        RegisterBroker { broker, lease: lease(world) }
    }

    #[tokio::test]
    async fn a_name_has_one_run_at_a_time() {
        let make = || {
            let world = World::new();
            let register = register(&world, 1);
            (world, register)
        };
        settles(make).await;
        is_guarded_by(make, |keys| vec![keys.broker(&"b1".parse().unwrap())]);

        let (world, first) = make();
        world.apply(&first);
        let second = register(&world, 2);
        assert_eq!(world.lost(&second).await, NameInUse(process("b1", 1)));
        // Not even the same run under another lease: the key would go with the
        // earlier one.
        assert_eq!(world.lost(&register(&world, 1)).await, NameInUse(process("b1", 1)));
        world.store.revoke(first.lease).await.unwrap();
        assert!(matches!(world.run(&second).await, Ok(Outcome::Done(_))));
    }
}

mod bookie_start {
    use super::*;

    fn intent(generation: u64, n: u128) -> StartIntent {
        StartIntent { generation, nonce: nonce(n) }
    }

    async fn start(
        world: &World,
        intent: StartIntent,
    ) -> Outcome<Versioned<BookieRegistration>, StartRefused> {
        start_bookie(&*world.store, &world.keys, bookie(1), intent, "r1").await.unwrap()
    }

    fn registered(generation: u64) -> World {
        let world = World::new();
        let registration = BookieRegistration {
            generation,
            nonce: nonce(1),
            rack: "r1".to_owned(),
            durable: LogPosition { generation: 4, sequence: 40 },
        };
        world.put(world.keys.bookie_registration(bookie(1)), registration.encode());
        world
    }

    #[tokio::test]
    async fn each_start_raises_the_generation() {
        let first = || {
            let start = StartBookie::new(bookie(1), intent(1, 7), "r1".to_owned(), None);
            (World::new(), start)
        };
        settles(first).await;
        is_guarded_by(first, |keys| vec![keys.bookie_registration(bookie(1))]);
        let next = || {
            let world = registered(5);
            let previous = world.read(&world.keys.bookie_registration(bookie(1)));
            (world, StartBookie::new(bookie(1), intent(6, 7), "r2".to_owned(), previous))
        };
        settles(next).await;
        is_guarded_by(next, |keys| vec![keys.bookie_registration(bookie(1))]);

        let (world, _) = next();
        let Outcome::Done(started) = start(&world, intent(6, 7)).await else { panic!("refused") };
        assert_eq!((started.value.generation, started.value.nonce), (6, nonce(7)));
        assert_eq!(started.value.durable, LogPosition { generation: 4, sequence: 40 }, "B6 needs it");
    }

    #[tokio::test]
    async fn a_registration_that_equals_the_intent_is_ones_own() {
        let world = registered(5);
        let Outcome::Done(first) = start(&world, intent(6, 7)).await else { panic!("refused") };
        assert_eq!(start(&world, intent(6, 7)).await, Outcome::Done(first));
    }

    #[tokio::test]
    async fn a_directory_that_is_not_the_one_is_refused() {
        let refused = |registered, wanted| Outcome::Lost(StartRefused::Behind { registered, wanted });
        // A copy of the directory, started at the same time or later.
        assert_eq!(start(&registered(5), intent(5, 7)).await, refused(5, 5));
        assert_eq!(start(&registered(5), intent(3, 7)).await, refused(5, 3));
        // Removed from the registry.
        assert_eq!(start(&World::new(), intent(6, 7)).await, Outcome::Lost(StartRefused::NotRegistered));
        // A registry from a backup.
        let behind = StartRefused::RegistryBehind { registered: 5, wanted: 7 };
        assert_eq!(start(&registered(5), intent(7, 7)).await, Outcome::Lost(behind));
    }

    #[tokio::test]
    async fn of_two_starts_of_one_directory_one_wins() {
        let world = registered(5);
        let previous = world.read(&world.keys.bookie_registration(bookie(1)));
        let [one, two] =
            [7, 8].map(|n| StartBookie::new(bookie(1), intent(6, n), "r1".to_owned(), previous.clone()));
        world.apply(&one);
        assert_eq!(world.lost(&two).await, StartRefused::Behind { registered: 6, wanted: 6 });
    }

    fn publish(world: &World, sequence: u64) -> PublishBookie {
        PublishBookie {
            bookie: bookie(1),
            registration: world.read(&world.keys.bookie_registration(bookie(1))).unwrap(),
            liveness: BookieLiveness {
                address: "a".to_owned(),
                generation: 5,
                durable: LogPosition { generation: 4, sequence },
                read_only: false,
                free_bytes: 1,
            },
            lease: lease(world),
        }
    }

    #[tokio::test]
    async fn the_durable_position_is_published_and_never_goes_back() {
        let make = || {
            let world = registered(5);
            let publish = publish(&world, 50);
            (world, publish)
        };
        settles(make).await;
        is_guarded_by(make, |keys| vec![keys.bookie_registration(bookie(1))]);

        let (world, forward) = make();
        let published = world.apply(&forward);
        assert_eq!(published.value.durable, LogPosition { generation: 4, sequence: 50 });
        let liveness: Versioned<BookieLiveness> = world.read(&world.keys.bookie(bookie(1))).unwrap();
        assert_eq!(liveness.value, forward.liveness);
        let published = world.apply(&publish(&world, 45));
        assert_eq!(published.value.durable, LogPosition { generation: 4, sequence: 50 });
        world.store.revoke(forward.lease).await.unwrap();
    }

    #[tokio::test]
    async fn a_superseded_start_publishes_nothing() {
        let world = registered(5);
        let stale = publish(&world, 50);
        let current = world.apply(&publish(&world, 60));
        assert_eq!(world.lost(&stale).await, PublishRefused::Stale(current));
        let Outcome::Done(_) = start(&world, intent(6, 7)).await else { panic!("refused") };
        assert_eq!(world.lost(&stale).await, PublishRefused::Superseded);
        world.apply_txn(
            &quire_metadata::store::Txn::default().delete(world.keys.bookie_registration(bookie(1))),
        );
        assert_eq!(world.lost(&stale).await, PublishRefused::Superseded);
    }
}

mod ids {
    use super::*;

    fn allocate(world: &World, n: u128) -> AllocateBlock {
        AllocateBlock {
            kind: IdKind::Ledgers,
            count: 10,
            holder: process("b1", 1),
            attempt: nonce(n),
            allocator: world.read(&world.keys.id_next(IdKind::Ledgers)),
        }
    }

    #[tokio::test]
    async fn blocks_follow_one_another() {
        let first = || {
            let world = World::new();
            let allocate = allocate(&world, 1);
            (world, allocate)
        };
        let second = || {
            let world = World::new();
            world.apply(&allocate(&world, 1));
            let allocate = allocate(&world, 2);
            (world, allocate)
        };
        settles(first).await;
        settles(second).await;
        is_guarded_by(first, |keys| vec![keys.id_next(IdKind::Ledgers)]);
        is_guarded_by(second, |keys| vec![keys.id_next(IdKind::Ledgers)]);

        let (world, first) = first();
        assert_eq!(world.apply(&first).block.value.ids(), 1..11);
        assert_eq!(world.apply(&allocate(&world, 2)).block.value.ids(), 11..21);
    }

    #[tokio::test]
    async fn two_allocations_of_one_process_never_share_a_block() {
        let world = World::new();
        let [one, two] = [1, 2].map(|n| allocate(&world, n));
        world.apply(&one);
        assert_eq!(world.lost(&two).await, AllocatorMoved);
    }

    #[tokio::test]
    async fn an_allocation_goes_on_when_others_come_first() {
        let world = World::new();
        let tasks = (0..8).map(|n| {
            let (store, keys) = (world.store.clone(), world.keys.clone());
            tokio::spawn(async move {
                let me = process("b1", n);
                allocate_block(&*store, &keys, IdKind::Producers, 5, &me, nonce(n)).await
            })
        });
        let mut firsts = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            firsts.push(task.await.unwrap().unwrap().block.value.first);
        }
        firsts.sort_unstable();
        assert_eq!(firsts, (0..8).map(|n| 1 + 5 * n).collect::<Vec<_>>());
        let invalid = |count| {
            let (store, keys) = (&world.store, &world.keys);
            async move {
                let me = process("b1", 1);
                allocate_block(&**store, keys, IdKind::Ledgers, count, &me, nonce(1)).await.is_err()
            }
        };
        assert!(invalid(0).await && invalid(10_001).await);
    }

    #[tokio::test]
    async fn a_released_block_has_no_holder_and_is_then_forgotten() {
        let held = || {
            let world = World::new();
            let held = world.apply(&allocate(&world, 1));
            (world, ReleaseBlock::from(held))
        };
        settles(held).await;
        is_guarded_by(held, |keys| vec![keys.id_block(IdKind::Ledgers, 1)]);
        let released = || {
            let (world, release) = held();
            world.apply(&release);
            let block = world.read(&world.keys.id_block(IdKind::Ledgers, 1)).unwrap();
            (world, RemoveBlock { kind: IdKind::Ledgers, block })
        };
        settles(released).await;
        is_guarded_by(released, |keys| vec![keys.id_block(IdKind::Ledgers, 1)]);

        let (world, remove) = released();
        assert_eq!(remove.block.value.holder, None);
        assert_eq!(world.lost(&RemoveBlock { block: held().1.block, ..remove.clone() }).await, BlockChanged);
        world.apply(&remove);
        assert_eq!(world.get(&world.keys.id_block(IdKind::Ledgers, 1)), None);
    }

    #[tokio::test]
    async fn a_returned_block_of_producer_ids_leaves_nothing() {
        let world = World::new();
        let held = world.apply(&AllocateBlock { kind: IdKind::Producers, ..allocate(&world, 1) });
        world.apply(&ReleaseBlock::from(held));
        assert_eq!(world.read::<IdBlock>(&world.keys.id_block(IdKind::Producers, 1)), None);
        assert!(world.get(&world.keys.id_next(IdKind::Producers)).is_some(), "ids are not used again");
    }
}

mod topics {
    use super::*;

    #[tokio::test]
    async fn a_name_is_one_topic() {
        let make = || (World::new(), CreateTopic { topic: topic("t") });
        settles(make).await;
        is_guarded_by(make, |keys| vec![keys.topic(&"t".parse().unwrap()), keys.deleting(T)]);

        let (world, create) = make();
        let created = world.apply(&create);
        let other = Topic { id: TopicId(Uuid::from_u128(9)), ..topic("t") };
        assert_eq!(world.lost(&CreateTopic { topic: other }).await, TopicExists(created));
    }

    #[tokio::test]
    async fn a_deleted_topic_has_no_name_and_is_marked() {
        let make = || {
            let (world, topic) = World::with_topic();
            (world, DeleteTopic { topic })
        };
        settles(make).await;
        is_guarded_by(make, |keys| vec![keys.topic(&"t".parse().unwrap())]);

        let (world, delete) = make();
        world.apply(&delete);
        assert_eq!(world.get(&world.keys.topic(&"t".parse().unwrap())), None);
        let marked: Versioned<Topic> = world.read(&world.keys.deleting(T)).unwrap();
        assert_eq!(marked.value, delete.topic.value);
        // The name is free; deleting the old one again leaves the new one alone.
        let other = Topic { id: TopicId(Uuid::from_u128(9)), ..topic("t") };
        let created = world.apply(&CreateTopic { topic: other });
        assert_eq!(world.run(&delete).await, Ok(Outcome::Done(())));
        assert_eq!(world.read(&world.keys.topic(&"t".parse().unwrap())), Some(created));
    }

    #[tokio::test]
    async fn a_topic_that_changed_is_not_deleted_unseen() {
        let (world, topic) = World::with_topic();
        let key = world.keys.topic(&topic.value.name);
        world.put(key.clone(), Topic { replicas: 1, ..topic.value.clone() }.encode());
        let changed = world.read(&key);
        assert!(changed.is_some());
        assert_eq!(world.lost(&DeleteTopic { topic }).await, TopicChanged(changed));
    }
}

mod take_over {
    use super::*;

    /// Partition 0 has an open ledger of another leader, 1 a sealed one, 2 none.
    fn make() -> (World, TakeOver) {
        let Led { world, topic, me, block, .. } = World::with_open_ledger();
        let led = world.take_over(&topic, 1, &me);
        let open = Roll::new(led.leadership, None, None, Some(new_ledger(&block, 1))).unwrap();
        let last = world.apply(&open).opened;
        world.apply(&Roll::new(led.leadership, last, Some(sealed(3, 30)), None).unwrap());
        let candidates = (0..3).map(|index| world.view(partition(index)).candidate(topic.clone()));
        let mut packed = TakeOver::pack(&process("other", 2), candidates.collect());
        assert_eq!(packed.len(), 1);
        (world, packed.remove(0))
    }

    #[tokio::test]
    async fn epochs_are_minted_and_open_ledgers_are_marked() {
        settles(make).await;
        let (world, take_over) = make();
        let taken = world.apply(&take_over);
        let minted = world.store.revision().unwrap();
        for (index, epoch) in [(0, 2), (1, 2), (2, 1)] {
            let leadership = taken[index].leadership;
            let id = partition(u32::try_from(index).unwrap());
            assert_eq!(
                (leadership.partition, leadership.epoch, leadership.minted),
                (id, Epoch(epoch), minted)
            );
            let stored: Versioned<Partition> = world.read(&world.keys.partition(id)).unwrap();
            let leader = Some(process("other", 2));
            assert_eq!(
                stored,
                Versioned { value: Partition { epoch: Epoch(epoch), leader }, revision: minted }
            );
        }
        let states: Vec<_> =
            taken.iter().map(|taken| taken.last.as_ref().map(|last| last.value.state.clone())).collect();
        let expected =
            [Some(LedgerState::Recovering(Epoch(2))), Some(LedgerState::Sealed(sealed(3, 30))), None];
        assert_eq!(states, expected);
        for taken in &taken {
            let stored =
                taken.last.as_ref().map(|last| world.read(&world.keys.ledger(last.value.id)).unwrap());
            assert_eq!(stored, taken.last);
        }
    }

    #[test]
    fn it_is_guarded_by_all_that_it_rests_on() {
        is_guarded_by(make, |keys| {
            vec![
                keys.topic(&"t".parse().unwrap()),
                // T1: the epoch as read, also when there was none.
                keys.partition(partition(0)),
                keys.partition(partition(1)),
                keys.partition(partition(2)),
                // The chain's next place, also behind a sealed ledger.
                keys.segment(partition(0), ChainSequence(1)),
                keys.segment(partition(1), ChainSequence(1)),
                keys.segment(partition(2), ChainSequence(0)),
                // T2: the last ledger.
                keys.ledger(LedgerId(1)),
                keys.ledger(LedgerId(2)),
            ]
        });
    }

    #[tokio::test]
    async fn who_comes_second_is_told_which_partitions_were_overtaken() {
        let (world, take_over) = make();
        let (_, rival) = make();
        let topic = rival.candidates()[1].topic.clone();
        world.take_over(&topic, 1, &process("rival", 3));
        assert_eq!(world.lost(&take_over).await, Overtaken(vec![partition(1)]));
        assert_eq!(world.view(partition(0)).partition.unwrap().value.epoch, Epoch(1), "all or nothing");
    }

    #[tokio::test]
    async fn a_recovery_under_way_is_taken_over_too() {
        let (world, take_over) = make();
        world.apply(&take_over);
        let topic = take_over.candidates()[0].topic.clone();
        let taken = world.take_over(&topic, 0, &process("third", 3));
        assert_eq!(taken.leadership.epoch, Epoch(3));
        assert_eq!(taken.last.unwrap().value.state, LedgerState::Recovering(Epoch(3)));
    }

    #[tokio::test]
    async fn the_same_process_never_resumes_an_epoch() {
        let (world, topic) = World::with_topic();
        let me = process("me", 1);
        let first = world.take_over(&topic, 0, &me);
        let second = world.take_over(&topic, 0, &me);
        assert_eq!((first.leadership.epoch, second.leadership.epoch), (Epoch(1), Epoch(2)));
    }

    #[tokio::test]
    async fn a_topic_that_is_being_deleted_gets_no_leader() {
        let (world, take_over) = make();
        let topic = take_over.candidates()[0].topic.clone();
        world.apply(&DeleteTopic { topic });
        let overtaken = (0..3).map(partition).collect();
        assert_eq!(world.lost(&take_over).await, Overtaken(overtaken));
    }

    #[tokio::test]
    async fn a_roll_that_slips_in_is_noticed() {
        let Led { world, topic, led, block, last, .. } = World::with_open_ledger();
        let candidate = world.view(partition(0)).candidate(topic);
        let take_over = TakeOver::pack(&process("other", 2), vec![candidate]).remove(0);
        let open = Some(new_ledger(&block, 1));
        world.apply(&Roll::new(led.leadership, Some(last), Some(sealed(2, 20)), open).unwrap());
        assert_eq!(world.lost(&take_over).await, Overtaken(vec![partition(0)]));
    }

    #[tokio::test]
    async fn as_many_as_fit_share_a_transaction() {
        let world = World::new();
        let wide = Topic { partitions: 45, ..topic("wide") };
        let topic = world.apply(&CreateTopic { topic: wide });
        let me = process("me", 1);
        let block = world.block(&me, 100);
        for index in 0..45 {
            let led = world.take_over(&topic, index, &me);
            let open = Some(new_ledger(&block, u64::from(index)));
            world.apply(&Roll::new(led.leadership, None, None, open).unwrap());
        }
        let candidates = (0..45).map(|index| world.view(partition(index)).candidate(topic.clone()));
        let packed = TakeOver::pack(&process("other", 2), candidates.collect());
        let sizes: Vec<_> = packed.iter().map(|take_over| take_over.candidates().len()).collect();
        assert_eq!(sizes, [19, 19, 7]);
        for take_over in &packed {
            use quire_metadata::operation::Operation;
            assert!(take_over.txn(&world.keys).operations() <= TXN_OPERATIONS_MAX);
            assert!(matches!(world.run(take_over).await, Ok(Outcome::Done(_))));
        }
    }
}

mod roll {
    use super::*;

    fn first_open() -> (World, Roll) {
        let (world, topic) = World::with_topic();
        let me = process("me", 1);
        let led = world.take_over(&topic, 0, &me);
        let block = world.block(&me, 10);
        let roll = Roll::new(led.leadership, None, None, Some(new_ledger(&block, 0))).unwrap();
        (world, roll)
    }

    fn full() -> (World, Roll) {
        let Led { world, led, block, last, .. } = World::with_open_ledger();
        let open = Some(new_ledger(&block, 1));
        let roll = Roll::new(led.leadership, Some(last), Some(sealed(5, 50)), open).unwrap();
        (world, roll)
    }

    fn idle_seal() -> (World, Roll) {
        let Led { world, led, last, .. } = World::with_open_ledger();
        (world, Roll::new(led.leadership, Some(last), Some(sealed(5, 50)), None).unwrap())
    }

    /// Opens behind a ledger that was sealed before.
    fn reopen() -> (World, Roll) {
        let Led { world, led, block, last, .. } = World::with_open_ledger();
        let seal = Roll::new(led.leadership, Some(last), Some(sealed(5, 50)), None).unwrap();
        let last = world.apply(&seal).previous;
        let roll = Roll::new(led.leadership, last, None, Some(new_ledger(&block, 1))).unwrap();
        (world, roll)
    }

    /// The last segment is empty.
    fn empty() -> (World, Roll) {
        let Led { world, led, block, last, .. } = World::with_open_ledger();
        let open = Some(new_ledger(&block, 1));
        let roll = Roll::new(led.leadership, Some(last), Some(sealed(1, 0)), open).unwrap();
        (world, roll)
    }

    #[tokio::test]
    async fn its_outcome_is_always_found_out() {
        settles(first_open).await;
        settles(full).await;
        settles(idle_seal).await;
        settles(reopen).await;
        settles(empty).await;
    }

    #[test]
    fn it_is_guarded_by_all_that_it_rests_on() {
        let place = |keys: &quire_metadata::key::Keys, n| keys.segment(partition(0), ChainSequence(n));
        is_guarded_by(first_open, |keys| {
            vec![keys.partition(partition(0)), place(keys, 0), keys.id_block(IdKind::Ledgers, 1)]
        });
        for make in [full, reopen, empty] {
            is_guarded_by(make, |keys| {
                vec![
                    keys.partition(partition(0)),
                    keys.ledger(LedgerId(1)),
                    place(keys, 1),
                    keys.id_block(IdKind::Ledgers, 1),
                ]
            });
        }
        is_guarded_by(idle_seal, |keys| {
            vec![keys.partition(partition(0)), keys.ledger(LedgerId(1)), place(keys, 1)]
        });
    }

    #[test]
    fn the_first_open_begins_the_chain() {
        let (world, roll) = first_open();
        let rolled = world.apply(&roll);
        let chain = world.view(partition(0)).chain;
        assert_eq!(chain.len(), 1);
        assert_eq!(chain[0].sequence, ChainSequence(0));
        assert_eq!(chain[0].segment.value, Segment { base_offset: Offset(0), ledger: LedgerId(1) });
        assert_eq!(chain[0].ledger, rolled.opened.unwrap().ledger);
        let ledger = &chain[0].ledger.value;
        assert_eq!((ledger.owner, ledger.epoch, &ledger.state), (partition(0), Epoch(1), &LedgerState::Open));
        assert_eq!((rolled.previous, rolled.removed), (None, None));
    }

    #[test]
    fn a_roll_seals_and_opens_without_a_hole() {
        let (world, roll) = full();
        let rolled = world.apply(&roll);
        let view = world.view(partition(0));
        let [old, new] = &view.chain[..] else { panic!("{view:?}") };
        assert_eq!(old.ledger.value.state, LedgerState::Sealed(sealed(5, 50)));
        assert_eq!(new.segment.value, Segment { base_offset: Offset(50), ledger: LedgerId(2) });
        assert_eq!(new.ledger.value.state, LedgerState::Open);
        assert_eq!(view.last(), rolled.opened);
        assert_eq!(Some(&old.ledger), rolled.previous.as_ref().map(|previous| &previous.ledger));
    }

    #[test]
    fn an_idle_seal_leaves_the_next_place_empty() {
        let (world, roll) = idle_seal();
        let rolled = world.apply(&roll);
        let view = world.view(partition(0));
        assert_eq!(view.chain.len(), 1);
        assert_eq!(view.chain[0].ledger.value.state, LedgerState::Sealed(sealed(5, 50)));
        assert_eq!((view.last(), rolled.opened), (rolled.previous, None));
        let (world, roll) = reopen();
        world.apply(&roll);
        let view = world.view(partition(0));
        assert_eq!(view.chain[1].segment.value, Segment { base_offset: Offset(50), ledger: LedgerId(2) });
    }

    #[test]
    fn an_empty_predecessor_is_replaced_and_its_bookies_are_asked_to_delete() {
        let (world, roll) = empty();
        let rolled = world.apply(&roll);
        let view = world.view(partition(0));
        assert_eq!(view.chain.len(), 1);
        assert_eq!(view.chain[0].sequence, ChainSequence(0), "the place is never empty in between");
        assert_eq!(view.chain[0].segment.value, Segment { base_offset: Offset(0), ledger: LedgerId(2) });
        assert_eq!((rolled.removed, rolled.previous), (Some(LedgerId(1)), None));
        assert_eq!(world.get(&world.keys.ledger(LedgerId(1))), None);
        let intent: Versioned<DeleteIntent> = world.read(&world.keys.delete(LedgerId(1))).unwrap();
        assert_eq!(intent.value.bookies, [bookie(1), bookie(2), bookie(3)]);
    }

    #[test]
    fn a_late_copy_finds_the_place_of_a_replaced_segment_taken() {
        use quire_metadata::operation::Operation;
        use quire_metadata::store::TxnOutcome;
        let Led { world, led, block, last, .. } = World::with_open_ledger();
        let first = Roll::new(led.leadership, None, None, Some(new_ledger(&block, 0))).unwrap();
        let open = Some(new_ledger(&block, 1));
        let replace = Roll::new(led.leadership, Some(last), Some(sealed(1, 0)), open).unwrap();
        world.apply(&replace);
        for late in [first.txn(&world.keys), replace.txn(&world.keys)] {
            let outcome = world.store.transact_now(&late).unwrap();
            assert!(matches!(outcome, TxnOutcome::Refused(_)), "{late:?}");
        }
    }

    #[test]
    fn an_empty_segment_without_a_successor_stays() {
        let Led { world, led, last, block, .. } = World::with_open_ledger();
        let seal = Roll::new(led.leadership, Some(last), Some(sealed(1, 0)), None).unwrap();
        let last = world.apply(&seal).previous;
        assert_eq!(world.view(partition(0)).chain.len(), 1, "the last of a chain holds its offset");
        let open = Some(new_ledger(&block, 1));
        let reopen = Roll::new(led.leadership, last, None, open).unwrap();
        let rolled = world.apply(&reopen);
        assert_eq!((rolled.removed, world.view(partition(0)).chain.len()), (Some(LedgerId(1)), 1));
    }

    #[tokio::test]
    async fn a_deposed_writer_is_told_so() {
        for make in [full, idle_seal, reopen] {
            let (world, roll) = make();
            let topic = world.read::<Topic>(&world.keys.topic(&"t".parse().unwrap())).unwrap();
            world.take_over(&topic, 0, &process("other", 2));
            assert_eq!(world.lost(&roll).await, RollRefused::Deposed);
        }
    }

    #[tokio::test]
    async fn a_roll_that_applied_before_its_writer_was_deposed_is_done() {
        let (world, roll) = full();
        let rolled = world.apply(&roll);
        let topic = world.read::<Topic>(&world.keys.topic(&"t".parse().unwrap())).unwrap();
        world.take_over(&topic, 0, &process("other", 2));
        assert_eq!(world.run(&roll).await, Ok(Outcome::Done(rolled)));
    }

    #[tokio::test]
    async fn nothing_is_published_from_a_released_block() {
        let Led { world, led, block, last, .. } = World::with_open_ledger();
        let open = Some(new_ledger(&block, 1));
        let roll = Roll::new(led.leadership, Some(last), Some(sealed(5, 50)), open).unwrap();
        world.apply(&ReleaseBlock::from(block));
        assert_eq!(world.lost(&roll).await, RollRefused::BlockReleased);
        assert_eq!(world.view(partition(0)).chain.len(), 1);
        let block = world.read(&world.keys.id_block(IdKind::Ledgers, 1)).unwrap();
        world.apply(&RemoveBlock { kind: IdKind::Ledgers, block });
        assert_eq!(world.lost(&roll).await, RollRefused::BlockReleased);
    }

    #[tokio::test]
    async fn a_chain_that_changed_under_a_standing_epoch_is_an_alarm() {
        let (world, roll) = full();
        world.disturb(&world.keys.ledger(LedgerId(1)));
        assert_eq!(world.lost(&roll).await, RollRefused::ChainChanged);
        let (world, roll) = full();
        let stray = Segment { base_offset: Offset(50), ledger: LedgerId(99) };
        world.put(world.keys.segment(partition(0), ChainSequence(1)), stray.encode());
        assert_eq!(world.lost(&roll).await, RollRefused::ChainChanged);
    }

    #[test]
    fn a_roll_that_contradicts_the_protocol_is_not_made() {
        let Led { world, topic, led, block, last, .. } = World::with_open_ledger();
        let leadership = led.leadership;
        let open = || Some(new_ledger(&block, 1));
        let with = |change: &dyn Fn(&mut NewLedger)| {
            let mut ledger = new_ledger(&block, 1);
            change(&mut ledger);
            Some(ledger)
        };
        let sealed_last = {
            let mut last = last.clone();
            last.ledger.value.state = LedgerState::Sealed(sealed(1, 5));
            last
        };
        let later_base = {
            let mut last = last.clone();
            last.segment.base_offset = Offset(51);
            last
        };
        let recovering = {
            let mut last = last.clone();
            last.ledger.value.state = LedgerState::Recovering(Epoch(1));
            last
        };
        let foreign = {
            let mut last = last.clone();
            last.ledger.value.owner = partition(1);
            last
        };
        let seal = || Some(sealed(5, 50));
        let last = || Some(last.clone());
        let deposed = world.take_over(&topic, 0, &process("other", 2)).leadership;
        for (made, error) in [
            (Roll::new(leadership, last(), None, None), InvalidRoll::Nothing),
            (Roll::new(leadership, None, seal(), open()), InvalidRoll::NothingToSeal),
            (Roll::new(leadership, Some(sealed_last), seal(), open()), InvalidRoll::NothingToSeal),
            (Roll::new(leadership, last(), None, open()), InvalidRoll::Unsealed),
            (Roll::new(leadership, Some(recovering), seal(), open()), InvalidRoll::Unsealed),
            (Roll::new(leadership, Some(foreign), seal(), open()), InvalidRoll::Foreign),
            (Roll::new(deposed, last(), seal(), open()), InvalidRoll::Foreign),
            (Roll::new(leadership, Some(later_base), seal(), open()), InvalidRoll::Backwards),
            (Roll::new(leadership, last(), seal(), with(&|new| new.id = LedgerId(99))), InvalidRoll::NotHeld),
            (Roll::new(leadership, last(), seal(), with(&|new| new.ack_quorum = 4)), InvalidRoll::Quorum),
            (Roll::new(leadership, last(), seal(), with(&|new| new.ack_quorum = 0)), InvalidRoll::Quorum),
        ] {
            assert_eq!(made, Err(error));
        }
    }
}

mod recovery {
    use super::*;

    struct Recovering {
        world: World,
        topic: Versioned<Topic>,
        leadership: quire_metadata::partition::Leadership,
        ledger: Versioned<LedgerMetadata>,
    }

    fn recovering() -> Recovering {
        let Led { world, topic, .. } = World::with_open_ledger();
        let taken = world.take_over(&topic, 0, &process("other", 2));
        Recovering { world, topic, leadership: taken.leadership, ledger: taken.last.unwrap() }
    }

    fn start() -> (World, RecoveryStep) {
        let Led { world, topic, last, .. } = World::with_open_ledger();
        let taken = world.take_over(&topic, 1, &process("other", 2));
        // As if T1 had been done without T2: the epoch is above the ledger's.
        let leadership = quire_metadata::partition::Leadership {
            partition: partition(0),
            epoch: Epoch(2),
            minted: world.put(
                world.keys.partition(partition(0)),
                Partition { epoch: Epoch(2), leader: Some(process("other", 2)) }.encode(),
            ),
        };
        assert_eq!(taken.leadership.epoch, Epoch(1));
        (world, RecoveryStep::start(leadership, last.ledger).unwrap())
    }

    fn name_targets() -> (World, RecoveryStep) {
        let Recovering { world, leadership, ledger, .. } = recovering();
        let step = RecoveryStep::name_targets(leadership, ledger, vec![bookie(4)]).unwrap();
        (world, step)
    }

    fn seal() -> (World, RecoveryStep) {
        let Recovering { world, leadership, ledger, .. } = recovering();
        let replicas = ledger.value.replicas.clone();
        let step = RecoveryStep::seal(leadership, ledger, replicas, sealed(5, 50)).unwrap();
        (world, step)
    }

    #[tokio::test]
    async fn every_step_is_settled_and_guarded() {
        for make in [start, name_targets, seal] {
            settles(make).await;
            is_guarded_by(make, |keys| vec![keys.partition(partition(0)), keys.ledger(LedgerId(1))]);
        }
    }

    #[test]
    fn the_steps_change_what_they_say() {
        let (world, step) = start();
        assert_eq!(world.apply(&step).value.state, LedgerState::Recovering(Epoch(2)));
        let (world, step) = name_targets();
        assert_eq!(world.apply(&step).value.targets, [bookie(4)]);
        let (world, step) = seal();
        let ledger = world.apply(&step);
        assert_eq!(ledger.value.state, LedgerState::Sealed(sealed(5, 50)));
        assert_eq!(world.read(&world.keys.ledger(LedgerId(1))), Some(ledger));
    }

    #[test]
    fn replaced_replicas_and_targets_are_remembered_for_deleting() {
        let Recovering { world, leadership, ledger, .. } = recovering();
        let name = RecoveryStep::name_targets(leadership, ledger, vec![bookie(4), bookie(5)]).unwrap();
        let ledger = world.apply(&name);
        let replicas = vec![bookie(1), bookie(4)];
        let mut end = sealed(5, 50);
        end.complete.clone_from(&replicas);
        let seal = RecoveryStep::seal(leadership, ledger, replicas, end).unwrap();
        let ledger = world.apply(&seal).value;
        assert_eq!((ledger.targets.len(), &ledger.former[..]), (0, &[bookie(2), bookie(3), bookie(5)][..]));
        assert_eq!(DeleteIntent::of(&ledger).bookies, [1, 2, 3, 4, 5].map(bookie));
    }

    #[tokio::test]
    async fn what_another_sealed_is_adopted_and_a_higher_epoch_stops() {
        let (world, step) = seal();
        let Recovering { leadership, ledger, .. } = recovering();
        let other =
            RecoveryStep::seal(leadership, ledger, vec![bookie(1), bookie(2)], sealed(4, 40)).unwrap();
        let adopted = world.apply(&other);
        assert_eq!(world.lost(&step).await, StepRefused::Sealed(adopted));

        let Recovering { world, topic, leadership, ledger } = recovering();
        let replicas = ledger.value.replicas.clone();
        let step = RecoveryStep::seal(leadership, ledger.clone(), replicas, sealed(5, 50)).unwrap();
        world.take_over(&topic, 0, &process("third", 3));
        assert_eq!(world.lost(&step).await, StepRefused::Deposed);
        world.apply_txn(&quire_metadata::store::Txn::default().delete(world.keys.ledger(LedgerId(1))));
        assert_eq!(world.lost(&step).await, StepRefused::Changed(None));
    }

    #[test]
    fn a_step_that_contradicts_the_protocol_is_not_made() {
        let Recovering { leadership, ledger, .. } = recovering();
        let replicas = || ledger.value.replicas.clone();
        let state = Err(InvalidStep::State(leadership.epoch));
        let with = |state| {
            let mut ledger = ledger.clone();
            ledger.value.state = state;
            ledger
        };
        assert_eq!(RecoveryStep::start(leadership, ledger.clone()), state);
        assert_eq!(RecoveryStep::start(leadership, with(LedgerState::Recovering(Epoch(3)))), state);
        assert_eq!(RecoveryStep::start(leadership, with(LedgerState::Sealed(sealed(5, 50)))), state);
        let open = with(LedgerState::Open);
        assert_eq!(RecoveryStep::seal(leadership, open.clone(), replicas(), sealed(5, 50)), state);
        assert_eq!(RecoveryStep::name_targets(leadership, open, Vec::new()), state);
        let mut few = sealed(5, 50);
        few.complete.truncate(1);
        let incomplete = Err(InvalidStep::Incomplete);
        assert_eq!(RecoveryStep::seal(leadership, ledger.clone(), replicas(), few), incomplete);
        let mut stranger = sealed(5, 50);
        stranger.complete.push(bookie(9));
        assert_eq!(RecoveryStep::seal(leadership, ledger.clone(), replicas(), stranger), incomplete);
        let mut foreign = ledger.clone();
        foreign.value.owner = partition(1);
        let foreign = RecoveryStep::seal(leadership, foreign, replicas(), sealed(5, 50));
        assert_eq!(foreign, Err(InvalidStep::Foreign));
    }
}

mod election {
    use super::*;

    fn elect(world: &World, run: u128) -> Elect {
        Elect { process: process("c", run), lease: lease(world) }
    }

    #[tokio::test]
    async fn there_is_one_controller() {
        let make = || {
            let world = World::new();
            let elect = elect(&world, 1);
            (world, elect)
        };
        settles(make).await;
        is_guarded_by(make, |keys| vec![keys.controller()]);
        let (world, first) = make();
        world.apply(&first);
        let second = elect(&world, 2);
        assert_eq!(world.lost(&second).await, AnotherController(process("c", 1)));
        assert_eq!(world.lost(&elect(&world, 1)).await, AnotherController(process("c", 1)));
        world.store.revoke(first.lease).await.unwrap();
        assert!(matches!(world.run(&second).await, Ok(Outcome::Done(_))));
    }

    fn elected<O>(make: impl Fn() -> (World, O)) -> impl Fn() -> (World, Elected<O>) {
        move || {
            let (world, operation) = make();
            let election = world.apply(&elect(&world, 1));
            (world, Elected { election, operation })
        }
    }

    #[tokio::test]
    async fn what_the_controller_does_is_guarded_by_its_election() {
        let finish = || {
            let (world, topic) = World::with_topic();
            world.apply(&DeleteTopic { topic });
            (world, FinishTopic { topic: T })
        };
        let make = elected(finish);
        settles(&make).await;
        let (world, finish) = make();
        world.disturb(&world.keys.controller());
        assert_eq!(world.lost(&finish).await, ElectedLost::NotElected);
        assert!(world.get(&world.keys.deleting(T)).is_some());

        // One that was done is done, whoever is elected now.
        let (world, finish) = make();
        world.apply(&finish);
        world.disturb(&world.keys.controller());
        assert_eq!(world.run(&finish).await, Ok(Outcome::Done(())));
    }

    #[tokio::test]
    async fn the_operations_own_reason_is_told() {
        let held = || {
            let world = World::new();
            let held = world.block(&process("b", 1), 10);
            (world, ReleaseBlock::from(held))
        };
        let (world, release) = elected(held)();
        world.disturb(&world.keys.id_block(IdKind::Ledgers, 1));
        assert_eq!(world.lost(&release).await, ElectedLost::Lost(BlockChanged));
        let never = Elected { election: Election { elected: world.store.revision().unwrap() }, ..release };
        assert_eq!(world.lost(&never).await, ElectedLost::NotElected);
    }
}

mod deletion {
    use super::*;

    /// A topic in `deleting/` with one partition led and one segment.
    fn marked() -> Led {
        let led = World::with_open_ledger();
        led.world.apply(&DeleteTopic { topic: led.topic.clone() });
        led
    }

    fn depose() -> (World, DeposeLeaders) {
        let Led { world, .. } = marked();
        let partition0 = world.view(partition(0)).partition.unwrap();
        let mut steps = DeposeLeaders::pack(T, vec![(partition(0), partition0)]);
        (world, steps.remove(0))
    }

    fn drop_segments() -> (World, DropSegments) {
        let (world, depose) = depose();
        world.apply(&depose);
        let link = world.view(partition(0)).chain.remove(0);
        let dropped = DroppedSegment {
            partition: partition(0),
            sequence: link.sequence,
            segment: link.segment,
            ledger: Some(link.ledger),
        };
        let mut steps = DropSegments::pack(T, vec![dropped]);
        (world, steps.remove(0))
    }

    fn finish() -> (World, FinishTopic) {
        let (world, drop) = drop_segments();
        world.apply(&drop);
        (world, FinishTopic { topic: T })
    }

    #[tokio::test]
    async fn every_step_is_settled_and_guarded() {
        settles(depose).await;
        settles(drop_segments).await;
        settles(finish).await;
        is_guarded_by_presence(depose, &|world| world.keys.deleting(T)).await;
        is_guarded_by_presence(drop_segments, &|world| world.keys.deleting(T)).await;
        refuses_after(depose, &|world| world.disturb(&world.keys.partition(partition(0))));
        refuses_after(drop_segments, &|world| {
            world.disturb(&world.keys.segment(partition(0), ChainSequence(0)));
        });
        refuses_after(drop_segments, &|world| world.disturb(&world.keys.ledger(LedgerId(1))));
    }

    async fn is_guarded_by_presence<O: quire_metadata::operation::Operation<Done: std::fmt::Debug>>(
        make: impl Fn() -> (World, O),
        key: &dyn Fn(&World) -> String,
    ) {
        refuses_after(make, &|world| {
            world.apply_txn(&quire_metadata::store::Txn::default().delete(key(world)));
        });
    }

    #[track_caller]
    fn refuses_after<O: quire_metadata::operation::Operation>(
        make: impl Fn() -> (World, O),
        change: &dyn Fn(&World),
    ) {
        use quire_metadata::store::TxnOutcome;
        let (world, operation) = make();
        change(&world);
        let outcome = world.store.transact_now(&operation.txn(&world.keys));
        assert!(matches!(outcome, Ok(TxnOutcome::Refused(_))), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_deposed_leader_can_write_nothing_any_more() {
        let Led { world, led, block, last, .. } = marked();
        let partition0 = world.view(partition(0)).partition.unwrap();
        for step in DeposeLeaders::pack(T, vec![(partition(0), partition0)]) {
            world.apply(&step);
        }
        let open = Some(new_ledger(&block, 1));
        let roll = Roll::new(led.leadership, Some(last), Some(sealed(5, 50)), open).unwrap();
        assert_eq!(world.lost(&roll).await, RollRefused::Deposed);
        let deposed = world.view(partition(0)).partition.unwrap();
        assert_eq!(deposed.value, Partition { epoch: Epoch(2), leader: None });
        assert_eq!(DeposeLeaders::pack(T, vec![(partition(0), deposed)]), [], "once is enough");
    }

    #[tokio::test]
    async fn a_leader_that_was_minted_meanwhile_is_noticed() {
        let (world, depose) = depose();
        let leader = Some(process("late", 9));
        let minted = Partition { epoch: Epoch(2), leader };
        world.put(world.keys.partition(partition(0)), minted.encode());
        assert_eq!(world.lost(&depose).await, Changed);
    }

    #[test]
    fn segments_leave_delete_intents_and_the_topic_leaves_nothing() {
        let (world, finish) = finish();
        let intent: Versioned<DeleteIntent> = world.read(&world.keys.delete(LedgerId(1))).unwrap();
        assert_eq!(intent.value.outstanding(), [bookie(1), bookie(2), bookie(3)]);
        assert_eq!(world.get(&world.keys.ledger(LedgerId(1))), None);
        assert_eq!(world.view(partition(0)).chain, []);
        world.put(world.keys.proposal(partition(0)), "x".into());
        world.apply(&finish);
        let left: Vec<_> = world.dump().into_iter().map(|found| found.key).collect();
        let expected = [
            world.keys.delete(LedgerId(1)),
            world.keys.id_block(IdKind::Ledgers, 1),
            world.keys.id_next(IdKind::Ledgers),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn large_topics_go_in_steps_that_fit() {
        use quire_metadata::operation::Operation;
        let world = World::new();
        let id = |n| PartitionId { topic: T, index: PartitionIndex(n) };
        let led = Partition { epoch: Epoch(1), leader: Some(process("b", 1)) };
        let led = Versioned { value: led, revision: world.store.revision().unwrap() };
        let steps = DeposeLeaders::pack(T, (0..150).map(|n| (id(n), led.clone())).collect());
        assert_eq!(steps.len(), 4);
        // The election's guard comes on top.
        assert!(steps.iter().all(|step| step.txn(&world.keys).operations() < TXN_OPERATIONS_MAX));

        let Led { world, .. } = World::with_open_ledger();
        let link = world.view(partition(0)).chain.remove(0);
        let dropped = DroppedSegment {
            partition: partition(0),
            sequence: link.sequence,
            segment: link.segment,
            ledger: Some(link.ledger),
        };
        let steps = DropSegments::pack(T, vec![dropped; 40]);
        assert_eq!(steps.len(), 3);
        assert!(steps.iter().all(|step| step.txn(&world.keys).operations() < TXN_OPERATIONS_MAX));
    }

    fn advance(confirmed: &[u128], departed: &[u128]) -> (World, AdvanceDelete) {
        let world = World::new();
        let intent = DeleteIntent { bookies: [1, 2, 3].map(bookie).to_vec(), confirmed: vec![bookie(3)] };
        world.put(world.keys.delete(LedgerId(7)), intent.encode());
        let advance = AdvanceDelete {
            ledger: LedgerId(7),
            intent: world.read(&world.keys.delete(LedgerId(7))).unwrap(),
            confirmed: confirmed.iter().copied().map(bookie).collect(),
            departed: departed.iter().copied().map(bookie).collect(),
        };
        (world, advance)
    }

    #[tokio::test]
    async fn an_intent_ends_when_each_bookie_has_confirmed_or_left() {
        settles(|| advance(&[1], &[])).await;
        settles(|| advance(&[1, 2], &[])).await;
        settles(|| advance(&[1], &[2])).await;
        let delete = |keys: &quire_metadata::key::Keys| keys.delete(LedgerId(7));
        is_guarded_by(|| advance(&[1], &[]), |keys| vec![delete(keys)]);
        is_guarded_by(|| advance(&[1], &[2]), |keys| vec![delete(keys), keys.bookie_registration(bookie(2))]);

        let (world, partly) = advance(&[1], &[]);
        let intent = world.apply(&partly).unwrap();
        assert_eq!(intent.value.outstanding(), [bookie(2)]);
        let (world, wholly) = advance(&[1], &[2]);
        assert_eq!(world.apply(&wholly), None);
        assert_eq!(world.get(&world.keys.delete(LedgerId(7))), None);
        let (_, left_alone) = advance(&[], &[2]);
        assert!(!left_alone.ends(), "bookie 1 is still to confirm");
    }

    #[tokio::test]
    async fn what_another_noted_meanwhile_is_read_anew() {
        let (world, advance) = advance(&[1], &[]);
        world.disturb(&world.keys.delete(LedgerId(7)));
        assert_eq!(world.lost(&advance).await, Changed);
    }
}
