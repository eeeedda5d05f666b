use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use quire_metadata::embedded::VolatileStore;
use quire_metadata::operations::topics::CreateTopic;
use quire_metadata::store::{Event, KeyValue, LeaseId, Page, Revision, Txn, TxnOutcome};
use quire_proto::id::{Nonce, TopicId};
use tokio::time::Instant;

use super::*;

/// What a transaction takes.
const DELAY: Duration = Duration::from_millis(10);

/// A store whose transactions take their time.
#[derive(Debug, Default)]
struct Slow(VolatileStore);

#[async_trait]
impl Store for Slow {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.0.get(key).await
    }

    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.0.range(prefix, from, limit, revision).await
    }

    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        tokio::time::sleep(DELAY).await;
        self.0.transact(txn).await
    }

    async fn watch(
        &self,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError> {
        self.0.watch(prefix, from).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.0.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.0.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.0.revoke(lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn the_transactions_of_many_partitions_do_not_wait_for_one_another() {
    let (store, keys) = (Slow::default(), Keys::new("c").unwrap());
    let topic = Topic {
        id: TopicId::default(),
        name: "t".parse().unwrap(),
        partitions: 1000,
        replicas: 1,
        ack_quorum: 1,
        config: BTreeMap::new(),
        created_ms: 0,
    };
    let created = operation::run(&store, &keys, &CreateTopic { topic }).await.unwrap();
    let Outcome::Done(topic) = created else { panic!("{created:?}") };
    let process = Process { broker: "b".parse().unwrap(), nonce: Nonce::default() };
    let mut left: Vec<_> = topic.value.partition_ids().collect();
    let mut done = Vec::new();
    let began = Instant::now();
    attempt(&store, &keys, &process, &topic, &mut left, &mut done).await.unwrap();
    assert_eq!((left.len(), done.len()), (0, 1000));
    // Some fifty transactions.
    assert!(began.elapsed() <= 5 * DELAY, "{:?}", began.elapsed());
}
