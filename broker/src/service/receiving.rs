//! The memory of requests that arrive: taken for a whole message once its length
//! is known and before it is read, and for what it becomes before it is decoded;
//! held until its handler has charged it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::failure::Failure;
use crate::memory::SMALL;
use crate::service::budget::{Budget, Kind, Room};
use crate::service::connection::Peer;
use crate::service::weight::{self, Field, Weight};

const PRODUCE: &str = "/quire.v1.LogService/Produce";
const PRODUCE_STREAM: &str = "/quire.v1.LogService/ProduceStream";
const SUBSCRIBE: &str = "/quire.v1.LogService/Subscribe";
const REFLECTION: &str = "/grpc.reflection.";

/// Requests that are no produce have memory of their own, so that they need not
/// wait for producers: a part of what those have, for all of them.
const QUESTION_SHARE: usize = 2;
/// And one.
const QUESTION_MAX: usize = 4 << 20;

/// What one request becomes, beside its bytes, is at most so many times its limit.
const DECODED_SHARE: usize = 2;

/// Compression flag and length before each message of a stream.
const MESSAGE_HEADER: usize = 5;

/// Memory of requests of one kind.
#[derive(Clone, Debug)]
struct Arriving {
    bytes: Arc<Budget>,
    /// For what they become.
    decoded: Arc<Budget>,
    /// The largest message.
    message_max: usize,
    /// The right of one request of a connection to wait.
    turn: fn(&Peer) -> Option<OwnedSemaphorePermit>,
}

/// Gives the requests of a service memory.
#[derive(Clone, Debug)]
pub struct ReceivingLayer {
    produces: Arriving,
    questions: Arriving,
    patience: Duration,
}

impl ReceivingLayer {
    /// With this many bytes for produce requests, of which one has at most
    /// `produce_max`, and half as many for all others; as much again for what they
    /// become. A message that does not wait for memory has `patience` to arrive.
    #[must_use]
    pub fn new(produce_bytes: usize, produce_max: usize, patience: Duration) -> Self {
        let question_bytes = produce_bytes / QUESTION_SHARE;
        let produces = Arriving {
            bytes: Budget::new(Kind::Produces, produce_bytes, patience),
            decoded: Budget::new(Kind::DecodedProduces, produce_bytes, patience),
            message_max: produce_max,
            turn: Peer::produce_turn,
        };
        let questions = Arriving {
            bytes: Budget::new(Kind::Questions, question_bytes, patience),
            decoded: Budget::new(Kind::DecodedQuestions, question_bytes, patience),
            message_max: QUESTION_MAX,
            turn: Peer::question_turn,
        };
        Self { produces, questions, patience }
    }
}

impl<S> Layer<S> for ReceivingLayer {
    type Service = ReceivingService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ReceivingService { inner, memory: self.clone() }
    }
}

/// A service whose requests take memory.
#[derive(Clone, Debug)]
pub struct ReceivingService<S> {
    inner: S,
    memory: ReceivingLayer,
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for ReceivingService<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        let path = request.uri().path();
        let memory = match path {
            PRODUCE | PRODUCE_STREAM => &self.memory.produces,
            _ => &self.memory.questions,
        };
        let fields = weight::fields_of(path);
        let messages = match path {
            PRODUCE_STREAM => Messages::Many,
            SUBSCRIBE => Messages::OneAndSmall,
            _ if path.starts_with(REFLECTION) => Messages::OneAndSmall,
            _ => Messages::One,
        };
        let (mut parts, body) = request.into_parts();
        let peer = parts.extensions.get::<Peer>().cloned();
        if let Some(peer) = &peer {
            peer.asks();
        }
        let receiving = Receiving::new(body, memory.clone(), peer, self.memory.patience, messages, fields);
        parts.extensions.insert(receiving.held.clone());
        self.inner.call(Request::from_parts(parts, Body::new(receiving)))
    }
}

/// What a request consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Messages {
    /// Its memory is held until the body and the extensions are gone.
    One,
    /// Its handler is done with each at the latest when it asks for the next.
    Many,
    /// The first may be large. Nobody may ask for the others for long, while they
    /// would take memory.
    OneAndSmall,
}

/// The memory of a request, which carries it among its extensions.
#[derive(Clone, Debug, Default)]
pub struct Held(Arc<Mutex<Vec<Room>>>);

