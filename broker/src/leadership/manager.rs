//! Follows the topics: takes the partitions of new ones over, lets go of those
//! that are gone, and takes over again what was lost to nobody.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use quire_metadata::follow::{FollowTopics, TopicChange};
use quire_metadata::process::Broker;
use quire_metadata::topic::Topic;
use quire_metadata::typed::Versioned;
use quire_metadata::view;
use quire_proto::id::{PartitionId, TopicId};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::catalog::{Catalog, TopicEntry};
use crate::context::Context;
use crate::leadership::Deposed;
use crate::leadership::driver::{Patience, promote};
use crate::leadership::promotion::{self, Promotion};
use crate::leadership::take_over::{Taken, take_over};
use crate::log::PartitionLog;
use crate::log::partition::Standing;
use crate::shard::Inbox;
use crate::shard::driver::Control;

/// Partitions that are recovered and restored at once, beside those that are held
/// up.
const RECOVERIES: usize = 64;

/// A partition that was lost is looked at again after this long.
const RETAKE: Duration = Duration::from_millis(500);

/// Takes partitions over and hands them to their shards.
#[derive(Debug)]
pub struct Manager {
    context: Arc<Context>,
    catalog: Arc<Catalog>,
    shards: Vec<Arc<Inbox>>,
    deposed: Arc<Deposed>,
    recoveries: Arc<Semaphore>,
    progress: Arc<Progress>,
}

/// A broker is ready after this long though some take-overs are not done: their
/// bookies are away, and all other partitions are served.
const PATIENCE: Duration = Duration::from_secs(5);

/// How far the take-overs are.
#[derive(Debug, Default)]
pub struct Progress {
    listed: OnceLock<Instant>,
    open: AtomicUsize,
    changed: watch::Sender<()>,
}

impl Progress {
    /// Whether all topics are known and every partition was taken over, or has
    /// been waiting for its bookies for a while.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.listed
            .get()
            .is_some_and(|listed| self.open.load(Ordering::SeqCst) == 0 || listed.elapsed() >= PATIENCE)
    }

    /// Waits until [`Progress::is_done`]. Cancel-safe.
    pub async fn done(&self) {
        let mut changes = self.changed.subscribe();
        while !self.is_done() {
            // The sender is part of this.
            let _ = tokio::time::timeout(PATIENCE, changes.changed()).await;
        }
    }

    /// Waits until the topics are known: before that each would be said to be
    /// none. Cancel-safe.
    pub async fn listed(&self) {
        let mut changes = self.changed.subscribe();
        while self.listed.get().is_none() {
            // The sender is part of this.
            let _ = changes.changed().await;
        }
    }

    /// Told of changes.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn begin(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Ordering::SeqCst);
        Open(Arc::clone(self))
    }
}

/// One take-over under way, until it is dropped.
#[derive(Debug)]
pub struct Open(Arc<Progress>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
        self.0.changed.send_replace(());
    }
}

impl Manager {
    /// A manager for these shards.
    #[must_use]
    pub fn new(
        context: Arc<Context>,
        catalog: Arc<Catalog>,
        shards: Vec<Arc<Inbox>>,
        deposed: Arc<Deposed>,
    ) -> Arc<Self> {
        let recoveries = Arc::new(Semaphore::new(RECOVERIES));
        Arc::new(Self { context, catalog, shards, deposed, recoveries, progress: Arc::default() })
    }

    /// How far the take-overs are.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    /// The inbox of the shard that a partition belongs to.
    #[must_use]
    pub fn shard(&self, partition: PartitionId) -> &Arc<Inbox> {
        &self.shards[shard_of(partition, self.shards.len())]
    }

