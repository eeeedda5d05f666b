//! The parts of a server in one process, in the order of their dependence:
//! metadata, bookie, broker, controller. They are stopped in the reverse order.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quire_bookie::{Bookie, Health as BookieHealth, InProcessConnector};
use quire_broker::Broker;
use quire_controller::Controller;
use quire_ledger::link::Connector;
use quire_metadata::embedded::{EmbeddedStore, OpenError};
use quire_metadata::key::Keys;
use quire_metadata::operation::{self, Outcome};
use quire_metadata::operations::bootstrap::Bootstrap;
use quire_metadata::process::Process;
use quire_metadata::store::Store;
use quire_proto::id::{ClusterId, Nonce};
use uuid::Uuid;

use super::http::Health;
use crate::cli::Standalone;
use crate::failure::{Exit, Failure};

/// The metadata's file in the data directory.
const METADATA: &str = "metadata.redb";
/// The bookie's directory in the data directory.
const BOOKIE: &str = "bookie";

/// The running parts.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) bookie: Bookie,
    pub(super) broker: Arc<Broker>,
    controller: Controller,
    store: Arc<dyn Store>,
}

impl Server {
    /// Starts them. `address` is where clients reach the broker.
    ///
    /// # Errors
    /// With what was tried and what to do.
    pub(super) async fn start(arguments: &Standalone, address: String) -> Result<Self, Failure> {
        let keys = Keys::new(&arguments.cluster).map_err(Failure::usage)?;
        std::fs::create_dir_all(&arguments.data).map_err(|error| {
            let context = format!("cannot make the data directory {}", arguments.data.display());
            Failure::new(Exit::CannotStart, anyhow::Error::new(error).context(context))
                .remedy("give a directory that can be written to --data")
        })?;
        let store = open_store(&arguments.data).await?;
        join_cluster(store.as_ref(), &keys).await?;
        let bookie = Bookie::start(bookie_options(arguments), Arc::clone(&store), &arguments.cluster)
            .await
            .map_err(bookie_failure)?;
        let connector: Arc<dyn Connector> = Arc::new(InProcessConnector::new(vec![bookie.clone()]));
        let broker = broker_options(arguments, address);
        let broker = Broker::start(broker, Arc::clone(&store), Arc::clone(&connector)).await;
        let broker = Arc::new(broker.map_err(|error| Failure::new(Exit::CannotStart, error))?);
        let options = quire_controller::Options::new(keys, process()?);
        let controller = Controller::start(options, Arc::clone(&store), connector)
            .map_err(|error| Failure::new(Exit::CannotStart, error))?;
        Ok(Server { bookie, broker, controller, store })
    }

    /// Hands over, writes what was accepted, closes the files.
    pub(super) async fn stop(self) {
        self.controller.shutdown().await;
        self.broker.shutdown().await;
        self.bookie.shutdown().await;
        // The last handle closes the file, which waits for the disk.
        let store = self.store;
        let closed = tokio::task::spawn_blocking(move || drop(store)).await;
        if let Err(error) = closed {
            tracing::warn!(%error, "closing the metadata failed");
        }
    }
}

async fn open_store(data: &Path) -> Result<Arc<dyn Store>, Failure> {
    let path = data.join(METADATA);
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(&path)).await;
    match opened.map_err(anyhow::Error::new)? {
        Ok(store) => Ok(Arc::new(store)),
        Err(OpenError::InUse(_)) => {
            let cause = format!("the data directory {} is in use by another process", data.display());
            Err(Failure::message(Exit::CannotStart, cause)
                .remedy("stop that process, or choose another directory with --data"))
        }
        Err(error) => Err(Failure::new(Exit::CannotStart, error)),
    }
}

async fn join_cluster(store: &dyn Store, keys: &Keys) -> Result<(), Failure> {
    let bootstrap = Bootstrap {
        id: ClusterId(Uuid::new_v4()),
        expected: None,
        bucket: String::new(),
        prefix: String::new(),
    };
    match operation::run(store, keys, &bootstrap).await {
        Ok(Outcome::Done(_)) => Ok(()),
        Ok(Outcome::Lost(mismatch)) => Err(Failure::new(Exit::CannotStart, mismatch)),
        Err(error) => Err(Failure::new(Exit::CannotStart, error)),
    }
}

/// This run, as the controller's election names it.
fn process() -> Result<Process, Failure> {
    let broker = quire_broker::Options::default().id.parse().map_err(anyhow::Error::new)?;
    Ok(Process { broker, nonce: Nonce(Uuid::new_v4()) })
}

fn bookie_options(arguments: &Standalone) -> quire_bookie::Options {
    let tuning = &arguments.tuning;
    quire_bookie::Options {
        file_bytes: tuning.bookie_file_bytes.bytes(),
        cache_bytes: tuning.bookie_cache_bytes.bytes(),
        tail_bytes: tuning.bookie_tail_bytes.bytes(),
        reserve_bytes: tuning.bookie_reserve_bytes.bytes(),
        high_water: f64::from(tuning.bookie_high_water) / 100.0,
        low_water: f64::from(tuning.bookie_low_water) / 100.0,
        scrub_bytes_per_second: tuning.bookie_scrub_bytes.bytes(),
        ..quire_bookie::Options::new(arguments.data.join(BOOKIE))
    }
}

fn broker_options(arguments: &Standalone, address: String) -> quire_broker::Options {
    let tuning = &arguments.tuning;
    quire_broker::Options {
        cluster: arguments.cluster.clone(),
        address,
        shards: usize::try_from(tuning.shards).unwrap_or(usize::MAX),
        memory_bytes: tuning.memory_bytes.len(),
        tail_cache_bytes: tuning.tail_cache_bytes.len(),
        read_cache_bytes: tuning.read_cache_bytes.len(),
        roll_entries: tuning.roll_entries,
        idle_seal: Duration::from_millis(tuning.idle_seal_ms),
        producer_expiry: Duration::from_millis(tuning.producer_expiry_ms),
        // Copies on one disk would only be written more often.
        default_replicas: 1,
        ..quire_broker::Options::default()
    }
}

/// A bookie's errors say themselves what to do.
fn bookie_failure(error: quire_bookie::Error) -> Failure {
    let exit = match error {
        quire_bookie::Error::Disk { .. } => Exit::Storage,
        _ => Exit::CannotStart,
    };
    Failure::new(exit, error)
}

/// What health checks see, from before the server is there on.
#[derive(Debug, Default)]
pub(super) struct Readiness {
    parts: OnceLock<(Bookie, Arc<Broker>)>,
}

impl Readiness {
    pub(super) fn started(&self, server: &Server) {
        // Called once; a second call would change nothing.
        let _ = self.parts.set((server.bookie.clone(), Arc::clone(&server.broker)));
    }
}

impl Health for Readiness {
    fn ready(&self) -> Result<(), String> {
        let (bookie, broker) = self.parts.get().ok_or("starting")?;
        // A full disk is no reason to send readers elsewhere.
        if let BookieHealth::Failed(why) = bookie.health() {
            return Err(format!("the bookie failed: {why}"));
        }
        if broker.ready() { Ok(()) } else { Err("the broker is not ready".to_owned()) }
    }
}
