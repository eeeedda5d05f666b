//! Calls whose answers are bodies of our own. Fetch and subscribe, which carry the
//! bulk of what goes out, are answered without copying batches into a message
//! first: the body yields the fields around them and then the batches' own bytes.
//! The answers of streams hold their memory until they are sent.
//!
//! Everything else, and what comes compressed, goes to the generated service.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::Frame;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use quire_proto::v1;
use quire_proto::v1::log_service_server::LogServiceServer;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use crate::log::stored::Batches;
use crate::service::budget::Room;
use crate::service::connection::Peer;
use crate::service::fetch::{Fetched, Found};
use crate::service::receiving::Held;
use crate::service::records::Records;
use crate::service::{Door, produce_stream, requests, subscribe};

const PRODUCE_STREAM: &str = "/quire.v1.LogService/ProduceStream";
const FETCH: &str = "/quire.v1.LogService/Fetch";
const SUBSCRIBE: &str = "/quire.v1.LogService/Subscribe";

/// Fields of `FetchResponse`, `SubscribeResponse` and `FetchResult`.
const RESULTS: u32 = 1;
const BATCHES: u32 = 6;

/// Compression flag and length before each message of a stream.
const MESSAGE_HEADER: usize = 5;

/// Pieces below this many bytes are put together: a frame costs more than
/// copying them.
const SHARE_FROM: usize = 8 << 10;

/// So many bytes that were put together are sent.
const TOGETHER: usize = 64 << 10;

/// Messages that wait for the client of a produce stream, or of a subscription.
const ACKNOWLEDGED: usize = 64;
const PUSHED: usize = 2;

/// The log service.
#[derive(Clone, Debug)]
pub struct LogDoor {
    door: Arc<Door>,
    rest: LogServiceServer<Records>,
}

impl LogDoor {
    /// Serves what `rest` serves.
    #[must_use]
    pub const fn new(door: Arc<Door>, rest: LogServiceServer<Records>) -> Self {
        Self { door, rest }
    }
}

impl NamedService for LogDoor {
    const NAME: &'static str = <LogServiceServer<Records> as NamedService>::NAME;
}

impl Service<Request<Body>> for LogDoor {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let plain = request.headers().get("grpc-encoding").is_none_or(|encoding| encoding == "identity");
        let door = Arc::clone(&self.door);
        let Some(peer) = request.extensions().get::<Peer>().cloned().filter(|_| plain) else {
            return self.rest.call(request);
        };
        match request.uri().path() {
            FETCH => fetch(door, peer, request).map(Ok).boxed(),
            PRODUCE_STREAM => {
                let serve = |door, body, arrived, tx| {
                    produce_stream::run(door, peer, requests::messages(body), arrived, tx)
                };
                let response = start(&door, request, ACKNOWLEDGED, serve);
                async move { Ok(response) }.boxed()
            }
            SUBSCRIBE => {
                let serve = |door, body, arrived, tx| {
                    subscribe::run(door, peer, requests::messages(body), arrived, tx)
                };
                let response = start(&door, request, PUSHED, serve);
                async move { Ok(response) }.boxed()
            }
            _ => self.rest.call(request),
        }
    }
}

async fn fetch(door: Arc<Door>, peer: Peer, mut request: Request<Body>) -> Response<Body> {
    let arrived = request.extensions_mut().remove::<Held>().unwrap_or_default();
    let request = pin!(requests::messages(request.into_body())).next().await;
    let found = match request {
        Some(Ok(request)) => door.fetch(request, &peer, arrived).await.map_err(Status::from),
        Some(Err(status)) => Err(status),
        None => Err(Status::internal("there is no request in the body")),
    };
    match found {
        Ok(found) => response(Answer::of(held(found, &peer))),
        Err(status) => status.into_http(),
    }
}

