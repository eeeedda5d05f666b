//! The memory of requests that arrive: taken for a whole message once its length
//! is known and before it is read, held until its handler has charged it.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body::{Body as _, Frame, SizeHint};
use quire_proto::v1::ErrorReason;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::PollSemaphore;
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::failure::Failure;
use crate::memory::SMALL;
use crate::service::connection::Peer;

const PRODUCE: &str = "/quire.v1.LogService/Produce";
const PRODUCE_STREAM: &str = "/quire.v1.LogService/ProduceStream";
const SUBSCRIBE: &str = "/quire.v1.LogService/Subscribe";
const REFLECTION: &str = "/grpc.reflection.";

/// Requests that are no produce have memory of their own, so that they need not
/// wait for producers: a part of what those have, for all of them.
const QUESTION_SHARE: usize = 2;
/// And one.
const QUESTION_MAX: usize = 4 << 20;

/// Compression flag and length before each message of a stream.
const MESSAGE_HEADER: usize = 5;

/// Bytes of messages that arrive, of all connections.
#[derive(Clone, Debug)]
struct Budget {
    free: Arc<Semaphore>,
    limit: usize,
    /// The largest message.
    message_max: usize,
    /// The right of one request of a connection to wait.
    turn: fn(&Peer) -> Option<OwnedSemaphorePermit>,
}

impl Budget {
    fn new(limit: usize, message_max: usize, turn: fn(&Peer) -> Option<OwnedSemaphorePermit>) -> Self {
        let limit = limit.clamp(1 << 20, u32::MAX as usize);
        Self { free: Arc::new(Semaphore::new(limit)), limit, message_max, turn }
    }

    fn permits(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.min(self.limit)).unwrap_or(u32::MAX)
    }
}

/// Gives the requests of a service memory.
#[derive(Clone, Debug)]
pub struct ReceivingLayer {
    produces: Budget,
    questions: Budget,
    patience: Duration,
}

impl ReceivingLayer {
    /// With this many bytes for produce requests, of which one has at most
    /// `produce_max`, and half as many for all others. A message may wait for memory for as long as `patience`, and
    /// take as long to arrive.
    #[must_use]
    pub fn new(produce_bytes: usize, produce_max: usize, patience: Duration) -> Self {
        let produces = Budget::new(produce_bytes, produce_max, Peer::produce_turn);
        let questions = Budget::new(produce_bytes / QUESTION_SHARE, QUESTION_MAX, Peer::question_turn);
        Self { produces, questions, patience }
    }
}

impl<S> Layer<S> for ReceivingLayer {
    type Service = ReceivingService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ReceivingService { inner, budgets: self.clone() }
    }
}

