//! Streamed produce: requests are handed to the shards in the order they come,
//! answered as they are settled.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quire_proto::v1;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use crate::service::Door;

/// Requests of one stream that wait for their outcome. With so many of them
/// the stream is not read on, and its window pushes back.
const IN_FLIGHT: usize = 512;

/// Serves one stream until its end, or until nobody listens.
pub async fn run(
    door: Arc<Door>,
    mut requests: Streaming<v1::ProduceRequest>,
    responses: mpsc::Sender<Result<v1::ProduceResponse, Status>>,
) {
    let mut in_flight = FuturesUnordered::new();
    let mut open = true;
    while open || !in_flight.is_empty() {
        tokio::select! {
            request = requests.next(), if open && in_flight.len() < IN_FLIGHT => match request {
                Some(Ok(request)) => {
                    let submitted = door.submit(request).await;
                    in_flight.push(submitted.finish());
                }
                Some(Err(status)) => {
                    // What was submitted goes on; the sender is told what was wrong.
                    open = false;
                    if responses.send(Err(status)).await.is_err() {
                        return;
                    }
                }
                None => open = false,
            },
            Some(response) = in_flight.next() => {
                if responses.send(Ok(response)).await.is_err() {
                    return;
                }
            }
            () = responses.closed() => return,
        }
    }
}
