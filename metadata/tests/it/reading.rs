//! Reading consistently, following what changes, keeping a lease alive.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use quire_metadata::chain::ChainSequence;
use quire_metadata::embedded::VolatileStore;
use quire_metadata::embedded::state::Retention;
use quire_metadata::follow::{Change, Follow, FollowTopics, TopicChange};
use quire_metadata::ledger::LedgerState;
use quire_metadata::operations::roll::Roll;
use quire_metadata::operations::topics::{CreateTopic, DeleteTopic};
use quire_metadata::session::Session;
use quire_metadata::store::{Event, KeyValue, LeaseId, Page, Revision, Store, StoreError, Txn, TxnOutcome};
use quire_metadata::topic::Topic;
use quire_metadata::view;
use quire_proto::id::TopicId;
use uuid::Uuid;

use crate::world::{Led, World, new_ledger, partition, sealed, topic};

/// A store where something happens right after the first listing.
struct Interleaved {
    inner: Arc<VolatileStore>,
    act: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for Interleaved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Store for Interleaved {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.inner.get(key).await
    }

    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError> {
        let page = self.inner.range(prefix, from, limit, revision).await;
        let act = self.act.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
        page
    }

    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.inner.transact(txn).await
    }

    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError> {
        self.inner.watch(prefix, from).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.inner.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.revoke(lease).await
    }
}

#[tokio::test]
async fn a_chain_is_of_one_revision_whatever_happens_meanwhile() {
    let Led { world, led, block, last, topic, .. } = World::with_open_ledger();
    let open = Some(new_ledger(&block, 1));
    let roll = Roll::new(led.leadership, Some(last), Some(sealed(5, 50)), open).unwrap();
    let (inner, keys) = (Arc::clone(&world.store), world.keys.clone());
    let before = inner.revision().unwrap();
    let act = move || {
        world.apply(&roll);
        world.take_over(&topic, 0, &crate::world::process("other", 2));
    };
    let store = Interleaved { inner, act: Mutex::new(Some(Box::new(act))) };
    let then = view::partition(&store, &keys, partition(0)).await.unwrap();
    assert_eq!(then.revision, before);
    assert_eq!(then.chain.len(), 1);
    assert_eq!(then.chain[0].ledger.value.state, LedgerState::Open);
    assert_eq!(then.partition.as_ref().unwrap().value.epoch.0, 1);
    assert_eq!(then.next_sequence(), ChainSequence(1));
    let now = view::partition(&store, &keys, partition(0)).await.unwrap();
    assert_eq!((now.chain.len(), now.partition.unwrap().value.epoch.0), (2, 2));
}

#[tokio::test]
async fn a_reading_that_was_outrun_starts_anew() {
    let inner = Arc::new(VolatileStore::new(Retention { revisions: 2, bytes: 1 << 20 }));
    let world = World { store: Arc::clone(&inner), keys: World::new().keys };
    world.apply(&CreateTopic { topic: topic("t") });
    let (keys, last) = (world.keys.clone(), Arc::clone(&inner));
    let act = move || (0..9).for_each(|_| world.disturb("elsewhere"));
    let store = Interleaved { inner, act: Mutex::new(Some(Box::new(act))) };
    let view = view::partition(&store, &keys, partition(0)).await.unwrap();
    assert_eq!(view.revision, last.revision().unwrap());
}

#[tokio::test]
async fn a_long_listing_is_of_one_revision() {
    let world = World::new();
    for i in 0..2_500 {
        world.put(format!("p/{i:04}"), "v".into());
    }
    let (inner, before) = (Arc::clone(&world.store), world.store.revision().unwrap());
    let act = move || {
        world.put("p/2000x".to_owned(), "v".into());
        world.apply_txn(&Txn::default().delete("p/2400".to_owned()));
    };
    let store = Interleaved { inner, act: Mutex::new(Some(Box::new(act))) };
    let (found, revision) = view::list(&store, "p/").await.unwrap();
    assert_eq!((found.len(), revision), (2_500, before));
}

async fn next(follow: &mut Follow) -> Change {
    tokio::time::timeout(Duration::from_secs(60), follow.next()).await.expect("a change comes")
}

