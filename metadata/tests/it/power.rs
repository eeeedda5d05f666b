//! Power cuts: a disk that drops, keeps or tears what was not synced. What was
//! answered is there afterwards, what was not may be, and nothing else is.

use std::collections::BTreeMap;

use quire_metadata::embedded::{EmbeddedStore, SimBackend};
use quire_metadata::store::{Guard, Revision, Store, StoreError, Txn, TxnOutcome};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What must be there: the answered transactions, and perhaps the one whose
/// answer did not come.
#[derive(Default)]
struct Expected {
    keys: BTreeMap<String, String>,
    revision: u64,
    unknown: Option<BTreeMap<String, String>>,
}

fn random_txn(random: &mut StdRng, keys: &BTreeMap<String, String>) -> (Txn, BTreeMap<String, String>) {
    let mut after = keys.clone();
    let mut txn = Txn::default();
    for _ in 0..random.random_range(1..4) {
        let key = format!("k{:02}", random.random_range(0..20));
        if txn.writes.iter().any(|write| format!("{write:?}").contains(&key)) {
            continue;
        }
        if after.contains_key(&key) && random.random_bool(0.3) {
            after.remove(&key);
            txn = txn.require(Guard::Present(key.clone())).delete(key);
        } else {
            let value = "v".repeat(random.random_range(1..3_000));
            after.insert(key.clone(), value.clone());
            txn = txn.put(key, value.into());
        }
    }
    (txn, after)
}

/// Writes until the power goes.
async fn write(store: &EmbeddedStore, random: &mut StdRng, expected: &mut Expected) {
    for _ in 0..1_000 {
        let (txn, after) = random_txn(random, &expected.keys);
        match store.transact(txn).await {
            Ok(TxnOutcome::Applied(Revision(revision))) => {
                expected.keys = after;
                expected.revision = revision;
            }
            Ok(TxnOutcome::Refused(_)) => panic!("its guards hold"),
            Err(StoreError::Unknown(_)) => {
                expected.unknown = Some(after);
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("transactions are answered that never touch the disk");
}

async fn check(store: &EmbeddedStore, expected: &mut Expected, context: &str) {
    let page = store.range("", "", 1_000, None).await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let found: BTreeMap<_, _> =
        page.keys.iter().map(|found| (found.key.clone(), text(&found.value))).collect();
    match expected.unknown.take() {
        Some(unknown) if found == unknown => {
            assert!((expected.revision..=expected.revision + 1).contains(&page.revision.0), "{context}");
        }
        _ => {
            assert_eq!(found, expected.keys, "{context}");
            assert_eq!(page.revision.0, expected.revision, "{context}");
        }
    }
    expected.keys = found;
    expected.revision = page.revision.0;
}

/// Opens the store on a disk whose power goes soon: perhaps while it opens.
fn open(disk: &SimBackend, random: &mut StdRng) -> EmbeddedStore {
    for attempt in 0..20 {
        let left = random.random_range(0..40) + attempt * 20;
        disk.dies_after(Some(left));
        match EmbeddedStore::open_backend(disk.clone()) {
            Ok(store) => return store,
            Err(error) => {
                assert!(disk.is_dead(), "it opens while there is power: {error}");
                disk.cut_power();
            }
        }
    }
    panic!("it never opened");
}

#[tokio::test]
async fn nothing_answered_is_lost_in_a_power_cut() {
    for seed in 0..60 {
        let mut random = StdRng::seed_from_u64(seed);
        // A file is made under another name and gets its own when it is
        // complete: it is there as a whole or not at all.
        let disk = SimBackend::new(seed);
        drop(EmbeddedStore::open_backend(disk.clone()).unwrap());
        let mut expected = Expected { revision: 1, ..Expected::default() };
        for cut in 0..4 {
            let opened = open(&disk, &mut random);
            check(&opened, &mut expected, &format!("seed {seed}, cut {cut}")).await;
            write(&opened, &mut random, &mut expected).await;
            drop(opened);
            disk.cut_power();
        }
    }
}
