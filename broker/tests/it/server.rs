//! One broker, one bookie, one store, in a directory that goes with them.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quire_bookie::{Bookie, InProcessConnector};
use quire_broker::{Broker, Options};
use quire_ledger::link::{AppendSink, BookieLink, Connector, LinkError};
use quire_metadata::embedded::EmbeddedStore;
use quire_metadata::key::Keys;
use quire_metadata::operation;
use quire_metadata::operations::bootstrap::Bootstrap;
use quire_metadata::store::Store;
use quire_proto::batch::{Batch, Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;
use quire_proto::error::Failure;
use quire_proto::id::{BookieId, ClusterId};
use quire_proto::v1::ledger_service_client::LedgerServiceClient;
use quire_proto::v1::log_service_client::LogServiceClient;
use quire_proto::v1::topic_service_client::TopicServiceClient;
use quire_proto::v1::{self, ErrorReason};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use uuid::Uuid;

const CLUSTER: &str = "test";

/// Longer than anything should take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Lets bookies be reached, or not.
#[derive(Debug)]
pub(crate) struct Gate {
    inner: InProcessConnector,
    open: AtomicBool,
}

impl Gate {
    pub(crate) fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::SeqCst);
    }
}

impl Connector for Gate {
    fn connect(
        &self,
        bookie: BookieId,
        sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'static, Result<Arc<dyn BookieLink>, LinkError>> {
        if self.open.load(Ordering::SeqCst) {
            return self.inner.connect(bookie, sink);
        }
        async move { Err(LinkError { bookie, cause: "the gate is shut".to_owned() }) }.boxed()
    }
}

/// What outlives a broker.
pub(crate) struct Ground {
    pub(crate) store: Arc<dyn Store>,
    _bookie: Bookie,
    pub(crate) gate: Arc<Gate>,
    _dir: TempDir,
}

pub(crate) struct Server {
    pub(crate) broker: Arc<Broker>,
    pub(crate) log: LogServiceClient<Channel>,
    pub(crate) topics: TopicServiceClient<Channel>,
    pub(crate) ledgers: LedgerServiceClient<Channel>,
    pub(crate) ground: Ground,
    pub(crate) address: std::net::SocketAddr,
    serving: JoinHandle<()>,
}

pub(crate) fn options() -> Options {
    Options {
        cluster: CLUSTER.to_owned(),
        shards: 2,
        default_replicas: 1,
        lease: Duration::from_millis(1500),
        ..Options::default()
    }
}

impl Ground {
    async fn make() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = open_store(&dir.path().join("metadata")).await;
        let bootstrap = Bootstrap {
            id: ClusterId(Uuid::new_v4()),
            expected: None,
            bucket: String::new(),
            prefix: String::new(),
        };
        let founded = operation::run(&*store, &Keys::new(CLUSTER).unwrap(), &bootstrap).await.unwrap();
        assert!(matches!(founded, operation::Outcome::Done(_)));
        let bookie_options = quire_bookie::Options {
            file_bytes: 16 << 20,
            reserve_bytes: 4 << 20,
            high_water: 1.0,
            ..quire_bookie::Options::new(dir.path().join("bookie"))
        };
        let bookie = Bookie::start(bookie_options, Arc::clone(&store), CLUSTER).await.unwrap();
        let inner = InProcessConnector::new(vec![bookie.clone()]);
        let gate = Arc::new(Gate { inner, open: AtomicBool::new(true) });
        Self { store, _bookie: bookie, gate, _dir: dir }
    }
}

