//! What is done with the files: indexes, recycling, damage, full disks, repair.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_bookie::{Bookie, Health, InProcessConnector, Options};
use quire_ledger::link::BookieLink;
use quire_ledger::message::{Read, Refusal, Request, Response};
use quire_metadata::ledger::{LedgerMetadata, LedgerState, Sealed};
use quire_metadata::store::Store;
use quire_proto::id::{EntryId, Epoch, LedgerId};

use crate::support::*;

/// Waits for the files of a directory to be as wished.
fn wait_for_files(dir: &Path, wished: impl Fn(&[PathBuf]) -> bool) -> Vec<PathBuf> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        if wished(&files) {
            return files;
        }
        assert!(Instant::now() < deadline, "only {files:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn with_suffix(files: &[PathBuf], suffix: &str) -> Vec<PathBuf> {
    files.iter().filter(|file| file.extension().is_some_and(|it| it == suffix)).cloned().collect()
}

/// A bookie without a tail or cache in memory: all reads come from the disk.
async fn start_cold(dir: &Path, store: &Arc<dyn Store>) -> Bookie {
    let options = Options { tail_bytes: 0, cache_bytes: 0, ..options(dir) };
    Bookie::start(options, Arc::clone(store), CLUSTER).await.unwrap()
}

/// Ledgers 1 and 2 in about six full files.
async fn fill(link: &dyn BookieLink, ear: &Ear) {
    for ledger in 1..=2 {
        assert_eq!(create(link, ledger).await, Response::Created);
    }
    for at in 0..60 {
        for ledger in 1..=2 {
            link.append(entry(ledger, at, 1, 50_000)).unwrap();
        }
    }
    ear.wait(|heard| (1..=2).all(|ledger| heard.durable.get(&LedgerId(ledger)) == Some(&EntryId(60))));
}

#[tokio::test]
async fn l3_an_entry_that_is_larger_than_a_file_is_kept() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start_cold(dir.path(), &store).await;
    let (link, ear) = connect(&bookie);
    assert_eq!(create(&*link, 1).await, Response::Created);
    for (at, length) in [10, 3 << 20, 16 << 20, 10].into_iter().enumerate() {
        link.append(entry(1, at as u64, 1, length)).unwrap();
    }
    ear.wait(|heard| heard.durable.get(&LedgerId(1)) == Some(&EntryId(4)));
    assert_eq!(read_all(&*link, 1).await.len(), 4);
    bookie.shutdown().await;
    drop((link, bookie));
    let bookie = start_cold(dir.path(), &store).await;
    let (link, _) = connect(&bookie);
    let lengths: Vec<_> = read_all(&*link, 1).await.iter().map(|record| record.payload.len()).collect();
    assert_eq!(lengths, [10, 3 << 20, 16 << 20, 10]);
    bookie.shutdown().await;
}

#[tokio::test]
async fn l7_an_index_that_is_wrong_or_missing_is_found_again_in_the_log() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start_cold(dir.path(), &store).await;
    let (link, ear) = connect(&bookie);
    fill(&*link, &ear).await;
    let files = wait_for_files(dir.path(), |files| with_suffix(files, "index").len() >= 4);
    for (at, index) in with_suffix(&files, "index").iter().enumerate() {
        let length = fs::metadata(index).unwrap().len();
        let file = fs::OpenOptions::new().write(true).open(index).unwrap();
        // The lines are at the end.
        let lines = vec![at as u8; 64];
        file.write_all_at(&lines, length - lines.len() as u64).unwrap();
    }
    for ledger in 1..=2 {
        assert_eq!(read_all(&*link, ledger).await.len(), 60);
    }
    bookie.shutdown().await;
    drop((link, bookie));
    for index in with_suffix(&files, "index") {
        fs::remove_file(index).unwrap();
    }
    let bookie = start_cold(dir.path(), &store).await;
    let (link, _) = connect(&bookie);
    for ledger in 1..=2 {
        assert_eq!(read_all(&*link, ledger).await.len(), 60);
    }
    bookie.shutdown().await;
}

