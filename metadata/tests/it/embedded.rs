//! The embedded backends: the common promises, and what only they have.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use quire_metadata::embedded::state::Retention;
use quire_metadata::embedded::{EmbeddedStore, OpenError, VolatileStore};
use quire_metadata::store::{KeyValue, Revision, Store, StoreError, Txn, TxnOutcome};
use tempfile::TempDir;

use crate::suite::Fixture;

mod volatile {
    use super::*;

    struct Volatile(Arc<VolatileStore>);

    #[async_trait]
    impl Fixture for Volatile {
        fn store(&self) -> Arc<dyn Store> {
            Arc::clone(&self.0) as Arc<dyn Store>
        }

        async fn tick(&self) {
            self.0.advance(Duration::from_millis(100));
        }
    }

    crate::suite::run_suite!(Volatile(Arc::default()));
}

mod file {
    use super::*;

    struct Filed(Arc<EmbeddedStore>, #[allow(dead_code, reason = "deleted when dropped")] TempDir);

    #[async_trait]
    impl Fixture for Filed {
        fn store(&self) -> Arc<dyn Store> {
            Arc::clone(&self.0) as Arc<dyn Store>
        }

        async fn tick(&self) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn filed() -> Filed {
        let directory = tempfile::tempdir().unwrap();
        Filed(Arc::new(open(directory.path())), directory)
    }

    crate::suite::run_suite!(filed());
}

fn open(directory: &Path) -> EmbeddedStore {
    EmbeddedStore::open(&directory.join("metadata")).unwrap()
}

async fn put(store: &dyn Store, key: &str, value: &'static str) -> Revision {
    match store.transact(Txn::default().put(key.to_owned(), value.into())).await.unwrap() {
        TxnOutcome::Applied(revision) => revision,
        TxnOutcome::Refused(_) => panic!("refused"),
    }
}

#[tokio::test]
async fn history_is_bounded_and_what_is_forgotten_is_said_to_be() {
    let store = VolatileStore::new(Retention { revisions: 3, bytes: 1 << 20 });
    let first = put(&store, "k", "1").await;
    let mut slow = store.watch("k", first).await.unwrap();
    let mut quick = store.watch("k", first).await.unwrap();
    for value in ["2", "3", "4", "5"] {
        put(&store, "k", value).await;
        assert!(quick.next().await.unwrap().is_ok());
    }
    let kept = StoreError::Compacted(Revision(first.0 + 2));
    // The slow one had read its first event ahead.
    assert!(slow.next().await.unwrap().is_ok());
    assert_eq!(slow.next().await.unwrap(), Err(kept.clone()));
    assert!(slow.next().await.is_none());
    assert_eq!(store.watch("k", first).await.err(), Some(kept.clone()));
    assert!(store.watch("k", Revision(first.0 + 2)).await.is_ok());
    assert_eq!(store.range("k", "", 1, Some(first)).await.err(), Some(kept));
    // The state after the last forgotten change can still be told.
    let then = store.range("k", "", 1, Some(Revision(first.0 + 1))).await.unwrap();
    assert_eq!(&then.keys[0].value[..], b"2");
}

#[tokio::test]
async fn history_is_bounded_in_bytes() {
    let store = VolatileStore::new(Retention { revisions: 1_000, bytes: 100_000 });
    let first = put(&store, "k", "1").await;
    for _ in 0..3 {
        let big = Txn::default().put("big".to_owned(), vec![0; 40_000].into());
        assert!(store.transact(big).await.is_ok());
    }
    assert!(matches!(store.watch("k", first).await.err(), Some(StoreError::Compacted(_))));
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let created = put(&store, "k", "1").await;
    let written = put(&store, "k", "2").await;
    put(&store, "gone", "1").await;
    let last = store.transact(Txn::default().delete("gone".to_owned())).await.unwrap();
    drop(store);

    let store = open(directory.path());
    let found = store.get("k").await.unwrap().unwrap();
    assert_eq!((found.create_revision, found.mod_revision, &found.value[..]), (created, written, &b"2"[..]));
    assert_eq!(store.get("gone").await.unwrap(), None);
    let page = store.range("", "", 10, None).await.unwrap();
    assert_eq!(TxnOutcome::Applied(page.revision), last);
    // Revisions go on; those before the restart are not kept.
    assert!(matches!(store.watch("k", written).await.err(), Some(StoreError::Compacted(_))));
    assert_eq!(put(&store, "k", "3").await, Revision(page.revision.0 + 1));
}

#[tokio::test]
async fn leases_end_with_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let lease = store.grant(Duration::from_secs(60)).await.unwrap();
    put(&store, "stays", "1").await;
    let leased = Txn::default().put_leased("leased".to_owned(), "1".into(), lease);
    let TxnOutcome::Applied(last) = store.transact(leased).await.unwrap() else { panic!("refused") };
    drop(store);

    let store = open(directory.path());
    let page = store.range("", "", 10, None).await.unwrap();
    assert_eq!(page.keys.iter().map(|found| found.key.as_str()).collect::<Vec<_>>(), ["stays"]);
    assert_eq!(page.revision, Revision(last.0 + 1), "the deletion is a change like any other");
    assert_eq!(store.keep_alive(lease).await, Err(StoreError::LeaseExpired));
    drop(store);
    let store = open(directory.path());
    assert_eq!(store.range("", "", 10, None).await.unwrap().revision, page.revision);
}

#[tokio::test]
async fn a_file_has_one_user() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    let store = EmbeddedStore::open(&path).unwrap();
    match EmbeddedStore::open(&path) {
        Err(error @ OpenError::InUse(_)) => {
            assert!(error.to_string().contains("in use by another process"), "{error}");
        }
        other => panic!("opened twice: {other:?}"),
    }
    drop(store);
    EmbeddedStore::open(&path).unwrap();
}

