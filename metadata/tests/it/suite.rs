//! What every backend of the store promises, written once. A backend runs it by
//! giving a [`Fixture`] to [`run_suite`].

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use quire_metadata::store::{
    Event, Guard, KeyValue, LeaseId, PAGE_KEYS_MAX, Revision, Store, StoreError, TXN_BYTES_MAX,
    TXN_OPERATIONS_MAX, Txn, TxnOutcome, VALUE_BYTES_MAX, Write,
};

/// A store that a test has to itself.
#[async_trait]
pub(crate) trait Fixture: Sync {
    fn store(&self) -> Arc<dyn Store>;

    /// Lets a little time pass, for the store's clock too.
    async fn tick(&self);
}

/// Makes one test of each promise.
macro_rules! run_suite {
    ($fixture:expr) => {
        crate::suite::run_suite!(@ $fixture;
            a_key_that_was_never_written_is_absent
            a_value_carries_when_it_was_created_and_written
            a_write_raises_the_revision_by_one
            what_changes_nothing_does_not_raise_the_revision
            guards_hold_or_not
            one_guard_that_does_not_hold_stops_every_write
            guards_speak_of_the_time_before_the_writes
            a_transaction_has_limits
            no_key_is_written_twice
            a_prefix_is_deleted_at_once
            a_range_is_in_order_and_in_bounds
            pages_are_of_one_revision
            the_past_can_be_read
            the_future_cannot_be_read
            a_watch_starts_with_the_revision_asked_for
            a_watch_waits_for_a_revision_to_come
            a_watch_sees_only_its_prefix
            a_watch_gives_each_transaction_in_one_piece
            a_watch_that_is_read_late_misses_nothing_unsaid
            every_write_of_many_writers_is_seen_in_order
            concurrent_compare_and_sets_lose_nothing
            an_answered_write_is_seen_by_everyone
            a_revoked_lease_takes_its_keys_along
            a_lease_that_is_not_kept_alive_ends
            a_lease_that_is_kept_alive_lives
            a_key_belongs_to_the_lease_that_wrote_it_last
            a_lease_that_has_ended_binds_nothing
        );
    };
    (@ $fixture:expr; $($name:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::suite::$name(&$fixture).await;
            }
        )*
    };
}
pub(crate) use run_suite;

const DEADLINE: Duration = Duration::from_secs(20);

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn put(key: &str, text: &str) -> Txn {
    Txn::default().put(key.to_owned(), value(text))
}

fn delete(key: &str) -> Txn {
    Txn::default().delete(key.to_owned())
}

fn delete_prefix(prefix: &str) -> Txn {
    Txn { guards: Vec::new(), writes: vec![Write::DeletePrefix { prefix: prefix.to_owned() }] }
}

#[track_caller]
fn applied(outcome: Result<TxnOutcome, StoreError>) -> Revision {
    match outcome {
        Ok(TxnOutcome::Applied(revision)) => revision,
        other => panic!("not applied: {other:?}"),
    }
}

