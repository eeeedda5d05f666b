//! Brokers whose faults are scripted. They keep to the protocol: leaders, offsets,
//! idempotent producers, credit.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use quire_proto::batch::{Batch, UNRESOLVED_MAX};
use quire_proto::error::Failure;
use quire_proto::id::{Epoch, Offset};
use quire_proto::v1::list_offsets_partition::At;
use quire_proto::v1::log_service_server::{LogService, LogServiceServer};
use quire_proto::v1::subscribe_request::Request as Subscribing;
use quire_proto::v1::*;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

/// Bytes of one partition in one message: few, so that there are many messages.
const MESSAGE_BYTES: usize = 4 << 10;

/// What goes wrong with one produce request.
#[derive(Clone, Debug)]
pub(crate) enum ProduceFault {
    /// Nothing.
    None,
    /// Each partition's part is refused for this reason.
    Refuse(ErrorReason),
    /// Appended, then the stream breaks before the answer.
    AppendAndBreak,
    /// The stream breaks before anything is appended.
    Break,
    /// Nothing is appended and nothing is answered.
    Hang,
}

/// What goes wrong with one message of records.
#[derive(Clone, Debug)]
pub(crate) enum ReadFault {
    None,
    Break,
    Refuse(ErrorReason),
    /// A bit of the batches is flipped on the way.
    Flip,
}

/// A cluster's state, shared by its brokers.
#[derive(Clone, Default)]
pub(crate) struct Cluster {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Inner {
    brokers: Vec<String>,
    topics: HashMap<String, Topic>,
    topics_created: u128,
    producers_given: i64,
    produce_faults: VecDeque<ProduceFault>,
    read_faults: VecDeque<ReadFault>,
    requests: Vec<ProduceRequest>,
    /// The initial credit of each subscription.
    granted: Vec<u64>,
}

struct Topic {
    id: Bytes,
    leaders: Vec<i32>,
    logs: Vec<Log>,
}

#[derive(Default)]
struct Log {
    batches: Vec<Batch>,
    next: u64,
    earliest: u64,
    producers: HashMap<i64, Producing>,
}

#[derive(Default)]
struct Producing {
    next: i32,
    recent: VecDeque<(i32, u64)>,
}

impl Log {
    fn append(&mut self, batch: &Batch) -> Result<u64, ErrorReason> {
        batch.check(8 << 20).map_err(|error| error.reason())?;
        let (id, base) = (batch.header.producer_id, batch.header.base_sequence);
        let offset = self.next;
        if id >= 0 {
            let producer =
                self.producers.entry(id).or_insert_with(|| Producing { next: base, ..Producing::default() });
            if let Some(&(_, offset)) = producer.recent.iter().find(|&&(known, _)| known == base) {
                return Ok(offset);
            }
            if producer.next != base {
                return Err(ErrorReason::OutOfOrderSequence);
            }
            producer.next = base + i32::try_from(batch.header.record_count).unwrap();
            producer.recent.push_back((base, offset));
            if producer.recent.len() > UNRESOLVED_MAX {
                producer.recent.pop_front();
            }
        }
        let stamped = Bytes::from(batch.stamp(Offset(offset), Epoch(1)).concat());
        let stamped = Batch::split(stamped).unwrap().remove(0);
        self.next = stamped.header.next_offset().0;
        self.batches.push(stamped);
        Ok(offset)
    }

    /// Whole batches from this offset on, at least one if there is one.
    fn read(&self, from: u64, max_bytes: usize) -> (Bytes, u64) {
        let mut bytes = BytesMut::new();
        let mut next = from;
        for batch in self.batches.iter().filter(|batch| batch.header.last_offset().0 >= from) {
            if !bytes.is_empty() && bytes.len() + batch.bytes.len() > max_bytes {
                break;
            }
            bytes.extend_from_slice(&batch.bytes);
            next = batch.header.next_offset().0;
        }
        (bytes.freeze(), next)
    }
}

impl Cluster {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    /// A topic whose partitions are all led by the first broker.
    pub(crate) fn create(&self, topic: &str, partitions: usize) {
        let logs = (0..partitions).map(|_| Log::default()).collect();
        let mut inner = self.lock();
        inner.topics_created += 1;
        let id = Bytes::copy_from_slice(&inner.topics_created.to_be_bytes());
        inner.topics.insert(topic.to_owned(), Topic { id, leaders: vec![0; partitions], logs });
        drop(inner);
        self.changed.notify_waiters();
    }

    pub(crate) fn delete(&self, topic: &str) {
        self.lock().topics.remove(topic);
    }

    /// Makes another broker lead a partition; -1: none does.
    pub(crate) fn lead(&self, topic: &str, partition: usize, broker: i32) {
        self.lock().topics.get_mut(topic).unwrap().leaders[partition] = broker;
        self.changed.notify_waiters();
    }

