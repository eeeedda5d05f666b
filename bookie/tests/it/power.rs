//! A bookie on a disk whose power is cut at random, also during boot: what was
//! answered stays, what was refused does not come back, and damage is noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use quire_bookie::Error;
use quire_bookie::cache::BlockCache;
use quire_bookie::catalog::Catalog;
use quire_bookie::disk::sim::Faults;
use quire_bookie::disk::{Access, Disk, SimDisk};
use quire_bookie::engine::{Engine, Output};
use quire_bookie::log::Parts;
use quire_bookie::log::boot::Boot;
use quire_bookie::log::format::Sequence;
use quire_bookie::log::pool::FilePool;
use quire_bookie::log::scan;
use quire_bookie::reader::Reader;
use quire_bookie::reclaim::{self, Draining, Living};
use quire_bookie::tail::Tail;
use quire_ledger::fault::{Fault, plant};
use quire_ledger::message::{Append, AppendEvent, Read, ReplicaState, Response};
use quire_ledger::record::{Header, Kind, Payload, Record};
use quire_ledger::replica::{ConnectionId, Event, RequestId};
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Nonce};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use uuid::Uuid;

const FILE_BYTES: u64 = 64 << 10;
/// The request for a ledger's state.
const STATE: RequestId = RequestId(u64::MAX);
const DISK_BYTES: u64 = 64 << 20;

/// What is known of a ledger from the bookie's answers alone.
#[derive(Debug, Default)]
struct Known {
    creation_asked: bool,
    created: bool,
    deletion_asked: bool,
    deleted: bool,
    /// A fence was asked for that the bookie may not have known (B4).
    fenced_unknown: bool,
    fence: u64,
    /// Its length, as acknowledged.
    durable: u64,
    /// What was sent for each entry, and what of it was acknowledged.
    sent: BTreeMap<u64, Vec<u32>>,
    acknowledged: BTreeMap<u64, u32>,
}

/// An append on its way; each on a connection of its own.
#[derive(Debug)]
struct Sent {
    ledger: u64,
    entry: u64,
    epoch: u64,
    /// What was fenced, for sure, when it was sent.
    fence: u64,
    crc: u32,
}

#[derive(Debug)]
enum Asked {
    Create(u64),
    Fence(u64, u64),
    Delete(u64, u64),
}

struct World {
    seed: u64,
    random: StdRng,
    disk: SimDisk,
    running: Option<Running>,
    ledgers: BTreeMap<u64, Known>,
    next_ledger: u64,
    serial: u64,
    sent: BTreeMap<ConnectionId, Sent>,
    asked: BTreeMap<RequestId, Asked>,
    refused: BTreeSet<u32>,
    published: Sequence,
    /// Ledgers below may be uncertain.
    lost: u64,
    damages: u32,
    boots: u32,
    /// Something in an older file may be unreadable.
    lenient: bool,
}

