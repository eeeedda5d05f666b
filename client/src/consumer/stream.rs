use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quire_proto::id::Offset;
use quire_proto::v1::log_service_client::LogServiceClient;
use quire_proto::v1::subscribe_request::Request;
use quire_proto::v1::{
    FetchPartition, FetchRequest, FetchResult, SubscribeRequest, SubscribeResponse, SubscribeStart,
};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::Error;
use crate::connections::Connections;

/// Grants of credit that wait for the connection.
const GRANTS_MAX: usize = 64;

/// How long a broker may hold back the answer to a fetch.
const FETCH_WAIT_MS: u32 = 500;

/// A stream that was served for this long had got over what went before.
const SETTLED: Duration = Duration::from_secs(5);

/// What a stream tells its consumer.
#[derive(Debug)]
pub(super) struct Event {
    /// The stream.
    pub(super) stream: u64,
    pub(super) news: News,
}

#[derive(Debug)]
pub(super) enum News {
    /// The broker serves it.
    Open,
    Results(Vec<FetchResult>),
    /// The last of it.
    Broken(Error),
}

/// Partitions that are read from one broker, in one go.
#[derive(Debug)]
pub(super) struct Stream {
    /// Since when the broker serves it.
    opened_at: Option<Instant>,
    /// Consumed, and not granted anew yet.
    owed: u64,
    credit: u32,
    grants: Option<mpsc::Sender<SubscribeRequest>>,
    task: AbortHandle,
}

/// What a stream is to read.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) id: u64,
    pub(super) address: Arc<str>,
    /// From the leader itself, not through a broker that forwards.
    pub(super) direct: bool,
    /// Bytes that may be on their way or waiting.
    pub(super) credit: u32,
    pub(super) partitions: Vec<Reading>,
}

/// One partition of a stream.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) topic: Arc<str>,
    pub(super) topic_id: Bytes,
    pub(super) partition: u32,
    pub(super) from: Offset,
    /// Reading stops here; only for fetching.
    pub(super) end: Option<Offset>,
}

impl Reading {
    fn request(&self) -> FetchPartition {
        FetchPartition {
            topic: self.topic.to_string(),
            topic_id: self.topic_id.clone(),
            partition: self.partition,
            offset: self.from.0,
            max_bytes: 0,
        }
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| self.from >= end)
    }
}

