//! The store in one local file. Transactions are answered once they are durable
//! there; those that arrive while the disk is busy share the next sync.
//!
//! One thread owns the file and makes all changes; readers see a change only
//! when it is durable. The whole state is held in memory. Leases end with the
//! process: keys that a lease held are deleted when the file is opened.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use crate::embedded::shared::Shared;
use crate::embedded::state::{Change, Retention, Stage, State};
use crate::store::{Event, KeyValue, LeaseId, Page, Revision, Store, StoreError, Txn, TxnOutcome};

/// The version of the file's tables.
const FORMAT: u64 = 1;

/// Key → created at, last written at, lease (0: none), value.
const KEYS: TableDefinition<'_, &str, (u64, u64, u64, &[u8])> = TableDefinition::new("keys");

/// `format` and `revision`.
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// Pages of the file that are kept in memory: little, since the state is.
const CACHE_BYTES: usize = 4 << 20;

/// Requests that wait for the thread, at most; beyond, callers wait.
const QUEUE: usize = 1024;

/// Requests that share a sync, at most.
const BATCH: usize = 256;

/// Why a store file can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process, or another part of this one, has it open.
    #[error("the metadata file {0} is in use by another process: stop it, or use another data directory")]
    InUse(PathBuf),
    /// It was written by another version.
    #[error(
        "the metadata file {path} has format {found}, this program reads {FORMAT}: run the version of quire that wrote it"
    )]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u64,
    },
    /// It cannot be read or written, or its contents are damaged.
    #[error("the metadata file {path} cannot be opened: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: Box<redb::Error>,
    },
    /// What it holds is not what was written to it.
    #[error("the metadata file {path} is damaged: {problem}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The file's directory or the thread.
    #[error("the metadata file {path} cannot be opened: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl OpenError {
    /// What the system said, when it was an operation on the disk that failed
    /// and not what the file holds.
    #[must_use]
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Io { source, .. } => Some(source.kind()),
            Self::File { source, .. } => match &**source {
                // This is how it says that the file is none of its own.
                redb::Error::Io(source)
                    if matches!(source.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof) =>
                {
                    None
                }
                redb::Error::Io(source) => Some(source.kind()),
                _ => None,
            },
            Self::InUse(_) | Self::Format { .. } | Self::Damaged { .. } => None,
        }
    }
}

/// The store in one local file. Dropping it waits until what was begun is
/// durable, and closes the file.
#[derive(Debug)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    clock: Instant,
    room: Arc<Semaphore>,
    requests: Option<SyncSender<Request>>,
    failure: watch::Receiver<Option<StoreError>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EmbeddedStore {
    /// Opens the file, or makes it. Blocks.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let at = |source: redb::Error| match source {
            redb::Error::DatabaseAlreadyOpen => OpenError::InUse(path.to_owned()),
            source => OpenError::File { path: path.to_owned(), source: Box::new(source) },
        };
        if !path.exists() {
            create(path, &at)?;
        }
        let database = unpanicked(path, || builder().open(path))?.map_err(|error| at(error.into()))?;
        Self::start(database, path)
    }

    /// Opens a store on another kind of storage than a file, such as a
    /// simulated disk. Blocks.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_backend(backend: impl StorageBackend) -> Result<Self, OpenError> {
        let path = Path::new("(storage backend)");
        let database = builder()
            .create_with_backend(backend)
            .map_err(|error| OpenError::File { path: path.to_owned(), source: Box::new(error.into()) })?;
        Self::start(database, path)
    }

    fn start(mut database: Database, path: &Path) -> Result<Self, OpenError> {
        let file = |source: redb::Error| OpenError::File { path: path.to_owned(), source: Box::new(source) };
        let whole = unpanicked(path, || database.check_integrity())?.map_err(|error| file(error.into()))?;
        if !whole {
            let problem = "a part of it does not match its checksum".to_owned();
            return Err(OpenError::Damaged { path: path.to_owned(), problem });
        }
        let loaded = unpanicked(path, || load(&database))?.map_err(file)?;
        if let Some(found) = loaded.format.filter(|format| *format != FORMAT) {
            return Err(OpenError::Format { path: path.to_owned(), found });
        }
        let loaded_anew = loaded.format.is_none();
        let (state, changes) = loaded.without_leases();
        if loaded_anew || !changes.is_empty() {
            commit(&database, &changes, state.revision()).map_err(file)?;
        }
        let shared = Shared::new(state);
        let clock = Instant::now();
        let (requests, inbox) = sync_channel(QUEUE);
        let (failed, failure) = watch::channel(None);
        let writer = Writer { database, shared: Arc::clone(&shared), clock, inbox, failed };
        let thread = std::thread::Builder::new()
            .name("metadata".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        let room = Arc::new(Semaphore::new(QUEUE));
        let thread = Mutex::new(Some(thread));
        Ok(Self { shared, clock, room, requests: Some(requests), failure, thread })
    }

    /// Why the file can be written no longer, from when that is so: the process
    /// must exit with an error, and the next start finds out what is there.
    #[must_use]
    pub fn failure(&self) -> watch::Receiver<Option<StoreError>> {
        self.failure.clone()
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Ask) -> Result<T, StoreError> {
        let closed = || StoreError::Unavailable("the metadata store is closed".to_owned());
        let permit = Arc::clone(&self.room).acquire_owned().await.map_err(|_| closed())?;
        let (reply, answer) = oneshot::channel();
        let request = Request { ask: request(reply), _permit: permit };
        let requests = self.requests.as_ref().ok_or_else(closed)?;
        // There is room: the permit says so.
        requests.try_send(request).map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the metadata thread ended".to_owned())))
    }
}

