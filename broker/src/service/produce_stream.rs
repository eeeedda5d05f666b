//! Streamed produce: requests are handed to the shards in the order they come,
//! answered as they are settled.

use std::sync::Arc;

use futures_util::future::OptionFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use quire_proto::v1;
use tokio::sync::mpsc;
use tonic::Status;

use crate::service::Door;
use crate::service::connection::Peer;
use crate::service::door::{self, Pushed};
use crate::service::produce::Submitted;
use crate::service::receiving::Held;

/// Requests of one stream that wait for their outcome. With so many of them
/// the stream is not read on, and its window pushes back.
const IN_FLIGHT: usize = 512;

/// Serves one stream until its end, or until nobody listens. While a request
/// waits for memory, or an answer for room, everything else goes on.
pub async fn run(
    door: Arc<Door>,
    peer: Peer,
    requests: impl Stream<Item = Result<v1::ProduceRequest, Status>>,
    arrived: Held,
    responses: mpsc::Sender<Pushed>,
) {
    // One after another: what waits keeps its place.
    let submitted = requests.then(|request| submit(&door, request, &peer, &arrived));
    // None once there are no more: what was not read is free.
    let mut submitted = Some(Box::pin(submitted));
    let mut in_flight = FuturesUnordered::new();
    let mut settled = None;
    let mut broken = None;
    while submitted.is_some() || !in_flight.is_empty() || settled.is_some() {
        tokio::select! {
            Some(next) = OptionFuture::from(submitted.as_mut().map(StreamExt::next)), if in_flight.len() < IN_FLIGHT => {
                match next {
                    Some(Ok(submitted)) => in_flight.push(submitted.finish()),
                    // What was submitted is answered before the sender is told.
                    Some(Err(status)) => (submitted, broken) = (None, Some(status)),
                    None => submitted = None,
                }
            }
            Some((response, room)) = in_flight.next(), if settled.is_none() => {
                settled = Some(door::acknowledged(&response, room, &peer));
            }
            room = responses.reserve(), if settled.is_some() => match room {
                Ok(room) => {
                    if let Some(response) = settled.take() {
                        room.send(Ok(response));
                    }
                }
                Err(_closed) => return,
            },
            () = responses.closed() => return,
        }
    }
    if let Some(status) = broken {
        // The client may have gone meanwhile.
        let _ = responses.send(Err(status)).await;
    }
}

async fn submit(
    door: &Door,
    request: Result<v1::ProduceRequest, Status>,
    peer: &Peer,
    arrived: &Held,
) -> Result<Submitted, Status> {
    let submitted = async { Ok(door.submit(request?, Some(peer)).await?) }.await;
    arrived.release();
    submitted
}

#[cfg(test)]
mod tests;
