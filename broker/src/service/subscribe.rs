//! Subscribe: pushes what is committed, as far as the client has given credit.

use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use quire_proto::v1::{self, ErrorReason};
use tokio::sync::mpsc;
use tonic::Status;

use crate::failure::{self, Failure};
use crate::service::budget::Room;
use crate::service::connection::Peer;
use crate::service::door::{self, Pushed};
use crate::service::fetch::{Fetched, Found, Position, Watching, asked_bytes};
use crate::service::receiving::Held;
use crate::service::{Door, check_count};

/// Bytes of batches, or of plain messages, in one message, but for one batch that
/// is larger.
const MESSAGE_BYTES: usize = 1 << 20;

/// As many messages at least fill what a connection may hold. A subscription that
/// is not read on holds a few: it leaves room for others.
const MESSAGES_PER_PART: usize = 16;

/// What one subscription has left to do.
struct Subscription {
    door: Arc<Door>,
    positions: Vec<Position>,
    credit: u64,
    plain: bool,
    /// The memory of the positions.
    _asked: Room,
}

/// Serves one subscription until its client has gone, or has no credit and no
/// more to say.
pub async fn run(
    door: Arc<Door>,
    peer: Peer,
    requests: impl Stream<Item = Result<v1::SubscribeRequest, Status>>,
    arrived: Held,
    responses: mpsc::Sender<Pushed>,
) {
    let mut requests = pin!(requests);
    let begun = begin(door, &peer, requests.next().await).await;
    arrived.release();
    let ended = match begun {
        Ok(subscription) => subscription.serve(requests, &peer, &responses).await,
        Err(status) => Err(status),
    };
    if let Err(status) = ended {
        // The client may have gone meanwhile.
        let _ = responses.send(Err(status)).await;
    }
}

async fn begin(
    door: Arc<Door>,
    peer: &Peer,
    first: Option<Result<v1::SubscribeRequest, Status>>,
) -> Result<Subscription, Status> {
    use v1::subscribe_request::Request;
    let Some(v1::SubscribeRequest { request: Some(Request::Start(start)) }) = first.transpose()? else {
        return Err(failure::invalid("the first message of a subscription must be its start").into());
    };
    door.check_open()?;
    check_count(start.partitions.len())?;
    let asked = door.subscriptions.room(asked_bytes(&start.partitions), Some(peer), None).await?;
    let positions = door.positions(start.partitions)?;
    if positions.is_empty() {
        return Err(failure::invalid("a subscription must name partitions").into());
    }
    metrics::counter!("quire_broker_subscriptions_total").increment(1);
    Ok(Subscription { door, positions, credit: start.credit_bytes, plain: start.plain, _asked: asked })
}

impl Subscription {
    async fn serve(
        mut self,
        mut requests: Pin<&mut impl Stream<Item = Result<v1::SubscribeRequest, Status>>>,
        peer: &Peer,
        responses: &mpsc::Sender<Pushed>,
    ) -> Result<(), Status> {
        let watching = Watching::start(&self.positions);
        let stop = self.door.context.stop.clone();
        let mut open = true;
        while !self.positions.is_empty() {
            if self.credit > 0 {
                let pushed = tokio::select! {
                    pushed = self.push(peer) => pushed?,
                    () = stop.cancelled() => return Err(failure::shutting_down().into()),
                    () = responses.closed() => return Ok(()),
                };
                if !pushed.fetched.is_empty() {
                    if responses.send(Ok(door::held(pushed, peer))).await.is_err() {
                        return Ok(());
                    }
                    continue;
                }
            } else if !open {
                return Ok(());
            }
            tokio::select! {
                request = requests.next(), if open => match request {
                    Some(request) => self.add_credit(request?)?,
                    None => open = false,
                },
                () = watching.changed() => {}
                () = stop.cancelled() => return Err(failure::shutting_down().into()),
                () = responses.closed() => return Ok(()),
            }
        }
        Ok(())
    }

    fn add_credit(&mut self, request: v1::SubscribeRequest) -> Result<(), Status> {
        use v1::subscribe_request::Request;
        match request.request {
            Some(Request::CreditBytes(bytes)) => {
                self.credit = self.credit.saturating_add(bytes);
                Ok(())
            }
            _ => Err(failure::invalid("after its start a subscription takes credit only").into()),
        }
    }

    /// What can be sent now. A partition that failed is told of and left out
    /// from then on; one that is not ready is waited for, and so is memory.
    async fn push(&mut self, peer: &Peer) -> Result<Found, Failure> {
        let limit = MESSAGE_BYTES.min(self.door.answers.part() / MESSAGES_PER_PART);
        let plain = self.plain.then_some(limit);
        let most = usize::try_from(self.credit).unwrap_or(usize::MAX).min(limit);
        let found = loop {
            match self.door.collect(&self.positions, most, plain, peer).await {
                Err(failure) if failure.reason == ErrorReason::Overloaded => {}
                collected => break collected?,
            }
        };
        let is_empty = found.bytes() == 0;
        let Found { fetched, mut room, has_waited } = found;
        let mut pushed = Vec::new();
        let mut failed = Vec::new();
        for (at, fetched) in fetched.into_iter().enumerate() {
            let waits = match &fetched.outcome {
                // There is nothing, or there was no room for it.
                Ok(slice) => slice.next == self.positions[at].offset,
                Err(failure) => failure.reason == ErrorReason::NotReady,
            };
            if waits {
                continue;
            }
            self.credit = self.credit.saturating_sub(fetched.bytes() as u64);
            match &fetched.outcome {
                Ok(slice) => self.positions[at].offset = slice.next,
                Err(_) => failed.push(at),
            }
            pushed.push(fetched);
        }
        for at in failed.into_iter().rev() {
            self.positions.remove(at);
        }
        if is_empty {
            room = self.room(pushed.iter().map(Fetched::size).sum(), peer).await?;
        }
        Ok(Found { fetched: pushed, room, has_waited })
    }

    /// Memory for so many bytes without records, once there is.
    async fn room(&self, bytes: usize, peer: &Peer) -> Result<Room, Failure> {
        loop {
            match self.door.replies.room(bytes, Some(peer), None).await {
                Err(failure) if failure.reason == ErrorReason::Overloaded => {}
                taken => return taken,
            }
        }
    }
}