impl Drop for EmbeddedStore {
    fn drop(&mut self) {
        drop(self.requests.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the metadata thread panicked");
        }
        self.shared.stop("the metadata store is closed");
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.shared.get(key)
    }

    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.shared.range(prefix, from, limit, revision)
    }

    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        self.ask(|reply| Ask::Transact(txn, reply)).await
    }

    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError> {
        self.shared.watch(prefix, from)
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        // By the thread, which thus learns when the next lease runs out.
        self.ask(|reply| Ask::Grant(ttl, reply)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.shared.touch(|state| state.keep_alive(lease, self.clock.elapsed()))
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ask(|reply| Ask::Revoke(lease, reply)).await
    }
}

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

#[derive(Debug)]
enum Ask {
    Transact(Txn, Reply<TxnOutcome>),
    Grant(Duration, Reply<LeaseId>),
    Revoke(LeaseId, Reply<()>),
}

#[derive(Debug)]
struct Request {
    ask: Ask,
    _permit: OwnedSemaphorePermit,
}

/// An answer that waits for its batch to be durable.
type Answer = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// Whoever asked may have stopped waiting: nothing is lost then.
fn answer<T: Send + 'static>(reply: Reply<T>, outcome: Result<T, StoreError>) -> Answer {
    Box::new(move |committed| drop(reply.send(committed.and(outcome))))
}

/// The thread that owns the file.
struct Writer {
    database: Database,
    shared: Arc<Shared>,
    clock: Instant,
    inbox: Receiver<Request>,
    failed: watch::Sender<Option<StoreError>>,
}

impl Writer {
    fn run(self) {
        while let Some(requests) = self.receive() {
            if let Err(error) = self.serve(requests) {
                return self.refuse(&error);
            }
        }
    }

    /// The next requests; none of them when a lease runs out first. `None` when
    /// the store is closed.
    fn receive(&self) -> Option<Vec<Request>> {
        let expiry = self.shared.read(|state| Ok(state.next_expiry())).ok().flatten();
        let first = match expiry {
            None => self.inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(expiry) => self.inbox.recv_timeout(expiry.saturating_sub(self.clock.elapsed())),
        };
        let first = match first {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => return Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => return None,
        };
        let more = std::iter::from_fn(|| self.inbox.try_recv().ok()).take(BATCH - 1);
        Some(std::iter::once(first).chain(more).collect())
    }

    /// Prepares, commits, applies and answers, in this order.
    fn serve(&self, requests: Vec<Request>) -> Result<(), StoreError> {
        let mut batch = Batch::default();
        let now = self.clock.elapsed();
        let staged = self.shared.read(|state| {
            batch.expire(state, now);
            Ok(())
        });
        staged?;
        for Request { ask, _permit } in requests {
            batch.add(&self.shared, ask, now)?;
        }
        let changes = batch.stage.changes();
        if let Some(last) = changes.last()
            && let Err(error) = commit(&self.database, changes, last.revision())
        {
            tracing::error!(%error, "the metadata file could not be written");
            let unknown = StoreError::Unknown(format!("the metadata file could not be written: {error}"));
            // Readers first: whoever is told must not read the old state.
            self.shared.stop(REFUSED);
            batch.answers.into_iter().for_each(|answer| answer(Err(unknown.clone())));
            return Err(unknown);
        }
        let Batch { stage, ended, answers } = batch;
        if !stage.changes().is_empty() || !ended.is_empty() {
            self.shared.write(|state| {
                state.apply_all(stage);
                ended.into_iter().for_each(|lease| state.forget_lease(lease));
                Ok(())
            })?;
        }
        answers.into_iter().for_each(|answer| answer(Ok(())));
        Ok(())
    }

    /// Nothing is known about the file any more: all is refused until it is
    /// opened anew.
    fn refuse(&self, error: &StoreError) {
        tracing::error!(%error, "the metadata store refuses everything until it is opened anew");
        self.shared.stop(REFUSED);
        self.failed.send_replace(Some(error.clone()));
        while let Ok(Request { ask, _permit }) = self.inbox.recv() {
            let unavailable = StoreError::Unavailable(REFUSED.to_owned());
            match ask {
                Ask::Transact(_, reply) => drop(reply.send(Err(unavailable))),
                Ask::Grant(_, reply) => drop(reply.send(Err(unavailable))),
                Ask::Revoke(_, reply) => drop(reply.send(Err(unavailable))),
            }
        }
    }
}

