//! A bookie with a store, and a sink that remembers.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quire_bookie::{Bookie, Error, Options};
use quire_ledger::link::{AppendSink, BookieLink};
use quire_ledger::message::{Append, AppendEvent, Read, Refusal, Request, Response};
use quire_ledger::record::{Header, Kind, Payload, Record};
use quire_metadata::embedded::VolatileStore;
use quire_metadata::embedded::state::Retention;
use quire_metadata::key::Keys;
use quire_metadata::ledger::{LedgerMetadata, LedgerState};
use quire_metadata::operation::{self, Outcome};
use quire_metadata::operations::bootstrap::Bootstrap;
use quire_metadata::store::{Store, Txn};
use quire_metadata::typed::Typed;
use quire_proto::id::{BookieId, ClusterId, EntryId, Epoch, LedgerId, Nonce, PartitionId};
use uuid::Uuid;

pub(crate) const CLUSTER: &str = "c1";

/// The ledgers that the metadata knows: 1 to this.
const PUBLISHED: u64 = 100;

/// What a connection heard.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    pub(crate) durable: BTreeMap<LedgerId, EntryId>,
    pub(crate) refused: Vec<Refusal>,
    pub(crate) gaps: Vec<EntryId>,
    pub(crate) broken: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Ear {
    heard: Mutex<Heard>,
}

impl AppendSink for Ear {
    fn deliver(&self, _: BookieId, event: AppendEvent) {
        let mut heard = self.heard.lock().unwrap();
        match event {
            AppendEvent::Durable(acks) => heard.durable.extend(acks),
            AppendEvent::Gap { accepted, .. } => heard.gaps.push(accepted),
            AppendEvent::Refused { reason, .. } => heard.refused.push(reason),
        }
    }

    fn broken(&self, _: BookieId) {
        self.heard.lock().unwrap().broken = true;
    }
}

impl Ear {
    /// Waits until what was heard is as wished.
    #[track_caller]
    pub(crate) fn wait(&self, wished: impl Fn(&Heard) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !wished(&self.heard.lock().unwrap()) {
            assert!(Instant::now() < deadline, "heard only {:?}", self.heard.lock().unwrap());
            std::thread::yield_now();
        }
    }
}

/// A metadata store with a cluster in it, and ledgers that were published (B9).
pub(crate) async fn store() -> Arc<dyn Store> {
    let store = VolatileStore::new(Retention::default());
    let id = ClusterId(Uuid::new_v4());
    let founded = Bootstrap { id, expected: None, bucket: String::new(), prefix: String::new() };
    let outcome = operation::run(&store, &Keys::new(CLUSTER).unwrap(), &founded).await.unwrap();
    assert!(matches!(outcome, Outcome::Done(_)));
    for ledger in 1..=PUBLISHED {
        publish(&store, ledger).await;
    }
    Arc::new(store)
}

async fn publish(store: &dyn Store, ledger: u64) {
    put_ledger(store, &published(ledger)).await;
}

pub(crate) async fn put_ledger(store: &dyn Store, ledger: &LedgerMetadata) {
    let key = Keys::new(CLUSTER).unwrap().ledger(ledger.id);
    let _ = store.transact(Txn::default().put(key, ledger.encode())).await.unwrap();
}

/// An open ledger that is named in the metadata.
pub(crate) fn published(ledger: u64) -> LedgerMetadata {
    LedgerMetadata {
        id: LedgerId(ledger),
        owner: PartitionId::default(),
        epoch: Epoch(1),
        replicas: vec![BookieId(Uuid::nil())],
        ack_quorum: 1,
        targets: Vec::new(),
        former: Vec::new(),
        state: LedgerState::Open,
        created_ms: 0,
    }
}

/// Small files, and no upkeep that a test does not ask for.
pub(crate) fn options(dir: &Path) -> Options {
    Options {
        file_bytes: 1 << 20,
        reserve_bytes: 0,
        high_water: 1.0,
        low_water: 1.0,
        publish_every: Duration::from_millis(20),
        ..Options::new(dir)
    }
}

pub(crate) async fn start(dir: &Path, store: &Arc<dyn Store>) -> Result<Bookie, Error> {
    Bookie::start(options(dir), Arc::clone(store), CLUSTER).await
}

pub(crate) fn connect(bookie: &Bookie) -> (Arc<dyn BookieLink>, Arc<Ear>) {
    let ear = Arc::new(Ear::default());
    (bookie.connect(Arc::clone(&ear) as Arc<dyn AppendSink>).unwrap(), ear)
}

pub(crate) async fn create(link: &dyn BookieLink, ledger: u64) -> Response {
    let creator = Nonce(Uuid::from_u128(7));
    link.call(Request::Create { ledger: LedgerId(ledger), creator }).await.unwrap()
}

/// The payload of an entry, in two pieces.
pub(crate) fn payload(ledger: u64, entry: u64, length: usize) -> Payload {
    let byte = (ledger * 31 + entry) as u8;
    let mut payload = Payload::default();
    payload.push(Bytes::from(vec![byte; length / 3]));
    payload.push(Bytes::from(vec![byte ^ 0xff; length - length / 3]));
    payload
}

pub(crate) fn entry(ledger: u64, entry: u64, epoch: u64, length: usize) -> Append {
    let payload = payload(ledger, entry, length);
    let header = Header {
        kind: Kind::Append,
        ledger: LedgerId(ledger),
        own_epoch: Epoch(1),
        epoch: Epoch(epoch),
        entry: EntryId(entry),
        committed: EntryId(0),
        prefix_len: (length / 10) as u32,
        payload_len: length as u32,
        payload_crc: payload.crc(),
    };
    Append { attempt: 0, record: Record { header, payload } }
}

pub(crate) fn read_request(ledger: u64, from: u64) -> Read {
    Read {
        ledger: LedgerId(ledger),
        from: EntryId(from),
        max_entries: 1000,
        max_bytes: 1 << 20,
        prefix: false,
    }
}

/// All entries of a ledger, checked to be contiguous.
pub(crate) async fn read_all(link: &dyn BookieLink, ledger: u64) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        match link.call(Request::Read(read_request(ledger, records.len() as u64))).await.unwrap() {
            Response::Entries(more) => {
                for record in more {
                    assert_eq!(record.header.entry, EntryId(records.len() as u64));
                    record.verify().unwrap();
                    records.push(record);
                }
            }
            Response::Absent => return records,
            other => panic!("ledger {ledger} at {}: {other:?}", records.len()),
        }
    }
}
