//! Requests while they arrive: what is there of them takes memory of a budget
//! of its own, and is not waited for for ever. A request that is whole is
//! charged by whoever handles it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_util::sync::PollSemaphore;
use tonic::Status;
use tonic::body::Body;

/// Bytes of requests that are not whole, of all connections.
pub const BUDGET: usize = 128 << 20;

/// From its first byte to its last.
const PATIENCE: Duration = Duration::from_secs(30);

/// Compression flag and length before each message of a stream.
const MESSAGE_HEADER: usize = 5;

/// A request's body. It yields what `inner` does, at the pace of the budget.
#[derive(Debug)]
pub struct Receiving {
    inner: Body,
    budget: PollSemaphore,
    framing: Framing,
    held: Option<OwnedSemaphorePermit>,
    /// A piece that waits for its part of the budget.
    waiting: Option<Bytes>,
    /// Until when the message that has begun must be whole.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Receiving {
    /// A body that draws on this budget, in bytes.
    #[must_use]
    pub fn new(inner: Body, budget: Arc<Semaphore>) -> Self {
        let budget = PollSemaphore::new(budget);
        Self { inner, budget, framing: Framing::default(), held: None, waiting: None, deadline: None }
    }

    fn hold(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
    }

    fn check_time(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        match &mut self.deadline {
            None => Poll::Pending,
            Some(deadline) => {
                ready!(deadline.as_mut().poll(cx));
                let seconds = PATIENCE.as_secs();
                let text = format!("the request was not complete after {seconds} s: send less at once");
                Poll::Ready(Status::deadline_exceeded(text))
            }
        }
    }

    /// The next piece with its part of the budget.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(piece) = &self.waiting {
            let permits = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            // None when the semaphore is closed, which it never is.
            if let Some(permit) = ready!(self.budget.poll_acquire_many(cx, permits)) {
                self.hold(permit);
            }
            return Poll::Ready(self.waiting.take().map(|piece| Ok(Frame::data(piece))));
        }
        if self.framing.is_between() {
            // What was held has been handed on.
            self.held = None;
            self.deadline = None;
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        let piece = match frame.map(|frame| frame.map(Frame::into_data)) {
            None => return Poll::Ready(None),
            Some(Err(status)) => return Poll::Ready(Some(Err(status))),
            Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
            Some(Ok(Ok(piece))) => piece,
        };
        self.framing.take(&piece);
        if self.framing.is_between() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(PATIENCE)));
        self.waiting = Some(piece);
        self.poll_piece(cx)
    }
}

impl http_body::Body for Receiving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        match self.poll_piece(cx) {
            Poll::Ready(piece) => Poll::Ready(piece),
            Poll::Pending => self.check_time(cx).map(|status| Some(Err(status))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.waiting.is_none() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.waiting.is_some() { SizeHint::default() } else { self.inner.size_hint() }
    }
}

/// Where a stream of messages stands.
#[derive(Debug, Default)]
struct Framing {
    header: [u8; MESSAGE_HEADER],
    /// Bytes of the header that are there.
    header_len: usize,
    /// Bytes of the message that are not.
    missing: usize,
}

impl Framing {
    /// Whether no message has begun that is not whole.
    const fn is_between(&self) -> bool {
        self.header_len == 0
    }

    fn take(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            if self.header_len < MESSAGE_HEADER {
                let len = piece.len().min(MESSAGE_HEADER - self.header_len);
                self.header[self.header_len..self.header_len + len].copy_from_slice(&piece[..len]);
                self.header_len += len;
                piece = &piece[len..];
                if self.header_len == MESSAGE_HEADER {
                    let [_, length @ ..] = self.header;
                    self.missing = u32::from_be_bytes(length) as usize;
                }
            } else {
                let len = piece.len().min(self.missing);
                self.missing -= len;
                piece = &piece[len..];
            }
            if self.header_len == MESSAGE_HEADER && self.missing == 0 {
                self.header_len = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::{BodyExt, StreamBody};
    use proptest::prelude::*;
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    fn message(len: usize) -> Vec<u8> {
        let mut message = vec![0; MESSAGE_HEADER + len];
        message[1..MESSAGE_HEADER].copy_from_slice(&u32::try_from(len).unwrap().to_be_bytes());
        message
    }

    proptest! {
        #[test]
        fn it_is_between_messages_exactly_at_their_ends(
            lens in prop::collection::vec(0_usize..20, 1..10),
            cuts in prop::collection::vec(1_usize..30, 1..40),
        ) {
            let stream: Vec<u8> = lens.iter().flat_map(|&len| message(len)).collect();
            let mut ends = vec![0];
            ends.extend(lens.iter().scan(0, |at, len| { *at += MESSAGE_HEADER + len; Some(*at) }));
            let mut framing = Framing::default();
            let mut at = 0;
            for cut in cuts {
                let to = (at + cut).min(stream.len());
                framing.take(&stream[at..to]);
                at = to;
                prop_assert_eq!(framing.is_between(), ends.contains(&at), "at {}", at);
            }
        }
    }

    type Sender = mpsc::Sender<Result<Frame<Bytes>, Status>>;

    fn receiving(budget: &Arc<Semaphore>) -> (Sender, Receiving) {
        let (sender, pieces) = mpsc::channel(16);
        let body = Body::new(StreamBody::new(ReceiverStream::new(pieces)));
        (sender, Receiving::new(body, Arc::clone(budget)))
    }

    async fn send(sender: &Sender, piece: &[u8]) {
        sender.send(Ok(Frame::data(Bytes::copy_from_slice(piece)))).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn halves_wait_for_the_budget_and_are_given_up_in_time() {
        let budget = Arc::new(Semaphore::new(100));
        let (first, mut held) = receiving(&budget);
        send(&first, &message(200)[..80]).await;
        assert_eq!(held.frame().await.unwrap().unwrap().into_data().unwrap().len(), 80);
        assert_eq!(budget.available_permits(), 20);

        let (second, mut behind) = receiving(&budget);
        send(&second, &message(200)[..50]).await;
        assert!(behind.frame().now_or_never().is_none(), "there is no room for it");
        let (whole, mut other) = receiving(&budget);
        send(&whole, &message(200)).await;
        assert!(other.frame().now_or_never().is_some(), "what is whole is handed on at once");

        let given_up = held.frame().await.unwrap().unwrap_err();
        assert_eq!(given_up.code(), tonic::Code::DeadlineExceeded, "the rest never came");
        drop(held);
        assert!(behind.frame().await.unwrap().is_ok());
    }

    #[tokio::test]
    async fn what_is_handed_on_is_not_held() {
        let budget = Arc::new(Semaphore::new(1_000));
        let (sender, mut body) = receiving(&budget);
        let whole = message(500);
        for piece in [&whole[..300], &whole[300..]] {
            send(&sender, piece).await;
            body.frame().await.unwrap().unwrap();
        }
        drop(sender);
        assert!(body.frame().await.is_none());
        assert_eq!(budget.available_permits(), 1_000);
    }
}