async fn open_store(path: &Path) -> Arc<dyn Store> {
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(&path)).await.unwrap();
    Arc::new(opened.unwrap())
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(options()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        Self::on(Ground::make().await, options).await
    }

    pub(crate) async fn on(ground: Ground, options: Options) -> Self {
        let connector: Arc<dyn Connector> = ground.gate.clone();
        let broker = Broker::start(options, Arc::clone(&ground.store), connector).await.unwrap();
        let broker = Arc::new(broker);
        tokio::time::timeout(PATIENCE, broker.wait_ready()).await.expect("the broker becomes ready");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn({
            let broker = Arc::clone(&broker);
            async move { broker.serve(listener).await.unwrap() }
        });
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        Self {
            broker,
            log: LogServiceClient::new(channel.clone()).max_decoding_message_size(usize::MAX),
            topics: TopicServiceClient::new(channel.clone()),
            ledgers: LedgerServiceClient::new(channel),
            ground,
            address,
            serving,
        }
    }

    /// As if the broker's process had been killed.
    pub(crate) async fn crash(self) -> Ground {
        let Self { broker, ground, serving, .. } = self;
        serving.abort();
        _ = serving.await;
        drop(Arc::into_inner(broker).expect("nobody else holds the broker"));
        ground
    }

    pub(crate) async fn stop(self) -> Ground {
        let Self { broker, ground, serving, log, topics, ledgers, .. } = self;
        drop((log, topics, ledgers));
        broker.shutdown().await;
        tokio::time::timeout(PATIENCE, serving).await.expect("serving ends").unwrap();
        ground
    }

    pub(crate) async fn create(&mut self, name: &str, partitions: u32, config: &[(&str, &str)]) {
        let config: HashMap<_, _> =
            config.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request =
            v1::CreateTopicRequest { name: name.to_owned(), partitions, replicas: 0, ack_quorum: 0, config };
        self.topics.create_topic(request).await.unwrap();
    }

    /// Produces these batches to one partition and returns the result.
    pub(crate) async fn produce(
        &mut self,
        topic: &str,
        partition: u32,
        batches: &[Batch],
    ) -> v1::ProduceResult {
        let mut response = self.log.produce(request(topic, partition, batches)).await.unwrap().into_inner();
        response.results.remove(0)
    }

    /// Produces one value and returns its offset.
    pub(crate) async fn put(&mut self, topic: &str, partition: u32, value: &str) -> u64 {
        let result = self.produce(topic, partition, &[batch(&[value])]).await;
        assert_eq!(result.error, None);
        result.base_offset
    }

    pub(crate) async fn fetch(&mut self, request: v1::FetchRequest) -> v1::FetchResult {
        self.log.fetch(request).await.unwrap().into_inner().results.remove(0)
    }

    /// All values from an offset to the end, with their offsets.
    pub(crate) async fn read_from(&mut self, topic: &str, partition: u32, offset: u64) -> Vec<(u64, String)> {
        let mut read = Vec::new();
        let mut offset = offset;
        loop {
            let result = self.fetch(fetch(topic, partition, offset)).await;
            assert_eq!(result.error, None);
            read.extend(values(&result).into_iter().filter(|(at, _)| *at >= offset));
            if result.next_offset == result.latest_offset {
                return read;
            }
            assert!(result.next_offset > offset, "no progress at {offset}");
            offset = result.next_offset;
        }
    }

    pub(crate) async fn segments(&mut self, topic: &str) -> Vec<v1::Segment> {
        let request = v1::ListSegmentsRequest { topic: topic.to_owned(), partition: Some(0) };
        self.ledgers.list_segments(request).await.unwrap().into_inner().segments
    }
}

pub(crate) fn batch(values: &[&str]) -> Batch {
    sealed(values, Producer::NONE)
}

pub(crate) fn sealed(values: &[&str], producer: Producer) -> Batch {
    let mut builder = Builder::with_capacity(1024);
    for value in values {
        builder.append(1_000, None, Some(value.as_bytes()), NO_HEADERS).unwrap();
    }
    builder.seal(Compression::None, producer).unwrap()
}

pub(crate) fn joined(batches: &[Batch]) -> Bytes {
    batches.iter().flat_map(|batch| batch.bytes.to_vec()).collect::<Vec<_>>().into()
}

pub(crate) fn request(topic: &str, partition: u32, batches: &[Batch]) -> v1::ProduceRequest {
    v1::ProduceRequest {
        correlation_id: 7,
        partitions: vec![v1::ProducePartition {
            topic: topic.to_owned(),
            partition,
            batches: joined(batches),
            ..v1::ProducePartition::default()
        }],
        ..v1::ProduceRequest::default()
    }
}

pub(crate) fn fetch(topic: &str, partition: u32, offset: u64) -> v1::FetchRequest {
    v1::FetchRequest {
        partitions: vec![v1::FetchPartition {
            topic: topic.to_owned(),
            partition,
            offset,
            ..v1::FetchPartition::default()
        }],
        ..v1::FetchRequest::default()
    }
}

pub(crate) fn values(result: &v1::FetchResult) -> Vec<(u64, String)> {
    let mut values = Vec::new();
    for batch in Batch::split(result.batches.clone()).unwrap() {
        batch.verify_crc().unwrap();
        for record in batch.records(1 << 20).unwrap() {
            let record = record.unwrap();
            values.push((record.offset.0, String::from_utf8(record.value.unwrap().to_vec()).unwrap()));
        }
    }
    values
}

#[track_caller]
pub(crate) fn reason(error: &Option<v1::Error>) -> ErrorReason {
    error.as_ref().expect("an error").reason()
}

#[track_caller]
pub(crate) fn status_reason<T: std::fmt::Debug>(result: Result<T, tonic::Status>) -> ErrorReason {
    Failure::from_status(&result.unwrap_err()).expect("one of ours").reason
}

/// Waits until a condition holds.
pub(crate) async fn eventually<F, T>(what: &str, mut check: F) -> T
where
    F: AsyncFnMut() -> Option<T>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(reached) = check().await {
            return reached;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