impl Stream {
    /// Follows partitions without end: the broker pushes within the credit.
    pub(super) fn subscribe(
        plan: Plan,
        connections: &Connections,
        events: mpsc::Sender<Event>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, Error> {
        let client = connections.log(&plan.address)?;
        let (grants, outbound) = mpsc::channel(GRANTS_MAX);
        let partitions = plan.partitions.iter().map(Reading::request).collect();
        let start = SubscribeStart {
            partitions,
            credit_bytes: plan.credit.into(),
            direct: plan.direct,
            plain: false,
        };
        // The channel is new and has room.
        let _ = grants.try_send(SubscribeRequest { request: Some(Request::Start(start)) });
        let (credit, limit) = (plan.credit, connections.request_timeout());
        let task = tasks.spawn(follow(plan, client, limit, outbound, events));
        Ok(Self { opened_at: None, owed: 0, credit, grants: Some(grants), task })
    }

    /// Reads partitions up to their ends: fetch after fetch, one ahead.
    pub(super) fn fetch(
        plan: Plan,
        connections: &Connections,
        events: mpsc::Sender<Event>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, Error> {
        let client = connections.log(&plan.address)?;
        let limit = connections.request_timeout();
        let credit = plan.credit;
        let task = tasks.spawn(async move {
            let Plan { id, address, .. } = plan.clone();
            let fetches = Fetches { plan, client, limit };
            if let Err(status) = fetches.run(&events).await {
                // Fails only when the consumer is gone.
                let _ = events.send(broken(id, &address, &status)).await;
            }
        });
        Ok(Self { opened_at: None, owed: 0, credit, grants: None, task })
    }

    /// The broker serves it.
    pub(super) fn opened(&mut self, now: Instant) {
        self.opened_at.get_or_insert(now);
    }

    /// Whether a broker serves it.
    pub(super) const fn is_open(&self) -> bool {
        self.opened_at.is_some()
    }

    /// Whether a broker has served it for long enough to call it well.
    pub(super) fn is_settled(&self, now: Instant) -> bool {
        self.opened_at.is_some_and(|at| now >= at + SETTLED)
    }

    /// These bytes are consumed: the broker may send as many more.
    pub(super) fn consumed(&mut self, bytes: usize) {
        self.owed += bytes as u64;
        if self.owed >= u64::from(self.credit / 4) {
            self.grant();
        }
    }

    /// Grants what is owed.
    pub(super) fn grant(&mut self) {
        let Some(grants) = self.grants.as_ref().filter(|_| self.owed > 0) else { return };
        let request = SubscribeRequest { request: Some(Request::CreditBytes(self.owed)) };
        if grants.try_send(request).is_ok() {
            self.owed = 0;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(
    plan: Plan,
    mut client: LogServiceClient<Channel>,
    limit: Duration,
    outbound: mpsc::Receiver<SubscribeRequest>,
    events: mpsc::Sender<Event>,
) {
    let Plan { id, address, .. } = plan;
    let opened = timeout(limit, client.subscribe(ReceiverStream::new(outbound))).await;
    let status = match opened.unwrap_or_else(|_| Err(late())) {
        Ok(responses) => {
            if events.send(Event { stream: id, news: News::Open }).await.is_err() {
                return;
            }
            relay(id, responses.into_inner(), &events).await
        }
        Err(status) => status,
    };
    // Fails only when the consumer is gone.
    let _ = events.send(broken(id, &address, &status)).await;
}

async fn relay(
    stream: u64,
    mut responses: Streaming<SubscribeResponse>,
    events: &mpsc::Sender<Event>,
) -> Status {
    loop {
        match responses.message().await {
            Ok(Some(response)) => {
                let news = News::Results(response.results);
                if events.send(Event { stream, news }).await.is_err() {
                    return Status::cancelled("the consumer is gone");
                }
            }
            Ok(None) => return Status::unavailable("the broker ended the stream"),
            Err(status) => return status,
        }
    }
}

fn late() -> Status {
    Status::deadline_exceeded("no answer in time")
}

fn broken(stream: u64, address: &str, status: &Status) -> Event {
    Event { stream, news: News::Broken(Error::from_status(address, status)) }
}

struct Fetches {
    plan: Plan,
    client: LogServiceClient<Channel>,
    limit: Duration,
}

impl Fetches {
    /// Until every partition has reached its end or failed.
    async fn run(mut self, events: &mpsc::Sender<Event>) -> Result<(), Status> {
        let stream = self.plan.id;
        loop {
            self.plan.partitions.retain(|reading| !reading.is_over());
            if self.plan.partitions.is_empty() {
                return Ok(());
            }
            let call = self.client.fetch(self.request());
            let answer = timeout(self.limit, call).await;
            let results = answer.unwrap_or_else(|_| Err(late()))?.into_inner().results;
            results.iter().for_each(|result| self.advance(result));
            if events.send(Event { stream, news: News::Results(results) }).await.is_err() {
                return Ok(());
            }
            // Another one first: a broker that fills its answer with the first
            // ones leaves none behind for ever.
            let one = self.plan.partitions.len().min(1);
            self.plan.partitions.rotate_left(one);
        }
    }

    /// One answer waits to be taken, one is in the channel, one is under way.
    fn request(&self) -> FetchRequest {
        FetchRequest {
            min_bytes: 1,
            max_wait_ms: FETCH_WAIT_MS,
            max_bytes: self.plan.credit / 3,
            direct: self.plan.direct,
            plain: false,
            partitions: self.plan.partitions.iter().map(Reading::request).collect(),
        }
    }

    fn advance(&mut self, result: &FetchResult) {
        let same =
            |reading: &Reading| *reading.topic == *result.topic && reading.partition == result.partition;
        if result.error.is_some() {
            self.plan.partitions.retain(|reading| !same(reading));
        } else if let Some(reading) = self.plan.partitions.iter_mut().find(|reading| same(reading)) {
            reading.from = reading.from.max(Offset(result.next_offset));
        }
    }
}
