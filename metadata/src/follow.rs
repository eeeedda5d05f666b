//! A listing that is kept up to date: list, watch from there, and list anew
//! whenever the watch ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;

use crate::key::{Key, Keys};
use crate::store::{Event, KeyValue, Revision, Store, StoreError};
use crate::topic::{Topic, TopicName};
use crate::typed::Versioned;
use crate::view;

/// Pauses between attempts while the store is away.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What there is to know next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Everything that there is: whatever was known before and is not here is
    /// gone.
    Reset(Vec<KeyValue>, Revision),
    /// All changes of one revision.
    Events(Vec<Event>),
}

/// Follows all keys that start with a prefix.
pub struct Follow {
    store: Arc<dyn Store>,
    prefix: String,
    events: Option<BoxStream<'static, Result<Vec<Event>, StoreError>>>,
    pause: Duration,
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

impl Follow {
    /// Follows the keys that start with `prefix`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, prefix: String) -> Self {
        Self { store, prefix, events: None, pause: PAUSE_MIN }
    }

    /// The next change; the first is a [`Change::Reset`]. While the store is
    /// away it waits and tries again. Cancel-safe.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(events) = &mut self.events {
                match events.next().await {
                    Some(Ok(events)) => return Change::Events(events),
                    ended => self.ended(ended.and_then(Result::err)),
                }
            }
            match self.start().await {
                Ok(reset) => return reset,
                Err(error) => self.failed(&error).await,
            }
        }
    }

    fn ended(&mut self, error: Option<StoreError>) {
        self.events = None;
        match error {
            Some(error) => tracing::debug!(prefix = self.prefix, %error, "a watch ended, listing anew"),
            None => tracing::debug!(prefix = self.prefix, "a watch ended, listing anew"),
        }
    }

    async fn start(&mut self) -> Result<Change, StoreError> {
        let (listed, revision) = view::list(&*self.store, &self.prefix).await?;
        let from = Revision(revision.0 + 1);
        self.events = Some(self.store.watch(&self.prefix, from).await?);
        self.pause = PAUSE_MIN;
        Ok(Change::Reset(listed, revision))
    }

    async fn failed(&mut self, error: &StoreError) {
        tracing::warn!(prefix = self.prefix, %error, "the metadata store cannot be followed, trying again");
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

/// What there is to know next of topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicChange {
    /// All topics that there are: any other is gone.
    Reset(Vec<Versioned<Topic>>),
    /// A topic was created. One of the same name and another id is gone.
    Put(Versioned<Topic>),
    /// The topic of this name is gone.
    Gone(TopicName),
}

/// Follows all topics.
#[derive(Debug)]
pub struct FollowTopics {
    follow: Follow,
    keys: Keys,
    ready: std::vec::IntoIter<TopicChange>,
}

impl FollowTopics {
    /// Follows the topics of a cluster.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, keys: Keys) -> Self {
        Self { follow: Follow::new(store, keys.topics()), keys, ready: Vec::new().into_iter() }
    }

    /// The next change; the first is a [`TopicChange::Reset`]. Topics that
    /// can't be read are reported in the log and left out. Cancel-safe.
    pub async fn next(&mut self) -> TopicChange {
        loop {
            if let Some(change) = self.ready.next() {
                return change;
            }
            self.ready = match self.follow.next().await {
                Change::Reset(found, _) => {
                    vec![TopicChange::Reset(found.iter().filter_map(readable).collect())].into_iter()
                }
                Change::Events(events) => {
                    let changes: Vec<_> = events.iter().filter_map(|event| self.change(event)).collect();
                    changes.into_iter()
                }
            };
        }
    }

    fn change(&self, event: &Event) -> Option<TopicChange> {
        match event {
            Event::Put(found) => readable(found).map(TopicChange::Put),
            Event::Delete { key, .. } => match self.keys.parse(key)? {
                Key::Topic(name) => Some(TopicChange::Gone(name)),
                _ => None,
            },
        }
    }
}

fn readable(found: &KeyValue) -> Option<Versioned<Topic>> {
    Versioned::read(found)
        .inspect_err(|error| tracing::error!(%error, "a topic cannot be read and is left out"))
        .ok()
}