/// Begins a call that goes on for as long as `serve`, of whose messages so many
/// wait for their client.
fn start<F>(
    door: &Arc<Door>,
    mut request: Request<Body>,
    waiting: usize,
    serve: impl FnOnce(Arc<Door>, Body, Held, mpsc::Sender<Pushed>) -> F,
) -> Response<Body>
where
    F: Future<Output = ()> + Send + 'static,
{
    if let Err(failure) = door.check_open() {
        return Status::from(failure).into_http();
    }
    let (tx, rx) = mpsc::channel(waiting);
    let arrived = request.extensions_mut().remove::<Held>().unwrap_or_default();
    door.context.spawn(serve(Arc::clone(door), request.into_body(), arrived, tx));
    response(Answer { pieces: VecDeque::new(), pushed: Some(rx), trailers: Some(trailers(None)) })
}

fn response(answer: Answer) -> Response<Body> {
    let mut response = Response::new(Body::new(answer));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    match status {
        None => {
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Some(status) => {
            if status.add_header(&mut trailers).is_err() {
                let code = HeaderValue::from(Code::Internal as i32);
                trailers.insert("grpc-status", code);
            }
        }
    }
    trailers
}

/// A message of a stream, or why there are no more.
pub type Pushed = Result<VecDeque<Bytes>, Status>;

/// A response's body: one message, or those of a stream.
#[derive(Debug)]
struct Answer {
    pieces: VecDeque<Bytes>,
    pushed: Option<mpsc::Receiver<Pushed>>,
    /// Until they are sent.
    trailers: Option<HeaderMap>,
}

impl Answer {
    fn of(pieces: VecDeque<Bytes>) -> Self {
        Self { pieces, pushed: None, trailers: Some(trailers(None)) }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(piece) = self.pieces.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            let Some(pushed) = &mut self.pushed else {
                return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            };
            match ready!(pushed.poll_recv(cx)) {
                Some(Ok(pieces)) => self.pieces = pieces,
                Some(Err(status)) => {
                    self.trailers = Some(trailers(Some(&status)));
                    self.pushed = None;
                }
                None => self.pushed = None,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
    }
}

/// The answer to a produce request, which holds its memory until this client has it.
pub fn acknowledged(answer: &v1::ProduceResponse, room: Option<Room>, peer: &Peer) -> VecDeque<Bytes> {
    let bytes = answer.encoded_len();
    let mut message = BytesMut::with_capacity(MESSAGE_HEADER + bytes);
    put_header(bytes, &mut message);
    answer.encode_raw(&mut message);
    let pieces = [message.freeze()].into();
    match room {
        Some(room) => room.hold(pieces, peer.clone(), false),
        None => pieces,
    }
}

/// The message, which holds its memory until this client has it.
pub fn held(found: Found, peer: &Peer) -> VecDeque<Bytes> {
    let pins = |batches: &Batches| {
        // Smaller ones are copied.
        batches.pins_records && batches.pieces.iter().any(|piece| piece.len() >= SHARE_FROM)
    };
    let pins_records =
        found.fetched.iter().any(|fetched| fetched.outcome.as_ref().is_ok_and(|slice| pins(&slice.batches)));
    let Found { fetched, room, .. } = found;
    room.hold(encode(fetched), peer.clone(), pins_records)
}

/// What is before a message of so many bytes in a gRPC stream.
fn put_header(bytes: usize, out: &mut BytesMut) {
    out.put_u8(0);
    out.put_u32(u32::try_from(bytes).unwrap_or(u32::MAX));
}

/// Bytes in the order they are sent; large pieces are shared.
#[derive(Default)]
struct Gather {
    pieces: VecDeque<Bytes>,
    together: BytesMut,
}

impl Gather {
    fn put(&mut self, piece: Bytes) {
        if piece.len() < SHARE_FROM {
            self.together.extend_from_slice(&piece);
            if self.together.len() >= TOGETHER {
                self.send_together();
            }
        } else {
            self.send_together();
            self.pieces.push_back(piece);
        }
    }

    fn send_together(&mut self) {
        if !self.together.is_empty() {
            self.pieces.push_back(self.together.split().freeze());
        }
    }
}

/// A `FetchResponse` or `SubscribeResponse`, which look the same, as a message
/// of a gRPC stream.
fn encode(fetched: Vec<Fetched>) -> VecDeque<Bytes> {
    let results: Vec<_> = fetched.into_iter().map(Fetched::split).collect();
    let len_of = |(result, batches): &(v1::FetchResult, Batches)| {
        result.encoded_len()
            + if batches.bytes == 0 {
                0
            } else {
                key_len(BATCHES) + encoded_len_varint(batches.bytes as u64) + batches.bytes
            }
    };
    let lens: Vec<usize> = results.iter().map(len_of).collect();
    let total: usize = lens.iter().map(|len| key_len(RESULTS) + encoded_len_varint(*len as u64) + len).sum();
    let mut gather = Gather::default();
    let shared: usize = results.iter().map(|(_, batches)| batches.bytes).sum();
    gather.together.reserve(MESSAGE_HEADER + total - shared + shared.min(TOGETHER));
    put_header(total, &mut gather.together);
    for ((result, batches), len) in results.into_iter().zip(lens) {
        let own = &mut gather.together;
        encode_key(RESULTS, WireType::LengthDelimited, own);
        encode_varint(len as u64, own);
        result.encode_raw(own);
        if batches.bytes > 0 {
            encode_key(BATCHES, WireType::LengthDelimited, own);
            encode_varint(batches.bytes as u64, own);
            batches.pieces.into_iter().for_each(|piece| gather.put(piece));
        }
    }
    gather.send_together();
    gather.pieces
}

#[cfg(test)]
mod tests {
    use bytes::Buf;
    use quire_proto::id::Offset;

    use super::*;
    use crate::failure;
    use crate::log::partition::Bounds;
    use crate::service::fetch::Slice;

    fn fetched(partition: u32, pieces: &[usize]) -> Fetched {
        let pieces: Vec<Bytes> = pieces.iter().map(|len| Bytes::from(vec![7; *len])).collect();
        let bytes = pieces.iter().map(Bytes::len).sum();
        let bounds = Bounds { earliest: Offset(1), latest: Offset(9) };
        let batches = Batches { pieces, bytes, ..Batches::default() };
        let slice = Slice { from: Offset(2), next: Offset(3), batches, bytes, ..Slice::default() };
        Fetched { topic: "t".to_owned(), partition, bounds: Some(bounds), outcome: Ok(slice) }
    }

    fn failed() -> Fetched {
        let outcome = Err(failure::unknown_topic("t"));
        Fetched { topic: "t".to_owned(), partition: 3, bounds: None, outcome }
    }

    #[test]
    fn a_body_is_the_message_that_the_schema_says() {
        let all =
            || vec![fetched(0, &[]), fetched(1, &[16, 20_000, 16, 100]), failed(), fetched(2, &[70_000])];
        let pieces = encode(all());
        let mut joined = BytesMut::new();
        pieces.iter().for_each(|piece| joined.extend_from_slice(piece));
        let mut body = joined.freeze();
        assert_eq!(body.get_u8(), 0);
        assert_eq!(body.get_u32() as usize, body.len());
        let decoded = v1::FetchResponse::decode(body).unwrap();
        let expected: Vec<_> = all().into_iter().map(Fetched::into_result).collect();
        assert_eq!(decoded.results, expected);
    }

    #[test]
    fn large_pieces_are_shared_and_small_ones_put_together() {
        let batches = fetched(0, &[16, 20_000, 16, 20_000]);
        let Ok(slice) = &batches.outcome else { panic!("it was fetched") };
        let shared = [slice.batches.pieces[1].as_ptr(), slice.batches.pieces[3].as_ptr()];
        let pieces = encode(vec![batches]);
        assert_eq!(pieces.len(), 4);
        assert_eq!([pieces[1].as_ptr(), pieces[3].as_ptr()], shared);
    }
}
