//! How fast a bookie makes entries durable, through the in-process link.
//!
//! ```text
//! cargo run --release -p quire-bookie --example throughput -- DIR [ENTRY_BYTES] [MIB] [LEDGERS] [WINDOW_MIB]
//! ```

#![allow(clippy::print_stdout, reason = "it prints its result")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use quire_bookie::{Bookie, Options};
use quire_ledger::link::AppendSink;
use quire_ledger::message::{Append, AppendEvent, Read, Request, Response};
use quire_ledger::record::{Header, Kind, Payload, Record};
use quire_metadata::embedded::VolatileStore;
use quire_metadata::embedded::state::Retention;
use quire_metadata::key::Keys;
use quire_metadata::operation;
use quire_metadata::operations::bootstrap::Bootstrap;
use quire_metadata::store::Store;
use quire_proto::id::{BookieId, ClusterId, EntryId, Epoch, LedgerId, Nonce};
use uuid::Uuid;

/// Counts entries that are durable, and keeps the window.
#[derive(Debug, Default)]
struct Window {
    durable: Mutex<u64>,
    moved: Condvar,
    lengths: Vec<AtomicU64>,
}

impl AppendSink for Window {
    fn deliver(&self, _: BookieId, event: AppendEvent) {
        let AppendEvent::Durable(acks) = event else { return };
        let mut more = 0;
        for (LedgerId(ledger), EntryId(length)) in acks {
            let before = usize::try_from(ledger).ok().and_then(|at| self.lengths.get(at));
            more += before.map_or(0, |before| length - before.swap(length, Ordering::Relaxed));
        }
        *self.durable.lock().unwrap_or_else(PoisonError::into_inner) += more;
        self.moved.notify_one();
    }

    fn broken(&self, _: BookieId) {}
}

impl Window {
    fn wait_for(&self, durable: u64) {
        let mut now = self.durable.lock().unwrap_or_else(PoisonError::into_inner);
        while *now < durable {
            now = self.moved.wait(now).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn argument(at: usize, default: u64) -> u64 {
    std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let dir: PathBuf = std::env::args().nth(1).ok_or("a directory is needed")?.into();
    let (size, mib) = (argument(2, 64 << 10), argument(3, 2048));
    let (ledgers, window) = (argument(4, 6).clamp(1, 60), argument(5, 32) << 20);
    let store = VolatileStore::new(Retention::default());
    let bootstrap = Bootstrap {
        id: ClusterId(Uuid::new_v4()),
        expected: None,
        bucket: String::new(),
        prefix: String::new(),
    };
    let _ = operation::run(&store, &Keys::new("bench")?, &bootstrap).await?;
    let store: Arc<dyn Store> = Arc::new(store);

    let started = Instant::now();
    let options = Options { reserve_bytes: 0, ..Options::new(dir) };
    let bookie = Bookie::start(options, store, "bench").await?;
    println!("started in {:?}", started.elapsed());
    let lengths = (0..=ledgers).map(|_| AtomicU64::new(0)).collect();
    let sink = Arc::new(Window { lengths, ..Window::default() });
    let link = bookie.connect(Arc::clone(&sink) as Arc<dyn AppendSink>)?;
    for ledger in 1..=ledgers {
        let creator = Nonce(Uuid::new_v4());
        let created = link.call(Request::Create { ledger: LedgerId(ledger), creator }).await?;
        assert_eq!(created, Response::Created);
    }
    println!("ledgers created after {:?}", started.elapsed());

    let payload = Payload::from(Bytes::from(vec![7; usize::try_from(size)?]));
    let (count, in_flight) = ((mib << 20) / size, (window / size).max(1));
    let (payload_len, payload_crc) = (u32::try_from(size)?, payload.crc());
    let began = Instant::now();
    for at in 0..count {
        sink.wait_for((at + 1).saturating_sub(in_flight));
        let header = Header {
            kind: Kind::Append,
            ledger: LedgerId(1 + at % ledgers),
            own_epoch: Epoch(1),
            epoch: Epoch(1),
            entry: EntryId(at / ledgers),
            committed: EntryId(0),
            prefix_len: 0,
            payload_len,
            payload_crc,
        };
        link.append(Append { attempt: 0, record: Record { header, payload: payload.clone() } })?;
    }
    sink.wait_for(count);
    report("durable", count * size, count, began);

    let began = Instant::now();
    let mut bytes = 0;
    // All ledgers side by side, as they lie on the disk.
    let mut readers: Vec<_> = (1..=ledgers).map(|ledger| (LedgerId(ledger), EntryId(0))).collect();
    while !readers.is_empty() {
        let mut unfinished = Vec::with_capacity(readers.len());
        for (ledger, from) in readers {
            let read = Read { ledger, from, max_entries: 4096, max_bytes: 1 << 20, prefix: false };
            match link.call(Request::Read(read)).await? {
                Response::Entries(entries) => {
                    unfinished.push((ledger, EntryId(from.0 + entries.len() as u64)));
                    bytes += entries.iter().map(|entry| entry.payload.len() as u64).sum::<u64>();
                }
                Response::Absent => {}
                other => return Err(format!("{other:?}").into()),
            }
        }
        readers = unfinished;
    }
    report("read", bytes, count, began);
    drop(link);
    bookie.shutdown().await;
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a rate")]
fn report(what: &str, bytes: u64, entries: u64, began: Instant) {
    let seconds = began.elapsed().as_secs_f64();
    let (rate, per_second) = (bytes as f64 / 1e6 / seconds, entries as f64 / seconds);
    println!("{what}: {rate:.0} MB/s, {per_second:.0} entries/s, {seconds:.2} s");
}
