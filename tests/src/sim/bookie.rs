//! A bookie of a run: the shipped engine, log and boot on a disk that loses
//! what was not synced.
//!
//! Beside driving it, the run keeps account of what the bookie promised: what
//! it once said to have durably it must still have after any restart, or know
//! that it does not (B6).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use quire_bookie::cache::BlockCache;
use quire_bookie::catalog::Catalog;
use quire_bookie::engine::{Engine, Output};
use quire_bookie::log::boot::{Boot, Opened};
use quire_bookie::log::format::Sequence;
use quire_bookie::log::pool::FilePool;
use quire_bookie::log::{Parts, Random as Salts};
use quire_bookie::reader::Reader;
use quire_bookie::tail::Tail;
use quire_ledger::message::{AppendEvent, Read, Refusal, ReplicaState, Request, Response};
use quire_ledger::record::Record;
use quire_ledger::replica::{ConnectionId, Event, RequestId};
use quire_metadata::id_block::{IdAllocator, IdKind};
use quire_metadata::key::Keys;
use quire_metadata::operation::Outcome;
use quire_metadata::operations::bookie_start::{StartIntent, start_bookie};
use quire_metadata::store::{Store, StoreError};
use quire_metadata::typed::Versioned;
use quire_metadata::view::complete_on;
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Nonce};
use uuid::Uuid;

use super::batches;
use super::disk::{Image, SimDisk};
use super::gate::{Answer, Ask, Gate, Tasks};
use super::network::{End, LinkId};
use super::plan::Trouble;
use super::random::Random;
use super::scheduler::Micros;
use super::violation::{Checked, Invariant, Violation};
use super::world::{Asker, Happening, ToBookie, ToBroker, World, note};

/// Bytes of a log file: small, so that runs see many.
const FILE_BYTES: u64 = 256 << 10;
const DISK_BYTES: u64 = 64 << 20;
/// Older copies of a disk that are kept.
const IMAGES_MAX: usize = 8;
/// The file that a bookie's generation and nonce are kept in.
const INTENT: &str = "intent";

/// Which start of a bookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run(pub u32);

/// What a bookie does by itself.
#[derive(Clone, Debug)]
pub enum BookieDoes {
    /// Writes and syncs what waits.
    Commit,
    /// Records the durable mark.
    Mark,
    /// Publishes how far its log is durable.
    Publish,
    /// Copies the next entry of an import.
    Copy { request: RequestId, ledger: LedgerId, from: EntryId, end: EntryId },
    /// A boot that waited for the store tries again.
    BootAgain,
}

/// What was promised of one ledger.
#[derive(Clone, Copy, Debug, Default)]
struct Promise {
    created: bool,
    durable: EntryId,
    fence: Epoch,
    deleted: bool,
}

/// One bookie.
#[derive(Debug)]
pub struct SimBookie {
    pub index: usize,
    pub id: BookieId,
    pub disk: SimDisk,
    pub run: Run,
    pub state: State,
    pub paused: bool,
    /// What came while it was paused.
    pub stash: VecDeque<Happening>,
    /// Older copies of the disk of this run, and where the log was durable then.
    images: VecDeque<(u64, Image)>,
    promises: BTreeMap<LedgerId, Promise>,
}

/// What a bookie is at.
#[derive(Debug)]
pub enum State {
    Down,
    Booting {
        gate: Gate,
        tasks: Tasks<Result<Booted, BootError>>,
    },
    Up(Box<Up>),
    /// It refuses to start, for good.
    Refused,
}

/// A bookie that serves.
#[derive(Debug)]
pub struct Up {
    pub engine: Engine<SimDisk>,
    gate: Gate,
    tasks: Tasks<()>,
    committing: bool,
    requests: BTreeMap<RequestId, (Option<(LinkId, RequestId)>, Request)>,
    next_request: u64,
    imports: BTreeMap<LedgerId, (RequestId, EntryId)>,
}