#[tokio::test]
async fn b5_what_is_damaged_on_the_disk_is_unknown_and_never_absent() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start_cold(dir.path(), &store).await;
    let (link, ear) = connect(&bookie);
    fill(&*link, &ear).await;
    let files = wait_for_files(dir.path(), |files| with_suffix(files, "index").len() >= 4);
    let log = &with_suffix(&files, "log")[1];
    let file = fs::OpenOptions::new().write(true).open(log).unwrap();
    // Somewhere in every entry of the file.
    for at in (20_000..(1 << 20)).step_by(20_000) {
        file.write_all_at(&[0x55; 16], at).unwrap();
    }
    file.sync_all().unwrap();
    let mut unknown = 0;
    for at in 0..60 {
        match link.call(Request::Read(read_request(1, at))).await.unwrap() {
            Response::Entries(records) => records[0].verify().unwrap(),
            Response::Unknown(_) => unknown += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..60).contains(&unknown), "{unknown}");
    bookie.shutdown().await;
}

#[tokio::test]
async fn b5_a_prefix_that_is_the_whole_payload_is_not_given_when_it_is_damaged() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start_cold(dir.path(), &store).await;
    let (link, ear) = connect(&bookie);
    assert_eq!(create(&*link, 1).await, Response::Created);
    for at in 0..3 {
        let mut append = entry(1, at, 1, 50_000);
        append.record.header.prefix_len = append.record.header.payload_len;
        link.append(append).unwrap();
    }
    ear.wait(|heard| heard.durable.get(&LedgerId(1)) == Some(&EntryId(3)));
    let log = &wait_for_files(dir.path(), |files| !with_suffix(files, "log").is_empty());
    let log = &with_suffix(log, "log")[0];
    // The entry in the middle, by what only its payload holds.
    let bytes = fs::read(log).unwrap();
    let middle = vec![payload(1, 1, 50_000).to_bytes()[0]; 1_000];
    let at = bytes.windows(middle.len()).position(|window| window == middle).unwrap();
    let file = fs::OpenOptions::new().write(true).open(log).unwrap();
    file.write_all_at(&[0x55], at as u64 + 500).unwrap();
    file.sync_all().unwrap();
    for (at, is_sound) in [(0, true), (1, false), (2, true)] {
        let read = Read { prefix: true, max_entries: 1, ..read_request(1, at) };
        match link.call(Request::Read(read)).await.unwrap() {
            Response::Entries(records) if is_sound => records[0].verify().unwrap(),
            Response::Unknown(_) if !is_sound => {}
            other => panic!("entry {at}: {other:?}"),
        }
    }
    bookie.shutdown().await;
}

#[tokio::test]
async fn l8_files_whose_ledgers_are_gone_are_recycled_and_mostly_dead_ones_emptied() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start_cold(dir.path(), &store).await;
    let (link, ear) = connect(&bookie);
    // A small ledger that lies in the files of large ones.
    for ledger in 1..=3 {
        assert_eq!(create(&*link, ledger).await, Response::Created);
    }
    for at in 0..60 {
        for (ledger, length) in [(1, 50_000), (2, 50_000), (3, 100)] {
            link.append(entry(ledger, at, 1, length)).unwrap();
        }
    }
    ear.wait(|heard| (1..=3).all(|ledger| heard.durable.get(&LedgerId(ledger)) == Some(&EntryId(60))));
    wait_for_files(dir.path(), |files| with_suffix(files, "log").len() >= 6);
    let delete = Request::Delete { first: LedgerId(1), last: LedgerId(2) };
    assert_eq!(link.call(delete).await.unwrap(), Response::Deleted);
    wait_for_files(dir.path(), |files| with_suffix(files, "log").len() <= 2);
    assert_eq!(read_all(&*link, 3).await.len(), 60);
    let read = link.call(Request::Read(read_request(1, 0))).await.unwrap();
    assert_eq!(read, Response::Deleted);
    bookie.shutdown().await;
    drop((link, bookie));
    let bookie = start_cold(dir.path(), &store).await;
    let (link, _) = connect(&bookie);
    assert_eq!(read_all(&*link, 3).await.len(), 60);
    assert_eq!(create(&*link, 1).await, Response::Refused(Refusal::Deleted));
    bookie.shutdown().await;
}