impl Held {
    fn add(&self, room: Room) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(room);
    }

    /// The message is charged elsewhere, or done with.
    pub fn release(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A request's body. It yields what `inner` does, at the pace of its memory.
struct Receiving {
    inner: Body,
    memory: Arriving,
    patience: Duration,
    held: Held,
    messages: Messages,
    /// The largest message, from here on.
    message_max: usize,
    peer: Option<Peer>,
    framing: Framing,
    weight: Weight,
    /// What came of the body and was not yielded.
    rest: Bytes,
    /// The piece that is yielded next.
    piece: Option<Bytes>,
    /// What the message waits for before the next piece.
    waits_for: Option<Wanted>,
    /// While it does not get it.
    turn: Option<OwnedSemaphorePermit>,
    /// Until when the message that has begun must be whole.
    deadline: Option<Pin<Box<Sleep>>>,
}

/// Memory that is waited for.
struct Wanted {
    budget: Arc<Budget>,
    room: BoxFuture<'static, Result<Room, Failure>>,
}

impl Receiving {
    fn new(
        inner: Body,
        memory: Arriving,
        peer: Option<Peer>,
        patience: Duration,
        messages: Messages,
        fields: &'static [Field],
    ) -> Self {
        Self {
            inner,
            message_max: memory.message_max,
            memory,
            patience,
            held: Held::default(),
            messages,
            peer,
            framing: Framing::default(),
            weight: Weight::new(fields),
            rest: Bytes::new(),
            piece: None,
            waits_for: None,
            turn: None,
            deadline: None,
        }
    }

    /// The next piece, which ends where a message does.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_between() {
            self.held.release();
            self.deadline = None;
        }
        loop {
            if let Some(Wanted { budget, room }) = &mut self.waits_for {
                match room.as_mut().poll(cx) {
                    Poll::Ready(Ok(room)) => self.held.add(room),
                    Poll::Ready(Err(failure)) => return Poll::Ready(Some(Err(failure.into()))),
                    Poll::Pending => {
                        let budget = Arc::clone(budget);
                        return if self.may_wait() {
                            Poll::Pending
                        } else {
                            Poll::Ready(Some(Err(budget.refused(self.peer.as_ref()).into())))
                        };
                    }
                }
                (self.waits_for, self.turn, self.deadline) = (None, None, None);
            }
            if let Some(piece) = self.piece.take() {
                return Poll::Ready(Some(Ok(Frame::data(piece))));
            }
            if self.rest.is_empty() {
                let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
                match frame.map(|frame| frame.map(Frame::into_data)) {
                    None => return Poll::Ready(None),
                    Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                    Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                    Some(Ok(Ok(data))) => self.rest = data,
                }
                continue;
            }
            let bytes = self.framing.begin(&self.rest);
            if bytes > self.message_max {
                return Poll::Ready(Some(Err(self.too_large(bytes))));
            }
            if bytes >= SMALL {
                self.take(Arc::clone(&self.memory.bytes), bytes);
                continue;
            }
            self.piece = Some(self.split());
            let decoded = self.weight.bytes();
            if decoded > self.memory.message_max * DECODED_SHARE {
                return Poll::Ready(Some(Err(self.too_many())));
            }
            if self.framing.is_between() {
                self.weight.restart();
                if decoded >= SMALL {
                    self.take(Arc::clone(&self.memory.decoded), decoded);
                }
            }
        }
    }

    fn take(&mut self, budget: Arc<Budget>, bytes: usize) {
        match budget.room_now(bytes, self.peer.as_ref()) {
            Some(room) => self.held.add(room),
            None => {
                let (from, peer) = (Arc::clone(&budget), self.peer.clone());
                let room = async move { from.room(bytes, peer.as_ref(), None).await }.boxed();
                self.waits_for = Some(Wanted { budget, room });
                self.deadline = None;
            }
        }
    }

    /// What there is of the message that has begun.
    fn split(&mut self) -> Bytes {
        let header = self.framing.header_left;
        let piece = self.framing.split(&mut self.rest);
        self.weight.read(&piece[header..]);
        if self.framing.is_between() {
            self.message_max = match self.messages {
                Messages::One => 0,
                Messages::Many => self.memory.message_max,
                Messages::OneAndSmall => SMALL - 1,
            };
        }
        piece
    }

    /// Whether the next message has not begun, if there may be one.
    fn is_between(&self) -> bool {
        self.messages != Messages::One && self.framing.is_between() && self.piece.is_none()
    }

    /// Whether it is the one of its connection that may wait for memory.
    fn may_wait(&mut self) -> bool {
        let Some(peer) = &self.peer else { return true };
        self.turn = self.turn.take().or_else(|| (self.memory.turn)(peer));
        self.turn.is_some()
    }

    fn too_large(&self, bytes: usize) -> Status {
        let limit = self.message_max;
        if limit == 0 {
            return Status::invalid_argument("there is more than the one message that a request has");
        }
        Status::out_of_range(format!(
            "the request has {bytes} bytes, the limit is {limit}: send less at once"
        ))
    }

    fn too_many(&self) -> Status {
        if self.weight.bytes() == usize::MAX {
            return Status::invalid_argument("the request is malformed: it has groups or unknown wire types");
        }
        let limit = self.memory.message_max * DECODED_SHARE;
        Status::out_of_range(format!(
            "the request has too many messages, headers, partitions or names: beside their bytes they take more \
             than {limit}: send fewer at once"
        ))
    }

    /// Nothing more comes of it, though it may be there for longer: it leaves the
    /// queue, and what it has is free.
    fn give_up(&mut self) {
        (self.piece, self.waits_for, self.turn) = (None, None, None);
        self.held.release();
    }

    /// Ready when the message that has begun is late.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.is_between() || self.waits_for.is_some() {
            return Poll::Pending;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(deadline.as_mut().poll(cx));
        let text = format!("the request was not complete after {} s: send less at once", patience.as_secs());
        Poll::Ready(Status::deadline_exceeded(text))
    }
}

