//! The memory of answers that carry records: taken once it is known how large
//! they are, held until the client has them. Whoever does not take what it asked
//! for, while others wait for memory, is disconnected.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use quire_proto::v1::ErrorReason;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::failure::Failure;
use crate::memory::{Memory, Waiting};
use crate::service::connection::Peer;

/// Answers are sent in pieces of at most this many bytes: a client that takes
/// one within the patience does not stand still.
const PIECE_BYTES: usize = 512 << 10;

/// How often within the patience it is looked who stands still.
const LOOKS: u32 = 6;

/// Answers that are read or sent, of all clients.
#[derive(Debug)]
pub struct Answers {
    free: Arc<Semaphore>,
    limit: usize,
    /// How long a client may take nothing of an answer. Who waits for memory
    /// waits twice as long, so that it outlasts who stands still.
    patience: Duration,
    waiting: AtomicUsize,
    next: AtomicU64,
    under_way: Mutex<HashMap<u64, UnderWay>>,
}

/// An answer that is being sent.
#[derive(Debug)]
struct UnderWay {
    peer: Peer,
    since: Instant,
}

/// Memory for one answer.
#[derive(Debug)]
pub struct Room {
    answers: Arc<Answers>,
    permit: OwnedSemaphorePermit,
}

/// An answer that is being sent, until its last piece is.
#[derive(Debug)]
struct Sending {
    answers: Arc<Answers>,
    id: u64,
    peer: Peer,
    _permit: OwnedSemaphorePermit,
}

/// A piece of it.
struct Piece {
    bytes: Bytes,
    sending: Arc<Sending>,
}

