//! What a bookie tells the metadata: that it is alive, and how far its log is
//! durable, every few seconds (L4).

use std::sync::Arc;
use std::time::Duration;

use quire_ledger::replica::Admission;
use quire_metadata::bookie::{BookieLiveness, BookieRegistration};
use quire_metadata::key::Keys;
use quire_metadata::operation::{self, Outcome};
use quire_metadata::operations::bookie_start::{PublishBookie, PublishRefused};
use quire_metadata::session::Session;
use quire_metadata::store::{Store, StoreError};
use quire_metadata::typed::Versioned;
use quire_proto::id::BookieId;
use tokio_util::sync::CancellationToken;

use crate::disk::Disk;
use crate::error::Error;
use crate::inbox::{Inbox, Message};
use crate::shared::Shared;

/// How long a bookie counts as alive after its last sign.
const LEASE: Duration = Duration::from_secs(5);

/// Publishes one start of a bookie.
#[derive(Debug)]
pub(crate) struct Registrar<D: Disk> {
    pub(crate) bookie: BookieId,
    pub(crate) address: String,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keys: Keys,
    pub(crate) registration: Versioned<BookieRegistration>,
    pub(crate) every: Duration,
    pub(crate) disk: D,
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Arc<Inbox>,
    /// What was published last, under which session.
    pub(crate) published: Option<BookieLiveness>,
}

impl<D: Disk> Registrar<D> {
    /// Publishes once, so that the bookie is known when it serves.
    ///
    /// # Errors
    /// The store's, or that another start took over.
    pub(crate) async fn announce(&mut self) -> Result<Session, Error> {
        let session = Session::start(Arc::clone(&self.store), LEASE).await?;
        self.publish(&session).await?;
        Ok(session)
    }

    /// Publishes until it is stopped. With the store away it tries again: the
    /// bookie serves on without it.
    pub(crate) async fn run(mut self, mut session: Session, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.every) => {}
            }
            match self.tell(&mut session).await {
                Ok(()) => {}
                Err(error @ Error::Superseded(_)) => {
                    self.inbox.close(&error.to_string());
                    return self.shared.fail(error);
                }
                Err(error) => tracing::warn!(%error, "the bookie could not publish its state, trying again"),
            }
        }
        if let Err(error) = session.close().await {
            tracing::debug!(%error, "the bookie's lease runs out by itself");
        }
    }

    async fn tell(&mut self, session: &mut Session) -> Result<(), Error> {
        if session.ended().is_cancelled() {
            *session = Session::start(Arc::clone(&self.store), LEASE).await?;
            self.published = None;
        }
        self.publish(session).await
    }

    async fn publish(&mut self, session: &Session) -> Result<(), Error> {
        let liveness = self.liveness();
        if self.published.as_ref().is_some_and(|published| is_same(published, &liveness)) {
            return Ok(());
        }
        let publish = PublishBookie {
            bookie: self.bookie,
            registration: self.registration.clone(),
            liveness: liveness.clone(),
            lease: session.lease(),
        };
        match operation::run(&*self.store, &self.keys, &publish).await {
            Ok(Outcome::Done(registration)) => {
                let revision = registration.revision.0;
                self.registration = registration;
                self.published = Some(liveness);
                // A stopped log thread needs it no more.
                _ = self.inbox.push(Message::SawStore(revision));
                Ok(())
            }
            Ok(Outcome::Lost(PublishRefused::Stale(registration))) => {
                self.registration = registration;
                Err(StoreError::Unavailable("an earlier publication came in between".to_owned()).into())
            }
            Ok(Outcome::Lost(PublishRefused::Superseded)) => Err(Error::Superseded(self.bookie)),
            Err(error) => Err(error.into()),
        }
    }

    fn liveness(&self) -> BookieLiveness {
        BookieLiveness {
            address: self.address.clone(),
            generation: self.registration.value.generation,
            durable: self.shared.durable(),
            read_only: self.shared.admission() < Admission::All,
            free_bytes: self.disk.space().map_or(0, |space| space.free),
        }
    }
}

/// Whether there is nothing new to tell: free space alone, which always moves a
/// little, must have moved by a hundredth.
fn is_same(published: &BookieLiveness, now: &BookieLiveness) -> bool {
    let moved = published.free_bytes.abs_diff(now.free_bytes);
    moved <= published.free_bytes / 100
        && BookieLiveness { free_bytes: 0, ..published.clone() }
            == BookieLiveness { free_bytes: 0, ..now.clone() }
}
