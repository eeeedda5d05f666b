//! What an elected controller runs, for as long as it is elected.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quire_metadata::follow::{Change, Follow};
use quire_metadata::id_block::IdKind;
use quire_metadata::key::Key;
use quire_metadata::operations::election::Election;
use quire_metadata::process::Broker;
use quire_metadata::store::{Event, KeyValue, Store};
use quire_metadata::typed::Versioned;
use quire_metadata::view;
use quire_proto::id::{BookieId, Nonce};
use tokio::time::Instant;

use crate::absence::{Absence, Presence};
use crate::bookies::Bookies;
use crate::delete_ledgers::DeleteLedgers;
use crate::delete_topics::DeleteTopics;
use crate::options::Options;
use crate::reclaim_blocks::ReclaimBlocks;
use crate::work::{Bell, Stopped, work};

/// One term of office.
#[derive(Debug)]
pub(crate) struct Term {
    pub(crate) options: Options,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) election: Election,
    pub(crate) bookies: Bookies,
    absence: Mutex<Absence>,
    start: Instant,
}

impl Term {
    pub(crate) fn new(
        options: Options,
        store: Arc<dyn Store>,
        election: Election,
        bookies: Bookies,
    ) -> Arc<Self> {
        let (absence, start) = (Mutex::default(), Instant::now());
        Arc::new(Self { options, store, election, bookies, absence, start })
    }

    /// Works until this process is no longer the controller. Dropping the
    /// future stops all work; the next controller takes it up.
    pub(crate) async fn run(self: Arc<Self>) {
        let bell = Bell::new(());
        let ears = || bell.subscribe();
        let term = || Arc::clone(&self);
        tokio::select! {
            () = work(term(), DeleteLedgers(term()), ears()) => {}
            () = work(term(), DeleteTopics(term()), ears()) => {}
            () = work(term(), ReclaimBlocks::new(term(), IdKind::Ledgers), ears()) => {}
            () = work(term(), ReclaimBlocks::new(term(), IdKind::Producers), ears()) => {}
            () = self.follow_brokers(&bell) => {}
            () = self.follow_bookies(&bell) => {}
        }
    }

    /// Since when a run of a broker is gone.
    pub(crate) fn presence(&self, nonce: Nonce) -> Presence {
        self.absence.lock().unwrap_or_else(PoisonError::into_inner).look(nonce, self.start.elapsed())
    }

    /// A run that is gone holds nothing any more.
    pub(crate) fn forget(&self, nonce: Nonce) {
        self.absence.lock().unwrap_or_else(PoisonError::into_inner).forget(nonce);
    }

    /// Whether a bookie belongs to the cluster.
    pub(crate) async fn is_registered(&self, bookie: BookieId) -> Result<bool, Stopped> {
        Ok(self.store.get(&self.options.keys.bookie_registration(bookie)).await?.is_some())
    }

    /// All bookies of the cluster, alive or not.
    pub(crate) async fn registered(&self) -> Result<Vec<BookieId>, Stopped> {
        let keys = &self.options.keys;
        let (found, _) = view::list(&*self.store, &keys.bookie_registry()).await?;
        let bookies = found.iter().filter_map(|found| match keys.parse(&found.key) {
            Some(Key::BookieRegistration(bookie)) => Some(bookie),
            _ => None,
        });
        Ok(bookies.collect())
    }

    /// Keeps up with which broker processes are there.
    async fn follow_brokers(&self, bell: &Bell) {
        let mut follow = Follow::new(Arc::clone(&self.store), self.options.keys.brokers());
        let mut present: HashMap<String, Nonce> = HashMap::new();
        loop {
            match follow.next().await {
                Change::Reset(all, _) => {
                    present = all.iter().filter_map(run_of).collect();
                }
                Change::Events(events) => {
                    for event in events {
                        match event {
                            Event::Put(found) => present.extend(run_of(&found)),
                            Event::Delete { key, .. } => drop(present.remove(&key)),
                        }
                    }
                }
            }
            let nonces: HashSet<Nonce> = present.values().copied().collect();
            self.absence.lock().unwrap_or_else(PoisonError::into_inner).set_present(nonces);
            bell.send_replace(());
        }
    }

    /// A bookie that came, came back or left may change what waits.
    async fn follow_bookies(&self, bell: &Bell) {
        let follow = |prefix| Follow::new(Arc::clone(&self.store), prefix);
        let mut registry = follow(self.options.keys.bookie_registry());
        let mut alive = follow(self.options.keys.bookies());
        let (mut registered, mut living) = (Seen::default(), Seen::default());
        loop {
            let news = tokio::select! {
                change = registry.next() => registered.news(change),
                change = alive.next() => living.news(change),
            };
            if news {
                self.bookies.forgive();
                bell.send_replace(());
            }
        }
    }
}

/// The run that a broker's key stands for. One whose key can't be read seems to
/// be gone; its blocks are safe, since the key is read again before any release.
fn run_of(found: &KeyValue) -> Option<(String, Nonce)> {
    let broker = Versioned::<Broker>::read(found)
        .inspect_err(|error| tracing::error!(%error, "a broker's key cannot be read"))
        .ok()?;
    Some((found.key.clone(), broker.value.process.nonce))
}

/// Which keys there are: bookies write theirs every few seconds, and only that
/// they come and go is news.
#[derive(Debug, Default)]
struct Seen(HashSet<String>);

impl Seen {
    fn news(&mut self, change: Change) -> bool {
        match change {
            Change::Reset(all, _) => {
                self.0 = all.into_iter().map(|found| found.key).collect();
                true
            }
            Change::Events(events) => events.into_iter().fold(false, |news, event| match event {
                Event::Put(found) => self.0.insert(found.key) || news,
                Event::Delete { key, .. } => self.0.remove(&key) || news,
            }),
        }
    }
}

/// How long a controller that failed to be elected for another reason than a
/// rival pauses.
pub(crate) const ELECTION_PAUSE: Duration = Duration::from_secs(1);
