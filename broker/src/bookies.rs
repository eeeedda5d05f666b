//! The bookies that are alive, and a link to each for requests. Appends have
//! links of their own, one a shard.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quire_ledger::link::{AppendSink, BookieLink, Connector, LinkError};
use quire_ledger::message::{AppendEvent, Request, Response};
use quire_metadata::bookie::BookieLiveness;
use quire_metadata::follow::{Change, Follow};
use quire_metadata::key::{Key, Keys};
use quire_metadata::store::{Event, KeyValue, Store};
use quire_metadata::typed::Versioned;
use quire_proto::id::BookieId;
use tokio::sync::watch;

#[cfg(test)]
pub mod fake;

/// A bookie that does not answer in this time is taken for away.
const ANSWER: Duration = Duration::from_secs(10);

/// The bookies that are alive.
pub type Live = HashMap<BookieId, BookieLiveness>;

/// The bookies of the cluster as this broker sees them.
#[derive(Debug)]
pub struct Bookies {
    connector: Arc<dyn Connector>,
    links: Mutex<HashMap<BookieId, Arc<dyn BookieLink>>>,
    live: watch::Sender<Live>,
}

/// For links that carry no appends.
#[derive(Debug)]
struct NoAppends;

impl AppendSink for NoAppends {
    fn deliver(&self, bookie: BookieId, event: AppendEvent) {
        tracing::debug!(%bookie, ?event, "an append event came on a link without appends");
    }

    fn broken(&self, bookie: BookieId) {
        tracing::debug!(%bookie, "the request link broke");
    }
}

impl Bookies {
    /// Nobody known yet.
    #[must_use]
    pub fn new(connector: Arc<dyn Connector>) -> Arc<Self> {
        Arc::new(Self { connector, links: Mutex::default(), live: watch::Sender::default() })
    }

    /// Makes append links.
    #[must_use]
    pub fn connector(&self) -> Arc<dyn Connector> {
        Arc::clone(&self.connector)
    }

    /// Those that are alive, now and whenever that changes.
    #[must_use]
    pub fn live(&self) -> watch::Receiver<Live> {
        self.live.subscribe()
    }

    /// Keeps the list up to date. Ends never.
    pub async fn follow(self: Arc<Self>, store: Arc<dyn Store>, keys: Keys) {
        let mut follow = Follow::new(store, keys.bookies());
        loop {
            let change = follow.next().await;
            self.live.send_modify(|live| match change {
                Change::Reset(found, _) => {
                    live.clear();
                    live.extend(found.iter().filter_map(|found| read(&keys, found)));
                }
                Change::Events(events) => events.iter().for_each(|event| match event {
                    Event::Put(found) => live.extend(read(&keys, found)),
                    Event::Delete { key, .. } => {
                        if let Some(Key::Bookie(bookie)) = keys.parse(key) {
                            live.remove(&bookie);
                        }
                    }
                }),
            });
        }
    }

    /// Sends a request and waits for its response. Dropping the future abandons
    /// the response only.
    ///
    /// # Errors
    /// When the bookie cannot be reached or does not answer in time.
    pub async fn call(&self, bookie: BookieId, request: Request) -> Result<Response, LinkError> {
        let link = self.link(bookie).await?;
        let response = call(&*link, request).await;
        if response.is_err() {
            self.forget(&link);
        }
        response
    }

    async fn link(&self, bookie: BookieId) -> Result<Arc<dyn BookieLink>, LinkError> {
        if let Some(link) = self.lock().get(&bookie) {
            return Ok(Arc::clone(link));
        }
        let link = self.connector.connect(bookie, Arc::new(NoAppends)).await?;
        // Of two that connect at once the first stays; both work.
        Ok(Arc::clone(self.lock().entry(bookie).or_insert(link)))
    }

    fn forget(&self, broken: &Arc<dyn BookieLink>) {
        let mut links = self.lock();
        let bookie = broken.bookie();
        if links.get(&bookie).is_some_and(|link| Arc::ptr_eq(link, broken)) {
            links.remove(&bookie);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<BookieId, Arc<dyn BookieLink>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a request over this link and waits for its response. Dropping the future
/// abandons the response only.
///
/// # Errors
/// When the link breaks or the bookie does not answer in time.
pub async fn call(link: &dyn BookieLink, request: Request) -> Result<Response, LinkError> {
    let late = || {
        let cause = format!("no answer within {} s", ANSWER.as_secs());
        Err(LinkError { bookie: link.bookie(), cause })
    };
    tokio::time::timeout(ANSWER, link.call(request)).await.unwrap_or_else(|_elapsed| late())
}

#[cfg(test)]
impl Bookies {
    /// As if these had registered.
    pub(crate) fn set_live(&self, live: Live) {
        self.live.send_replace(live);
    }
}

fn read(keys: &Keys, found: &KeyValue) -> Option<(BookieId, BookieLiveness)> {
    let Some(Key::Bookie(bookie)) = keys.parse(&found.key) else { return None };
    match Versioned::read(found) {
        Ok(liveness) => Some((bookie, liveness.value)),
        Err(error) => {
            tracing::error!(%bookie, %error, "a bookie's registration cannot be read");
            None
        }
    }
}