#[tokio::test]
async fn nothing_but_the_file_is_left_by_making_it() {
    let directory = tempfile::tempdir().unwrap();
    drop(open(directory.path()));
    let names = std::fs::read_dir(directory.path()).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["metadata"]);
}

#[tokio::test]
async fn a_file_of_something_else_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    let other = vec![b'x'; 10_000];
    std::fs::write(&path, &other).unwrap();
    let error = EmbeddedStore::open(&path).expect_err("this is no store");
    assert!(matches!(error, OpenError::File { .. }), "{error:?}");
    assert_eq!(std::fs::read(&path).unwrap(), other);
}

#[test]
fn a_file_that_is_no_store_is_no_fault_of_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metadata.redb");
    for content in [&b""[..], &[0; 100_000], b"garbage", &[7; 100_000]] {
        std::fs::write(&path, content).unwrap();
        let error = EmbeddedStore::open(&path).unwrap_err();
        assert_eq!(error.io_kind(), None, "{error:?}");
    }
}

#[tokio::test]
async fn a_damaged_file_is_refused_or_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    let (store, expected) = filled(&path).await;
    drop(store);
    let refused = damage(&path, &std::fs::read(&path).unwrap(), &expected).await;
    assert!(refused > 20, "{refused}");
}

/// As a crash leaves the file: what was answered last is not passed over for
/// what was there before, as a commit is that was under way.
#[tokio::test]
async fn a_damaged_file_that_was_not_closed_is_refused_or_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    let (_store, expected) = filled(&path).await;
    let open = std::fs::read(&path).unwrap();
    let refused = damage(&directory.path().join("copy"), &open, &expected).await;
    assert!(refused > 20, "{refused}");
}

/// A store with keys, and what it holds.
async fn filled(path: &Path) -> (EmbeddedStore, Vec<KeyValue>) {
    let store = EmbeddedStore::open(path).unwrap();
    for number in 0..300 {
        put(&store, &format!("key-{number:03}"), "a value that takes some room in the file").await;
    }
    let expected = store.range("", "", 1_000, None).await.unwrap().keys;
    (store, expected)
}