impl Answers {
    /// For this many bytes at once.
    #[must_use]
    pub fn new(limit: usize, patience: Duration) -> Arc<Self> {
        let limit = limit.clamp(1 << 20, u32::MAX as usize);
        Arc::new(Self {
            free: Arc::new(Semaphore::new(limit)),
            limit,
            patience,
            waiting: AtomicUsize::new(0),
            next: AtomicU64::new(0),
            under_way: Mutex::new(HashMap::new()),
        })
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn used(&self) -> usize {
        self.limit - self.free.available_permits().min(self.limit)
    }

    /// Takes this many bytes, in the order of asking. Cancel-safe.
    ///
    /// # Errors
    /// `OVERLOADED` when there are not so many for too long.
    pub async fn room(self: &Arc<Self>, bytes: usize) -> Result<Room, Failure> {
        let permits = u32::try_from(bytes.min(self.limit)).unwrap_or(u32::MAX);
        let _waiting = Waiting::new(&self.waiting);
        let acquired = Arc::clone(&self.free).acquire_many_owned(permits);
        match tokio::time::timeout(2 * self.patience, acquired).await {
            Ok(Ok(permit)) => Ok(Room { answers: Arc::clone(self), permit }),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => {
                metrics::counter!("quire_broker_overloaded_total").increment(1);
                let limit = self.limit;
                Err(Failure::new(
                    ErrorReason::Overloaded,
                    format!(
                        "the broker's memory for answers ({limit} bytes) is in use: readers ask for more than \
                         they take; try again, or raise the budget"
                    ),
                ))
            }
        }
    }

    /// Disconnects who stands still while somebody waits for what it holds: for
    /// an answer's memory, or for that of records, whose pieces answers are. Ends
    /// never.
    pub async fn watch(self: Arc<Self>, records: Arc<Memory>) {
        let mut every = tokio::time::interval(self.patience / LOOKS);
        loop {
            every.tick().await;
            if self.waiting.load(Ordering::Relaxed) == 0 && !records.is_pressed() {
                continue;
            }
            let now = Instant::now();
            let stands_still =
                |answer: &&UnderWay| now >= answer.since.max(answer.peer.taken_at()) + self.patience;
            for UnderWay { peer, .. } in self.lock().values().filter(stands_still) {
                if !peer.is_cut() {
                    metrics::counter!("quire_broker_connections_cut_total").increment(1);
                    let address = peer.address;
                    tracing::warn!(%address, "a client that does not take its answers is disconnected");
                    peer.cut();
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// The pieces, which from now on hold the memory: it is freed with the last
    /// of them.
    #[must_use]
    pub fn hold(mut self, pieces: VecDeque<Bytes>, peer: Peer) -> VecDeque<Bytes> {
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        drop(self.permit.split(self.permit.num_permits().saturating_sub(bytes)));
        let Self { answers, permit } = self;
        let id = answers.next.fetch_add(1, Ordering::Relaxed);
        answers.lock().insert(id, UnderWay { peer: peer.clone(), since: Instant::now() });
        let sending = Arc::new(Sending { answers, id, peer, _permit: permit });
        let held = |bytes: Bytes| Bytes::from_owner(Piece { bytes, sending: Arc::clone(&sending) });
        pieces.into_iter().flat_map(chop).map(held).collect()
    }
}

fn chop(bytes: Bytes) -> impl Iterator<Item = Bytes> {
    (0..bytes.len()).step_by(PIECE_BYTES).map(move |at| bytes.slice(at..bytes.len().min(at + PIECE_BYTES)))
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.sending.peer.takes();
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.answers.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const LIMIT: usize = 8 << 20;
    const PATIENCE: Duration = Duration::from_secs(30);

    fn peer() -> Peer {
        Peer::new(([127, 0, 0, 1], 1).into())
    }

    #[tokio::test(start_paused = true)]
    async fn the_memory_of_an_answer_is_held_by_its_last_piece() {
        let answers = Answers::new(LIMIT, PATIENCE);
        let room = answers.room(LIMIT).await.unwrap();
        assert!(answers.room(1).now_or_never().is_none());
        let mut pieces =
            room.hold([Bytes::from(vec![7; 3 << 20]), Bytes::from_static(b"end")].into(), peer());
        assert_eq!(answers.used(), (3 << 20) + 3, "no more than it turned out to be");
        assert_eq!(pieces.iter().map(Bytes::len).max(), Some(PIECE_BYTES));
        let last = pieces.pop_back();
        drop(pieces);
        assert_eq!(answers.used(), (3 << 20) + 3);
        drop(last);
        assert_eq!((answers.used(), answers.lock().len()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_memory_is_told_why() {
        let answers = Answers::new(LIMIT, PATIENCE);
        let _room = answers.room(LIMIT).await.unwrap();
        assert_eq!(answers.room(1).await.unwrap_err().reason, ErrorReason::Overloaded);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_still_is_disconnected_when_others_wait_and_who_is_slow_is_not() {
        let answers = Answers::new(LIMIT, PATIENCE);
        let watch = tokio::spawn(Arc::clone(&answers).watch(Memory::new(1 << 20)));
        let (slow, still) = (peer(), peer());
        let answer = || VecDeque::from([Bytes::from(vec![7; 2 << 20])]);
        let mut slowly = answers.room(LIMIT / 2).await.unwrap().hold(answer(), slow.clone());
        // What a client has many of it cannot take all at once.
        let _behind = answers.room(LIMIT / 4).await.unwrap().hold(answer(), slow.clone());
        let never = answers.room(LIMIT / 2).await.unwrap().hold(answer(), still.clone());
        tokio::time::sleep(10 * PATIENCE).await;
        assert!(!still.is_cut(), "nobody waits");
        let waiting = tokio::spawn({
            let answers = Arc::clone(&answers);
            async move { answers.room(LIMIT).await }
        });
        while !slowly.is_empty() {
            drop(slowly.pop_front());
            tokio::time::sleep(PATIENCE * 4 / 10).await;
        }
        assert!(still.is_cut());
        assert!(!slow.is_cut());
        drop(never);
        watch.abort();
        waiting.abort();
    }
}
