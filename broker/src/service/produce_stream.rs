//! Streamed produce: requests are handed to the shards in the order they come,
//! answered as they are settled.

use std::pin::pin;
use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{Stream, StreamExt};
use quire_proto::v1;
use tokio::sync::mpsc;
use tonic::Status;

use crate::service::Door;
use crate::service::produce::Submitted;

/// Requests of one stream that wait for their outcome. With so many of them
/// the stream is not read on, and its window pushes back.
const IN_FLIGHT: usize = 512;

type Response = Result<v1::ProduceResponse, Status>;

/// Serves one stream until its end, or until nobody listens. While a request
/// waits for memory, or an answer for room, everything else goes on.
pub async fn run(
    door: Arc<Door>,
    requests: impl Stream<Item = Result<v1::ProduceRequest, Status>>,
    responses: mpsc::Sender<Response>,
) {
    // One after another: what waits keeps its place.
    let mut submitted = pin!(requests.then(|request| submit(&door, request)));
    let mut in_flight = FuturesUnordered::new();
    let mut settled: Option<Response> = None;
    let mut open = true;
    while open || !in_flight.is_empty() || settled.is_some() {
        tokio::select! {
            next = submitted.next(), if open && in_flight.len() < IN_FLIGHT => match next {
                Some(submitted) => {
                    // What was submitted goes on; the sender is told what was wrong.
                    open = submitted.is_ok();
                    in_flight.push(finish(submitted));
                }
                None => open = false,
            },
            Some(response) = in_flight.next(), if settled.is_none() => settled = Some(response),
            room = responses.reserve(), if settled.is_some() => match room {
                Ok(room) => {
                    if let Some(response) = settled.take() {
                        room.send(response);
                    }
                }
                Err(_closed) => return,
            },
            () = responses.closed() => return,
        }
    }
}

async fn submit(door: &Door, request: Result<v1::ProduceRequest, Status>) -> Result<Submitted, Status> {
    Ok(door.submit(request?).await)
}

async fn finish(submitted: Result<Submitted, Status>) -> Response {
    Ok(submitted?.finish().await)
}

#[cfg(test)]
mod tests;
