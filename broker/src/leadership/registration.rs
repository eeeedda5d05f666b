//! The broker's registration: a key that lives as long as its lease. When the
//! lease is lost a new one is taken; leadership does not rest on it, freshness
//! does (T8).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quire_metadata::operation::Outcome;
use quire_metadata::operations::register::{NameInUse, RegisterBroker};
use quire_metadata::process::Broker;
use quire_metadata::session::Session;
use tokio_util::sync::CancellationToken;

use crate::context::{Backoff, Context};
use crate::error::Error;

/// A broker id may be in use by a run that has just died: its lease is waited
/// for this many times over.
const LEASES: u32 = 2;

/// The broker's lease, renewed for as long as it runs.
#[derive(Debug, Default)]
pub struct Registration {
    session: Mutex<Option<Session>>,
}

impl Registration {
    /// Registers the broker.
    ///
    /// # Errors
    /// When another run keeps the id, or the store fails for good.
    pub async fn start(&self, context: &Context) -> Result<(), Error> {
        let patience = tokio::time::Instant::now() + context.options.lease * LEASES;
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        loop {
            match register(context).await {
                Ok(session) => {
                    *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
                    return Ok(());
                }
                Err(error) if error.is_retryable() && tokio::time::Instant::now() < patience => {
                    tracing::info!(%error, "the broker is not registered yet");
                    backoff.pause().await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Whether the lease certainly lives: freshness may be promised (T8).
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.as_ref().is_some_and(Session::is_valid)
    }

    /// Registers anew whenever the lease is lost. Ends never.
    pub async fn keep(self: Arc<Self>, context: Arc<Context>) {
        loop {
            self.ended().cancelled().await;
            if context.stop.is_cancelled() {
                // A shutdown gives it up itself.
                return;
            }
            tracing::error!("the broker's lease was lost, registering anew");
            while let Err(error) = self.start(&context).await {
                tracing::error!(%error, "the broker cannot be registered");
                Backoff::default().pause().await;
            }
        }
    }

    /// Gives the lease up.
    pub async fn close(&self) {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(session) = session
            && let Err(error) = session.close().await
        {
            tracing::warn!(%error, "the lease is left to run out");
        }
    }

    fn ended(&self) -> CancellationToken {
        let session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        session.as_ref().map(Session::ended).unwrap_or_default()
    }
}

async fn register(context: &Context) -> Result<Session, Error> {
    let session = Session::start(Arc::clone(&context.store), context.options.lease).await?;
    let broker = Broker {
        process: context.process.clone(),
        address: context.options.address.clone(),
        rack: context.options.rack.clone(),
    };
    let operation = RegisterBroker { broker, lease: session.lease() };
    match context.settle(&operation).await? {
        Outcome::Done(_) => Ok(session),
        Outcome::Lost(NameInUse(process)) => {
            drop(session);
            Err(Error::IdTaken { id: process.broker.to_string(), run: process.nonce.to_string() })
        }
    }
}
