//! The bookie as a service.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use quire_ledger::link::{AppendSink, BookieLink, Connector, LinkError};
use quire_ledger::replica::{Admission, ConnectionId, Replicas, RequestId};
use quire_metadata::bookie::{BookieRegistration, LogPosition};
use quire_metadata::cluster::Cluster;
use quire_metadata::id_block::{IdAllocator, IdKind};
use quire_metadata::key::{Key, Keys};
use quire_metadata::operation::Outcome;
use quire_metadata::operations::bookie_start::start_bookie;
use quire_metadata::store::{Store, StoreError};
use quire_metadata::typed::Versioned;
use quire_metadata::view::{complete_on, list};
use quire_proto::id::{BookieId, EntryId, LedgerId};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::cache::BlockCache;
use crate::catalog::Catalog;
use crate::directory::Directory;
use crate::disk::Disk;
use crate::engine::Engine;
use crate::error::Error;
use crate::importer::{IMPORTS_MAX, Importer};
use crate::inbox::{Inbox, Message};
use crate::link::{Door, InProcessLink};
use crate::log::Parts;
use crate::log::boot::{Boot, Opened};
use crate::log::format::Sequence;
use crate::log::pool::FilePool;
use crate::options::Options;
use crate::reader::Reader;
use crate::reclaim::Draining;
use crate::registrar::Registrar;
use crate::shared::Shared;
use crate::space::{Space, Water};
use crate::tail::Tail;
use crate::thread::LogThread;
use crate::upkeep::{Stop, Upkeep};

/// Between two tries to reach the metadata store at the start.
const STORE_RETRY: Duration = Duration::from_millis(500);

/// A running bookie. Clones are the same one; it stops when the last is gone.
#[derive(Clone)]
pub struct Bookie {
    inner: Arc<Inner>,
}

struct Inner {
    id: BookieId,
    inbox: Arc<Inbox>,
    /// Makes a link for a connection; only this knows what the disk is.
    link: Box<dyn Fn(ConnectionId) -> Arc<dyn BookieLink> + Send + Sync>,
    shared: Arc<Shared>,
    importer: Arc<Importer>,
    next_connection: AtomicU64,
    stop: CancellationToken,
    upkeep_stop: Arc<Stop>,
    tasks: TaskTracker,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl fmt::Debug for Bookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bookie").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// How a bookie is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes everything.
    Writable,
    /// Its disk is full: it serves reads, fences and deletions.
    ReadOnly,
    /// Its log failed: it must be started anew.
    Failed(String),
}

impl Bookie {
    /// Opens the data directory, takes part in the cluster of this name and
    /// serves. Waits while the metadata store is away, and says so. Not
    /// cancel-safe: dropped half-way it may leave a raised generation, which
    /// the next start understands.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start(options: Options, store: Arc<dyn Store>, cluster: &str) -> Result<Self, Error> {
        options.check()?;
        let path = options.data_dir.clone();
        let directory = blocking(move || Directory::open(&path)).await?;
        Self::start_in(directory, options, store, cluster).await
    }

    /// As [`Bookie::start`], in a directory that is open already, on whatever
    /// disk; [`Options::data_dir`] is not looked at.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start_in<D: Disk>(
        directory: Directory<D>,
        options: Options,
        store: Arc<dyn Store>,
        cluster: &str,
    ) -> Result<Self, Error> {
        options.check()?;
        let keys = Keys::new(cluster).map_err(|error| Error::Option(error.to_string()))?;
        let directory = Arc::new(directory);
        let (bookie, registration) = register(&directory, &options, &store, &keys).await?;
        let started = Starting { options, store, keys, directory, bookie, registration };
        started.serve().await
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> BookieId {
        self.inner.id
    }

    /// A link within the process.
    ///
    /// # Errors
    /// When the bookie is stopped.
    pub fn connect(&self, sink: Arc<dyn AppendSink>) -> Result<Arc<dyn BookieLink>, LinkError> {
        let connection = ConnectionId(self.inner.next_connection.fetch_add(1, Ordering::Relaxed));
        let connected = self.inner.inbox.push(Message::Connected(connection, sink));
        connected.map_err(|rejected| LinkError { bookie: self.id(), cause: rejected.to_string() })?;
        Ok((self.inner.link)(connection))
    }

    /// How peers are reached, for imports (B7). Set once; without it imports
    /// are answered `Unknown`.
    pub fn set_peers(&self, peers: Arc<dyn Connector>) {
        // A second one changes nothing.
        _ = self.inner.importer.peers.set(peers);
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.inner.shared.failure() {
            Some(error) => Health::Failed(error.to_string()),
            None if self.inner.shared.admission() < Admission::All => Health::ReadOnly,
            None => Health::Writable,
        }
    }

    /// Whether the start or a scrub found damage: repair from peers.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.inner.shared.is_damaged()
    }

    /// How far its log is durable: what it publishes every now and then (L4).
    #[must_use]
    pub fn durable(&self) -> LogPosition {
        self.inner.shared.durable()
    }

    /// Waits until the bookie can serve no more and returns why: the process
    /// must exit with an error (L5). Pending as long as all is well.
    /// Cancel-safe.
    pub async fn failed(&self) -> Arc<Error> {
        self.inner.shared.failed().await
    }

    /// Finishes what was accepted, records the durable mark and stops. Links
    /// break. Not cancel-safe: what was accepted is finished all the same.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.stop_all();
        let threads = std::mem::take(&mut *inner.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let joined = tokio::task::spawn_blocking(move || {
            threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count()
        });
        match joined.await {
            Ok(0) => {}
            Ok(panicked) => tracing::error!(panicked, "threads of the bookie panicked"),
            Err(error) => tracing::error!(%error, "the bookie's threads could not be waited for"),
        }
        inner.tasks.close();
        inner.tasks.wait().await;
    }
}