#[tokio::test]
async fn l6_a_bookie_on_a_full_disk_still_reads_fences_and_deletes() {
    let (dir, store) = (tempfile::tempdir().unwrap(), store().await);
    let bookie = start(dir.path(), &store).await.unwrap();
    let (link, ear) = connect(&bookie);
    assert_eq!(create(&*link, 1).await, Response::Created);
    link.append(entry(1, 0, 1, 100)).unwrap();
    ear.wait(|heard| heard.durable.len() == 1);
    bookie.shutdown().await;
    drop((link, bookie));

    let full = Options { high_water: 1e-9, low_water: 1e-9, headroom_bytes: u64::MAX, ..options(dir.path()) };
    let bookie = Bookie::start(full, Arc::clone(&store), CLUSTER).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while bookie.health() != Health::ReadOnly {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (link, ear) = connect(&bookie);
    link.append(entry(1, 1, 1, 100)).unwrap();
    ear.wait(|heard| heard.refused == [Refusal::ReadOnly]);
    assert_eq!(create(&*link, 2).await, Response::Refused(Refusal::ReadOnly));
    assert_eq!(read_all(&*link, 1).await.len(), 1);
    let fenced = link.call(Request::Fence { ledger: LedgerId(1), epoch: Epoch(2) }).await.unwrap();
    assert!(matches!(fenced, Response::Fenced(state) if state.durable == EntryId(1)), "{fenced:?}");
    // Recovery's append.
    link.append(entry(1, 1, 2, 100)).unwrap();
    let delete = Request::Delete { first: LedgerId(1), last: LedgerId(1) };
    assert_eq!(link.call(delete).await.unwrap(), Response::Deleted);
    bookie.shutdown().await;
}

#[tokio::test]
async fn b7_a_target_pulls_the_ledger_from_its_replicas() {
    let store = store().await;
    let dirs = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = start(dirs.0.path(), &store).await.unwrap();
    let target = start(dirs.1.path(), &store).await.unwrap();
    target.set_peers(Arc::new(InProcessConnector::new(vec![source.clone()])));
    let (link, ear) = connect(&source);
    fill(&*link, &ear).await;
    let (to, target_ear) = connect(&target);
    let import = Request::Import { ledger: LedgerId(1), end: EntryId(60) };
    let refused = to.call(import.clone()).await.unwrap();
    assert!(matches!(refused, Response::Unknown(_)), "not named as a target: {refused:?}");

    let sealed = Sealed { end: EntryId(60), complete: vec![source.id()], ..Sealed::default() };
    let metadata = LedgerMetadata {
        replicas: vec![source.id()],
        targets: vec![target.id()],
        state: LedgerState::Sealed(sealed),
        ..published(1)
    };
    put_ledger(&*store, &metadata).await;
    assert_eq!(to.call(import.clone()).await.unwrap(), Response::Imported);
    assert_eq!(to.call(import).await.unwrap(), Response::Imported, "again, with nothing left to do");
    let imported = read_some(&*to, 60).await;
    assert_eq!(imported, read_all(&*link, 1).await);
    to.append(entry(1, 60, 9, 10)).unwrap();
    target_ear.wait(|heard| heard.refused == [Refusal::Importing]);
    target.shutdown().await;
    source.shutdown().await;
}

/// The first entries of ledger 1. What lies beyond an import is `Unknown`.
async fn read_some(link: &dyn BookieLink, count: usize) -> Vec<quire_ledger::record::Record> {
    let mut records = Vec::new();
    while records.len() < count {
        match link.call(Request::Read(read_request(1, records.len() as u64))).await.unwrap() {
            Response::Entries(more) => records.extend(more),
            other => panic!("{other:?}"),
        }
    }
    records
}
