//! The broker as one thing: started, served, handed over.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use quire_ledger::link::Connector;
use quire_metadata::key::Keys;
use quire_metadata::operation::Outcome;
use quire_metadata::operations::bootstrap::Bootstrap;
use quire_metadata::process::{InvalidBrokerName, Process};
use quire_metadata::store::Store;
use quire_proto::id::{ClusterId, Nonce};
use quire_proto::v1::ledger_service_server::LedgerServiceServer;
use quire_proto::v1::log_service_server::LogServiceServer;
use quire_proto::v1::topic_service_server::TopicServiceServer;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use uuid::Uuid;

use crate::bookies::Bookies;
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::context::Context;
use crate::error::Error;
use crate::leadership::Deposed;
use crate::leadership::manager::Manager;
use crate::leadership::registration::Registration;
use crate::log::Reader;
use crate::log::cold::Cold;
use crate::log::partition::Standing;
use crate::log::tail::TailBudget;
use crate::memory::Memory;
use crate::options::Options;
use crate::pool::LedgerPool;
use crate::service::answers;
use crate::service::budget::{Budget, Kind};
use crate::service::ledgers::Ledgers;
use crate::service::records::{ProducerIds, Records};
use crate::service::topics::Topics;
use crate::service::{Door, server};
use crate::shard::driver::Control;
use crate::shard::{Inbox, Shard};

/// How often gauges are set.
const SAMPLE: Duration = Duration::from_secs(5);

/// A running broker.
#[derive(Debug)]
pub struct Broker {
    context: Arc<Context>,
    door: Arc<Door>,
    pool: Arc<LedgerPool>,
    shards: Vec<Arc<Inbox>>,
    running: TaskTracker,
    health: HealthReporter,
}

impl Broker {
    /// Registers the broker, learns the topics and begins to take its partitions
    /// over; [`Broker::ready`] tells when that is done.
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
        let context = Arc::new(context(options, store, connector)?);
        found_cluster(&context).await?;
        let registration = Arc::new(Registration::default());
        registration.start(&context).await?;
        context.spawn(Arc::clone(&context.bookies).follow(Arc::clone(&context.store), context.keys.clone()));
        context.spawn(Arc::clone(&registration).keep(Arc::clone(&context)));

        let pool = LedgerPool::new(Arc::clone(&context));
        let deposed = Arc::new(Deposed::default());
        let running = TaskTracker::new();
        let shards: Vec<Arc<Inbox>> =
            (0..shard_count(&context.options)).map(|_| Inbox::new(context.options.inbox_messages)).collect();
        for inbox in &shards {
            let shard =
                Shard::new(Arc::clone(&context), Arc::clone(&pool), Arc::clone(inbox), Arc::clone(&deposed));
            let abort = context.abort.clone();
            running.spawn(async move {
                tokio::select! {
                    () = abort.cancelled() => {}
                    () = shard.run() => {}
                }
            });
        }
        let catalog = Arc::new(Catalog::default());
        let manager = Manager::new(Arc::clone(&context), Arc::clone(&catalog), shards.clone(), deposed);
        context.spawn(Arc::clone(&manager).run());
        manager.progress().listed().await;
        let cold = Cold::new(Arc::clone(&context.bookies), context.options.read_cache_bytes);
        let reader = Reader::new(Arc::new(cold));
        let producers = ProducerIds::default();
        let Options { answer_bytes, client_patience, .. } = context.options;
        let part = answer_bytes / 8;
        let answers = Budget::new(Kind::Records, 4 * part, client_patience);
        let replies = Budget::new(Kind::Replies, part, client_patience);
        let acknowledgements = Budget::new(Kind::Acknowledgements, part, client_patience);
        for sent in [&answers, &replies, &acknowledgements] {
            context.spawn(answers::watch(Arc::clone(sent), Arc::clone(&context.memory)));
        }
        let door = Arc::new(Door {
            context,
            catalog,
            manager,
            reader,
            registration,
            producers,
            answers,
            replies,
            acknowledgements,
            fetches: Budget::new(Kind::Fetches, part, client_patience),
            // Nobody knows for how long one lasts: it is not waited for.
            subscriptions: Budget::new(Kind::Subscriptions, part, Duration::ZERO),
        });
        let health = HealthReporter::new();
        let broker = Self { context: Arc::clone(&door.context), door, pool, shards, running, health };
        broker.report_health(true).await;
        broker.context.spawn(sample(Arc::clone(&broker.door)));
        Ok(broker)
    }

    /// Whether the broker is registered, has taken its partitions over and can
    /// serve. Partitions whose bookies are away do not count.
    #[must_use]
    pub fn ready(&self) -> bool {
        !self.context.stop.is_cancelled()
            && self.door.registration.is_valid()
            && self.door.manager.progress().is_done()
    }

    /// Waits until the partitions are taken over, as [`Broker::ready`] tells.
    /// Cancel-safe.
    pub async fn wait_ready(&self) {
        self.door.manager.progress().done().await;
    }

    /// Serves the gRPC door on this listener until [`Broker::shutdown`].
    /// Several listeners may be served at once.
    ///
    /// # Errors
    /// [`Error::Serve`]
    pub async fn serve(&self, listener: TcpListener) -> Result<(), Error> {
        let health = HealthServer::new(HealthService::from_health_reporter(self.health.clone()));
        server::serve(Arc::clone(&self.door), health, listener).await
    }

    /// Hands over: stops accepting, drains appends, seals open ledgers, returns
    /// its ids, gives up the lease; within [`Options::shutdown`]. What is not
    /// done by then is left to the recovery of whoever leads next.
    pub async fn shutdown(&self) {
        let deadline = Instant::now() + self.context.options.shutdown;
        self.report_health(false).await;
        self.context.stop.cancel();
        self.shards.iter().for_each(|shard| shard.control(Control::Close));
        self.running.close();
        if tokio::time::timeout_at(deadline, self.running.wait()).await.is_err() {
            tracing::warn!("not all ledgers were sealed in time: they will be recovered");
        }
        let given_up = async {
            self.pool.release().await;
            self.door.registration.close().await;
        };
        if tokio::time::timeout_at(deadline, given_up).await.is_err() {
            tracing::warn!("the lease is left to run out");
        }
        self.context.abort.cancel();
        self.context.tasks.close();
        self.context.tasks.wait().await;
    }

    async fn report_health(&self, serving: bool) {
        if serving {
            self.health.set_serving::<LogServiceServer<Records>>().await;
            self.health.set_serving::<TopicServiceServer<Topics>>().await;
            self.health.set_serving::<LedgerServiceServer<Ledgers>>().await;
        } else {
            self.health.set_not_serving::<LogServiceServer<Records>>().await;
            self.health.set_not_serving::<TopicServiceServer<Topics>>().await;
            self.health.set_not_serving::<LedgerServiceServer<Ledgers>>().await;
        }
    }
}

