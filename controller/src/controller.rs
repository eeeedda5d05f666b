//! Standing by, election, shutdown.

use std::sync::Arc;

use quire_ledger::link::Connector;
use quire_metadata::follow::{Change, Follow};
use quire_metadata::operation::{self, Outcome};
use quire_metadata::operations::election::{AnotherController, Elect, Election};
use quire_metadata::session::Session;
use quire_metadata::store::{Event, Store, StoreError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::bookies::Bookies;
use crate::options::{InvalidOptions, Options};
use crate::term::{ELECTION_PAUSE, Term};

/// A controller process: it stands by, and works while it is elected.
#[derive(Debug)]
pub struct Controller {
    elected: watch::Receiver<bool>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Controller {
    /// Starts standing by. Needs a tokio runtime.
    ///
    /// # Errors
    /// When a setting is out of its range.
    pub fn start(
        options: Options,
        store: Arc<dyn Store>,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, InvalidOptions> {
        options.check()?;
        let stop = CancellationToken::new();
        let (elected_tx, elected) = watch::channel(false);
        let candidate = Candidate { options, store, connector, elected: elected_tx, stop: stop.clone() };
        let task = tokio::spawn(candidate.run());
        Ok(Self { elected, stop, task })
    }

    /// Whether this process is the controller, as far as it knows.
    #[must_use]
    pub fn elected(&self) -> watch::Receiver<bool> {
        self.elected.clone()
    }

    /// Stops all work where it is, gives the office up at once, and waits until
    /// that is done.
    pub async fn shutdown(self) {
        self.stop.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the controller's task failed");
        }
    }
}

struct Candidate {
    options: Options,
    store: Arc<dyn Store>,
    connector: Arc<dyn Connector>,
    elected: watch::Sender<bool>,
    stop: CancellationToken,
}

impl Candidate {
    async fn run(self) {
        let stop = self.stop.clone();
        loop {
            let session = tokio::select! {
                () = stop.cancelled() => return,
                session = self.vacancy() => session,
            };
            let Some(session) = session else { continue };
            let stood = tokio::select! {
                () = stop.cancelled() => Ok(()),
                stood = self.stand(&session) => stood,
            };
            self.elected.send_replace(false);
            metrics::gauge!("quire_controller_elected").set(0.0);
            if let Err(error) = stood {
                tracing::warn!(%error, "an election failed, trying again");
            }
            // Gives the office up, if it was won: at once, not when it runs out.
            if let Err(error) = session.close().await {
                tracing::debug!(%error, "the controller's lease was not ended and runs out");
            }
            if stop.is_cancelled() {
                return;
            }
        }
    }

    /// Waits until there is no controller, and gets a lease to stand with.
    async fn vacancy(&self) -> Option<Session> {
        let key = self.options.keys.controller();
        let mut follow = Follow::new(Arc::clone(&self.store), key.clone());
        let mut held = true;
        while held {
            match follow.next().await {
                Change::Reset(all, _) => held = all.iter().any(|found| found.key == key),
                Change::Events(events) => {
                    for event in events {
                        match event {
                            Event::Put(found) => held = held || found.key == key,
                            Event::Delete { key: gone, .. } => held = held && gone != key,
                        }
                    }
                }
            }
        }
        match Session::start(Arc::clone(&self.store), self.options.lease).await {
            Ok(session) => Some(session),
            Err(error) => {
                tracing::warn!(%error, "no lease could be had to stand for election, trying again");
                tokio::time::sleep(ELECTION_PAUSE).await;
                None
            }
        }
    }

    /// Stands for election, and works if elected until the term ends.
    async fn stand(&self, session: &Session) -> Result<(), StoreError> {
        let elect = Elect { process: self.options.process.clone(), lease: session.lease() };
        match operation::run(&*self.store, &self.options.keys, &elect).await {
            Ok(Outcome::Done(election)) => {
                self.serve(session, election).await;
                Ok(())
            }
            Ok(Outcome::Lost(AnotherController(other))) => {
                tracing::info!(controller = %other, "standing by");
                Ok(())
            }
            Err(error) => {
                tokio::time::sleep(ELECTION_PAUSE).await;
                Err(error)
            }
        }
    }

    async fn serve(&self, session: &Session, election: Election) {
        tracing::info!(process = %self.options.process, "elected controller");
        self.elected.send_replace(true);
        metrics::gauge!("quire_controller_elected").set(1.0);
        let bookies = Bookies::new(Arc::clone(&self.connector), self.options.clone());
        let term = Term::new(self.options.clone(), Arc::clone(&self.store), election, bookies);
        let ended = session.ended();
        tokio::select! {
            () = term.run() => tracing::warn!("no longer the controller: another was elected"),
            () = ended.cancelled() => tracing::warn!("no longer the controller: the lease was lost"),
        }
    }
}