/// A service whose requests take memory.
#[derive(Clone, Debug)]
pub struct ReceivingService<S> {
    inner: S,
    budgets: ReceivingLayer,
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
        let budget = match path {
            PRODUCE | PRODUCE_STREAM => &self.budgets.produces,
            _ => &self.budgets.questions,
        };
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
        let receiving = Receiving::new(body, budget.clone(), peer, self.budgets.patience, messages);
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
pub struct Held(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Held {
    fn add(&self, permit: OwnedSemaphorePermit) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *held {
            Some(held) => held.merge(permit),
            None => *held = Some(permit),
        }
    }

    /// The message is charged elsewhere, or done with.
    pub fn release(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// A request's body. It yields what `inner` does, at the pace of the budget.
#[derive(Debug)]
struct Receiving {
    inner: Body,
    budget: Budget,
    patience: Duration,
    free: PollSemaphore,
    held: Held,
    messages: Messages,
    /// The largest message, from here on.
    message_max: usize,
    peer: Option<Peer>,
    framing: Framing,
    /// What came of the body and was not yielded.
    rest: Bytes,
    /// What the first message in `rest` waits for.
    waits_for: Option<u32>,
    /// While it does not get it.
    turn: Option<OwnedSemaphorePermit>,
    /// Until when the message that has begun must be whole.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Receiving {
    fn new(inner: Body, budget: Budget, peer: Option<Peer>, patience: Duration, messages: Messages) -> Self {
        Self {
            inner,
            message_max: budget.message_max,
            free: PollSemaphore::new(Arc::clone(&budget.free)),
            budget,
            patience,
            held: Held::default(),
            messages,
            peer,
            framing: Framing::default(),
            rest: Bytes::new(),
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
            if let Some(permits) = self.waits_for {
                match self.free.poll_acquire_many(cx, permits) {
                    Poll::Ready(permit) => permit.into_iter().for_each(|permit| self.held.add(permit)),
                    Poll::Pending if self.may_wait() => return Poll::Pending,
                    Poll::Pending => return Poll::Ready(Some(Err(self.overloaded()))),
                }
                // One that has waited goes on waiting, though there may be enough.
                self.free = PollSemaphore::new(Arc::clone(&self.budget.free));
                (self.waits_for, self.turn, self.deadline) = (None, None, None);
                return Poll::Ready(Some(Ok(Frame::data(self.split()))));
            }
            if self.rest.is_empty() {
                let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
                match frame.map(|frame| frame.map(Frame::into_data)) {
                    None => return Poll::Ready(None),
                    Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                    Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                    Some(Ok(Ok(data))) => self.rest = data,
                }
            } else {
                let bytes = self.framing.begin(&self.rest);
                if bytes > self.message_max {
                    return Poll::Ready(Some(Err(self.too_large(bytes))));
                }
                if bytes < SMALL {
                    return Poll::Ready(Some(Ok(Frame::data(self.split()))));
                }
                self.waits_for = Some(self.budget.permits(bytes));
            }
        }
    }

    /// What there is of the message that has begun.
    fn split(&mut self) -> Bytes {
        let piece = self.framing.split(&mut self.rest);
        if self.framing.is_between() {
            self.message_max = match self.messages {
                Messages::One => 0,
                Messages::Many => self.budget.message_max,
                Messages::OneAndSmall => SMALL - 1,
            };
        }
        piece
    }

    /// Whether the next message has not begun, if there may be one.
    fn is_between(&self) -> bool {
        self.messages != Messages::One && self.framing.is_between()
    }

    /// Whether it is the one of its connection that may wait for memory.
    fn may_wait(&mut self) -> bool {
        let Some(peer) = &self.peer else { return true };
        self.turn = self.turn.take().or_else(|| (self.budget.turn)(peer));
        self.turn.is_some()
    }

    fn overloaded(&self) -> Status {
        metrics::counter!("quire_broker_overloaded_total").increment(1);
        let limit = self.budget.limit;
        let text = format!(
            "the broker's memory for requests ({limit} bytes) is in use: try again, or raise \
             request_bytes"
        );
        Failure::new(ErrorReason::Overloaded, text).into()
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

    /// Nothing more comes of it, though it may be there for longer: it leaves the
    /// queue, and what it has is free.
    fn give_up(&mut self) {
        self.free = PollSemaphore::new(Arc::clone(&self.budget.free));
        (self.waits_for, self.turn) = (None, None);
        self.held.release();
    }

    /// Ready when the message that has begun is late.
    fn poll_late(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if self.is_between() {
            return Poll::Pending;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(deadline.as_mut().poll(cx));
        if self.waits_for.is_some() {
            return Poll::Ready(self.overloaded());
        }
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
        self.rest.is_empty() && self.inner.is_end_stream()
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
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    use super::*;

    const LIMIT: usize = 1 << 20;
    const PATIENCE: Duration = Duration::from_secs(30);

    type Sender = mpsc::UnboundedSender<Result<Frame<Bytes>, Status>>;

    fn receiving(budget: &Budget, messages: Messages) -> (Sender, Receiving) {
        let (tx, rx) = mpsc::unbounded_channel();
        let inner = Body::new(StreamBody::new(UnboundedReceiverStream::new(rx)));
        (tx, Receiving::new(inner, budget.clone(), None, PATIENCE, messages))
    }

    fn budget(message_max: usize) -> Budget {
        Budget::new(LIMIT, message_max, Peer::produce_turn)
    }

    fn message(bytes: usize) -> Vec<u8> {
        let length = u32::try_from(bytes).unwrap();
        [&[0][..], &length.to_be_bytes(), &vec![7; bytes]].concat()
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

    fn used(budget: &Budget) -> usize {
        budget.limit - budget.free.available_permits()
    }

    #[tokio::test]
    async fn a_message_takes_all_its_memory_before_it_is_read() {
        let budget = budget(LIMIT);
        let (one, mut first) = receiving(&budget, Messages::Many);
        let (two, mut second) = receiving(&budget, Messages::Many);
        let large = message(LIMIT * 3 / 4);
        send(&one, &large[..100]);
        assert_eq!(drain(&mut first).len(), 100);
        assert_eq!(used(&budget), LIMIT * 3 / 4);
        send(&two, &large);
        assert_eq!(drain(&mut second).len(), 0);
        send(&one, &large[100..]);
        assert_eq!(drain(&mut first).len(), large.len() - 100);
        assert_eq!(drain(&mut second), large, "the first was handed on");
        assert_eq!(used(&budget), 0);
    }

    #[tokio::test]
    async fn where_one_message_is_due_no_second_comes() {
        let budget = budget(LIMIT);
        let (to, mut body) = receiving(&budget, Messages::One);
        send(&to, &[message(10_000), message(1)].concat());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 10_005);
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert_eq!(used(&budget), 0);
    }

    #[tokio::test]
    async fn one_message_is_held_until_its_handler_lets_go() {
        let budget = budget(LIMIT);
        let (to, mut body) = receiving(&budget, Messages::One);
        let held = body.held.clone();
        send(&to, &message(10_000));
        drop(to);
        assert_eq!(drain(&mut body).len(), 10_005);
        drop(body);
        assert_eq!(used(&budget), 10_000);
        drop(held);
        assert_eq!(used(&budget), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_whole_is_given_up() {
        let budget = budget(LIMIT);
        let (to, mut body) = receiving(&budget, Messages::Many);
        let quiet = tokio::time::timeout(PATIENCE * 10, body.frame()).await;
        assert!(quiet.is_err(), "a stream may be quiet between its messages");
        send(&to, &message(10_000)[..5_000]);
        assert!(body.frame().await.unwrap().is_ok());
        let late = body.frame().await.unwrap().unwrap_err();
        assert_eq!(late.code(), tonic::Code::DeadlineExceeded);
        assert_eq!(used(&budget), 0, "though the body is still there");

        // A request of one message must end, too.
        let (to, mut body) = receiving(&budget, Messages::One);
        send(&to, &message(10_000));
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.unwrap().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_memory_is_told_why() {
        let budget = budget(LIMIT);
        let all = budget.free.acquire_many(budget.permits(LIMIT)).await.unwrap();
        let (to, mut body) = receiving(&budget, Messages::Many);
        send(&to, &message(SMALL));
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(Failure::from_status(&refused).unwrap().reason, ErrorReason::Overloaded);
        drop(all);
        assert_eq!(used(&budget), 0, "it has left the queue");
    }

    #[tokio::test(start_paused = true)]
    async fn one_request_of_a_connection_waits_and_small_ones_need_not() {
        let budget = budget(LIMIT);
        let all = Arc::clone(&budget.free).acquire_many_owned(budget.permits(LIMIT)).await.unwrap();
        let peer = Peer::new(([127, 0, 0, 1], 1).into());
        let of_peer = |bytes| {
            let (to, mut body) = receiving(&budget, Messages::Many);
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
        drop(budget.free.acquire_many(budget.permits(LIMIT - SMALL)).await.unwrap());
    }

    #[tokio::test]
    async fn after_the_first_only_small_messages_come_where_nobody_may_ask_for_them() {
        let budget = budget(LIMIT);
        let (to, mut body) = receiving(&budget, Messages::OneAndSmall);
        send(&to, &message(10_000));
        assert_eq!(drain(&mut body).len(), 10_005);
        assert_eq!(used(&budget), 0, "the next was asked for");
        send(&to, &message(SMALL - 1));
        assert_eq!(drain(&mut body).len(), SMALL - 1 + MESSAGE_HEADER);
        send(&to, &message(SMALL)[..100]);
        let refused = body.frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::OutOfRange);
        assert_eq!(used(&budget), 0);
    }

    #[tokio::test]
    async fn a_message_above_the_limit_is_refused_for_its_header() {
        let budget = budget(LIMIT - 1);
        let (to, mut body) = receiving(&budget, Messages::Many);
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
            let budget = budget(LIMIT);
            let (to, mut body) = receiving(&budget, Messages::Many);
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
                prop_assert!(used(&budget) <= lengths.iter().copied().max().unwrap_or(0));
            }
            prop_assert_eq!(all, stream);
            prop_assert_eq!(used(&budget), 0);
        }
    }
}