impl http_body::Body for Receiving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = match self.poll_piece(cx) {
            Poll::Ready(piece) => Poll::Ready(piece),
            Poll::Pending => self.poll_late(cx).map(|status| Some(Err(status))),
        };
        match polled {
            Poll::Ready(Some(Err(_))) => self.give_up(),
            Poll::Ready(None) if self.messages != Messages::One => self.give_up(),
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.piece.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Where a stream of messages stands.
#[derive(Debug, Default)]
struct Framing {
    header: [u8; MESSAGE_HEADER],
    /// Bytes of the header that are known.
    header_len: usize,
    /// Those of them that were not yielded.
    header_left: usize,
    /// Bytes of the message that were not yielded.
    missing: usize,
}

impl Framing {
    /// Whether no message has begun that is not whole.
    const fn is_between(&self) -> bool {
        self.header_len == 0
    }

    /// What memory is wanted before [`Framing::split`]: the length of the
    /// message that begins, if that becomes known.
    fn begin(&mut self, rest: &[u8]) -> usize {
        if self.header_len == MESSAGE_HEADER {
            return 0;
        }
        self.header_left = rest.len().min(MESSAGE_HEADER - self.header_len);
        let end = self.header_len + self.header_left;
        self.header[self.header_len..end].copy_from_slice(&rest[..self.header_left]);
        self.header_len = end;
        if end < MESSAGE_HEADER {
            return 0;
        }
        let [_, length @ ..] = self.header;
        self.missing = u32::from_be_bytes(length) as usize;
        self.missing
    }

    /// What there is up to the end of the message.
    fn split(&mut self, rest: &mut Bytes) -> Bytes {
        let body = self.missing.min(rest.len() - self.header_left);
        let piece = rest.split_to(self.header_left + body);
        self.header_left = 0;
        self.missing -= body;
        if self.header_len == MESSAGE_HEADER && self.missing == 0 {
            self.header_len = 0;
        }
        piece
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::FutureExt;
    use http_body_util::{BodyExt, StreamBody};
    use proptest::prelude::*;
    use prost::Message as _;
    use quire_proto::v1::{self, ErrorReason};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    const LIMIT: usize = 1 << 20;
    const PATIENCE: Duration = Duration::from_secs(30);

    type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, Status>>;

    fn receiving(memory: &Arriving, messages: Messages) -> (Sender, Receiving) {
        let (tx, rx) = mpsc::unbounded_channel();
        let inner = Body::new(StreamBody::new(UnboundedReceiverStream::new(rx)));
        (tx, Receiving::new(inner, memory.clone(), None, PATIENCE, messages, weight::fields_of(PRODUCE)))
    }

    fn memory(message_max: usize) -> Arriving {
        Arriving {
            bytes: Budget::new(Kind::Produces, LIMIT, PATIENCE),
            decoded: Budget::new(Kind::DecodedProduces, LIMIT, PATIENCE),
            message_max,
            turn: Peer::produce_turn,
        }
    }

    fn message(bytes: usize) -> Vec<u8> {
        let length = u32::try_from(bytes).unwrap();
        [&[0][..], &length.to_be_bytes(), &vec![8; bytes]].concat()
    }

    fn send(to: &Sender, bytes: &[u8]) {
        to.send(Ok(Frame::data(Bytes::copy_from_slice(bytes)))).unwrap();
    }

    /// What can be had now.
    fn drain(receiving: &mut Receiving) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(Some(Ok(frame))) = receiving.frame().now_or_never() {
            all.extend_from_slice(&frame.into_data().unwrap());
        }
        all
    }

    fn used(memory: &Arriving) -> usize {
        memory.bytes.used() + memory.decoded.used()
    }

    /// With so many messages that have nothing.
    fn many(messages: usize) -> Vec<u8> {
        let part =
            v1::ProducePartition { messages: vec![v1::Message::default(); messages], ..Default::default() };
        let body = v1::ProduceRequest { partitions: vec![part], ..Default::default() }.encode_to_vec();
        [&[0][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), &body].concat()
    }

    #[tokio::test]
    async fn a_message_takes_all_its_memory_before_it_is_read() {
        let memory = memory(LIMIT);
        let (one, mut first) = receiving(&memory, Messages::Many);
        let (two, mut second) = receiving(&memory, Messages::Many);
        let large = message(LIMIT * 3 / 4);
        send(&one, &large[..100]);
        assert_eq!(drain(&mut first).len(), 100);
        assert_eq!(used(&memory), LIMIT * 3 / 4);
        send(&two, &large);
        assert_eq!(drain(&mut second).len(), 0);
        send(&one, &large[100..]);
        assert_eq!(drain(&mut first).len(), large.len() - 100);
        assert_eq!(drain(&mut second), large, "the first was handed on");
        assert_eq!(used(&memory), 0);
    }

    #[tokio::test]
    async fn where_one_message_is_due_no_second_comes() {
        let memory = memory(LIMIT);
        let (to, mut body) = receiving(&memory, Messages::One);
        send(&to, &[message(10_000), message(1)].concat());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 10_005);
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert_eq!(used(&memory), 0);
    }

    #[tokio::test]
    async fn one_message_is_held_until_its_handler_lets_go() {
        let memory = memory(LIMIT);
        let (to, mut body) = receiving(&memory, Messages::One);
        let held = body.held.clone();
        send(&to, &message(10_000));
        drop(to);
        assert_eq!(drain(&mut body).len(), 10_005);
        drop(body);
        assert_eq!(used(&memory), 10_000);
        drop(held);
        assert_eq!(used(&memory), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_whole_is_given_up() {
        let memory = memory(LIMIT);
        let (to, mut body) = receiving(&memory, Messages::Many);
        let quiet = tokio::time::timeout(PATIENCE * 10, body.frame()).await;
        assert!(quiet.is_err(), "a stream may be quiet between its messages");
        send(&to, &message(10_000)[..5_000]);
        assert!(body.frame().await.unwrap().is_ok());
        let late = body.frame().await.unwrap().unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(used(&memory), 0, "though the body is still there");

        // A request of one message must end, too.
        let (to, mut body) = receiving(&memory, Messages::One);
        send(&to, &message(10_000));
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_memory_is_told_why() {
        let memory = memory(LIMIT);
        let all = memory.bytes.room_now(LIMIT, None).unwrap();
        let (to, mut body) = receiving(&memory, Messages::Many);
        send(&to, &message(SMALL));
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(Failure::from_status(&refused).unwrap().reason, ErrorReason::Overloaded);
        drop(all);
        assert_eq!(used(&memory), 0, "it has left the queue");
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_of_a_connection_waits_and_small_ones_need_not() {
        let memory = memory(LIMIT);
        let all = memory.bytes.room_now(LIMIT, None).unwrap();
        let peer = Peer::new(([127, 0, 0, 1], 1).into());
        let of_peer = |bytes| {
            let (to, mut body) = receiving(&memory, Messages::Many);
            body.peer = Some(peer.clone());
            send(&to, &message(bytes));
            (to, body)
        };
        let (_to, mut waits) = of_peer(SMALL);
        assert!(waits.frame().now_or_never().is_none());
        let (_to, mut refused) = of_peer(SMALL);
        assert!(refused.frame().now_or_never().unwrap().unwrap().is_err());
        let (_to, mut small) = of_peer(SMALL - 1);
        assert!(small.frame().now_or_never().unwrap().unwrap().is_ok());
        drop(all);
        assert!(waits.frame().await.unwrap().is_ok());
        assert!(memory.bytes.room_now(LIMIT - SMALL, None).is_some(), "the others have left the queue");
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_message_becomes_takes_memory_before_it_is_decoded() {
        let memory = memory(LIMIT);
        let (to, mut body) = receiving(&memory, Messages::Many);
        let request = many(1_000);
        assert!(request.len() < SMALL);
        let all = memory.decoded.room_now(LIMIT, None).unwrap();
        send(&to, &request[..1_000]);
        assert_eq!(drain(&mut body).len(), 1_000);
        send(&to, &request[1_000..]);
        assert_eq!(drain(&mut body).len(), 0);
        drop(all);
        assert_eq!(drain(&mut body).len(), request.len() - 1_000);
        // The next was asked for.
        assert_eq!(used(&memory), 0);
        let (to, mut body) = receiving(&memory, Messages::One);
        send(&to, &request);
        assert_eq!(drain(&mut body).len(), request.len());
        assert!(used(&memory) > 1_000 * size_of::<v1::Message>());
        // Nor is it waited for for ever, and who gives up leaves nothing behind.
        let all = memory.decoded.room_now(LIMIT - used(&memory), None).unwrap();
        let (to, mut second) = receiving(&memory, Messages::Many);
        send(&to, &request);
        let refused = second.frame().await.unwrap().unwrap_err();
        assert_eq!(Failure::from_status(&refused).unwrap().reason, ErrorReason::Overloaded);
        drop((all, body));
        assert_eq!(used(&memory), 0);
    }

    #[tokio::test]
    async fn a_message_with_too_much_in_it_is_refused_before_it_is_whole() {
        let memory = memory(100_000);
        let (to, mut body) = receiving(&memory, Messages::One);
        let request = many(2_000);
        send(&to, &request[..3_000]);
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange);
        assert!(refused.message().contains("send fewer"), "{}", refused.message());
    }

    #[tokio::test]
    async fn after_the_first_only_small_messages_come_where_nobody_may_ask_for_them() {
        let memory = memory(LIMIT);
        let (to, mut body) = receiving(&memory, Messages::OneAndSmall);
        send(&to, &message(10_000));
        assert_eq!(drain(&mut body).len(), 10_005);
        assert_eq!(used(&memory), 0, "the next was asked for");
        send(&to, &message(SMALL - 1));
        assert_eq!(drain(&mut body).len(), SMALL - 1 + MESSAGE_HEADER);
        send(&to, &message(SMALL)[..100]);
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange);
        assert_eq!(used(&memory), 0);
    }

    #[tokio::test]
    async fn a_message_above_the_limit_is_refused_for_its_header() {
        let memory = memory(LIMIT - 1);
        let (to, mut body) = receiving(&memory, Messages::Many);
        send(&to, &message(LIMIT)[..MESSAGE_HEADER]);
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange);
    }

    proptest! {
        /// However a stream is cut into frames: nothing is changed, and no more
        /// is held than of one message.
        #[test]
        fn a_stream_is_yielded_as_it_is(
            lengths in proptest::collection::vec(prop_oneof![Just(0_usize), 1..20_usize, 1000..70_000_usize], 0..12),
            cuts in proptest::collection::vec(1..40_000_usize, 1..40),
        ) {
            let memory = memory(LIMIT);
            let (to, mut body) = receiving(&memory, Messages::Many);
            let stream: Vec<u8> = lengths.iter().flat_map(|length| message(*length)).collect();
            let mut left = &stream[..];
            for cut in cuts.iter().cycle() {
                if left.is_empty() {
                    break;
                }
                let (frame, rest) = left.split_at(left.len().min(*cut));
                send(&to, frame);
                left = rest;
            }
            drop(to);
            let mut all = Vec::new();
            let cx = &mut Context::from_waker(Waker::noop());
            while let Poll::Ready(Some(frame)) = body.poll_piece(cx) {
                all.extend_from_slice(&frame.unwrap().into_data().unwrap());
                prop_assert!(used(&memory) <= lengths.iter().copied().max().unwrap_or(0));
            }
            prop_assert_eq!(all, stream);
            prop_assert_eq!(used(&memory), 0);
        }
    }
}