    pub(crate) fn plan_produce(&self, faults: impl IntoIterator<Item = ProduceFault>) {
        self.lock().produce_faults.extend(faults);
    }

    pub(crate) fn plan_read(&self, faults: impl IntoIterator<Item = ReadFault>) {
        self.lock().read_faults.extend(faults);
    }

    /// Faults that have not come to pass.
    pub(crate) fn faults_left(&self) -> usize {
        let inner = self.lock();
        inner.produce_faults.len() + inner.read_faults.len()
    }

    /// The address that clients are told for a broker.
    pub(crate) fn advertise(&self, broker: usize, address: &str) {
        self.lock().brokers[broker] = address.to_owned();
    }

    /// Drops what is below this offset.
    pub(crate) fn trim(&self, topic: &str, partition: usize, earliest: u64) {
        self.lock().topics.get_mut(topic).unwrap().logs[partition].earliest = earliest;
    }

    /// The values in a partition's log, in order.
    pub(crate) fn values(&self, topic: &str, partition: usize) -> Vec<String> {
        let batches = self.lock().topics[topic].logs[partition].batches.clone();
        let records = batches.iter().flat_map(|batch| batch.records(8 << 20).unwrap());
        records.map(|record| String::from_utf8(record.unwrap().value.unwrap().to_vec()).unwrap()).collect()
    }

    pub(crate) fn batches(&self, topic: &str, partition: usize) -> Vec<Batch> {
        self.lock().topics[topic].logs[partition].batches.clone()
    }

    /// The produce requests that came in.
    pub(crate) fn requests(&self) -> Vec<ProduceRequest> {
        self.lock().requests.clone()
    }

    pub(crate) fn producers_given(&self) -> i64 {
        self.lock().producers_given
    }

    /// The initial credit of each subscription.
    pub(crate) fn credits(&self) -> Vec<u64> {
        self.lock().granted.clone()
    }
}

/// One broker: its runtime is its process, and goes with it.
pub(crate) struct Broker {
    pub(crate) address: String,
    runtime: Option<Runtime>,
}

impl Broker {
    /// Starts the cluster's next broker.
    pub(crate) async fn start(cluster: &Cluster) -> Self {
        let index = cluster.lock().brokers.len();
        let broker = Self::start_at(cluster, "127.0.0.1:0".parse().unwrap(), index).await;
        cluster.lock().brokers.push(broker.address.clone());
        broker
    }

    /// Starts a broker again where one was.
    pub(crate) async fn start_at(cluster: &Cluster, address: SocketAddr, index: usize) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let service = Service { cluster: cluster.clone(), index: i32::try_from(index).unwrap() };
        let listener = runtime
            .spawn(async move {
                let socket = TcpSocket::new_v4()?;
                socket.set_reuseaddr(true)?;
                socket.bind(address)?;
                socket.listen(64)
            })
            .await
            .unwrap()
            .unwrap();
        let address = listener.local_addr().unwrap().to_string();
        runtime.spawn(serve(listener, service));
        Self { address, runtime: Some(runtime) }
    }

    /// Every connection breaks at once.
    pub(crate) fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(listener: TcpListener, service: Service) {
    let service = LogServiceServer::new(service)
        .max_decoding_message_size(64 << 20)
        .max_encoding_message_size(64 << 20);
    let server = tonic::transport::Server::builder().add_service(service);
    server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
}

#[derive(Clone)]
struct Service {
    cluster: Cluster,
    index: i32,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn refusal(reason: ErrorReason, message: &str) -> Error {
    Failure::new(reason, message).into()
}

impl Service {
    /// Why this broker does not serve a partition, if it does not.
    fn refuses(
        &self,
        inner: &Inner,
        (topic, id): (&str, &Bytes),
        partition: u32,
        direct: bool,
    ) -> Option<Error> {
        let Some(topic) = inner.topics.get(topic) else {
            return Some(refusal(ErrorReason::UnknownTopic, "no such topic"));
        };
        if !id.is_empty() && *id != topic.id {
            return Some(refusal(ErrorReason::UnknownTopic, "another topic"));
        }
        match topic.leaders.get(partition as usize) {
            None => Some(refusal(ErrorReason::UnknownPartition, "no such partition")),
            Some(-1) => Some(refusal(ErrorReason::NotReady, "no leader")),
            Some(&leader) if direct && leader != self.index => {
                Some(refusal(ErrorReason::NotLeader, "elsewhere"))
            }
            Some(_) => None,
        }
    }