/// Damages one byte of each page of a file at a time: an error that says so, or
/// the whole content, and the same at the next attempt. Returns how often there
/// was an error.
async fn damage(path: &Path, whole: &[u8], expected: &[KeyValue]) -> u32 {
    let mut refused = 0;
    for at in (0..whole.len()).step_by(1021) {
        let mut damaged = whole.to_vec();
        damaged[at] ^= 0x10;
        std::fs::write(path, &damaged).unwrap();
        for _attempt in 0..2 {
            match EmbeddedStore::open(path) {
                Ok(store) => {
                    let found = store.range("", "", 1_000, None).await.unwrap();
                    assert_eq!(found.keys, expected, "after byte {at} was damaged");
                }
                Err(OpenError::Damaged { .. } | OpenError::File { .. }) => refused += 1,
                Err(other) => panic!("byte {at}: {other}"),
            }
        }
    }
    refused
}

#[tokio::test]
async fn a_file_of_a_later_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    drop(EmbeddedStore::open(&path).unwrap());
    let database = redb::Database::open(&path).unwrap();
    let txn = database.begin_write().unwrap();
    let meta = redb::TableDefinition::<&str, u64>::new("meta");
    txn.open_table(meta).unwrap().insert("format", 2).unwrap();
    txn.commit().unwrap();
    drop(database);
    let error = EmbeddedStore::open(&path).expect_err("this is of a later version");
    assert!(matches!(error, OpenError::Format { found: 2, .. }), "{error:?}");
}

#[tokio::test]
async fn watchers_of_a_closed_store_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let at = put(&store, "k", "1").await;
    let mut watch = store.watch("k", Revision(at.0 + 1)).await.unwrap();
    drop(store);
    assert!(matches!(watch.next().await, Some(Err(StoreError::Unavailable(_)))));
    assert!(watch.next().await.is_none());
}

/// A disk in memory whose syncs can be made to fail.
#[derive(Debug)]
struct Failing {
    memory: redb::backends::InMemoryBackend,
    fail: Arc<AtomicBool>,
}

impl redb::StorageBackend for Failing {
    fn len(&self) -> Result<u64, std::io::Error> {
        self.memory.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), std::io::Error> {
        self.memory.read(offset, out)
    }

    fn set_len(&self, len: u64) -> Result<(), std::io::Error> {
        self.memory.set_len(len)
    }

    fn sync_data(&self) -> Result<(), std::io::Error> {
        if self.fail.load(Ordering::Relaxed) {
            return Err(std::io::Error::other("the disk is gone"));
        }
        self.memory.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), std::io::Error> {
        self.memory.write(offset, data)
    }
}

#[tokio::test]
async fn after_a_failed_write_everything_is_refused() {
    let fail = Arc::new(AtomicBool::new(false));
    let memory = redb::backends::InMemoryBackend::new();
    let store = EmbeddedStore::open_backend(Failing { memory, fail: Arc::clone(&fail) }).unwrap();
    let at = put(&store, "k", "1").await;
    let mut watch = store.watch("k", Revision(at.0 + 1)).await.unwrap();

    fail.store(true, Ordering::Relaxed);
    let write = || Txn::default().put("k".to_owned(), "2".into());
    assert!(matches!(store.transact(write()).await, Err(StoreError::Unknown(_))));

    // The disk is back, but what it holds is not known.
    fail.store(false, Ordering::Relaxed);
    let unavailable = |error: Option<StoreError>| assert!(matches!(error, Some(StoreError::Unavailable(_))));
    unavailable(store.transact(write()).await.err());
    unavailable(store.get("k").await.err());
    unavailable(store.range("k", "", 1, None).await.err());
    unavailable(store.watch("k", at).await.err());
    unavailable(store.grant(Duration::from_secs(1)).await.err());
    unavailable(watch.next().await.and_then(Result::err));
    assert!(watch.next().await.is_none());
}