    /// Follows the topics. Ends when the broker stops.
    pub async fn run(self: Arc<Self>) {
        let mut topics = FollowTopics::new(Arc::clone(&self.context.store), self.context.keys.clone());
        let stop = self.context.stop.clone();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                change = topics.next() => self.changed(change),
                deposed = self.deposed.take() => self.retake_later(deposed),
            }
        }
    }

    fn changed(self: &Arc<Self>, change: TopicChange) {
        match change {
            TopicChange::Reset(topics) => {
                let names: HashSet<&str> = topics.iter().map(|topic| topic.value.name.as_str()).collect();
                for gone in self.catalog.all() {
                    if !names.contains(gone.topic.name.as_str()) {
                        self.gone(gone.topic.name.as_str());
                    }
                }
                topics.into_iter().for_each(|topic| self.put(topic));
                self.progress.listed.get_or_init(Instant::now);
                self.progress.changed.send_replace(());
            }
            TopicChange::Put(topic) => self.put(topic),
            TopicChange::Gone(name) => self.gone(name.as_str()),
        }
    }

    fn put(self: &Arc<Self>, topic: Versioned<Topic>) {
        let name = topic.value.name.to_string();
        match self.catalog.topic(&name) {
            Ok(known) if known.topic.id == topic.value.id => return,
            Ok(_) => self.gone(&name),
            Err(_) => {}
        }
        let entry = Arc::new(TopicEntry::new(topic));
        self.catalog.insert(Arc::clone(&entry));
        let ids = entry.partitions.iter().map(|log| log.id).collect();
        self.take_over(entry, ids);
    }

    fn gone(&self, name: &str) {
        let Some(entry) = self.catalog.remove(name) else { return };
        for log in &entry.partitions {
            log.stopped(Standing::Deleted);
            self.shard(log.id).control(Control::Remove(log.id));
        }
        tracing::info!(topic = name, "the topic is gone");
    }

    /// T1 and T2 for all of them at once, then each on its own.
    fn take_over(self: &Arc<Self>, entry: Arc<TopicEntry>, ids: Vec<PartitionId>) {
        let manager = Arc::clone(self);
        let open = self.progress.begin();
        self.context.spawn(async move {
            let taken = match take_over(&manager.context, &entry.stored, ids).await {
                Ok(taken) => taken,
                Err(error) => {
                    tracing::error!(topic = %entry.topic.name, %error, "partitions cannot be taken over");
                    return;
                }
            };
            tracing::info!(topic = %entry.topic.name, partitions = taken.len(), "taken over");
            for taken in taken {
                let index = taken.view.id.index.0 as usize;
                let (Some(log), Some(patience)) = (entry.partitions.get(index), entry.patience.get(index))
                else {
                    continue;
                };
                manager.lead(Arc::clone(log), Arc::clone(patience), taken);
            }
            drop(open);
        });
    }

    /// Serves what is below the last ledger at once, recovers that, restores the
    /// state, and hands the partition to its shard.
    fn lead(self: &Arc<Self>, log: Arc<PartitionLog>, patience: Arc<Patience>, taken: Taken) {
        let manager = Arc::clone(self);
        let open = self.progress.begin();
        let Taken { view, taken } = taken;
        let promotion = Promotion::new(Arc::clone(&log), &view, taken, promotion::Options::default());
        self.context.spawn(async move {
            let turns = Arc::clone(&manager.recoveries);
            let Some(promoted) = promote(Arc::clone(&manager.context), promotion, patience, turns).await
            else {
                return manager.deposed.add(log.id);
            };
            tracing::debug!(
                partition = log.name(),
                epoch = %promoted.leadership.epoch,
                next_offset = %promoted.restored.next_offset,
                "leading"
            );
            manager.shard(log.id).control(Control::Install { promoted, open });
        });
    }

    /// A partition that was lost is taken over again when nobody alive leads it.
    fn retake_later(self: &Arc<Self>, partitions: HashSet<PartitionId>) {
        let manager = Arc::clone(self);
        self.context.spawn(async move {
            tokio::time::sleep(RETAKE).await;
            let mut by_topic: HashMap<TopicId, Vec<PartitionId>> = HashMap::new();
            for partition in partitions {
                match manager.is_led_elsewhere(partition).await {
                    Some(true) => {}
                    Some(false) => by_topic.entry(partition.topic).or_default().push(partition),
                    None => manager.deposed.add(partition),
                }
            }
            for (topic, ids) in by_topic {
                if let Some(entry) = manager.catalog.by_id(topic) {
                    manager.take_over(entry, ids);
                }
            }
        });
    }

    /// Whether another run that is alive leads the partition; `None` when that
    /// cannot be told now.
    async fn is_led_elsewhere(&self, partition: PartitionId) -> Option<bool> {
        let Context { store, keys, process, .. } = &*self.context;
        let key = keys.partition(partition);
        let found = view::get::<quire_metadata::partition::Partition>(&**store, &key).await.ok()?;
        let Some(leader) = found.and_then(|found| found.value.leader) else { return Some(false) };
        if leader == *process {
            return Some(false);
        }
        let registered = view::get::<Broker>(&**store, &keys.broker(&leader.broker)).await.ok()?;
        Some(registered.is_some_and(|broker| broker.value.process == leader))
    }
}

/// Which of so many shards a partition belongs to. Partitions of one topic are
/// spread evenly.
#[must_use]
pub fn shard_of(partition: PartitionId, shards: usize) -> usize {
    let topic = partition.topic.0.as_u128();
    let mixed = topic ^ (topic >> 64);
    #[expect(clippy::cast_possible_truncation, reason = "only a spread is needed")]
    let spread = (mixed as u64).wrapping_add(u64::from(partition.index.0)) as usize;
    spread % shards.max(1)
}