struct Running {
    engine: Engine<SimDisk>,
    catalog: Arc<Catalog<<SimDisk as Disk>::File>>,
    pool: Arc<FilePool>,
    draining: Draining<<SimDisk as Disk>::File>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            seed,
            random: StdRng::seed_from_u64(seed),
            disk: SimDisk::new(seed, DISK_BYTES),
            running: None,
            ledgers: BTreeMap::new(),
            next_ledger: 1,
            serial: 0,
            sent: BTreeMap::new(),
            asked: BTreeMap::new(),
            refused: BTreeSet::new(),
            published: Sequence(0),
            lost: 0,
            damages: 0,
            boots: 0,
            lenient: false,
        };
        world.boot();
        world
    }

    /// Boots until it succeeds; the power may be cut in between.
    fn boot(&mut self) {
        self.sent.clear();
        self.asked.clear();
        self.running = None;
        loop {
            self.boots += 1;
            if self.random.random_bool(0.3) {
                let dies_after = Some(self.random.random_range(0..12));
                self.disk.set_faults(Faults { dies_after, ..Faults::default() });
            }
            match self.try_boot() {
                Ok(running) => {
                    self.disk.set_faults(Faults::default());
                    self.running = Some(running);
                    return;
                }
                Err(Error::Disk { .. }) => self.crash(),
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        }
    }

    /// The power is cut, or only the process dies and the disk still holds what
    /// was never synced.
    fn crash(&mut self) {
        if self.random.random_bool(0.6) {
            self.disk.cut_power();
        } else {
            self.disk.kill_process();
        }
    }

    fn try_boot(&mut self) -> Result<Running, Error> {
        let bookie = BookieId(Uuid::from_u128(1));
        let boot = Boot::scan(&self.disk, bookie)?;
        let damage = boot.damage(self.published, &[]);
        let lost = damage.is_some().then_some(LedgerId(self.next_ledger));
        if damage.is_some() {
            self.damages += 1;
            self.lost = self.next_ledger;
        }
        let listing = |source| Error::Disk { operation: "list", file: String::new(), source };
        let pool = Arc::new(FilePool::open(&self.disk, FILE_BYTES).map_err(listing)?);
        let (catalog, tail) = (Arc::new(Catalog::default()), Arc::new(Tail::new(20_000)));
        let mut salts = StdRng::seed_from_u64(self.random.random());
        let parts = Parts {
            disk: self.disk.clone(),
            bookie,
            pool: Arc::clone(&pool),
            catalog: Arc::clone(&catalog),
            tail: Arc::clone(&tail),
            random: Box::new(move || salts.random()),
        };
        let opened = boot.open(parts, self.published, lost)?;
        let reader = Arc::new(Reader::new(Arc::clone(&catalog), tail, BlockCache::new(0)));
        Ok(Running { engine: Engine::new(opened, reader), catalog, pool, draining: Draining::default() })
    }

    fn step(&mut self) -> Result<(), Error> {
        match self.random.random_range(0..100) {
            0..8 => self.create(),
            8..55 => self.append(),
            55..60 => self.fence(),
            60..62 => self.delete(),
            62..82 => self.with(|engine, out| engine.commit(out)),
            82..88 => self.with(|engine, out| engine.commit_mark(out)),
            88..93 => {
                self.published = self.engine().durable().1;
                Ok(())
            }
            93..97 => self.keep_up(),
            _ => {
                self.check_one();
                Ok(())
            }
        }
    }

    fn engine(&mut self) -> &mut Engine<SimDisk> {
        &mut self.running.as_mut().unwrap().engine
    }

    fn with(
        &mut self,
        run: impl FnOnce(&mut Engine<SimDisk>, &mut Vec<Output>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut out = Vec::new();
        let done = run(self.engine(), &mut out);
        for output in out {
            self.hear(output);
        }
        done
    }

    fn ask(&mut self, asked: Asked, event: impl FnOnce(RequestId) -> Event) -> Result<(), Error> {
        self.serial += 1;
        let request = RequestId(self.serial);
        self.asked.insert(request, asked);
        self.with(|engine, out| engine.handle(event(request), out))
    }

    fn create(&mut self) -> Result<(), Error> {
        let ledger = self.next_ledger;
        self.next_ledger += 1;
        self.ledgers.entry(ledger).or_default().creation_asked = true;
        let creator = Nonce(Uuid::from_u128(u128::from(ledger)));
        let event = |request| Event::Create { request, ledger: LedgerId(ledger), creator };
        self.ask(Asked::Create(ledger), event)
    }

    fn any_ledger(&mut self) -> u64 {
        let ids: Vec<_> = self.ledgers.keys().rev().take(12).copied().collect();
        ids.choose(&mut self.random).copied().unwrap_or(1)
    }

    fn append(&mut self) -> Result<(), Error> {
        let ledger = self.any_ledger();
        let accepted = self.engine().replicas().ledger(LedgerId(ledger)).map_or(0, |state| state.accepted.0);
        let fence = self.ledgers.get(&ledger).map_or(0, |known| known.fence);
        for at in 0..self.random.random_range(1..4) {
            // Mostly the next one; sometimes a duplicate or a gap.
            let entry = match self.random.random_range(0..12) {
                0 => accepted.saturating_sub(1),
                1 => accepted + at + 1,
                _ => accepted + at,
            };
            let epoch = if self.random.random_bool(0.9) { fence.max(1) } else { 1 };
            self.send(ledger, entry, epoch)?;
        }
        Ok(())
    }

    fn send(&mut self, ledger: u64, entry: u64, epoch: u64) -> Result<(), Error> {
        self.serial += 1;
        let length = match self.random.random_range(0..20) {
            0 => 20_000,
            1..4 => 8,
            _ => self.random.random_range(8..2_000),
        };
        let mut bytes = self.serial.to_le_bytes().to_vec();
        bytes.resize(length, (self.serial % 251) as u8);
        let payload = Payload::from(Bytes::from(bytes));
        let crc = payload.crc();
        let header = Header {
            kind: Kind::Append,
            ledger: LedgerId(ledger),
            own_epoch: Epoch(1),
            epoch: Epoch(epoch),
            entry: EntryId(entry),
            committed: EntryId(0),
            prefix_len: 8,
            payload_len: length as u32,
            payload_crc: crc,
        };
        let connection = ConnectionId(self.serial);
        let known = self.ledgers.entry(ledger).or_default();
        known.sent.entry(entry).or_default().push(crc);
        let fence = known.fence;
        self.sent.insert(connection, Sent { ledger, entry, epoch, fence, crc });
        let append = Append { attempt: 0, record: Record { header, payload } };
        self.with(|engine, out| engine.handle(Event::Append { connection, append }, out))
    }

    fn fence(&mut self) -> Result<(), Error> {
        let ledger = self.any_ledger();
        let epoch = self.ledgers.get(&ledger).map_or(0, |known| known.fence) + self.random.random_range(0..3);
        let unknown = self.engine().replicas().ledger(LedgerId(ledger)).is_none();
        self.ledgers.entry(ledger).or_default().fenced_unknown |= unknown;
        let event = |request| Event::Fence { request, ledger: LedgerId(ledger), epoch: Epoch(epoch) };
        self.ask(Asked::Fence(ledger, epoch), event)
    }

    fn delete(&mut self) -> Result<(), Error> {
        let first = self.any_ledger();
        let last = (first + self.random.random_range(0..3)).min(self.next_ledger - 1).max(first);
        for ledger in first..=last {
            self.ledgers.entry(ledger).or_default().deletion_asked = true;
        }
        let event = |request| Event::Delete { request, first: LedgerId(first), last: LedgerId(last) };
        self.ask(Asked::Delete(first, last), event)
    }

    /// Indexes, emptying and recycling, as the upkeep does it.
    fn keep_up(&mut self) -> Result<(), Error> {
        let failed = |source| Error::Disk { operation: "upkeep", file: String::new(), source };
        let disk = self.disk.clone();
        let running = self.running.as_mut().unwrap();
        reclaim::write_indexes(&disk, &running.catalog).map_err(failed)?;
        let part = if self.random.random_bool(0.5) { 0.0 } else { 0.4 };
        for generation in reclaim::mostly_dead(&running.catalog, part) {
            let mut living = Living::of(&running.catalog, generation);
            let reader = Arc::clone(running.engine.reader());
            let mut whole = true;
            loop {
                match living.next(&reader) {
                    Ok(Some(records)) => {
                        let mut out = Vec::new();
                        running.engine.copy(records, &mut out)?;
                        running.engine.commit(&mut out)?;
                        // Told below: the answers of the same commit.
                        for output in out {
                            hear(
                                &mut self.ledgers,
                                &mut self.sent,
                                &mut self.asked,
                                &mut self.refused,
                                output,
                            );
                        }
                    }
                    Ok(None) => break,
                    Err(_) => {
                        assert!(self.damages > 0, "seed {}: unreadable without damage", self.seed);
                        whole = false;
                        break;
                    }
                }
            }
            if whole {
                running.draining.take_out(&running.catalog, generation);
            }
        }
        running.draining.recycle(&disk, &running.pool, 2).map_err(failed)?;
        if running.pool.ready() == 0 && self.random.random_bool(0.3) {
            running.pool.fill(&disk, || true).map_err(failed)?;
        }
        Ok(())
    }

    fn hear(&mut self, output: Output) {
        hear(&mut self.ledgers, &mut self.sent, &mut self.asked, &mut self.refused, output);
    }

    fn state(&mut self, ledger: u64) -> Response {
        let mut out = Vec::new();
        let event = Event::State { request: STATE, ledger: LedgerId(ledger) };
        self.engine().handle(event, &mut out).unwrap();
        let mut answer = None;
        for output in out {
            match output {
                Output::Respond(STATE, response) => answer = Some(response),
                other => self.hear(other),
            }
        }
        // A deletion that is not yet durable: nothing is known.
        answer.unwrap_or(Response::Deleted)
    }

    fn check_one(&mut self) {
        let ledger = self.any_ledger();
        self.check(ledger);
    }

    fn check_all(&mut self) {
        for ledger in self.ledgers.keys().copied().collect::<Vec<_>>() {
            self.check(ledger);
        }
    }

    /// What the bookie says of a ledger, against what it had answered.
    fn check(&mut self, ledger: u64) {
        let seed = self.seed;
        let state = self.state(ledger);
        let answered;
        let may_be_lost = ledger < self.lost;
        let Some(known) = self.ledgers.get(&ledger) else { return };
        match state {
            Response::Deleted => {
                assert!(known.deletion_asked, "seed {seed}: ledger {ledger} was never deleted");
                return;
            }
            Response::Absent => {
                assert!(
                    !known.created && known.durable == 0 && known.fence == 0 && !known.deleted,
                    "seed {seed}: ledger {ledger} is absent, but {known:?}"
                );
                return;
            }
            Response::Unknown(_) => {
                assert!(may_be_lost, "seed {seed}: ledger {ledger} is unknown");
                return;
            }
            Response::State(ReplicaState { fence, durable, certain, .. }) => {
                // What is answered is a promise from here on.
                answered = durable.0;
                assert!(!known.deleted || may_be_lost, "seed {seed}: ledger {ledger} came back");
                if !certain {
                    assert!(
                        may_be_lost || !known.created || known.fenced_unknown,
                        "seed {seed}: ledger {ledger} is uncertain"
                    );
                } else {
                    assert!(
                        durable.0 >= known.durable,
                        "seed {seed}: ledger {ledger} lost {known:?} {durable}"
                    );
                    assert!(fence.0 >= known.fence, "seed {seed}: ledger {ledger} lost its fence");
                }
            }
            other => panic!("seed {seed}: {other:?}"),
        }
        self.check_entries(ledger, may_be_lost);
        let known = self.ledgers.entry(ledger).or_default();
        known.durable = known.durable.max(answered);
    }

    fn check_entries(&mut self, ledger: u64, may_be_lost: bool) {
        let seed = self.seed;
        let reader = Arc::clone(self.engine().reader());
        let known = &self.ledgers[&ledger];
        let end = known.sent.keys().next_back().map_or(0, |last| last + 1);
        for entry in 0..end {
            let read = Read {
                ledger: LedgerId(ledger),
                from: EntryId(entry),
                max_entries: 1,
                max_bytes: 0,
                prefix: false,
            };
            match reader.read(&read) {
                Response::Entries(records) => {
                    let crc = records[0].payload.crc();
                    assert!(
                        known.sent.get(&entry).is_some_and(|sent| sent.contains(&crc)),
                        "seed {seed}: phantom"
                    );
                    assert!(!self.refused.contains(&crc), "seed {seed}: a refused entry came back");
                    if let Some(acknowledged) = known.acknowledged.get(&entry)
                        && !may_be_lost
                    {
                        assert_eq!(*acknowledged, crc, "seed {seed}: ledger {ledger} entry {entry} changed");
                    }
                }
                Response::Absent => {
                    assert!(entry >= known.durable, "seed {seed}: ledger {ledger} entry {entry} is absent");
                }
                Response::Unknown(why) => {
                    assert!(
                        may_be_lost || self.lenient || known.fenced_unknown && entry >= known.durable,
                        "seed {seed}: ledger {ledger} entry {entry}: {why}"
                    );
                }
                other => panic!("seed {seed}: ledger {ledger} entry {entry}: {other:?}"),
            }
        }
    }
}

fn hear(
    ledgers: &mut BTreeMap<u64, Known>,
    sent: &mut BTreeMap<ConnectionId, Sent>,
    asked: &mut BTreeMap<RequestId, Asked>,
    refused: &mut BTreeSet<u32>,
    output: Output,
) {
    match output {
        Output::Deliver(connection, AppendEvent::Durable(acks)) => {
            let Sent { ledger, entry, epoch, fence, crc } = sent.remove(&connection).unwrap();
            assert_eq!(acks, [(LedgerId(ledger), EntryId(entry + 1))]);
            assert!(epoch >= fence, "ledger {ledger} was fenced at {fence}, entry {entry} is of {epoch}");
            let known = ledgers.get_mut(&ledger).unwrap();
            known.durable = known.durable.max(entry + 1);
            let before = known.acknowledged.insert(entry, crc);
            assert!(before.is_none_or(|before| before == crc), "other bytes were acknowledged before");
        }
        Output::Deliver(connection, AppendEvent::Gap { .. } | AppendEvent::Refused { .. }) => {
            refused.insert(sent.remove(&connection).unwrap().crc);
        }
        // The state of a ledger that was about to be deleted, told late.
        Output::Respond(STATE, _) => {}
        Output::Respond(request, response) => match (asked.remove(&request).unwrap(), response) {
            (Asked::Create(ledger), Response::Created) => ledgers.get_mut(&ledger).unwrap().created = true,
            (Asked::Fence(ledger, epoch), Response::Fenced(state)) => {
                let known = ledgers.entry(ledger).or_default();
                known.fence = known.fence.max(epoch);
                assert!(state.fence.0 >= epoch);
                assert!(!state.certain || state.durable.0 >= known.durable);
                known.durable = known.durable.max(state.durable.0);
            }
            (Asked::Delete(first, last), Response::Deleted) => {
                (first..=last).for_each(|ledger| ledgers.get_mut(&ledger).unwrap().deleted = true);
            }
            (_, Response::Refused(_) | Response::Deleted) => {}
            (asked, response) => panic!("{asked:?}: {response:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Some lives of a bookie, each ended by a crash.
fn live(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..4 {
        let dies = world.random.random_bool(0.6);
        if dies {
            let dies_after = Some(world.random.random_range(0..120));
            world.disk.set_faults(Faults { dies_after, ..Faults::default() });
        }
        for _ in 0..world.random.random_range(20..200) {
            if let Err(error) = world.step() {
                assert!(dies, "seed {seed}: {error}");
                break;
            }
        }
        world.crash();
        world.boot();
        assert_eq!(world.damages, 0, "seed {seed}: a torn tail is no damage");
        world.check_all();
    }
    world
}

#[test]
fn l4_a_crash_loses_nothing_that_was_answered() {
    let boots: u32 = (0..120).map(|seed| live(seed).boots).sum();
    assert!(boots > 120 * 5, "some boots are cut short, too: {boots}");
}

#[test]
fn l4_the_same_seed_does_the_same() {
    let trace = |seed| {
        let world = live(seed);
        format!("{:?} {:?} {} {}", world.ledgers, world.refused, world.boots, world.disk.writes())
    };
    assert_eq!(trace(7), trace(7));
}

/// Lives that end with everything answered, marked and published.
fn settled(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..world.random.random_range(50..300) {
        world.step().unwrap();
    }
    world.with(|engine, out| engine.commit_mark(out)).unwrap();
    world.check_all();
    world
}

#[test]
fn l4_a_flipped_bit_at_or_below_the_mark_is_noticed_and_never_served() {
    let mut noticed = 0;
    for seed in 0..150 {
        let mut world = settled(seed);
        let names = world.disk.list().unwrap();
        let logs: Vec<_> = names.iter().filter(|name| name.ends_with(".log")).collect();
        let any = if world.random.random_bool(0.7) { logs.last() } else { logs.choose(&mut world.random) };
        let name = (*any.unwrap()).clone();
        let newest = logs.last().is_some_and(|last| **last == name);
        let used = world.disk.get(&name).unwrap().unwrap();
        // Anywhere in what is written, with a liking for the end.
        let written = used.iter().rposition(|&byte| byte != 0).unwrap() as u64 + 1;
        let byte = match world.random.random_range(0..3) {
            0 => world.random.random_range(written.saturating_sub(9_000)..written),
            _ => world.random.random_range(0..written),
        };
        world.disk.cut_power();
        let must_notice = newest && is_below_mark(&world.disk, &name, byte);
        world.disk.flip_bit(&name, byte, world.random.random_range(0..8));
        world.boot();
        assert!(!must_notice || world.damages > 0, "seed {seed}: {name} byte {byte}");
        noticed += u32::from(must_notice);
        // Damage in an older file is found by reading it.
        world.lenient = true;
        world.check_all();
        let once = world.damages;
        world.crash();
        world.boot();
        assert_eq!(world.damages, once, "seed {seed}: the same damage is not found anew");
        world.check_all();
    }
    assert!(noticed > 30, "{noticed}");
}

/// Whether the byte is in a batch that a later one of its file knows durable.
fn is_below_mark(disk: &SimDisk, name: &str, byte: u64) -> bool {
    let file = disk.open(name, Access::Direct).unwrap();
    let header = scan::file_header(&*file).unwrap();
    let mut batches = Vec::new();
    scan::scan(&*file, &header, |batch| batches.push((batch.position, batch.header)));
    let mark = batches.iter().map(|(_, header)| header.mark).max().unwrap_or_default();
    batches.iter().any(|(position, header)| {
        header.sequence < mark && (*position..*position + u64::from(header.length)).contains(&byte)
    })
}

#[test]
fn l4_a_disk_that_was_set_back_is_noticed() {
    for seed in 0..60 {
        let mut world = settled(seed);
        world.published = world.engine().durable().1;
        let old = world.disk.copy();
        let before = world.published;
        while world.published == before {
            for _ in 0..world.random.random_range(1..60) {
                world.step().unwrap();
            }
            world.with(|engine, out| engine.commit(out)).unwrap();
            world.published = world.engine().durable().1;
        }
        world.disk.set_back(&old);
        world.boot();
        assert!(world.damages > 0, "seed {seed}");
        assert_eq!(world.engine().replicas().mark(), LedgerId(world.next_ledger));
        world.check_all();
    }
}

#[test]
fn b6_the_mark_stays_for_good() {
    let mut world = settled(3);
    world.published = Sequence(u64::MAX / 2);
    world.crash();
    world.boot();
    let mark = world.engine().replicas().mark();
    assert_eq!(mark, LedgerId(world.next_ledger));
    world.published = Sequence(0);
    for _ in 0..3 {
        for _ in 0..200 {
            world.step().unwrap();
        }
        world.crash();
        world.boot();
        assert_eq!(world.engine().replicas().mark(), mark);
        world.check_all();
    }
}

#[test]
fn l5_after_a_failed_sync_nothing_is_answered() {
    for seed in 0..40 {
        let mut world = World::new(seed);
        let sync_fails_after = Some(world.random.random_range(0..40));
        world.disk.set_faults(Faults { sync_fails_after, ..Faults::default() });
        let failed = (0..2_000).find_map(|_| world.step().err());
        assert!(matches!(failed, Some(Error::Disk { .. })), "seed {seed}: {failed:?}");
        world.crash();
        world.boot();
        assert_eq!(world.damages, 0, "seed {seed}");
        world.check_all();
    }
}

/// Each must be found within these seeds.
#[test]
fn planted_faults_are_found() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found = |fault: Fault, lives: fn(u64)| {
        plant(Some(fault));
        let found = (0..400).any(|seed| std::panic::catch_unwind(|| lives(seed)).is_err());
        plant(None);
        (fault, found)
    };
    let crashes = |seed| drop(live(seed));
    let lost = |seed| {
        let mut world = settled(seed);
        world.published = world.engine().durable().1;
        let old = world.disk.copy();
        for _ in 0..60 {
            world.step().unwrap();
        }
        world.published = world.engine().durable().1;
        world.disk.set_back(&old);
        world.boot();
        world.check_all();
        for _ in 0..60 {
            world.step().unwrap();
        }
        world.boot();
        world.check_all();
    };
    let found: Vec<_> = [
        found(Fault::FenceNotDurable, crashes),
        found(Fault::UnsyncedCounted, crashes),
        found(Fault::BootContinuesFile, crashes),
        found(Fault::NoMark, lost),
        found(Fault::MarkCleared, lost),
    ]
    .into_iter()
    .collect();
    std::panic::set_hook(hook);
    assert!(found.iter().all(|&(_, found)| found), "{found:?}");
}