impl Up {
    /// Whether all that was written is durable, and recorded as that.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        !self.committing && !self.engine.owes_mark()
    }
}

/// What a boot came to.
#[derive(Debug)]
pub struct Booted {
    engine: Engine<SimDisk>,
    /// Why the log lost something, if it did.
    damage: Option<String>,
}

/// Why a boot failed.
#[derive(Debug)]
pub enum BootError {
    /// The disk: the power was cut.
    Disk(String),
    /// The store: try again.
    Store(StoreError),
    /// B1: it must not start.
    Refused(String),
}

impl SimBookie {
    /// A bookie with an empty disk.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self {
            index,
            id: BookieId(Uuid::from_u128(0xb0 + index as u128)),
            disk: SimDisk::new(DISK_BYTES),
            run: Run::default(),
            state: State::Down,
            paused: false,
            stash: VecDeque::new(),
            images: VecDeque::new(),
            promises: BTreeMap::new(),
        }
    }

    /// Whether it serves.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Whether it will not start any more.
    #[must_use]
    pub const fn is_refused(&self) -> bool {
        matches!(self.state, State::Refused)
    }

    /// Whether it has said that it deleted the ledger.
    #[must_use]
    pub fn has_deleted(&self, ledger: LedgerId) -> bool {
        self.promises.get(&ledger).is_some_and(|promise| promise.deleted)
    }

    /// Its engine, when it serves.
    #[must_use]
    pub fn up(&mut self) -> Option<&mut Up> {
        match &mut self.state {
            State::Up(up) => Some(up),
            _ => None,
        }
    }

    /// Older copies of the disk, of a log that was shorter than this.
    #[must_use]
    pub fn images_before(&self, published: u64) -> Vec<&Image> {
        self.images.iter().filter(|(sequence, _)| *sequence < published).map(|(_, image)| image).collect()
    }

    /// What it says of a read, when it serves.
    #[must_use]
    pub fn read(&self, read: &Read) -> Option<Response> {
        match &self.state {
            State::Up(up) => Some(up.engine.reader().read(read)),
            _ => None,
        }
    }
}

/// The boot: identity and generation (B1), then the log (L4) and, when that
/// lost something, the mark (B6).
async fn boot(
    disk: SimDisk,
    bookie: BookieId,
    intent: StartIntent,
    store: Gate,
    keys: Keys,
    mut salts: Random,
) -> Result<Booted, BootError> {
    let failed = |error: &dyn std::fmt::Display| BootError::Disk(error.to_string());
    let started = start_bookie(&store, &keys, bookie, intent, "").await.map_err(BootError::Store)?;
    let registered = match started {
        Outcome::Done(registered) => registered.value,
        Outcome::Lost(refused) => return Err(BootError::Refused(refused.to_string())),
    };
    disk.put_intent(intent, true).map_err(|error| failed(&error))?;
    let scanned = Boot::scan(&disk, bookie).map_err(|error| failed(&error))?;
    let published = Sequence(registered.durable.sequence);
    let complete = complete_on(&store, &keys, bookie).await.map_err(BootError::Store)?;
    let damage = scanned.damage(published, &complete);
    let lost = match &damage {
        Some(_) => Some(allocated(&store, &keys).await.map_err(BootError::Store)?),
        None => None,
    };
    let pool = FilePool::open(&disk, FILE_BYTES).map_err(|error| failed(&error))?;
    let (catalog, tail) = (Arc::new(Catalog::default()), Arc::new(Tail::new(64 << 10)));
    let random: Salts = Box::new(move || salts.bits());
    let parts = Parts {
        disk,
        bookie,
        pool: Arc::new(pool),
        catalog: Arc::clone(&catalog),
        tail: Arc::clone(&tail),
        random,
    };
    let opened: Opened<SimDisk> = scanned.open(parts, published, lost).map_err(|error| failed(&error))?;
    let reader = Arc::new(Reader::new(catalog, tail, BlockCache::new(0)));
    Ok(Booted { engine: Engine::new(opened, reader), damage })
}