/// A broker that is dropped without a shutdown stops as if it had crashed.
impl Drop for Broker {
    fn drop(&mut self) {
        self.context.stop.cancel();
        self.context.abort.cancel();
    }
}

/// Keeps the gauges up to date. Ends never.
async fn sample(door: Arc<Door>) {
    let context = &door.context;
    let mut every = tokio::time::interval(SAMPLE);
    loop {
        every.tick().await;
        metrics::gauge!("quire_broker_memory_bytes").set(as_gauge(context.memory.used()));
        metrics::gauge!("quire_broker_tail_cache_bytes").set(as_gauge(context.tails.used()));
        metrics::gauge!("quire_broker_answer_bytes").set(as_gauge(
            [&door.answers, &door.replies, &door.acknowledgements, &door.fetches, &door.subscriptions]
                .map(|answers| answers.used())
                .iter()
                .sum(),
        ));
        let topics = door.catalog.all();
        let partitions = topics.iter().flat_map(|topic| &topic.partitions);
        let led = partitions.filter(|log| log.standing().0 == Standing::Leading).count();
        metrics::gauge!("quire_broker_partitions_led").set(as_gauge(led));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge of more than 2^53 may be off by one")]
const fn as_gauge(number: usize) -> f64 {
    number as f64
}

pub(crate) fn context(
    options: Options,
    store: Arc<dyn Store>,
    connector: Arc<dyn Connector>,
) -> Result<Context, Error> {
    let invalid = |option, problem: String| Error::Option { option, problem };
    let keys = Keys::new(&options.cluster).map_err(|error| invalid("cluster", error.to_string()))?;
    let broker = options.id.parse().map_err(|error: InvalidBrokerName| invalid("id", error.to_string()))?;
    if options.tail_cache_bytes > options.memory_bytes {
        return Err(invalid(
            "tail_cache_bytes",
            "it is part of memory_bytes and cannot be above it".to_owned(),
        ));
    }
    let memory = Memory::new(options.memory_bytes);
    Ok(Context {
        tails: TailBudget::new(options.tail_cache_bytes, Arc::clone(&memory)),
        process: Process { broker, nonce: Nonce(Uuid::new_v4()) },
        bookies: Bookies::new(connector),
        options,
        store,
        keys,
        memory,
        clock: Clock::default(),
        tasks: TaskTracker::new(),
        stop: CancellationToken::new(),
        abort: CancellationToken::new(),
    })
}

/// Founds the cluster, or checks that it is one that this version can serve.
async fn found_cluster(context: &Context) -> Result<(), Error> {
    let bootstrap = Bootstrap {
        id: ClusterId(Uuid::new_v4()),
        expected: None,
        bucket: String::new(),
        prefix: String::new(),
    };
    match context.settle(&bootstrap).await? {
        Outcome::Done(_) => Ok(()),
        Outcome::Lost(mismatch) => Err(mismatch.into()),
    }
}

fn shard_count(options: &Options) -> usize {
    match options.shards {
        0 => thread::available_parallelism().map_or(1, usize::from),
        shards => shards,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use futures_util::FutureExt;
    use quire_metadata::embedded::VolatileStore;
    use quire_metadata::key::Keys;
    use quire_metadata::operation;
    use quire_metadata::operations::bootstrap::Bootstrap;
    use quire_metadata::operations::topics::CreateTopic;
    use quire_metadata::topic::Topic;
    use quire_proto::id::{ClusterId, TopicId};
    use uuid::Uuid;

    use super::*;
    use crate::bookies::fake;

    /// Who asks in the first moment is not told that there is no such topic.
    #[tokio::test]
    async fn a_broker_that_has_started_knows_its_topics() {
        let (options, store) = (Options::default(), Arc::new(VolatileStore::default()));
        let keys = Keys::new(&options.cluster).unwrap();
        let id = ClusterId(Uuid::nil());
        let cluster = Bootstrap { id, expected: None, bucket: String::new(), prefix: String::new() };
        let _ = operation::run(&*store, &keys, &cluster).await.unwrap();
        let topic = Topic {
            id: TopicId::default(),
            name: "t".parse().unwrap(),
            partitions: 1,
            replicas: 1,
            ack_quorum: 1,
            config: BTreeMap::new(),
            created_ms: 0,
        };
        let _ = operation::run(&*store, &keys, &CreateTopic { topic }).await.unwrap();
        let bookies =
            fake::connector(&Arc::default(), |bookie, _| async move { Err(fake::away(bookie)) }.boxed());
        let broker = Broker::start(options, store, bookies).await.unwrap();
        assert!(broker.door.catalog.topic("t").is_ok());
    }
}
