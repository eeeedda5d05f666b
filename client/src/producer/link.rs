use std::collections::HashMap;
use std::sync::Arc;

use quire_proto::v1::{ErrorReason, ProduceRequest, ProduceResponse};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::driver::Event;
use super::sequencer::Token;
use crate::Error;
use crate::connections::Connections;

/// Requests of one connection that are not answered.
pub(crate) const REQUESTS_MAX: usize = 64;

/// One produce stream to one broker: requests go in, answers come as events.
/// It lives until it breaks, and is then opened anew.
#[derive(Debug)]
pub(crate) struct Link {
    /// Tells its events from those of an earlier one to the same broker.
    pub(crate) id: u64,
    requests: mpsc::Sender<ProduceRequest>,
    unanswered: HashMap<u64, Sent>,
    task: AbortHandle,
}

/// What a request carried.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) at: Instant,
    /// Lane and batch of each part, in order.
    pub(crate) parts: Vec<(usize, Token)>,
}

impl Link {
    /// Opens a stream to this broker.
    pub(crate) fn open(
        id: u64,
        address: &Arc<str>,
        connections: &Connections,
        events: mpsc::Sender<Event>,
        tasks: &mut JoinSet<()>,
    ) -> Result<Self, Error> {
        let (requests, outbound) = mpsc::channel(REQUESTS_MAX);
        let mut client = connections.log(address)?;
        let address = Arc::clone(address);
        let task = tasks.spawn(async move {
            let status = match client.produce_stream(ReceiverStream::new(outbound)).await {
                Ok(answers) => relay(id, answers.into_inner(), &events).await,
                Err(status) => status,
            };
            let error = broken(&address, &status);
            // Fails only when the producer is gone, which needs no telling.
            let _ = events.send(Event::Broken { link: id, error }).await;
        });
        Ok(Self { id, requests, unanswered: HashMap::new(), task })
    }

    /// Whether another request may be sent now.
    pub(crate) fn has_room(&self) -> bool {
        self.unanswered.len() < REQUESTS_MAX
    }

    /// Sends a request. When the stream is broken already, its event is on its
    /// way and speaks for this request too.
    pub(crate) fn send(&mut self, request: ProduceRequest, sent: Sent) {
        self.unanswered.insert(request.correlation_id, sent);
        let _ = self.requests.try_send(request);
    }

    /// What the request that is answered carried.
    pub(crate) fn answered(&mut self, correlation_id: u64) -> Option<Sent> {
        self.unanswered.remove(&correlation_id)
    }

    /// What is not answered.
    pub(crate) fn unanswered(&self) -> impl Iterator<Item = &Sent> {
        self.unanswered.values()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a stream's end says of the requests under way: that it is not known what
/// became of them, unless it never began, or the broker had no memory for the first
/// of them: it answers what came before that.
fn broken(address: &str, status: &Status) -> Error {
    match Error::from_status(address, status) {
        Error::Broker(failure) if failure.reason == ErrorReason::Overloaded => Error::Broker(failure),
        error @ (Error::Connect { .. } | Error::Foreign { .. } | Error::Disconnected { .. }) => error,
        other => Error::Disconnected { address: address.to_owned(), cause: other.to_string() },
    }
}

async fn relay(
    link: u64,
    mut answers: tonic::Streaming<ProduceResponse>,
    events: &mpsc::Sender<Event>,
) -> Status {
    loop {
        match answers.message().await {
            Ok(Some(response)) => {
                if events.send(Event::Answer { link, response }).await.is_err() {
                    return Status::cancelled("the producer is gone");
                }
            }
            Ok(None) => return Status::unavailable("the broker ended the stream"),
            Err(status) => return status,
        }
    }
}