impl Inner {
    fn stop_all(&self) {
        self.stop.cancel();
        self.upkeep_stop.stop();
        self.inbox.close("the bookie is stopped");
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_all();
    }
}

/// B1: makes sure of who this is, and raises the generation.
async fn register<D: Disk>(
    directory: &Arc<Directory<D>>,
    options: &Options,
    store: &Arc<dyn Store>,
    keys: &Keys,
) -> Result<(BookieId, Versioned<BookieRegistration>), Error> {
    let key = keys.cluster();
    let found = patiently(|| store.get(&key)).await?;
    let cluster = Versioned::<Cluster>::read_option(found.as_ref())?;
    let cluster = cluster.ok_or_else(|| Error::NoCluster(keys.root().to_owned()))?.value;
    let at = Arc::clone(directory);
    let (identity, intent) = blocking(move || {
        let (identity, intent) = at.identity(cluster.id)?.next_start();
        at.keep(&identity)?;
        Ok((identity, intent))
    })
    .await?;
    let bookie = identity.bookie;
    let started = patiently(|| start_bookie(&**store, keys, bookie, intent, &options.rack)).await?;
    match started {
        Outcome::Done(registration) => {
            let at = Arc::clone(directory);
            blocking(move || at.keep(&identity.registered(intent))).await?;
            Ok((bookie, registration))
        }
        Outcome::Lost(why) => Err(Error::Refused { bookie, dir: directory.path.clone(), why }),
    }
}

/// A bookie between its registration and its first answer.
struct Starting<D: Disk> {
    options: Options,
    store: Arc<dyn Store>,
    keys: Keys,
    directory: Arc<Directory<D>>,
    bookie: BookieId,
    registration: Versioned<BookieRegistration>,
}

/// The opened log and what goes with it.
struct Log<D: Disk> {
    opened: Opened<D>,
    catalog: Arc<Catalog<D::File>>,
    tail: Arc<Tail>,
    pool: Arc<FilePool>,
    /// It lost what it had (B6).
    damaged: bool,
}