    fn produce(&self, request: ProduceRequest) -> Result<Option<ProduceResponse>, Status> {
        let mut inner = self.cluster.lock();
        let fault = inner.produce_faults.pop_front().unwrap_or(ProduceFault::None);
        let results = request.partitions.iter().map(|part| self.append(&mut inner, part, &fault, &request));
        let results: Vec<_> = results.collect();
        let correlation_id = request.correlation_id;
        inner.requests.push(request);
        drop(inner);
        self.cluster.changed.notify_waiters();
        match fault {
            ProduceFault::AppendAndBreak | ProduceFault::Break => Err(Status::unavailable("planted")),
            ProduceFault::Hang => Ok(None),
            ProduceFault::None | ProduceFault::Refuse(_) => {
                Ok(Some(ProduceResponse { correlation_id, results }))
            }
        }
    }

    fn append(
        &self,
        inner: &mut Inner,
        part: &ProducePartition,
        fault: &ProduceFault,
        request: &ProduceRequest,
    ) -> ProduceResult {
        let mut result = ProduceResult {
            topic: part.topic.clone(),
            partition: part.partition,
            ..ProduceResult::default()
        };
        result.error = self.refuses(inner, (&part.topic, &part.topic_id), part.partition, request.direct);
        match fault {
            ProduceFault::Refuse(reason) => result.error = Some(refusal(*reason, "planted")),
            ProduceFault::Break | ProduceFault::Hang => return result,
            ProduceFault::None | ProduceFault::AppendAndBreak => {}
        }
        if result.error.is_none() {
            let log = &mut inner.topics.get_mut(&part.topic).unwrap().logs[part.partition as usize];
            for batch in Batch::split(part.batches.clone()).unwrap() {
                match log.append(&batch) {
                    Ok(offset) => result.base_offset = offset,
                    Err(reason) => result.error = Some(refusal(reason, "the double refuses")),
                }
            }
        }
        result
    }

    fn read(&self, part: &FetchPartition, direct: bool, max_bytes: usize) -> FetchResult {
        let inner = self.cluster.lock();
        let mut result =
            FetchResult { topic: part.topic.clone(), partition: part.partition, ..FetchResult::default() };
        result.error = self.refuses(&inner, (&part.topic, &part.topic_id), part.partition, direct);
        if result.error.is_some() {
            return result;
        }
        let log = &inner.topics[&part.topic].logs[part.partition as usize];
        if part.offset < log.earliest || part.offset > log.next {
            result.error = Some(refusal(ErrorReason::OffsetOutOfRange, "out of range"));
            return result;
        }
        let (batches, next_offset) = log.read(part.offset, max_bytes);
        FetchResult { earliest_offset: log.earliest, latest_offset: log.next, batches, next_offset, ..result }
    }