const REFUSED: &str = "a write to the metadata file failed; restart to open it anew";

/// What is prepared for one sync.
#[derive(Default)]
struct Batch {
    stage: Stage,
    ended: Vec<LeaseId>,
    answers: Vec<Answer>,
}

impl Batch {
    fn expire(&mut self, state: &State, now: Duration) {
        for lease in state.expired(now) {
            if self.stage.end_lease(state, lease).is_ok() {
                self.ended.push(lease);
            }
        }
    }

    fn add(&mut self, shared: &Shared, ask: Ask, now: Duration) -> Result<(), StoreError> {
        let answer = match ask {
            Ask::Transact(txn, reply) => {
                answer(reply, shared.read(|state| Ok(self.stage.transact(state, &txn)))?)
            }
            Ask::Grant(ttl, reply) => answer(reply, shared.touch(|state| Ok(state.grant(ttl, now)))),
            Ask::Revoke(lease, reply) => {
                let ended = shared.read(|state| Ok(self.stage.end_lease(state, lease)))?;
                self.ended.extend(ended.is_ok().then_some(lease));
                answer(reply, ended)
            }
        };
        self.answers.push(answer);
        Ok(())
    }
}

/// Makes the file under another name and gives it its own when it is complete:
/// a power cut leaves a whole file or none. When another process makes it at
/// the same time, the first one's stays.
fn create(path: &Path, at: &impl Fn(redb::Error) -> OpenError) -> Result<(), OpenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", uuid::Uuid::new_v4()));
    let new = PathBuf::from(name);
    let database = builder().create(&new).map_err(|error| at(error.into()))?;
    commit(&database, &[], Revision(1)).map_err(at)?;
    drop(database);
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    match std::fs::hard_link(&new, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
        Ok(()) | Err(_) => std::fs::remove_file(&new).map_err(io)?,
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new("."))).and_then(|directory| directory.sync_all()).map_err(io)
}

/// Where the file is damaged, redb may panic rather than return an error.
fn unpanicked<T>(path: &Path, read: impl FnOnce() -> T) -> Result<T, OpenError> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|_| {
        let problem = "it cannot be read".to_owned();
        OpenError::Damaged { path: path.to_owned(), problem }
    })
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

struct Loaded {
    format: Option<u64>,
    revision: Revision,
    keys: BTreeMap<String, KeyValue>,
}

impl Loaded {
    /// Leases have ended with the process that kept them.
    fn without_leases(self) -> (State, Vec<Change>) {
        let leased = |found: &&KeyValue| found.lease.is_some();
        let deletes = self.keys.values().filter(leased).map(|found| found.key.clone()).collect();
        let mut state = State::restore(self.revision, self.keys, Retention::default());
        let stage = Stage::deleting(&state, deletes);
        let changes = stage.changes().to_vec();
        state.apply_all(stage);
        (state, changes)
    }
}

fn load(database: &Database) -> Result<Loaded, redb::Error> {
    let txn = database.begin_read()?;
    let meta = match txn.open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_)) => {
            return Ok(Loaded { format: None, revision: Revision(1), keys: BTreeMap::new() });
        }
        Err(error) => return Err(error.into()),
    };
    let number = |name| Ok::<_, redb::Error>(meta.get(name)?.map(|number| number.value()));
    let (format, revision) = (number("format")?, number("revision")?);
    let mut keys = BTreeMap::new();
    for row in txn.open_table(KEYS)?.iter()? {
        let (key, value) = row?;
        let (created, modified, lease, bytes) = value.value();
        let found = KeyValue {
            key: key.value().to_owned(),
            value: Bytes::copy_from_slice(bytes),
            create_revision: Revision(created),
            mod_revision: Revision(modified),
            lease: (lease != 0).then_some(LeaseId(lease)),
        };
        keys.insert(found.key.clone(), found);
    }
    Ok(Loaded { format, revision: Revision(revision.unwrap_or(1)), keys })
}

/// Returns once all changes are durable.
fn commit(database: &Database, changes: &[Change], revision: Revision) -> Result<(), redb::Error> {
    let mut txn = database.begin_write()?;
    // One sync more, for which a damaged file is an error and never taken for a
    // commit that a power cut left half done, which the one before it replaces.
    txn.set_two_phase_commit(true);
    {
        let mut meta = txn.open_table(META)?;
        meta.insert("format", FORMAT)?;
        meta.insert("revision", revision.0)?;
        let mut keys = txn.open_table(KEYS)?;
        for (key, after) in changes.iter().flat_map(Change::keys) {
            match after {
                Some(found) => {
                    let lease = found.lease.map_or(0, |lease| lease.0);
                    let row = (found.create_revision.0, found.mod_revision.0, lease, &*found.value);
                    keys.insert(key, row)?;
                }
                None => drop(keys.remove(key)?),
            }
        }
    }
    txn.commit()?;
    Ok(())
}