fn keys_of(change: &Change) -> Vec<&str> {
    match change {
        Change::Reset(all, _) => all.iter().map(|found| found.key.as_str()).collect(),
        Change::Events(events) => events
            .iter()
            .map(|event| match event {
                Event::Put(found) => found.key.as_str(),
                Event::Delete { key, .. } => key,
            })
            .collect(),
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_followed_is_listed_and_then_watched() {
    let world = World::new();
    world.put("p/a".to_owned(), "1".into());
    let mut follow = Follow::new(Arc::clone(&world.store) as Arc<dyn Store>, "p/".to_owned());
    let reset = next(&mut follow).await;
    assert!(matches!(reset, Change::Reset(..)));
    assert_eq!(keys_of(&reset), ["p/a"]);
    world.put("q".to_owned(), "1".into());
    world.put("p/b".to_owned(), "1".into());
    let events = next(&mut follow).await;
    assert!(matches!(events, Change::Events(_)));
    assert_eq!(keys_of(&events), ["p/b"]);
}

#[tokio::test(start_paused = true)]
async fn who_falls_behind_lists_anew() {
    let store = Arc::new(VolatileStore::new(Retention { revisions: 4, bytes: 1 << 20 }));
    let world = World { store: Arc::clone(&store), keys: World::new().keys };
    let mut follow = Follow::new(store, "p/".to_owned());
    next(&mut follow).await;
    for i in 0..10 {
        world.put(format!("p/{i}"), "1".into());
    }
    let change = next(&mut follow).await;
    assert!(matches!(change, Change::Reset(..)), "{change:?}");
    assert_eq!(keys_of(&change).len(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_is_waited_for() {
    let world = World::new();
    world.store.fail_requests(10);
    let mut follow = Follow::new(Arc::clone(&world.store) as Arc<dyn Store>, "p/".to_owned());
    assert!(matches!(next(&mut follow).await, Change::Reset(..)));
}

#[tokio::test(start_paused = true)]
async fn topics_are_followed_as_topics() {
    let (world, created) = World::with_topic();
    let mut follow = FollowTopics::new(Arc::clone(&world.store) as Arc<dyn Store>, world.keys.clone());
    assert_eq!(follow.next().await, TopicChange::Reset(vec![created.clone()]));
    let other = Topic { id: TopicId(Uuid::from_u128(9)), ..topic("other") };
    let other = world.apply(&CreateTopic { topic: other });
    assert_eq!(follow.next().await, TopicChange::Put(other));
    // What can't be read is left out, and does no harm to the rest.
    world.put(world.keys.topic(&"broken".parse().unwrap()), vec![255; 9].into());
    let name = created.value.name.clone();
    world.apply(&DeleteTopic { topic: created });
    assert_eq!(follow.next().await, TopicChange::Gone(name));
}

const TTL: Duration = Duration::from_secs(4);

/// Moves the store's clock and the session's together.
async fn pass(world: &World, by: Duration) {
    const STEP: Duration = Duration::from_millis(100);
    let mut left = by;
    while !left.is_zero() {
        tokio::time::sleep(STEP).await;
        world.store.advance(STEP);
        left = left.saturating_sub(STEP);
    }
}

async fn session(world: &World) -> Session {
    let session = Session::start(Arc::clone(&world.store) as Arc<dyn Store>, TTL).await.unwrap();
    world.apply_txn(&Txn::default().put_leased("mine".to_owned(), "1".into(), session.lease()));
    session
}

#[tokio::test(start_paused = true)]
async fn a_session_lives_until_it_is_closed() {
    let world = World::new();
    let session = session(&world).await;
    pass(&world, TTL * 10).await;
    assert!(session.is_valid() && world.get("mine").is_some());
    session.close().await.unwrap();
    assert_eq!(world.get("mine"), None);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_dropped_runs_out() {
    let world = World::new();
    drop(session(&world).await);
    pass(&world, TTL + Duration::from_secs(2)).await;
    assert_eq!(world.get("mine"), None);
}

#[tokio::test(start_paused = true)]
async fn a_session_knows_that_its_lease_was_ended() {
    let world = World::new();
    let session = session(&world).await;
    world.store.revoke(session.lease()).await.unwrap();
    tokio::time::timeout(TTL, session.ended().cancelled()).await.expect("it is told");
    assert!(!session.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_session_outlives_a_short_absence_of_the_store_but_no_long_one() {
    let world = World::new();
    let session = session(&world).await;
    world.store.fail_requests(2);
    pass(&world, TTL * 3).await;
    assert!(session.is_valid());
    world.store.fail_requests(usize::MAX);
    let before = tokio::time::Instant::now();
    session.ended().cancelled().await;
    // It ends by its own clock, not later than the store's lease.
    assert!(before.elapsed() <= TTL, "{:?}", before.elapsed());
    assert!(!session.is_valid());
}
