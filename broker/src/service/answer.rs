//! Bodies of answers, and the memory of those that are no slices of what is held
//! anyway: plain messages.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tonic::{Code, Status};

use crate::service::fetch::Fetched;

/// Bytes of plain answers that are on their way, of all clients.
const BUDGET: usize = 128 << 20;

/// Plain answers that are made at once.
const AT_ONCE: usize = 4;

/// Answers below this many bytes are not counted.
const SMALL: usize = 64 << 10;

/// A client that takes nothing of a plain answer for this long does not get the
/// rest.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a subscription sends, message by message.
pub type Pushed = mpsc::Receiver<Result<Vec<Fetched>, Status>>;

/// Makes pieces of a message of a gRPC stream.
pub type Encode = fn(Vec<Fetched>) -> VecDeque<Bytes>;

/// A response's body: one message, or those of a subscription.
#[derive(Debug)]
pub struct Answer {
    pieces: Arc<Pieces>,
    pushed: Option<(Pushed, Encode)>,
    /// Until they are sent.
    trailers: Option<HeaderMap>,
}

/// What is yet to be sent of the present message.
#[derive(Debug, Default)]
struct Pieces(Mutex<Left>);

#[derive(Debug, Default)]
struct Left {
    pieces: VecDeque<Bytes>,
    taken: usize,
    charge: Option<OwnedSemaphorePermit>,
    expired: bool,
}

impl Pieces {
    fn lock(&self) -> MutexGuard<'_, Left> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Answer {
    /// One message.
    #[must_use]
    pub fn of(pieces: VecDeque<Bytes>) -> Self {
        let left = Left { pieces, ..Left::default() };
        Self { pieces: Arc::new(Pieces(Mutex::new(left))), pushed: None, trailers: Some(trailers(None)) }
    }

    /// The messages of a subscription.
    #[must_use]
    pub fn pushed(pushed: Pushed, encode: Encode) -> Self {
        Self { pushed: Some((pushed, encode)), ..Self::of(VecDeque::new()) }
    }

    /// Gives its memory back when the client takes nothing for too long.
    fn watch(&self) {
        let pieces = Arc::downgrade(&self.pieces);
        tokio::spawn(async move {
            let mut taken = 0;
            loop {
                tokio::time::sleep(PATIENCE).await;
                let Some(pieces) = pieces.upgrade() else { return };
                let mut left = pieces.lock();
                if left.charge.is_none() {
                    return;
                }
                if left.taken == taken {
                    *left = Left { expired: true, ..Left::default() };
                    return;
                }
                taken = left.taken;
            }
        });
    }
}

/// The memory of plain answers.
#[derive(Debug)]
pub struct PlainAnswers {
    budget: Arc<Semaphore>,
    turns: Semaphore,
}

impl Default for PlainAnswers {
    fn default() -> Self {
        Self { budget: Arc::new(Semaphore::new(BUDGET)), turns: Semaphore::new(AT_ONCE) }
    }
}

impl PlainAnswers {
    /// The answer that `make` makes, when it is its turn and there is memory.
    /// Cancel-safe.
    pub async fn make(&self, make: impl FnOnce() -> VecDeque<Bytes> + Send) -> Answer {
        // Neither semaphore is ever closed.
        let _turn = self.turns.acquire().await;
        let pieces = make();
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        if bytes < SMALL {
            return Answer::of(pieces);
        }
        // Copied, so that one piece that a slow client has got does not hold all.
        let pieces =
            pieces.iter().flat_map(|piece| piece.chunks(SMALL)).map(Bytes::copy_from_slice).collect();
        let permits = u32::try_from(bytes.min(BUDGET)).unwrap_or(u32::MAX);
        let charge = Arc::clone(&self.budget).acquire_many_owned(permits).await.ok();
        let answer = Answer::of(pieces);
        answer.pieces.lock().charge = charge;
        answer.watch();
        answer
    }
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

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            {
                let mut left = self.pieces.lock();
                if left.expired {
                    let text = format!("the answer was not taken within {} s", PATIENCE.as_secs());
                    return Poll::Ready(Some(Err(Status::deadline_exceeded(text))));
                }
                if let Some(piece) = left.pieces.pop_front() {
                    left.taken += 1;
                    return Poll::Ready(Some(Ok(Frame::data(piece))));
                }
                left.charge = None;
            }
            let Some((pushed, encode)) = &mut self.pushed else {
                return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            };
            let encode = *encode;
            match ready!(pushed.poll_recv(cx)) {
                Some(Ok(fetched)) => self.pieces.lock().pieces = encode(fetched),
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use http_body_util::BodyExt;

    use super::*;

    fn pieces(bytes: usize) -> VecDeque<Bytes> {
        [Bytes::from(vec![7; bytes])].into()
    }

    #[tokio::test(start_paused = true)]
    async fn plain_answers_wait_for_memory_until_others_are_taken_or_given_up() {
        let answers = PlainAnswers::default();
        let mut first = answers.make(|| pieces(BUDGET / 2)).await;
        let mut second = answers.make(|| pieces(BUDGET / 2)).await;
        let mut third = Box::pin(answers.make(|| pieces(BUDGET / 2)));
        assert!(third.as_mut().now_or_never().is_none());

        // Whoever takes piece by piece gets all of it, however slowly.
        let mut bytes = 0;
        while let Some(frame) = first.frame().await {
            bytes += frame.unwrap().into_data().map_or(0, |piece| piece.len());
            if bytes < BUDGET / 4 {
                tokio::time::sleep(PATIENCE / 500).await;
            }
        }
        assert_eq!(bytes, BUDGET / 2);
        drop(third.await);

        // Whoever takes nothing does not.
        let mut third = answers.make(|| pieces(BUDGET)).await;
        assert!(third.frame().await.unwrap().is_ok(), "the second was given up for it");
        assert_eq!(second.frame().await.unwrap().unwrap_err().code(), Code::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_small_answer_waits_for_nobody() {
        let answers = PlainAnswers::default();
        let _large = answers.make(|| pieces(BUDGET)).await;
        assert!(answers.make(|| pieces(SMALL - 1)).now_or_never().is_some());
    }
}
