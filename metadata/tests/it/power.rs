//! Power cuts: a disk that drops, keeps or tears what was not synced. What was
//! answered is there afterwards, what was not may be, and nothing else is.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use quire_metadata::embedded::EmbeddedStore;
use quire_metadata::store::{Guard, Revision, Store, StoreError, Txn, TxnOutcome};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A disk writes this much at once or not at all.
const SECTOR: usize = 512;

#[derive(Debug, Default)]
struct Platter {
    /// What a power cut leaves.
    durable: Vec<u8>,
    /// What is read.
    cached: Vec<u8>,
    unsynced: Vec<Unsynced>,
    /// Operations until the power goes.
    left: u64,
}

#[derive(Debug)]
enum Unsynced {
    Len(usize),
    Write(usize, Vec<u8>),
}

#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<Platter>>);

impl Platter {
    fn spend(&mut self) -> io::Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("the power is off"))?;
        Ok(())
    }

    /// Each unsynced write reached the platter, did not, or did in parts.
    fn power_cut(&mut self, random: &mut StdRng) {
        for unsynced in std::mem::take(&mut self.unsynced) {
            match unsynced {
                Unsynced::Len(len) => {
                    if random.random() {
                        self.durable.resize(len, 0);
                    }
                }
                Unsynced::Write(offset, data) => {
                    let whole = random.random_bool(0.4);
                    let torn = random.random_bool(0.5);
                    for (i, sector) in data.chunks(SECTOR).enumerate() {
                        if whole || (torn && random.random()) {
                            let at = offset + i * SECTOR;
                            let end = at + sector.len();
                            if self.durable.len() < end {
                                self.durable.resize(end, 0);
                            }
                            self.durable[at..end].copy_from_slice(sector);
                        }
                    }
                }
            }
        }
        self.cached = self.durable.clone();
    }
}

impl Disk {
    fn with<T>(&self, act: impl FnOnce(&mut Platter) -> T) -> T {
        act(&mut self.0.lock().unwrap())
    }
}

impl redb::StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.with(|platter| platter.cached.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|platter| {
            let offset = usize::try_from(offset).unwrap();
            let found = platter.cached.get(offset..offset + out.len());
            out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.with(|platter| {
            platter.spend()?;
            let len = usize::try_from(len).unwrap();
            platter.cached.resize(len, 0);
            platter.unsynced.push(Unsynced::Len(len));
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|platter| {
            platter.spend()?;
            platter.durable.clone_from(&platter.cached);
            platter.unsynced.clear();
            Ok(())
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|platter| {
            platter.spend()?;
            let offset = usize::try_from(offset).unwrap();
            if platter.cached.len() < offset + data.len() {
                platter.cached.resize(offset + data.len(), 0);
            }
            platter.cached[offset..offset + data.len()].copy_from_slice(data);
            platter.unsynced.push(Unsynced::Write(offset, data.to_vec()));
            Ok(())
        })
    }
}

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
fn open(disk: &Disk, random: &mut StdRng) -> EmbeddedStore {
    for attempt in 0..20 {
        let left = random.random_range(0..40) + attempt * 20;
        disk.with(|platter| platter.left = left);
        match EmbeddedStore::open_backend(disk.clone()) {
            Ok(store) => return store,
            Err(error) => disk.with(|platter| {
                assert!(platter.left == 0, "it opens while there is power: {error}");
                platter.power_cut(random);
            }),
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
        let disk = Disk::default();
        disk.with(|platter| platter.left = u64::MAX);
        drop(EmbeddedStore::open_backend(disk.clone()).unwrap());
        let mut expected = Expected { revision: 1, ..Expected::default() };
        for cut in 0..4 {
            let opened = open(&disk, &mut random);
            check(&opened, &mut expected, &format!("seed {seed}, cut {cut}")).await;
            write(&opened, &mut random, &mut expected).await;
            drop(opened);
            disk.with(|platter| platter.power_cut(&mut random));
        }
    }
}