#[track_caller]
fn refused(outcome: Result<TxnOutcome, StoreError>) -> Revision {
    match outcome {
        Ok(TxnOutcome::Refused(revision)) => revision,
        other => panic!("not refused: {other:?}"),
    }
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(outcome: Result<T, StoreError>) {
    assert!(matches!(outcome, Err(StoreError::Invalid(_))), "not invalid: {outcome:?}");
}

async fn get(store: &dyn Store, key: &str) -> Option<KeyValue> {
    store.get(key).await.unwrap()
}

async fn text(store: &dyn Store, key: &str) -> Option<String> {
    get(store, key).await.map(|found| String::from_utf8(found.value.to_vec()).unwrap())
}

async fn names(store: &dyn Store, prefix: &str, at: Option<Revision>) -> Vec<String> {
    let page = store.range(prefix, "", PAGE_KEYS_MAX, at).await.unwrap();
    page.keys.into_iter().map(|found| found.key).collect()
}

/// Waits until it is so, with a deadline.
async fn eventually<F: Future<Output = bool>>(fixture: &dyn Fixture, mut so: impl FnMut() -> F) {
    let start = Instant::now();
    while !so().await {
        assert!(start.elapsed() < DEADLINE, "it did not come to be");
        fixture.tick().await;
    }
}

type Watch = BoxStream<'static, Result<Vec<Event>, StoreError>>;

async fn next(watch: &mut Watch) -> Vec<Event> {
    let next = tokio::time::timeout(DEADLINE, watch.next()).await.expect("an event comes");
    next.expect("the watch goes on").expect("the watch does not fail")
}

pub(crate) async fn a_key_that_was_never_written_is_absent(fixture: &dyn Fixture) {
    let store = fixture.store();
    assert_eq!(get(&*store, "never").await, None);
    assert_eq!(names(&*store, "never", None).await, Vec::<String>::new());
}

pub(crate) async fn a_value_carries_when_it_was_created_and_written(fixture: &dyn Fixture) {
    let store = fixture.store();
    let first = applied(store.transact(put("k", "1")).await);
    let second = applied(store.transact(put("k", "2")).await);
    let found = get(&*store, "k").await.unwrap();
    let expected = KeyValue {
        key: "k".to_owned(),
        value: value("2"),
        create_revision: first,
        mod_revision: second,
        lease: None,
    };
    assert_eq!(found, expected);

    applied(store.transact(delete("k")).await);
    assert_eq!(get(&*store, "k").await, None);
    let again = applied(store.transact(put("k", "3")).await);
    let found = get(&*store, "k").await.unwrap();
    assert_eq!((found.create_revision, found.mod_revision), (again, again));
}

pub(crate) async fn a_write_raises_the_revision_by_one(fixture: &dyn Fixture) {
    let store = fixture.store();
    let first = applied(store.transact(put("a", "1").and(put("b", "1"))).await);
    let second = applied(store.transact(put("a", "1")).await);
    let third = applied(store.transact(delete("a")).await);
    assert_eq!([second.0, third.0], [first.0 + 1, first.0 + 2]);
}

pub(crate) async fn what_changes_nothing_does_not_raise_the_revision(fixture: &dyn Fixture) {
    let store = fixture.store();
    let at = applied(store.transact(put("a", "1")).await);
    let holds = Txn::default().require(Guard::Present("a".to_owned()));
    let fails = Txn::default().require(Guard::Absent("a".to_owned()));
    assert_eq!(applied(store.transact(delete("missing")).await), at);
    assert_eq!(applied(store.transact(delete_prefix("missing")).await), at);
    assert_eq!(applied(store.transact(holds).await), at);
    assert_eq!(refused(store.transact(fails.and(put("b", "1"))).await), at);
    assert_eq!(applied(store.transact(Txn::default()).await), at);
    assert_eq!(store.range("a", "", 1, None).await.unwrap().revision, at);
}

pub(crate) async fn guards_hold_or_not(fixture: &dyn Fixture) {
    let store = fixture.store();
    let old = applied(store.transact(put("k", "old")).await);
    let new = applied(store.transact(put("k", "new")).await);
    let k = || "k".to_owned();
    let missing = || "missing".to_owned();
    for (guard, holds) in [
        (Guard::Absent(k()), false),
        (Guard::Absent(missing()), true),
        (Guard::Present(k()), true),
        (Guard::Present(missing()), false),
        (Guard::Unchanged(k(), new), true),
        (Guard::Unchanged(k(), old), false),
        (Guard::Unchanged(missing(), new), false),
        (Guard::Unchanged(missing(), Revision(0)), false),
        (Guard::Equals(k(), value("new")), true),
        (Guard::Equals(k(), value("old")), false),
        (Guard::Equals(k(), value("")), false),
        (Guard::Equals(missing(), value("")), false),
    ] {
        let outcome = store.transact(Txn::default().require(guard.clone())).await.unwrap();
        assert_eq!(matches!(outcome, TxnOutcome::Applied(_)), holds, "{guard:?}");
    }
}

pub(crate) async fn one_guard_that_does_not_hold_stops_every_write(fixture: &dyn Fixture) {
    let store = fixture.store();
    applied(store.transact(put("k", "1").and(put("p/1", "1"))).await);
    let txn = Txn::default()
        .require(Guard::Present("k".to_owned()))
        .require(Guard::Present("missing".to_owned()))
        .and(put("new", "1"))
        .and(put("k", "2"))
        .and(delete_prefix("p/"));
    refused(store.transact(txn).await);
    assert_eq!(get(&*store, "new").await, None);
    assert_eq!(text(&*store, "k").await.unwrap(), "1");
    assert_eq!(names(&*store, "p/", None).await, ["p/1"]);
}

pub(crate) async fn guards_speak_of_the_time_before_the_writes(fixture: &dyn Fixture) {
    let store = fixture.store();
    let txn = || Txn::default().require(Guard::Absent("k".to_owned())).and(put("k", "1"));
    applied(store.transact(txn()).await);
    refused(store.transact(txn()).await);
}

pub(crate) async fn a_transaction_has_limits(fixture: &dyn Fixture) {
    let store = fixture.store();
    let puts = |n: usize| (0..n).map(|i| put(&format!("k{i:03}"), "v")).fold(Txn::default(), Txn::and);
    applied(store.transact(puts(TXN_OPERATIONS_MAX)).await);
    invalid(store.transact(puts(TXN_OPERATIONS_MAX).require(Guard::Present("k000".to_owned()))).await);
    invalid(store.transact(puts(TXN_OPERATIONS_MAX + 1)).await);
    assert_eq!(names(&*store, "k", None).await.len(), TXN_OPERATIONS_MAX);

    let sized = |n: usize| Txn::default().put("big".to_owned(), vec![7; n].into());
    applied(store.transact(sized(VALUE_BYTES_MAX)).await);
    assert_eq!(get(&*store, "big").await.unwrap().value.len(), VALUE_BYTES_MAX);
    invalid(store.transact(sized(VALUE_BYTES_MAX + 1)).await);
    let guard = Guard::Equals("k000".to_owned(), vec![7; VALUE_BYTES_MAX + 1].into());
    invalid(store.transact(Txn::default().require(guard)).await);
    let rest = TXN_BYTES_MAX - VALUE_BYTES_MAX;
    invalid(store.transact(sized(VALUE_BYTES_MAX).put("rest".to_owned(), vec![7; rest].into())).await);
    assert_eq!(get(&*store, "rest").await, None);

    invalid(store.transact(put("", "v")).await);
    invalid(store.transact(delete_prefix("")).await);
    invalid(store.transact(Txn::default().require(Guard::Present(String::new()))).await);
    invalid(store.transact(put(&"x".repeat(VALUE_BYTES_MAX + 1), "")).await);
}

pub(crate) async fn no_key_is_written_twice(fixture: &dyn Fixture) {
    let store = fixture.store();
    applied(store.transact(put("a/1", "1")).await);
    for txn in [
        put("k", "1").and(put("k", "2")),
        put("k", "1").and(delete("k")),
        delete("a/1").and(delete("a/1")),
        delete_prefix("a/").and(put("a/2", "1")),
        put("a/2", "1").and(delete_prefix("a/")),
        delete_prefix("a/").and(delete("a/1")),
        delete_prefix("a/").and(delete_prefix("a")),
        delete_prefix("a").and(delete_prefix("a/")),
        delete_prefix("a/").and(delete_prefix("a/")),
    ] {
        invalid(store.transact(txn).await);
    }
    let beside = delete_prefix("a/").and(put("a", "1")).and(put("a0", "1")).and(delete_prefix("b/"));
    applied(store.transact(beside).await);
    assert_eq!(names(&*store, "a", None).await, ["a", "a0"]);
    assert_eq!(get(&*store, "k").await, None);
}

pub(crate) async fn a_prefix_is_deleted_at_once(fixture: &dyn Fixture) {
    let store = fixture.store();
    for key in ["p", "p/1", "p/2", "p/2/3", "p0", "q"] {
        applied(store.transact(put(key, "1")).await);
    }
    let before = store.range("p", "", 1, None).await.unwrap().revision;
    let at = applied(store.transact(delete_prefix("p/")).await);
    assert_eq!(at.0, before.0 + 1);
    assert_eq!(names(&*store, "", None).await, ["p", "p0", "q"]);
}

pub(crate) async fn a_range_is_in_order_and_in_bounds(fixture: &dyn Fixture) {
    let store = fixture.store();
    for key in ["p/c", "p/a", "o", "p/b", "p0", "p/d"] {
        applied(store.transact(put(key, "1")).await);
    }
    for (from, limit, expected, more) in [
        ("", 9, &["p/a", "p/b", "p/c", "p/d"][..], false),
        ("", 4, &["p/a", "p/b", "p/c", "p/d"], false),
        ("", 3, &["p/a", "p/b", "p/c"], true),
        ("p/b", 2, &["p/b", "p/c"], true),
        ("p/b\0", 2, &["p/c", "p/d"], false),
        ("a", 1, &["p/a"], true),
        ("p/x", 5, &[], false),
        ("z", 5, &[], false),
    ] {
        let page = store.range("p/", from, limit, None).await.unwrap();
        let found: Vec<_> = page.keys.iter().map(|found| found.key.as_str()).collect();
        assert_eq!((found.as_slice(), page.more), (expected, more), "from {from:?}, {limit}");
    }
    invalid(store.range("p/", "", 0, None).await);
}

pub(crate) async fn pages_are_of_one_revision(fixture: &dyn Fixture) {
    let store = fixture.store();
    for i in 0..10 {
        applied(store.transact(put(&format!("p/{i}"), "then")).await);
    }
    let first = store.range("p/", "", 4, None).await.unwrap();
    assert!(first.more);
    applied(store.transact(delete("p/5").and(put("p/6", "now")).and(put("p/40", "now"))).await);
    applied(store.transact(delete("p/1").and(put("p/99", "now"))).await);
    let second = store.range("p/", "p/3\0", 100, Some(first.revision)).await.unwrap();
    assert_eq!(second.revision, first.revision);
    assert!(!second.more);
    let both: Vec<_> = first.keys.iter().chain(&second.keys).collect();
    let expected: Vec<_> = (0..10).map(|i| format!("p/{i}")).collect();
    assert_eq!(both.iter().map(|found| found.key.clone()).collect::<Vec<_>>(), expected);
    assert!(both.iter().all(|found| found.value == value("then") && found.mod_revision <= first.revision));
}

pub(crate) async fn the_past_can_be_read(fixture: &dyn Fixture) {
    let store = fixture.store();
    let one = applied(store.transact(put("p/a", "1")).await);
    let two = applied(store.transact(put("p/b", "1").and(put("p/a", "2"))).await);
    let three = applied(store.transact(delete("p/a")).await);
    assert_eq!(names(&*store, "p/", Some(one)).await, ["p/a"]);
    assert_eq!(names(&*store, "p/", Some(two)).await, ["p/a", "p/b"]);
    assert_eq!(names(&*store, "p/", Some(three)).await, ["p/b"]);
    let then = store.range("p/a", "", 1, Some(one)).await.unwrap();
    assert_eq!((then.keys[0].value.clone(), then.keys[0].mod_revision), (value("1"), one));
}

pub(crate) async fn the_future_cannot_be_read(fixture: &dyn Fixture) {
    let store = fixture.store();
    let at = applied(store.transact(put("a", "1")).await);
    invalid(store.range("a", "", 1, Some(Revision(at.0 + 1))).await);
}

pub(crate) async fn a_watch_starts_with_the_revision_asked_for(fixture: &dyn Fixture) {
    let store = fixture.store();
    applied(store.transact(put("p/a", "before")).await);
    let first = applied(store.transact(put("p/a", "1")).await);
    applied(store.transact(delete("p/a")).await);
    let mut watch = store.watch("p/", first).await.unwrap();
    let put = get_put(&next(&mut watch).await);
    assert_eq!((put.value, put.mod_revision), (value("1"), first));
    let deleted = next(&mut watch).await;
    assert_eq!(deleted, [Event::Delete { key: "p/a".to_owned(), revision: Revision(first.0 + 1) }]);
}

#[track_caller]
fn get_put(events: &[Event]) -> KeyValue {
    match events {
        [Event::Put(found)] => found.clone(),
        other => panic!("not one put: {other:?}"),
    }
}

pub(crate) async fn a_watch_waits_for_a_revision_to_come(fixture: &dyn Fixture) {
    let store = fixture.store();
    let at = applied(store.transact(put("k", "0")).await);
    let mut watch = store.watch("k", Revision(at.0 + 2)).await.unwrap();
    applied(store.transact(put("k", "1")).await);
    applied(store.transact(put("k", "2")).await);
    assert_eq!(get_put(&next(&mut watch).await).value, value("2"));
}

pub(crate) async fn a_watch_sees_only_its_prefix(fixture: &dyn Fixture) {
    let store = fixture.store();
    let at = applied(store.transact(put("p", "1").and(put("p0", "1")).and(put("o", "1"))).await);
    let mut watch = store.watch("p/", at).await.unwrap();
    applied(store.transact(put("p0", "2")).await);
    applied(store.transact(put("o", "2").and(put("p/x", "1"))).await);
    assert_eq!(get_put(&next(&mut watch).await).key, "p/x");
}

pub(crate) async fn a_watch_gives_each_transaction_in_one_piece(fixture: &dyn Fixture) {
    let store = fixture.store();
    let at = applied(store.transact(put("p/a", "1").and(put("p/b", "1"))).await);
    applied(store.transact(delete("p/a").and(put("p/b", "2")).and(put("p/c", "1"))).await);
    let mut watch = store.watch("p/", at).await.unwrap();
    assert_eq!(keys_of(&next(&mut watch).await), ["put p/a", "put p/b"]);
    assert_eq!(keys_of(&next(&mut watch).await), ["delete p/a", "put p/b", "put p/c"]);
}

fn keys_of(events: &[Event]) -> Vec<String> {
    let mut keys: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::Put(found) => format!("put {}", found.key),
            Event::Delete { key, .. } => format!("delete {key}"),
        })
        .collect();
    keys.sort();
    keys
}

