//! A standalone process on the machine, from its boot to its end.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use futures_util::FutureExt;
use quire_bookie::directory::Directory;
use quire_cli::standalone::{Error, Options, Standalone, Storage};
use quire_metadata::bookie::{BookieRegistration, LogPosition};
use quire_metadata::embedded::EmbeddedStore;
use quire_metadata::key::Keys;
use quire_metadata::typed::Versioned;
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::supply::{Machine, PoweredDisk};

/// Longer than a boot should take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Enough for a take-over to find out that it cannot be.
const LITTLE_PATIENCE: Duration = Duration::from_millis(200);

/// Between two publications of the bookie.
const PUBLISH_EVERY: Duration = Duration::from_millis(50);

/// A running process.
pub(crate) struct Node {
    runtime: Runtime,
    server: Standalone,
}

/// What came of a boot.
pub(crate) enum Boot {
    Ready(Node),
    /// The power went.
    Dark,
    /// It says why it does not start.
    Refused(Error),
}

fn options(address: SocketAddr) -> Options {
    // Small, so that a short life rolls ledgers and files.
    Options {
        bookie: quire_bookie::Options {
            file_bytes: 1 << 20,
            cache_bytes: 1 << 20,
            tail_bytes: 256 << 10,
            reserve_bytes: 1 << 20,
            publish_every: PUBLISH_EVERY,
            ..quire_bookie::Options::new("")
        },
        broker: quire_broker::Options {
            address: address.to_string(),
            shards: 2,
            memory_bytes: 64 << 20,
            tail_cache_bytes: 1 << 20,
            read_cache_bytes: 1 << 20,
            roll_entries: 40,
            idle_seal: Duration::from_millis(300),
            default_replicas: 1,
            produce_timeout: Duration::from_secs(5),
            ..quire_broker::Options::default()
        },
    }
}

impl Node {
    /// Boots and waits until it serves, on a listener that outlives it. Nobody
    /// waits for partitions of a bookie that has lost something, now or `before`.
    pub(crate) fn boot(machine: &Machine, listener: &TcpListener, lost_before: bool) -> Boot {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("node")
            .enable_all()
            .build()
            .unwrap();
        let listener = listener.try_clone().unwrap();
        let (gone, (disk, metadata)) = (machine.gone(), machine.plug_in());
        let start = async {
            let opening = move || EmbeddedStore::open_backend(metadata);
            let store = tokio::task::spawn_blocking(opening).await.unwrap()?;
            let storage = Storage::<PoweredDisk> { store, bookie: Directory::on(disk) };
            let server = Standalone::start(options(listener.local_addr().unwrap()), storage).await?;
            let broker = std::sync::Arc::clone(&server.broker);
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            tokio::spawn(async move { broker.serve(listener).await });
            if lost_before || server.bookie.is_damaged() {
                _ = tokio::time::timeout(LITTLE_PATIENCE, server.broker.wait_ready()).await;
            } else {
                server.broker.wait_ready().await;
            }
            Ok(server)
        };
        let booted = runtime.block_on(async {
            tokio::select! {
                biased;
                () = gone => None,
                started = tokio::time::timeout(PATIENCE, start) => Some(started.expect("it boots in time")),
            }
        });
        match booted {
            Some(Ok(server)) => Boot::Ready(Self { runtime, server }),
            other => {
                runtime.shutdown_timeout(PATIENCE);
                match other {
                    Some(Err(error)) if machine.is_on() => Boot::Refused(error),
                    _ => Boot::Dark,
                }
            }
        }
    }

    /// Waits until the power has gone, lets what still runs speak for a moment,
    /// and ends it.
    pub(crate) fn run_until_dark(self, machine: &Machine, linger: Duration) {
        let gone = machine.gone();
        self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, gone).await.expect("the power goes");
            tokio::time::sleep(linger).await;
        });
        self.kill();
    }

    /// Waits until this is so.
    pub(crate) fn wait(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        self.runtime.block_on(async {
            let deadline = Instant::now() + PATIENCE;
            while !is_so() {
                assert!(Instant::now() < deadline, "in vain: {what}");
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }

    /// Waits until the bookie has published where its log ends now (L4).
    pub(crate) fn wait_for_publication(&self) {
        let ends = self.server.bookie.durable();
        self.wait("the bookie publishes where its log ends", || self.published() >= ends);
    }

    /// Where the bookie's log ends as far as the metadata knows.
    fn published(&self) -> LogPosition {
        let keys = Keys::new(&quire_broker::Options::default().cluster).unwrap();
        let key = keys.bookie_registration(self.server.bookie.id());
        let found = self.server.store.get(&key).now_or_never().unwrap().unwrap();
        Versioned::<BookieRegistration>::read_option(found.as_ref()).unwrap().unwrap().value.durable
    }

    /// Whether the bookie has found damage.
    pub(crate) fn bookie_says_damaged(&self) -> bool {
        self.server.bookie.is_damaged()
    }

    /// Ends without notice.
    pub(crate) fn kill(self) {
        let Self { runtime, server } = self;
        drop(server);
        runtime.shutdown_timeout(PATIENCE);
    }

    /// Stops as it does when it is asked to.
    pub(crate) fn stop(self) {
        let Self { runtime, server } = self;
        runtime.block_on(server.stop());
        runtime.shutdown_timeout(PATIENCE);
    }
}