    /// Lets the next planned fault happen to results that carry something.
    fn spoil(&self, results: &mut [FetchResult]) -> Result<(), Status> {
        if results.iter().all(|result| result.batches.is_empty()) {
            return Ok(());
        }
        let fault = self.cluster.lock().read_faults.pop_front().unwrap_or(ReadFault::None);
        match fault {
            ReadFault::None => {}
            ReadFault::Break => return Err(Status::unavailable("planted")),
            ReadFault::Refuse(reason) => results.iter_mut().for_each(|result| {
                result.error = Some(refusal(reason, "planted"));
                result.batches.clear();
            }),
            ReadFault::Flip => results.iter_mut().for_each(|result| {
                let mut bytes = result.batches.to_vec();
                *bytes.last_mut().unwrap() ^= 1;
                result.batches = bytes.into();
            }),
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl LogService for Service {
    type ProduceStreamStream = Responses<ProduceResponse>;
    type SubscribeStream = Responses<SubscribeResponse>;

    async fn metadata(
        &self,
        request: Request<MetadataRequest>,
    ) -> Result<Response<MetadataResponse>, Status> {
        let inner = self.cluster.lock();
        let brokers = inner.brokers.iter().enumerate();
        let brokers =
            brokers.map(|(id, address)| BrokerAddress { id: id.to_string(), address: address.clone() });
        let topics = request.into_inner().topics.into_iter().map(|name| match inner.topics.get(&name) {
            Some(topic) => TopicMetadata {
                name,
                id: topic.id.clone(),
                leaders: topic.leaders.clone(),
                max_message_bytes: 1 << 20,
                ..TopicMetadata::default()
            },
            None => {
                let error = Some(refusal(ErrorReason::UnknownTopic, "no such topic"));
                TopicMetadata { name, error, ..TopicMetadata::default() }
            }
        });
        Ok(Response::new(MetadataResponse { brokers: brokers.collect(), topics: topics.collect() }))
    }

    async fn init_producer(
        &self,
        _: Request<InitProducerRequest>,
    ) -> Result<Response<InitProducerResponse>, Status> {
        let mut inner = self.cluster.lock();
        inner.producers_given += 1;
        Ok(Response::new(InitProducerResponse { producer_id: inner.producers_given, producer_epoch: 0 }))
    }

    async fn produce(&self, request: Request<ProduceRequest>) -> Result<Response<ProduceResponse>, Status> {
        self.produce(request.into_inner())?.map(Response::new).ok_or_else(|| Status::unavailable("planted"))
    }

    async fn produce_stream(
        &self,
        request: Request<Streaming<ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStreamStream>, Status> {
        let service = self.clone();
        let answers = request.into_inner().filter_map(move |request| {
            let answer = request.and_then(|request| service.produce(request)).transpose();
            async move { answer }
        });
        // A stream ends with its first error.
        let ended = answers.scan(false, |ended, answer| {
            let over = std::mem::replace(ended, answer.is_err());
            async move { (!over).then_some(answer) }
        });
        Ok(Response::new(Box::pin(ended)))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<FetchResponse>, Status> {
        let request = request.into_inner();
        let deadline = Instant::now() + Duration::from_millis(request.max_wait_ms.into());
        loop {
            let changed = self.cluster.changed.notified();
            let read = |part: &FetchPartition| {
                self.read(part, request.direct, MESSAGE_BYTES.min(request.max_bytes as usize))
            };
            let mut results: Vec<_> = request.partitions.iter().map(read).collect();
            let something = results.iter().any(|result| result.error.is_some() || !result.batches.is_empty());
            if something || timeout_at(deadline, changed).await.is_err() {
                self.spoil(&mut results)?;
                return Ok(Response::new(FetchResponse { results }));
            }
        }
    }

    async fn subscribe(
        &self,
        request: Request<Streaming<SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut requests = request.into_inner();
        let first = requests.message().await?.and_then(|first| first.request);
        let Some(Subscribing::Start(start)) = first else { return Err(Status::invalid_argument("no start")) };
        let (sender, receiver) = mpsc::channel(1);
        let service = self.clone();
        tokio::spawn(async move {
            let status = service.push(start, requests, &sender).await;
            let _ = sender.send(Err(status)).await;
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn list_offsets(
        &self,
        request: Request<ListOffsetsRequest>,
    ) -> Result<Response<ListOffsetsResponse>, Status> {
        let inner = self.cluster.lock();
        let results = request.into_inner().partitions.into_iter().map(|part| {
            let mut result =
                ListOffsetsResult { topic: part.topic, partition: part.partition, ..Default::default() };
            result.error = self.refuses(&inner, (&result.topic, &part.topic_id), result.partition, false);
            if result.error.is_none() {
                let log = &inner.topics[&result.topic].logs[result.partition as usize];
                result.offset = match part.at.unwrap() {
                    At::Earliest(_) => Some(log.earliest),
                    At::Latest(_) => Some(log.next),
                    At::TimestampMs(since) => {
                        let mut batches = log.batches.iter();
                        batches
                            .find(|one| one.header.max_timestamp_ms >= since)
                            .map(|one| one.header.base_offset.0)
                    }
                };
            }
            result
        });
        Ok(Response::new(ListOffsetsResponse { results: results.collect() }))
    }
}

impl Service {
    /// Pushes records as far as there is credit, until something fails.
    async fn push(
        &self,
        mut start: SubscribeStart,
        mut requests: Streaming<SubscribeRequest>,
        sender: &mpsc::Sender<Result<SubscribeResponse, Status>>,
    ) -> Status {
        let mut credit = i64::try_from(start.credit_bytes).unwrap();
        self.cluster.lock().granted.push(start.credit_bytes);
        loop {
            let changed = self.cluster.changed.notified();
            let mut moved = false;
            for part in &mut start.partitions {
                if credit <= 0 {
                    break;
                }
                let mut results =
                    [self.read(part, start.direct, usize::try_from(credit).unwrap().min(MESSAGE_BYTES))];
                if let Err(status) = self.spoil(&mut results) {
                    return status;
                }
                let [result] = results;
                if result.error.is_none() && result.batches.is_empty() {
                    continue;
                }
                credit -= i64::try_from(result.batches.len()).unwrap();
                moved = true;
                if result.error.is_some() {
                    part.offset = u64::MAX;
                } else {
                    part.offset = result.next_offset;
                }
                if sender.send(Ok(SubscribeResponse { results: vec![result] })).await.is_err() {
                    return Status::cancelled("gone");
                }
            }
            start.partitions.retain(|part| part.offset != u64::MAX);
            if moved {
                continue;
            }
            tokio::select! {
                () = changed => {}
                request = requests.message() => match request {
                    Ok(Some(SubscribeRequest { request: Some(Subscribing::CreditBytes(bytes)) })) => {
                        credit += i64::try_from(bytes).unwrap();
                    }
                    _ => return Status::cancelled("gone"),
                }
            }
        }
    }
}