impl<D: Disk> Starting<D> {
    async fn serve(self) -> Result<Bookie, Error> {
        let log = self.open_log().await?;
        let Log { opened, catalog, tail, pool, damaged } = log;
        let (generation, sequence) = opened.log.durable();
        let shared = Arc::new(Shared::new(LogPosition { generation: generation.0, sequence: sequence.0 }));
        if damaged {
            shared.set_damaged();
        } else {
            self.check_metadata(&opened.replicas).await?;
        }
        let Self { options, store, keys, directory, bookie, registration } = self;
        let cache = BlockCache::new(options.cache_bytes);
        let reader = Arc::new(Reader::new(Arc::clone(&catalog), tail, cache));
        let inbox = Arc::new(Inbox::new(options.inbox_bytes));
        let disk = directory.disk.clone();
        let (imports, jobs) = mpsc::channel(IMPORTS_MAX);
        let importer = Arc::new(Importer {
            bookie,
            store: Arc::clone(&store),
            keys: keys.clone(),
            peers: OnceLock::new(),
            inbox: Arc::clone(&inbox),
        });
        let mut registrar = Registrar {
            bookie,
            address: options.address.clone(),
            store,
            keys,
            registration,
            every: options.publish_every,
            disk: disk.clone(),
            shared: Arc::clone(&shared),
            inbox: Arc::clone(&inbox),
            published: None,
        };
        let session = registrar.announce().await?;

        let space = Arc::new(Space {
            disk: disk.clone(),
            pool: Arc::clone(&pool),
            water: Water {
                high: options.high_water,
                low: options.low_water,
                headroom_bytes: options.headroom_bytes,
                reserve_bytes: options.reserve_bytes,
            },
            shared: Arc::clone(&shared),
        });
        let log_thread = LogThread {
            bookie,
            engine: Engine::new(opened, Arc::clone(&reader)),
            inbox: Arc::clone(&inbox),
            shared: Arc::clone(&shared),
            space: Arc::clone(&space),
            looked_in: crate::log::format::Generation(0),
            imports,
            sinks: HashMap::new(),
            asked: HashMap::new(),
            importing: HashMap::new(),
            copied: Vec::new(),
            next_request: RequestId(1),
            out: Vec::new(),
        };
        let upkeep_stop = Arc::new(Stop::default());
        let upkeep = Upkeep {
            disk,
            pool,
            catalog,
            reader: Arc::clone(&reader),
            inbox: Arc::clone(&inbox),
            shared: Arc::clone(&shared),
            stop: Arc::clone(&upkeep_stop),
            space,
            scrub_bytes_per_second: options.scrub_bytes_per_second,
            draining: Draining::default(),
            stuck: BTreeSet::new(),
            damaged: BTreeSet::new(),
            scrubbed: crate::log::format::Generation(0),
            scrub_at: Instant::now(),
        };
        let threads = vec![
            spawn("quire-bookie-log", Arc::clone(&directory), move || log_thread.run())?,
            spawn("quire-bookie-upkeep", directory, move || upkeep.run())?,
        ];
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(registrar.run(session, stop.clone()));
        tasks.spawn(Arc::clone(&importer).run(jobs));
        let reads = Arc::new(Semaphore::new(options.reads_max));
        tracing::info!(%bookie, generation = generation.0, "the bookie serves");
        let door = Door { bookie, inbox: Arc::clone(&inbox), reader, reads };
        let through = Arc::clone(&importer);
        let link = move |connection| {
            let link = InProcessLink::new(door.clone(), Arc::clone(&through), connection);
            Arc::new(link) as Arc<dyn BookieLink>
        };
        Ok(Bookie {
            inner: Arc::new(Inner {
                id: bookie,
                inbox,
                link: Box::new(link),
                shared,
                importer,
                next_connection: AtomicU64::new(1),
                stop,
                upkeep_stop,
                tasks,
                threads: Mutex::new(threads),
            }),
        })
    }

    /// Reads the log, and finds out whether it lost something (B6).
    async fn open_log(&self) -> Result<Log<D>, Error> {
        let (disk, bookie) = (self.directory.disk.clone(), self.bookie);
        let published = Sequence(self.registration.value.durable.sequence);
        let scanned = disk.clone();
        let complete = patiently(|| complete_on(&*self.store, &self.keys, bookie)).await?;
        let (boot, damage) = blocking(move || {
            let boot = Boot::scan(&scanned, bookie)?;
            let damage = boot.damage(published, &complete);
            Ok((boot, damage))
        })
        .await?;
        let mut lost = None;
        if let Some(damage) = damage {
            let next = self.allocator().await?;
            metrics::counter!("quire_bookie_lost_tails_total").increment(1);
            tracing::error!(%damage, below = next.0, "the log lost what it had: ledgers below are uncertain from now on");
            lost = Some(next);
        }
        let (file_bytes, tail_bytes) = (self.options.file_bytes, self.options.tail_bytes);
        blocking(move || {
            let failed =
                |source| Error::Disk { operation: "listing", file: "the log files".to_owned(), source };
            let pool = Arc::new(FilePool::open(&disk, file_bytes).map_err(failed)?);
            let (catalog, tail) = (Arc::new(Catalog::default()), Arc::new(Tail::new(tail_bytes)));
            let parts = Parts {
                disk,
                bookie,
                pool: Arc::clone(&pool),
                catalog: Arc::clone(&catalog),
                tail: Arc::clone(&tail),
                random: Box::new(rand::random),
            };
            let opened = boot.open(parts, published, lost)?;
            Ok(Log { opened, catalog, tail, pool, damaged: lost.is_some() })
        })
        .await
    }

