//! The services on a listener.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use quire_proto::v1;
use quire_proto::v1::ledger_service_server::LedgerServiceServer;
use quire_proto::v1::log_service_server::LogServiceServer;
use quire_proto::v1::topic_service_server::TopicServiceServer;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::util::MapResponseLayer;

use crate::error::Error;
use crate::service::connection::{Connection, Connections};
use crate::service::door::LogDoor;
use crate::service::ledgers::Ledgers;
use crate::service::receiving::ReceivingLayer;
use crate::service::records::Records;
use crate::service::topics::Topics;
use crate::service::{Door, answers};
use crate::topic::config::MESSAGE_BYTES_LIMIT;

/// HTTP/2 frames: the default of 16 KiB costs twice the CPU. One that was read is
/// no longer in its window.
const FRAME_BYTES: u32 = 128 << 10;
/// What a client may send before it is read: of one request or stream, and of
/// its connection, where streams that wait for memory must not hold up the others.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;

/// A request has at most this many bytes: the largest batch and what is around
/// it.
const REQUEST_BYTES: usize = MESSAGE_BYTES_LIMIT as usize + (1 << 20);

/// Requests of an operator or about topics.
const SMALL_REQUEST_BYTES: usize = 1 << 20;

/// Requests and streams of one connection at once.
const STREAMS: u32 = 1024;

/// After a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A connection that says nothing for this long is asked whether it lives, and
/// has this long to answer.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_ANSWER: Duration = Duration::from_secs(60);

/// The next connection that is admitted.
async fn accept(listener: &TcpListener, accepted: &Connections) -> Connection {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Some(connection) = accepted.admit(stream) {
                    return connection;
                }
            }
            // It concerns nobody else, unless there are no file descriptors left.
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves until the broker stops.
///
/// # Errors
/// [`Error::Serve`]
pub async fn serve<H: Health>(
    door: Arc<Door>,
    health: HealthServer<H>,
    listener: TcpListener,
) -> Result<(), Error> {
    let stop = door.context.stop.clone();
    let options = &door.context.options;
    let accepted = Connections::new(options.connections_max, options.client_patience);
    let receiving = ReceivingLayer::new(options.request_bytes, REQUEST_BYTES, options.client_patience);
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(|error| Error::Serve(error.to_string()))?;
    let records = LogServiceServer::new(Records(Arc::clone(&door)))
        .max_decoding_message_size(REQUEST_BYTES)
        .max_encoding_message_size(usize::MAX);
    let records = LogDoor::new(Arc::clone(&door), records);
    let topics =
        TopicServiceServer::new(Topics(Arc::clone(&door))).max_decoding_message_size(SMALL_REQUEST_BYTES);
    let ledgers = LedgerServiceServer::new(Ledgers(door)).max_decoding_message_size(SMALL_REQUEST_BYTES);
    let connections = stream::unfold((listener, accepted), async |(listener, accepted)| {
        let connection = accept(&listener, &accepted).await;
        Some((Ok::<_, Infallible>(connection), (listener, accepted)))
    });
    Server::builder()
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_ANSWER))
        .layer(MapResponseLayer::new(answers::keep))
        .layer(receiving)
        .add_service(health)
        .add_service(reflection)
        .add_service(records)
        .add_service(topics)
        .add_service(ledgers)
        .serve_with_incoming_shutdown(connections, async move { stop.cancelled().await })
        .await
        .map_err(|error| Error::Serve(error.to_string()))
}
