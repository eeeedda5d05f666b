//! The parts in the order of their dependence: metadata, bookie, broker,
//! controller. They are stopped in the reverse order.

use std::sync::Arc;

use quire_bookie::directory::Directory;
use quire_bookie::disk::Disk;
use quire_bookie::{Bookie, InProcessConnector};
use quire_broker::Broker;
use quire_controller::Controller;
use quire_ledger::link::Connector;
use quire_metadata::key::Keys;
use quire_metadata::operation::{self, Outcome};
use quire_metadata::operations::bootstrap::Bootstrap;
use quire_metadata::process::Process;
use quire_metadata::store::{Store, StoreError};
use quire_metadata::view;
use quire_proto::id::{ClusterId, Nonce};
use tokio::sync::watch;
use uuid::Uuid;

use crate::standalone::{Error, Storage};

/// How the parts run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bookie. Its data directory is that of the [`Storage`], and its inbox
    /// has room for whatever the broker may hold.
    pub bookie: quire_bookie::Options,
    /// The broker. Its cluster is the whole process's.
    pub broker: quire_broker::Options,
}

/// Bytes that may wait for the bookie's log thread, for each byte of the
/// broker's memory. What waits there are the broker's own buffers: it is bounded
/// by the broker's memory, and the inbox must not be full before. Of small
/// batches the headers, which the broker's memory does not count one by one, are
/// most of what waits.
const INBOX_PER_MEMORY: u64 = 4;

/// The running parts.
#[derive(Debug)]
pub struct Standalone {
    /// The bookie.
    pub bookie: Bookie,
    /// The broker, which is served on whatever listeners there are.
    pub broker: Arc<Broker>,
    controller: Controller,
    /// The metadata.
    pub store: Arc<dyn Store>,
    metadata_failure: watch::Receiver<Option<StoreError>>,
}

/// The disk failed under a part that was running: nothing may be acknowledged
/// or synced any more, and the next start finds out what is there.
#[derive(Debug, thiserror::Error)]
pub enum DiskFailed {
    /// Under the log.
    #[error("the bookie stopped: {0}")]
    Bookie(Arc<quire_bookie::Error>),
    /// Under the metadata.
    #[error("the metadata store stopped: {0}")]
    Metadata(StoreError),
}

impl Standalone {
    /// Starts them.
    ///
    /// Not cancel-safe, as [`Bookie::start`] and [`Broker::start`] are not.
    ///
    /// # Errors
    /// Those of the part that did not start.
    pub async fn start<D: Disk>(options: Options, storage: Storage<D>) -> Result<Self, Error> {
        let Options { bookie, broker } = options;
        let Storage { store, bookie: directory } = storage;
        let cluster = broker.cluster.clone();
        let keys = Keys::new(&cluster)?;
        // This run, as the controller's election names it.
        let process = Process { broker: broker.id.parse()?, nonce: Nonce(Uuid::new_v4()) };
        let metadata_failure = store.failure();
        let store: Arc<dyn Store> = Arc::new(store);
        join_cluster(store.as_ref(), &keys).await?;
        check_bookie(store.as_ref(), &keys, &directory).await?;
        let bookie = with_inbox_for(&broker, bookie);
        let bookie = Bookie::start_in(directory, bookie, Arc::clone(&store), &cluster).await?;
        let connector: Arc<dyn Connector> = Arc::new(InProcessConnector::new(vec![bookie.clone()]));
        let broker = Broker::start(broker, Arc::clone(&store), Arc::clone(&connector)).await?;
        let controller = quire_controller::Options::new(keys, process);
        let controller = Controller::start(controller, Arc::clone(&store), connector)?;
        Ok(Self { bookie, broker: Arc::new(broker), controller, store, metadata_failure })
    }

    /// Waits until the disk has failed under a part: the process must exit with
    /// an error (L5). Pending as long as all is well. Cancel-safe.
    pub async fn failed(&self) -> DiskFailed {
        let mut metadata = self.metadata_failure.clone();
        let metadata = async {
            match metadata.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
                Ok(Some(failure)) => failure,
                // It was closed.
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.bookie.failed() => DiskFailed::Bookie(error),
            error = metadata => DiskFailed::Metadata(error),
        }
    }

    /// Hands over, writes what was accepted, closes the files.
    pub async fn stop(self) {
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

fn with_inbox_for(broker: &quire_broker::Options, bookie: quire_bookie::Options) -> quire_bookie::Options {
    let memory_bytes = u64::try_from(broker.memory_bytes).unwrap_or(u64::MAX);
    let inbox_bytes = bookie.inbox_bytes.max(memory_bytes.saturating_mul(INBOX_PER_MEMORY));
    quire_bookie::Options { inbox_bytes, ..bookie }
}

/// A bookie is made only where the metadata knows none: what it held would else
/// be gone, and nobody told.
async fn check_bookie<D: Disk>(
    store: &dyn Store,
    keys: &Keys,
    directory: &Directory<D>,
) -> Result<(), Error> {
    if directory.is_formatted()? {
        return Ok(());
    }
    let registry = keys.bookie_registry();
    let (known, _) = view::list(store, &registry).await?;
    if known.is_empty() {
        return Ok(());
    }
    let bookies = known.iter().map(|known| known.key.trim_start_matches(&registry).to_owned()).collect();
    Err(Error::BookieMissing { bookies, dir: directory.path.clone() })
}

async fn join_cluster(store: &dyn Store, keys: &Keys) -> Result<(), Error> {
    let bootstrap = Bootstrap {
        id: ClusterId(Uuid::new_v4()),
        expected: None,
        bucket: String::new(),
        prefix: String::new(),
    };
    match operation::run(store, keys, &bootstrap).await? {
        Outcome::Done(_) => Ok(()),
        Outcome::Lost(mismatch) => Err(mismatch.into()),
    }
}

#[cfg(test)]
mod tests {
    use quire_broker::entry::EntryHeader;
    use quire_ledger::record::HEADER_LEN;
    use quire_proto::batch::Header;

    use super::*;

    /// Bytes of the smallest record: its length, attributes, and five numbers
    /// of which each is 0.
    const RECORD_LEN: usize = 7;

    #[test]
    fn the_inbox_has_room_for_whatever_the_broker_holds() {
        let batch = Header::LEN + RECORD_LEN;
        let waits = HEADER_LEN + EntryHeader::len_of(1) + batch;
        for memory_bytes in [1 << 20, 512 << 20, 4 << 30] {
            let broker = quire_broker::Options { memory_bytes, ..quire_broker::Options::default() };
            let bookie = with_inbox_for(&broker, quire_bookie::Options::new(""));
            assert!(bookie.inbox_bytes >= (memory_bytes / batch * waits) as u64, "{memory_bytes}");
        }
    }
}