    /// B9: entries are sent only to a ledger that was published (W5), and a
    /// deletion leaves an intent until this bookie has confirmed it (B8). Below
    /// the mark (B6) a tombstone may be among what was lost.
    async fn check_metadata(&self, replicas: &Replicas) -> Result<(), Error> {
        // A ledger that is deleted in between is in the intents then.
        let published = self.ledgers_below(&self.keys.ledgers()).await?;
        let deleted = self.ledgers_below(&self.keys.deletes()).await?;
        let unknown = replicas.ledgers().find(|(id, ledger)| {
            let written = ledger.durable > EntryId(0) && ledger.import.is_none();
            written && *id >= replicas.mark() && !published.contains(id) && !deleted.contains(id)
        });
        match unknown {
            None => Ok(()),
            Some((ledger, _)) => {
                let (bookie, dir) = (self.bookie, self.directory.path.clone());
                Err(Error::MetadataBehind { bookie, dir, ledger })
            }
        }
    }

    /// The ledgers that keys under a prefix name.
    async fn ledgers_below(&self, prefix: &str) -> Result<BTreeSet<LedgerId>, Error> {
        let (found, _) = patiently(|| list(&*self.store, prefix)).await?;
        let ledgers = found.iter().filter_map(|found| match self.keys.parse(&found.key) {
            Some(Key::Ledger(ledger) | Key::Delete(ledger)) => Some(ledger),
            _ => None,
        });
        Ok(ledgers.collect())
    }

    /// X: no ledger at or above it was ever handed out (B6).
    async fn allocator(&self) -> Result<LedgerId, Error> {
        let key = self.keys.id_next(IdKind::Ledgers);
        let found = patiently(|| self.store.get(&key)).await?;
        let next = Versioned::<IdAllocator>::read_option(found.as_ref())?;
        Ok(LedgerId(next.map_or(IdKind::FIRST, |allocator| allocator.value.next)))
    }
}

/// Runs what blocks on the disk.
async fn blocking<T: Send + 'static>(
    run: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    tokio::task::spawn_blocking(run).await.map_err(|_| Error::Stopped)?
}

/// Waits for a store that is away, and says so.
async fn patiently<T, F>(mut run: impl FnMut() -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match run().await {
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "the bookie waits for the metadata store");
                tokio::time::sleep(STORE_RETRY).await;
            }
            done => return Ok(done?),
        }
    }
}

/// Starts a thread. The lock on the directory is held as long as it runs.
fn spawn<D: Disk>(
    name: &str,
    directory: Arc<Directory<D>>,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let run = move || {
        run();
        drop(directory);
    };
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|source| Error::Disk { operation: "starting the thread", file: name.to_owned(), source })
}

/// Connects to the bookies of this process.
#[derive(Clone, Debug, Default)]
pub struct InProcessConnector {
    bookies: Vec<Bookie>,
}

impl InProcessConnector {
    /// Connects to these.
    #[must_use]
    pub const fn new(bookies: Vec<Bookie>) -> Self {
        Self { bookies }
    }
}

impl Connector for InProcessConnector {
    fn connect(
        &self,
        bookie: BookieId,
        sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'static, Result<Arc<dyn BookieLink>, LinkError>> {
        let link = match self.bookies.iter().find(|candidate| candidate.id() == bookie) {
            Some(bookie) => bookie.connect(sink),
            None => Err(LinkError { bookie, cause: "it does not run in this process".to_owned() }),
        };
        Box::pin(async move { link })
    }
}