pub(crate) async fn a_watch_that_is_read_late_misses_nothing_unsaid(fixture: &dyn Fixture) {
    let store = fixture.store();
    let at = applied(store.transact(put("k", "0")).await);
    let mut watch = store.watch("k", at).await.unwrap();
    for i in 1..600_u64 {
        applied(store.transact(put("k", &i.to_string())).await);
    }
    let mut seen = 0;
    while seen < 600 {
        match tokio::time::timeout(DEADLINE, watch.next()).await.expect("an event or an end comes") {
            Some(Ok(events)) => {
                assert_eq!(get_put(&events).mod_revision, Revision(at.0 + seen));
                seen += 1;
            }
            Some(Err(StoreError::Compacted(_))) => break,
            other => panic!("a gap without a word: {other:?}"),
        }
    }
    if seen < 600 {
        assert!(watch.next().await.is_none(), "the stream ends after an error");
    }
}

pub(crate) async fn every_write_of_many_writers_is_seen_in_order(fixture: &dyn Fixture) {
    const WRITERS: u64 = 8;
    const WRITES: u64 = 25;
    let store = fixture.store();
    let at = applied(store.transact(put("start", "0")).await);
    let mut watch = store.watch("w/", at).await.unwrap();
    let writers = (0..WRITERS).map(|writer| {
        let store = fixture.store();
        tokio::spawn(async move {
            for i in 0..WRITES {
                applied(store.transact(put(&format!("w/{writer}"), &i.to_string())).await);
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let mut last: BTreeMap<String, u64> = BTreeMap::new();
    for revision in 1..=WRITERS * WRITES {
        let found = get_put(&next(&mut watch).await);
        assert_eq!(found.mod_revision, Revision(at.0 + revision));
        let written: u64 = std::str::from_utf8(&found.value).unwrap().parse().unwrap();
        let expected = last.get(&found.key).map_or(0, |last| last + 1);
        assert_eq!(written, expected, "{}", found.key);
        last.insert(found.key, written);
    }
}

pub(crate) async fn concurrent_compare_and_sets_lose_nothing(fixture: &dyn Fixture) {
    const TASKS: u64 = 8;
    const RAISES: u64 = 20;
    let store = fixture.store();
    applied(store.transact(put("counter", "0")).await);
    let tasks = (0..TASKS).map(|_| {
        let store = fixture.store();
        tokio::spawn(async move {
            for _ in 0..RAISES {
                raise(&*store).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(text(&*store, "counter").await.unwrap(), (TASKS * RAISES).to_string());
}

async fn raise(store: &dyn Store) {
    loop {
        let found = get(store, "counter").await.unwrap();
        let number: u64 = std::str::from_utf8(&found.value).unwrap().parse().unwrap();
        let guard = Guard::Unchanged(found.key, found.mod_revision);
        let raise = put("counter", &(number + 1).to_string()).require(guard);
        if let TxnOutcome::Applied(_) = store.transact(raise).await.unwrap() {
            return;
        }
    }
}

pub(crate) async fn an_answered_write_is_seen_by_everyone(fixture: &dyn Fixture) {
    let writer = fixture.store();
    for i in 0..50 {
        let at = applied(writer.transact(put("k", &i.to_string())).await);
        let reader = fixture.store();
        let found = tokio::spawn(async move { get(&*reader, "k").await }).await.unwrap().unwrap();
        assert_eq!((found.mod_revision, found.value), (at, value(&i.to_string())));
    }
}

/// Of leases that are to run out: longer than a busy machine takes to use one.
const TTL: Duration = Duration::from_secs(4);

/// Of leases that are not to run out by themselves.
const LONG_TTL: Duration = Duration::from_secs(600);

fn put_leased(key: &str, lease: LeaseId) -> Txn {
    Txn::default().put_leased(key.to_owned(), value("1"), lease)
}

pub(crate) async fn a_revoked_lease_takes_its_keys_along(fixture: &dyn Fixture) {
    let store = fixture.store();
    let lease = store.grant(LONG_TTL).await.unwrap();
    let at = applied(store.transact(put_leased("l/a", lease).and(put("l/b", "1"))).await);
    applied(store.transact(put_leased("l/c", lease)).await);
    assert_eq!(get(&*store, "l/a").await.unwrap().lease, Some(lease));
    let mut watch = store.watch("l/", Revision(at.0 + 2)).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(names(&*store, "l/", None).await, ["l/b"]);
    let mut gone = keys_of(&next(&mut watch).await);
    if gone.len() == 1 {
        gone.extend(keys_of(&next(&mut watch).await));
    }
    assert_eq!(gone, ["delete l/a", "delete l/c"]);
}

pub(crate) async fn a_lease_that_is_not_kept_alive_ends(fixture: &dyn Fixture) {
    let store = fixture.store();
    let lease = store.grant(TTL).await.unwrap();
    applied(store.transact(put_leased("l", lease)).await);
    eventually(fixture, || async { get(&*store, "l").await.is_none() }).await;
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseExpired));
}

pub(crate) async fn a_lease_that_is_kept_alive_lives(fixture: &dyn Fixture) {
    let store = fixture.store();
    let kept = store.grant(TTL).await.unwrap();
    applied(store.transact(put_leased("kept", kept)).await);
    // It outlives two others, the second granted when the first has ended.
    for round in ["first", "second"] {
        let other = store.grant(TTL).await.unwrap();
        applied(store.transact(put_leased(round, other)).await);
        eventually(fixture, || async {
            store.keep_alive(kept).await.unwrap();
            get(&*store, round).await.is_none()
        })
        .await;
    }
    assert_eq!(get(&*store, "kept").await.unwrap().lease, Some(kept));
}

pub(crate) async fn a_key_belongs_to_the_lease_that_wrote_it_last(fixture: &dyn Fixture) {
    let store = fixture.store();
    let [one, two] = [store.grant(LONG_TTL).await.unwrap(), store.grant(LONG_TTL).await.unwrap()];
    applied(store.transact(put_leased("moved", one).and(put_leased("freed", one))).await);
    applied(store.transact(put_leased("moved", two)).await);
    applied(store.transact(put("freed", "2")).await);
    store.revoke(one).await.unwrap();
    assert_eq!(get(&*store, "moved").await.unwrap().lease, Some(two));
    assert_eq!(get(&*store, "freed").await.unwrap().lease, None);
    store.revoke(two).await.unwrap();
    assert_eq!(get(&*store, "moved").await, None);
    assert_eq!(text(&*store, "freed").await.unwrap(), "2");
}

pub(crate) async fn a_lease_that_has_ended_binds_nothing(fixture: &dyn Fixture) {
    let store = fixture.store();
    let lease = store.grant(LONG_TTL).await.unwrap();
    store.revoke(lease).await.unwrap();
    assert_eq!(store.transact(put_leased("l", lease)).await, Err(StoreError::LeaseExpired));
    assert_eq!(
        store.transact(put("k", "1").and(put_leased("l", lease))).await,
        Err(StoreError::LeaseExpired)
    );
    assert_eq!(get(&*store, "k").await, None);
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseExpired));
    assert_eq!(store.revoke(lease).await, Err(StoreError::LeaseExpired));
    // A refused transaction never asks for the lease.
    let guarded = put_leased("l", lease).require(Guard::Present("missing".to_owned()));
    refused(store.transact(guarded).await);
}