/// X: the first ledger id that nobody can have used.
async fn allocated(store: &Gate, keys: &Keys) -> Result<LedgerId, StoreError> {
    let found = store.get(&keys.id_next(IdKind::Ledgers)).await?;
    let next = Versioned::<IdAllocator>::read_option(found.as_ref())?.map_or(1, |found| found.value.next);
    Ok(LedgerId(next))
}

impl World {
    /// A bookie's process starts.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn start_bookie(&mut self, index: usize) -> Checked {
        let bookie = &mut self.bookies[index];
        if !matches!(bookie.state, State::Down) {
            return Ok(());
        }
        bookie.run = Run(bookie.run.0 + 1);
        bookie.paused = false;
        bookie.stash.clear();
        bookie.disk = bookie.disk.next_run();
        if !self.healed && self.plan.strikes(Trouble::BootCrash, &mut self.random) {
            let operations = self.random.between(0..=12);
            self.bookies[index].disk.cut_after(operations);
        }
        self.boot_bookie(index)
    }

    /// B1: an intent on disk, then the registry, then the log.
    fn boot_bookie(&mut self, index: usize) -> Checked {
        let nonce = self.random.nonce();
        let salts = Random::new(self.random.bits());
        let bookie = &mut self.bookies[index];
        let intent = match bookie.disk.get_intent() {
            // What was intended may have been registered.
            Ok(Some((intent, false))) => intent,
            Ok(before) => {
                let generation = before.map_or(0, |(intent, _)| intent.generation) + 1;
                StartIntent { generation, nonce }
            }
            Err(_) => return self.crash_bookie(index, "its disk died while it booted"),
        };
        if bookie.disk.put_intent(intent, false).is_err() {
            return self.crash_bookie(index, "its disk died while it booted");
        }
        let gate = Gate::default();
        let mut tasks = Tasks::default();
        tasks.start(boot(bookie.disk.clone(), bookie.id, intent, gate.clone(), self.keys.clone(), salts));
        bookie.state = State::Booting { gate, tasks };
        note!(self, "bookie {index} boots as generation {}", intent.generation);
        self.poll_boot(index)
    }

    fn poll_boot(&mut self, index: usize) -> Checked {
        let run = self.bookies[index].run;
        let State::Booting { gate, tasks } = &mut self.bookies[index].state else { return Ok(()) };
        let done = tasks.poll().into_iter().next();
        let asked = gate.take_asked();
        self.forward_questions(Asker::Bookie(index, run), asked);
        match done {
            None => Ok(()),
            Some(Ok(booted)) => self.booted(index, booted),
            Some(Err(BootError::Store(error))) => {
                note!(self, "bookie {index} waits for the store: {error}");
                self.scheduler.after(20_000, Happening::Bookie(index, run, BookieDoes::BootAgain));
                Ok(())
            }
            Some(Err(BootError::Disk(error))) => {
                self.hits.hit("a bookie crashed while it booted");
                self.crash_bookie(index, &error)
            }
            Some(Err(BootError::Refused(why))) => {
                note!(self, "bookie {index} refuses to start: {why}");
                self.bookies[index].state = State::Refused;
                self.refused_to_start(index, &why)
            }
        }
    }

    /// Only a bookie whose disk was set back may refuse.
    fn refused_to_start(&mut self, index: usize, why: &str) -> Checked {
        self.hits.hit("a bookie refused to start");
        if self.inspector.is_damaged(self.bookies[index].id) {
            return Ok(());
        }
        Violation::of(Invariant::Liveness, format!("bookie {index} refuses to start: {why}"))
    }

    fn booted(&mut self, index: usize, booted: Booted) -> Checked {
        let Booted { engine, damage } = booted;
        self.hits.hit("a bookie booted");
        if let Some(damage) = &damage {
            self.hits.hit("a boot found damage");
            note!(self, "bookie {index} found damage: {damage}");
        }
        let mark = engine.replicas().mark();
        if mark > LedgerId(0) {
            self.hits.hit("a bookie booted with a mark");
        }
        note!(self, "bookie {index} is up, mark {mark}, {:?}", engine.durable());
        let bookie = &mut self.bookies[index];
        let run = bookie.run;
        bookie.images.clear();
        bookie.state = State::Up(Box::new(Up {
            engine,
            gate: Gate::default(),
            tasks: Tasks::default(),
            committing: false,
            requests: BTreeMap::new(),
            next_request: 0,
            imports: BTreeMap::new(),
        }));
        if damage.is_some() && !self.inspector.is_damaged(bookie.id) {
            return Violation::of(
                Invariant::DamageNoticed,
                format!("bookie {index} found damage where there was none: {damage:?}"),
            );
        }
        self.scheduler.after(50_000, Happening::Bookie(index, run, BookieDoes::Publish));
        self.check_promises(index)
    }

    /// After a boot: all that was promised is there, or known to be lost (B6).
    fn check_promises(&mut self, index: usize) -> Checked {
        let bookie = &self.bookies[index];
        let State::Up(up) = &bookie.state else { return Ok(()) };
        let replicas = up.engine.replicas();
        for (&id, promise) in &bookie.promises {
            let deleted = replicas.tombstones().contains(id.0);
            if id < replicas.mark() || deleted {
                continue;
            }
            let state = replicas.ledger(id);
            let kept = state.is_some_and(|state| {
                state.durable >= promise.durable
                    && state.fence >= promise.fence
                    && (state.creator.is_some() || !promise.created)
            });
            let promised = promise.created || promise.durable > EntryId(0) || promise.fence > Epoch(0);
            if promise.deleted || (promised && !kept) {
                return Violation::of(
                    Invariant::DamageNoticed,
                    format!("bookie {index} promised of ledger {id} {promise:?}, and has {state:?}"),
                );
            }
        }
        Ok(())
    }

    /// A bookie's process ends: the power is cut, or only the process dies.
    ///
    /// # Errors
    /// Never.
    pub fn crash_bookie(&mut self, index: usize, why: &str) -> Checked {
        // Either way it may have been in the middle of a commit.
        let power_cut = self.random.chance(700);
        let bookie = &mut self.bookies[index];
        if matches!(bookie.state, State::Refused) {
            return Ok(());
        }
        bookie.state = State::Down;
        bookie.paused = false;
        bookie.stash.clear();
        bookie.run = Run(bookie.run.0 + 1);
        bookie.disk =
            if power_cut { bookie.disk.power_cut(&mut self.random) } else { bookie.disk.next_run() };
        note!(self, "bookie {index} is down, power cut {power_cut}: {why}");
        self.hits.hit(if power_cut { "a bookie lost power" } else { "a bookie's process died" });
        for link in self.network.open_links(End::Bookie, |link| link.bookie == index) {
            self.network.close(link, End::Bookie);
            let delay = self.network.delay(&mut self.random);
            self.scheduler.after(delay, Happening::Broken(link, End::Broker));
        }
        let (typical, longest) = self.plan.outage_us;
        let outage = self.random.delay(typical, longest);
        self.scheduler.after(outage, Happening::BookieStarts(index));
        Ok(())
    }

    /// A bookie goes on after a pause.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn resume_bookie(&mut self, index: usize) -> Checked {
        let bookie = &mut self.bookies[index];
        if !std::mem::take(&mut bookie.paused) {
            return Ok(());
        }
        note!(self, "bookie {index} goes on");
        for happening in std::mem::take(&mut self.bookies[index].stash) {
            self.scheduler.after(0, happening);
        }
        Ok(())
    }

    /// The store answered a bookie.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn told_bookie(
        &mut self,
        index: usize,
        run: Run,
        ask: Ask,
        answer: Result<Answer, StoreError>,
    ) -> Checked {
        if self.bookies[index].run != run {
            return Ok(());
        }
        match &mut self.bookies[index].state {
            State::Booting { gate, .. } => {
                gate.answer(ask, answer);
                self.poll_boot(index)
            }
            State::Up(up) => {
                up.gate.answer(ask, answer);
                up.tasks.poll();
                let asked = up.gate.take_asked();
                self.forward_questions(Asker::Bookie(index, run), asked);
                Ok(())
            }
            State::Down | State::Refused => Ok(()),
        }
    }

    /// A message arrives at a bookie.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn to_bookie(&mut self, link: LinkId, message: ToBookie) -> Checked {
        let Some(index) = self.network.link(link).map(|link| link.bookie) else { return Ok(()) };
        if !self.network.is_open(link, End::Bookie) {
            return Ok(());
        }
        if self.bookies[index].paused {
            self.bookies[index].stash.push_back(Happening::ToBookie(link, message));
            return Ok(());
        }
        let Some(up) = self.bookies[index].up() else { return Ok(()) };
        let event = match message {
            ToBookie::Append(append) => Event::Append { connection: ConnectionId(u64::from(link.0)), append },
            ToBookie::Request(id, Request::Read(read)) => {
                let response = up.engine.reader().read(&read);
                self.respond(index, link, id, response);
                return Ok(());
            }
            ToBookie::Request(id, request) => {
                let own = RequestId(up.next_request);
                up.next_request += 1;
                up.requests.insert(own, (Some((link, id)), request.clone()));
                match request {
                    Request::Create { ledger, creator } => Event::Create { request: own, ledger, creator },
                    Request::Fence { ledger, epoch } => Event::Fence { request: own, ledger, epoch },
                    Request::State { ledger } => Event::State { request: own, ledger },
                    Request::Delete { first, last } => Event::Delete { request: own, first, last },
                    Request::Import { ledger, end } => {
                        let id = self.bookies[index].id;
                        let named = self.inspector.ledger(ledger);
                        if !named.is_some_and(|ledger| ledger.targets.contains(&id)) {
                            let why = "metadata does not name this bookie as a target".to_owned();
                            return self.output(index, Output::Respond(own, Response::Unknown(why)));
                        }
                        Event::Import { request: own, ledger, end }
                    }
                    Request::Read(_) => return Ok(()),
                }
            }
        };
        self.handle(index, event)
    }

    /// A ledger is to be deleted here, says whoever carries out intents (B8).
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn delete_on(&mut self, index: usize, ledger: LedgerId) -> Checked {
        let Some(up) = self.bookies[index].up() else { return Ok(()) };
        let own = RequestId(up.next_request);
        up.next_request += 1;
        up.requests.insert(own, (None, Request::Delete { first: ledger, last: ledger }));
        self.hits.hit("a ledger was deleted on a bookie");
        self.handle(index, Event::Delete { request: own, first: ledger, last: ledger })
    }

    fn handle(&mut self, index: usize, event: Event) -> Checked {
        let Some(up) = self.bookies[index].up() else { return Ok(()) };
        let mut out = Vec::new();
        let handled = up.engine.handle(event, &mut out);
        self.outputs(index, out)?;
        if handled.is_err() {
            return self.crash_bookie(index, "its disk failed");
        }
        self.schedule_commit(index);
        Ok(())
    }

    fn schedule_commit(&mut self, index: usize) {
        let delay = self.random.delay(100, 5_000);
        let bookie = &mut self.bookies[index];
        let run = bookie.run;
        let Some(up) = bookie.up() else { return };
        if !std::mem::replace(&mut up.committing, true) {
            self.scheduler.after(delay, Happening::Bookie(index, run, BookieDoes::Commit));
        }
    }

    /// Something that a bookie does by itself is due.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn bookie_does(&mut self, index: usize, run: Run, does: BookieDoes) -> Checked {
        let bookie = &mut self.bookies[index];
        if bookie.run != run {
            return Ok(());
        }
        if bookie.paused {
            bookie.stash.push_back(Happening::Bookie(index, run, does));
            return Ok(());
        }
        if let BookieDoes::BootAgain = does {
            bookie.state = State::Down;
            return self.boot_bookie(index);
        }
        let Some(up) = bookie.up() else { return Ok(()) };
        let mut out = Vec::new();
        let done = match does {
            BookieDoes::Commit => {
                up.committing = false;
                up.engine.commit(&mut out)
            }
            BookieDoes::Mark => up.engine.commit_mark(&mut out),
            BookieDoes::Publish => {
                self.publish(index);
                return Ok(());
            }
            BookieDoes::Copy { request, ledger, from, end } => {
                return self.copy_next(index, request, ledger, from, end);
            }
            BookieDoes::BootAgain => Ok(()),
        };
        // What a commit that failed had to tell is never told.
        if done.is_err() {
            return self.crash_bookie(index, "its disk failed in a commit");
        }
        self.outputs(index, out)?;
        if let Some(up) = self.bookies[index].up()
            && up.engine.owes_mark()
            && matches!(does, BookieDoes::Commit)
        {
            self.scheduler.after(10_000, Happening::Bookie(index, run, BookieDoes::Mark));
        }
        Ok(())
    }

    fn outputs(&mut self, index: usize, out: Vec<Output>) -> Checked {
        out.into_iter().try_for_each(|output| self.output(index, output))
    }

    fn output(&mut self, index: usize, output: Output) -> Checked {
        match output {
            Output::Deliver(connection, event) => {
                if let AppendEvent::Durable(lengths) = &event {
                    for &(ledger, durable) in lengths {
                        self.promise_entries(index, ledger, durable)?;
                    }
                    if self.random.chance(200) {
                        self.aftermath(index);
                    }
                }
                if let AppendEvent::Refused { reason: Refusal::Marked(_), .. } = &event {
                    self.hits.hit("a writer was refused below a mark");
                }
                let link = LinkId(u32::try_from(connection.0).unwrap_or(u32::MAX));
                self.send_to_broker(link, ToBroker::Append(event));
                Ok(())
            }
            Output::Respond(own, response) => {
                let Some(up) = self.bookies[index].up() else { return Ok(()) };
                let Some((asker, request)) = up.requests.remove(&own) else { return Ok(()) };
                self.promise_response(index, &request, &response)?;
                if matches!(response, Response::Created | Response::Fenced(_) | Response::Imported) {
                    self.aftermath(index);
                }
                if let Some((link, id)) = asker {
                    self.respond(index, link, id, response);
                }
                Ok(())
            }
            Output::Import { request, ledger, from, end } => {
                self.copy_next(index, request, ledger, from, end)
            }
            Output::ImportDurable { ledger, durable } => {
                let Some(up) = self.bookies[index].up() else { return Ok(()) };
                match up.imports.get(&ledger) {
                    Some(&(request, end)) if durable >= end => {
                        up.imports.remove(&ledger);
                        self.promise_entries(index, ledger, durable)?;
                        self.hits.hit("an import was completed");
                        self.output(index, Output::Respond(request, Response::Imported))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// B7: the next entry of an import comes from a peer that metadata names.
    fn copy_next(
        &mut self,
        index: usize,
        request: RequestId,
        ledger: LedgerId,
        from: EntryId,
        end: EntryId,
    ) -> Checked {
        if let Some(up) = self.bookies[index].up() {
            up.imports.insert(ledger, (request, end));
        }
        if from >= end {
            return self.output(index, Output::ImportDurable { ledger, durable: end });
        }
        let replicas =
            self.inspector.ledger(ledger).map(|ledger| ledger.replicas.clone()).unwrap_or_default();
        let read = Read { ledger, from, max_entries: 1, max_bytes: 1 << 20, prefix: false };
        let peers = self.bookies.iter().filter(|peer| replicas.contains(&peer.id) && !peer.paused);
        let found = peers.filter_map(|peer| peer.read(&read)).find_map(|response| match response {
            Response::Entries(records) => records.into_iter().next().filter(|record| record.verify().is_ok()),
            _ => None,
        });
        let run = self.bookies[index].run;
        match found {
            Some(record) => {
                self.handle(index, Event::Imported(record))?;
                let does = BookieDoes::Copy { request, ledger, from: from.next(), end };
                if from.next() < end {
                    self.scheduler.after(300, Happening::Bookie(index, run, does));
                }
                Ok(())
            }
            None => {
                if let Some(up) = self.bookies[index].up() {
                    up.imports.remove(&ledger);
                }
                let why = "no peer has the next entry".to_owned();
                self.output(index, Output::Respond(request, Response::Unknown(why)))
            }
        }
    }

    fn publish(&mut self, index: usize) {
        let keys = self.keys.clone();
        let bookie = &mut self.bookies[index];
        let (id, run) = (bookie.id, bookie.run);
        let Some(up) = bookie.up() else { return };
        let (generation, sequence) = up.engine.durable();
        let gate = up.gate.clone();
        up.tasks.start(publish(gate, keys, id, generation.0, sequence.0));
        up.tasks.poll();
        let asked = up.gate.take_asked();
        self.forward_questions(Asker::Bookie(index, run), asked);
        let (shortest, longest) = self.plan.publish_us;
        let pause = self.random.between(shortest..=longest);
        self.scheduler.after(pause, Happening::Bookie(index, run, BookieDoes::Publish));
        if self.plan.may_set_back() {
            let bookie = &mut self.bookies[index];
            if bookie.images.len() == IMAGES_MAX {
                bookie.images.pop_front();
            }
            bookie.images.push_back((sequence.0, bookie.disk.image()));
        }
    }

    /// What a bookie says it has durably it promises to keep.
    fn promise_entries(&mut self, index: usize, ledger: LedgerId, durable: EntryId) -> Checked {
        let bookie = &mut self.bookies[index];
        let id = bookie.id;
        let promised = bookie.promises.entry(ledger).or_default().durable;
        if durable <= promised {
            return Ok(());
        }
        let mut from = promised;
        while from < durable {
            let max_entries = u32::try_from(durable.0 - from.0).unwrap_or(u32::MAX);
            let read = Read { ledger, from, max_entries, max_bytes: 1 << 20, prefix: false };
            let records: Vec<Record> = match self.bookies[index].read(&read) {
                Some(Response::Entries(records)) => records,
                _ if self.inspector.is_damaged(id) => break,
                Some(Response::Deleted) => break,
                other => {
                    return Violation::of(
                        Invariant::AcknowledgedIsReadable,
                        format!(
                            "bookie {index} has ledger {ledger} to {durable}, and says of {from} {other:?}"
                        ),
                    );
                }
            };
            for record in records {
                let entry = batches::inspect(&record)?;
                self.inspector.durable(id, ledger, from, entry)?;
                from = from.next();
            }
        }
        if let Some(promise) = self.bookies[index].promises.get_mut(&ledger) {
            promise.durable = durable;
        }
        Ok(())
    }

    /// What a bookie says of a ledger it promises to keep.
    fn promise_response(&mut self, index: usize, request: &Request, response: &Response) -> Checked {
        let ledger = match request {
            Request::Create { ledger, .. } | Request::Fence { ledger, .. } | Request::State { ledger } => {
                *ledger
            }
            Request::Delete { first, .. } => *first,
            Request::Read(_) | Request::Import { .. } => return Ok(()),
        };
        let promise = self.bookies[index].promises.entry(ledger).or_default();
        match response {
            Response::Created => promise.created = true,
            Response::Deleted => promise.deleted = true,
            Response::Fenced(state) | Response::State(state) => {
                note!(self, "bookie {index} says of ledger {ledger}: {}", brief(state));
                self.hits.hit(if state.certain { "a certain answer" } else { "an uncertain answer" });
                return self.promise_state(index, ledger, *state);
            }
            _ => {}
        }
        Ok(())
    }

    fn promise_state(&mut self, index: usize, ledger: LedgerId, state: ReplicaState) -> Checked {
        let promise = self.bookies[index].promises.entry(ledger).or_default();
        let forgot = state.durable < promise.durable || state.fence < promise.fence;
        let before = *promise;
        promise.fence = promise.fence.max(state.fence);
        if state.certain && forgot {
            return Violation::of(
                Invariant::DamageNoticed,
                format!("bookie {index} is certain of ledger {ledger} as {state:?}, and promised {before:?}"),
            );
        }
        self.promise_entries(index, ledger, state.durable)
    }

    fn respond(&mut self, index: usize, link: LinkId, id: RequestId, response: Response) {
        let _ = index;
        self.send_to_broker(link, ToBroker::Response(id, response));
    }

    fn send_to_broker(&mut self, link: LinkId, message: ToBroker) {
        if !self.network.is_open(link, End::Bookie) {
            return;
        }
        let now: Micros = self.scheduler.now();
        let arrival = self.network.arrival(link, End::Broker, now, &mut self.random);
        self.scheduler.at(arrival, Happening::ToBroker(link, message));
    }

    /// A bookie learns that a link broke.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn broken_at_bookie(&mut self, link: LinkId) -> Checked {
        let Some(index) = self.network.link(link).map(|link| link.bookie) else { return Ok(()) };
        if !self.network.is_open(link, End::Bookie) {
            return Ok(());
        }
        self.network.close(link, End::Bookie);
        self.handle(index, Event::Disconnected(ConnectionId(u64::from(link.0))))
    }
}

/// Tells the registry how far the log is durable.
async fn publish(store: Gate, keys: Keys, bookie: BookieId, generation: u64, sequence: u64) {
    use quire_metadata::bookie::{BookieRegistration, LogPosition};
    use quire_metadata::store::Txn;
    use quire_metadata::typed::Typed;
    let key = keys.bookie_registration(bookie);
    let Ok(found) = store.get(&key).await else { return };
    let Ok(Some(found)) = Versioned::<BookieRegistration>::read_option(found.as_ref()) else { return };
    let durable = LogPosition { generation, sequence }.max(found.value.durable);
    let next = BookieRegistration { durable, ..found.value.clone() };
    let txn = Txn::default().require(found.unchanged(key.clone())).put(key, next.encode());
    let _ = store.transact(txn).await;
}

trait IntentFile {
    /// The intent, and whether it is known to be registered.
    fn get_intent(&self) -> std::io::Result<Option<(StartIntent, bool)>>;
    fn put_intent(&self, intent: StartIntent, registered: bool) -> std::io::Result<()>;
}

impl IntentFile for SimDisk {
    fn get_intent(&self) -> std::io::Result<Option<(StartIntent, bool)>> {
        use quire_bookie::disk::Disk;
        let Some(content) = self.get(INTENT)? else { return Ok(None) };
        let text = String::from_utf8(content).unwrap_or_default();
        let mut words = text.split(' ');
        let generation = words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
        let nonce = Nonce(words.next().and_then(|word| word.parse().ok()).unwrap_or_default());
        Ok(Some((StartIntent { generation, nonce }, words.next() == Some("registered"))))
    }

    fn put_intent(&self, intent: StartIntent, registered: bool) -> std::io::Result<()> {
        use quire_bookie::disk::Disk;
        let state = if registered { "registered" } else { "intended" };
        self.put(INTENT, format!("{} {} {state}", intent.generation, intent.nonce.0).as_bytes())
    }
}

/// Shown in the trace.
#[must_use]
pub fn brief(state: &ReplicaState) -> String {
    let certain = if state.certain { "certain" } else { "uncertain" };
    format!("fence {} durable {} committed {} {certain}", state.fence, state.durable, state.committed)
}
