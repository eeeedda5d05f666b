//! The bookie as a service.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use quire_ledger::link::{AppendSink, BookieLink, Connector, LinkError};
use quire_metadata::store::Store;
use quire_proto::id::BookieId;

use crate::error::Error;
use crate::options::Options;

/// A running bookie.
#[derive(Clone, Debug)]
pub struct Bookie {
    id: BookieId,
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
    /// serves. Not cancel-safe: dropped half-way it may leave a raised
    /// generation, which the next start understands.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn start(options: Options, store: Arc<dyn Store>, cluster: &str) -> Result<Self, Error> {
        _ = (options, store, cluster);
        Err(Error::Stopped)
    }

    /// Its identity.
    #[must_use]
    pub const fn id(&self) -> BookieId {
        self.id
    }

    /// A link within the process.
    ///
    /// # Errors
    /// When the bookie is stopped.
    pub fn connect(&self, sink: Arc<dyn AppendSink>) -> Result<Arc<dyn BookieLink>, LinkError> {
        drop(sink);
        Err(LinkError { bookie: self.id, cause: Error::Stopped.to_string() })
    }

    /// How it is.
    #[must_use]
    pub fn health(&self) -> Health {
        Health::Failed(Error::Stopped.to_string())
    }

    /// Waits until the log has failed and returns why: the process must exit
    /// with an error. Pending as long as all is well. Cancel-safe.
    pub async fn failed(&self) -> Arc<Error> {
        Arc::new(Error::Stopped)
    }

    /// Finishes what was accepted, records the durable mark and stops.
    pub async fn shutdown(&self) {}
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
