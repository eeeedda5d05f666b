//! Requests to bookies. A bookie that fails is left alone for a while, by all
//! work at once: a sick bookie is one decision.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_ledger::link::{AppendSink, BookieLink, Connector};
use quire_ledger::message::{AppendEvent, Request, Response};
use quire_proto::id::{BookieId, LedgerId};
use tokio::time::{Instant, timeout};

use crate::options::Options;

/// The bookies, as the controller reaches them.
#[derive(Debug)]
pub(crate) struct Bookies {
    connector: Arc<dyn Connector>,
    options: Options,
    contacts: Mutex<HashMap<BookieId, Contact>>,
}

#[derive(Debug, Default)]
struct Contact {
    link: Option<Arc<dyn BookieLink>>,
    failures: u32,
    /// Not to be asked before.
    rest_until: Option<Instant>,
}

/// The bookie did not do what it was asked to, as far as is known.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Failed(String);

/// The controller appends nothing.
#[derive(Debug)]
struct NoAppends;

impl AppendSink for NoAppends {
    fn deliver(&self, _bookie: BookieId, _event: AppendEvent) {}

    fn broken(&self, _bookie: BookieId) {}
}

impl Bookies {
    pub(crate) fn new(connector: Arc<dyn Connector>, options: Options) -> Self {
        Self { connector, options, contacts: Mutex::default() }
    }

    /// Deletes ledgers `first` to `last`, both included, from a bookie (B8).
    /// `Ok` only when the bookie has said that they are deleted.
    pub(crate) async fn delete(
        &self,
        bookie: BookieId,
        first: LedgerId,
        last: LedgerId,
    ) -> Result<(), Failed> {
        if let Some(rest_until) = self.contact(bookie, |contact| contact.rest_until)
            && Instant::now() < rest_until
        {
            return Err(Failed("it failed a moment ago and is left alone".to_owned()));
        }
        let request = Request::Delete { first, last };
        let asked = timeout(self.options.request_timeout, self.call(bookie, request)).await;
        let failed = match asked {
            Ok(Ok(Response::Deleted)) => {
                self.contact(bookie, |contact| (contact.failures, contact.rest_until) = (0, None));
                return Ok(());
            }
            Ok(Ok(Response::Unknown(why))) => Failed(why),
            Ok(Ok(other)) => Failed(format!("it answered {other:?}")),
            Ok(Err(failed)) => failed,
            Err(_elapsed) => Failed("it did not answer in time".to_owned()),
        };
        tracing::warn!(%bookie, %first, %last, %failed, "a bookie did not delete ledgers, trying again");
        self.contact(bookie, |contact| contact.failed(&self.options));
        Err(failed)
    }

    async fn call(&self, bookie: BookieId, request: Request) -> Result<Response, Failed> {
        let link = match self.contact(bookie, |contact| contact.link.clone()) {
            Some(link) => link,
            None => self.connect(bookie).await?,
        };
        link.call(request).await.map_err(|error| Failed(error.to_string()))
    }

    async fn connect(&self, bookie: BookieId) -> Result<Arc<dyn BookieLink>, Failed> {
        let link = self.connector.connect(bookie, Arc::new(NoAppends)).await;
        let link = link.map_err(|error| Failed(error.to_string()))?;
        self.contact(bookie, |contact| contact.link = Some(Arc::clone(&link)));
        Ok(link)
    }

    /// Something is known to have changed about the bookies: those that failed
    /// may be asked again.
    pub(crate) fn forgive(&self) {
        for contact in self.lock().values_mut() {
            contact.rest_until = None;
        }
    }

    fn contact<T>(&self, bookie: BookieId, act: impl FnOnce(&mut Contact) -> T) -> T {
        act(self.lock().entry(bookie).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BookieId, Contact>> {
        self.contacts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contact {
    fn failed(&mut self, options: &Options) {
        // A link that broke stays broken; one that is fine is made anew cheaply.
        self.link = None;
        let doubled = options.retry_min.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.rest_until = Some(Instant::now() + doubled.min(options.retry_max));
    }
}
