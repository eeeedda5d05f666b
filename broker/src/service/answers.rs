//! Answers that hold memory until the client has them. Whoever does not take its
//! answers, while others or itself wait for that memory, is disconnected.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Frame;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::{Response, Status};

use crate::memory::Memory;
use crate::service::budget::{Budget, Part, Room};
use crate::service::connection::Peer;

/// Answers are sent in pieces of at most this many bytes, so that it is seen how
/// fast a client takes them.
const PIECE_BYTES: usize = 64 << 10;

/// How often within the patience it is looked who stands still.
const LOOKS: u32 = 6;

/// Once somebody has waited for as long as one may stand still, one may for this
/// part of it, until nobody has been disconnected for so many times as long.
const HURRY: u32 = 6;
const CALM: u32 = 4;

/// Who takes so many bytes of its answers does not stand still.
const PROGRESS: usize = 192 << 10;

/// An answer that is being sent.
#[derive(Debug)]
pub struct UnderWay {
    peer: Peer,
    since: Instant,
    /// Whether its pieces are of records that are charged.
    pins_records: bool,
    part: Arc<Part>,
}

/// What a client took of its answers of one kind.
#[derive(Debug)]
pub struct Taken {
    bytes: usize,
    /// When they last were [`PROGRESS`], from which they count anew.
    at: Instant,
}

/// An answer that is being sent, until its last piece is.
#[derive(Debug)]
pub(super) struct Sending {
    id: u64,
    part: Arc<Part>,
    room: Room,
}

/// A piece of it.
struct Piece {
    bytes: Bytes,
    sending: Arc<Sending>,
}

/// Disconnects who stands still while somebody waits for what it holds: for an
/// answer's memory, or for that of records, whose pieces answers are; another or
/// itself. Ends never.
///
/// Those who come next may stand still as well: once somebody has waited for as
/// long as one may, one may for a moment only, until they come no more.
pub async fn watch(answers: Arc<Budget>, records: Arc<Memory>) {
    let patience = answers.patience;
    let mut every = tokio::time::interval(patience / LOOKS);
    let mut hurry_until = Instant::now();
    loop {
        every.tick().await;
        let now = Instant::now();
        let waits_since = answers.waits_since();
        let is_long = waits_since.is_some_and(|since| now >= since + patience);
        // Who waits for itself only harms nobody.
        let is_hurried = is_long || (waits_since.is_some() && now < hurry_until);
        let allowed = if is_hurried { patience / HURRY } else { patience };
        let records_wait = records.is_pressed();
        let stands_still = |answer: &&UnderWay| {
            let is_waited_for =
                waits_since.is_some() || (answer.pins_records && records_wait) || answer.part.is_waited_for();
            is_waited_for && now >= answer.since.max(answer.part.taken_at()) + allowed
        };
        for UnderWay { peer, .. } in answers.under_way().values().filter(stands_still) {
            if !peer.is_cut() {
                metrics::counter!("quire_broker_connections_cut_total").increment(1);
                let address = peer.address;
                tracing::warn!(%address, "a client that does not take its answers is disconnected");
                peer.cut();
                if is_hurried {
                    hurry_until = now + CALM * patience;
                }
            }
        }
    }
}

impl Taken {
    /// From now on.
    #[must_use]
    pub fn nothing() -> Self {
        Self { bytes: 0, at: Instant::now() }
    }
}

impl Part {
    /// The client took some of an answer.
    fn takes(&self, bytes: usize) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes += bytes;
        if taken.bytes >= PROGRESS {
            *taken = Taken::nothing();
        }
    }

    /// When it last had taken enough of them.
    fn taken_at(&self) -> Instant {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).at
    }
}

impl Room {
    /// The pieces, which from now on hold the memory: it is freed with the last
    /// of them. `pins_records`: some are slices of records that are charged.
    #[must_use]
    pub fn hold(mut self, pieces: VecDeque<Bytes>, peer: Peer, pins_records: bool) -> VecDeque<Bytes> {
        self.shrink(pieces.iter().map(Bytes::len).sum());
        let Some(sending) = self.sending(peer, pins_records).map(Arc::new) else { return pieces };
        let held = |bytes: Bytes| Bytes::from_owner(Piece { bytes, sending: Arc::clone(&sending) });
        pieces.into_iter().flat_map(chop).map(held).collect()
    }

    /// An answer to this client is on its way, in this memory. `None`: it needs
    /// none.
    #[must_use]
    pub(super) fn sending(self, peer: Peer, pins_records: bool) -> Option<Sending> {
        if self.bytes() == 0 {
            return None;
        }
        let id = self.budget.number();
        let part = self.budget.part_of(&peer);
        let under_way = UnderWay { peer, since: Instant::now(), pins_records, part: Arc::clone(&part) };
        self.budget.under_way().insert(id, under_way);
        Some(Sending { id, part, room: self })
    }

    /// A response, whose memory is held until its client has it. Needs [`keep`]
    /// around the service.
    #[must_use]
    pub fn response<M>(self, peer: Option<&Peer>, message: M) -> Response<M> {
        let mut response = Response::new(message);
        if let Some(peer) = peer {
            let kept = Kept(Arc::new(Mutex::new(Some((self, peer.clone())))));
            response.extensions_mut().insert(kept);
        }
        response
    }
}

fn chop(bytes: Bytes) -> impl Iterator<Item = Bytes> {
    (0..bytes.len()).step_by(PIECE_BYTES).map(move |at| bytes.slice(at..bytes.len().min(at + PIECE_BYTES)))
}

/// Memory of a response, among its extensions until [`keep`] finds it.
#[derive(Clone, Debug)]
struct Kept(Arc<Mutex<Option<(Room, Peer)>>>);

/// The body of a response, whose pieces hold its memory.
struct KeptBody {
    inner: Body,
    room: Option<(Room, Peer)>,
    pieces: VecDeque<Bytes>,
}

/// Has the body of a response of [`Room::response`] hold its memory.
#[must_use]
pub fn keep(mut response: http::Response<Body>) -> http::Response<Body> {
    let kept = response.extensions_mut().remove::<Kept>();
    let room = kept.and_then(|Kept(room)| room.lock().unwrap_or_else(PoisonError::into_inner).take());
    match room {
        Some(room) => {
            response.map(|inner| Body::new(KeptBody { inner, room: Some(room), pieces: VecDeque::new() }))
        }
        None => response,
    }
}

impl http_body::Body for KeptBody {
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
            let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
            let data = match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                Some(Ok(Err(trailers))) => return Poll::Ready(Some(Ok(trailers))),
                Some(Ok(Ok(data))) => data,
            };
            // A message comes in one frame.
            self.pieces = match self.room.take() {
                Some((room, peer)) => room.hold([data].into(), peer, false),
                None => [data].into(),
            };
        }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.sending.part.takes(self.bytes.len());
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.room.budget.under_way().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use prost::Message;
    use quire_proto::v1;

    use super::*;
    use crate::memory::SMALL;
    use crate::service::budget::Kind;
    use crate::testing::peer;

    const LIMIT: usize = 8 << 20;
    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn the_memory_of_an_answer_is_held_by_its_last_piece() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let room = answers.room(LIMIT, None, None).await.unwrap();
        assert!(answers.room(SMALL, None, None).now_or_never().is_none());
        let mut pieces =
            room.hold([Bytes::from(vec![7; 3 << 20]), Bytes::from_static(b"end")].into(), peer(), false);
        assert_eq!(answers.used(), (3 << 20) + 3, "no more than it turned out to be");
        assert_eq!(pieces.iter().map(Bytes::len).max(), Some(PIECE_BYTES));
        let last = pieces.pop_back();
        drop(pieces);
        assert_eq!(answers.used(), (3 << 20) + 3);
        drop(last);
        assert_eq!((answers.used(), answers.under_way().len()), (0, 0));
    }

    /// An answer of so many bytes, on its way to this client.
    async fn sent(answers: &Arc<Budget>, bytes: usize, peer: &Peer) -> VecDeque<Bytes> {
        let room = answers.room(bytes, None, None).await.unwrap();
        room.hold([Bytes::from(vec![7; bytes])].into(), peer.clone(), false)
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_still_is_disconnected_when_others_wait_and_who_is_slow_is_not() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let watch = tokio::spawn(watch(Arc::clone(&answers), Memory::new(1 << 20)));
        let (slow, creeps, still) = (peer(), peer(), peer());
        let mut slowly = sent(&answers, LIMIT / 2, &slow).await;
        // What a client has many of it cannot take all at once.
        let _behind = sent(&answers, LIMIT / 8, &slow).await;
        let never = sent(&answers, LIMIT / 8, &still).await;
        tokio::time::sleep(10 * PATIENCE).await;
        assert!(!still.is_cut(), "nobody waits");
        let mut taken_little = sent(&answers, LIMIT / 8, &creeps).await;
        let waiting = tokio::spawn({
            let answers = Arc::clone(&answers);
            async move { answers.room(LIMIT, None, None).await }
        });
        while !slowly.is_empty() {
            slowly.drain(..slowly.len().min(4));
            taken_little.pop_front();
            tokio::time::sleep(PATIENCE / LOOKS * 7 / 10).await;
        }
        assert!(creeps.is_cut(), "a piece now and then is no progress");
        assert!(still.is_cut());
        assert!(!slow.is_cut());
        drop(never);
        watch.abort();
        waiting.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn when_others_have_waited_for_long_who_stands_still_goes_sooner() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let watch = tokio::spawn(watch(Arc::clone(&answers), Memory::new(1 << 20)));
        let stalls = |peer: Peer| {
            let answers = Arc::clone(&answers);
            tokio::spawn(async move {
                let began = Instant::now();
                let _untaken = sent(&answers, LIMIT, &peer).await;
                while !peer.is_cut() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                began.elapsed()
            })
        };
        let [first, second, third] = [peer(), peer(), peer()].map(stalls);
        tokio::task::yield_now().await;
        assert!(answers.room(LIMIT, Some(&peer()), None).await.is_ok(), "it outlasts them");
        let look = PATIENCE / LOOKS;
        let lived = [first.await.unwrap(), second.await.unwrap(), third.await.unwrap()];
        let most = [PATIENCE + look, PATIENCE + 3 * look, PATIENCE + 5 * look];
        assert!(
            lived[0] >= PATIENCE && lived.iter().zip(most).all(|(lived, most)| *lived <= most),
            "{lived:?}"
        );
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_comes_again_to_stand_still_goes_sooner_each_time() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let watch = tokio::spawn(watch(Arc::clone(&answers), Memory::new(1 << 20)));
        let mut waited = Vec::new();
        for _ in 0..4 {
            let still = peer();
            let untaken = sent(&answers, LIMIT, &still).await;
            let asked = Instant::now();
            let answers = Arc::clone(&answers);
            let waiting = tokio::spawn(async move { answers.room(LIMIT, Some(&peer()), None).await });
            while !still.is_cut() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            drop(untaken);
            assert!(waiting.await.unwrap().is_ok());
            waited.push(asked.elapsed());
        }
        assert!(waited[0] >= PATIENCE, "{waited:?}");
        assert!(waited[1..].iter().all(|waited| *waited <= PATIENCE / LOOKS * 2), "{waited:?}");
        // Who waits for itself only has its time.
        let blocked = peer();
        let part = answers.part();
        let room = answers.room_now(part, Some(&blocked)).unwrap();
        let untaken = room.hold([Bytes::from(vec![7; part])].into(), blocked.clone(), false);
        let waits = answers.room(SMALL, Some(&blocked), None);
        assert!(tokio::time::timeout(PATIENCE / 2, waits).await.is_err());
        assert!(!blocked.is_cut());
        drop(untaken);
        // Nobody was disconnected for long: one may be slow again.
        tokio::time::sleep((CALM + 1) * PATIENCE).await;
        let slow = peer();
        let _untaken = sent(&answers, LIMIT, &slow).await;
        let other = peer();
        let waits = answers.room(LIMIT, Some(&other), None);
        assert!(tokio::time::timeout(PATIENCE / 2, waits).await.is_err());
        assert!(!slow.is_cut());
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_itself_with_a_request_and_takes_nothing_is_disconnected() {
        let answers = Budget::new(Kind::Acknowledgements, LIMIT, PATIENCE);
        let watch = tokio::spawn(watch(Arc::clone(&answers), Memory::new(1 << 20)));
        let (blocked, still) = (peer(), peer());
        let part = answers.part();
        let hold = |peer: &Peer| {
            let room = answers.room_now(part, Some(peer)).unwrap();
            room.hold([Bytes::from(vec![7; part])].into(), peer.clone(), false)
        };
        let _untaken = [hold(&blocked), hold(&still)];
        tokio::time::sleep(3 * PATIENCE).await;
        assert!(!blocked.is_cut(), "nobody waits");
        let waits = answers.room(SMALL, Some(&blocked), None);
        assert!(tokio::time::timeout(PATIENCE / 2, waits).await.is_err());
        assert!(blocked.is_cut());
        assert!(!still.is_cut(), "nobody waits for what it holds");
        watch.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_other_answers_stands_still_with_these() {
        let answers = [Kind::Records, Kind::Replies].map(|kind| Budget::new(kind, LIMIT, PATIENCE));
        let watch = tokio::spawn(watch(Arc::clone(&answers[0]), Memory::new(1 << 20)));
        let (still, waits) = (peer(), peer());
        let _untaken = sent(&answers[0], LIMIT, &still).await;
        let waiting = answers[0].room(SMALL, Some(&waits), None);
        let taking = async {
            loop {
                drop(sent(&answers[1], PROGRESS, &still).await);
                tokio::time::sleep(PATIENCE / LOOKS).await;
            }
        };
        tokio::select! {
            _ = waiting => {}
            () = taking => {}
        }
        assert!(still.is_cut());
        watch.abort();
    }

    #[tokio::test]
    async fn a_response_holds_its_memory() {
        let answers = Budget::new(Kind::Records, LIMIT, PATIENCE);
        let topic = v1::TopicMetadata { name: "x".repeat(100_000), ..v1::TopicMetadata::default() };
        let message = v1::MetadataResponse { topics: vec![topic], ..v1::MetadataResponse::default() };
        let bytes = message.encoded_len();
        let made =
            answers.room(bytes + 1, None, None).await.unwrap().response(Some(&peer()), message.clone());
        assert_eq!(answers.used(), bytes + 1);
        let encoded = Bytes::from(message.encode_to_vec());
        let body = Body::new(http_body_util::Full::new(encoded.clone()));
        let mut response = http::Response::new(body);
        *response.extensions_mut() = made.into_parts().2;
        let mut response = keep(response);
        let mut received = Vec::new();
        while let Some(frame) = response.body_mut().frame().await {
            assert_eq!(answers.used(), bytes);
            received.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        assert!(received == encoded);
        assert_eq!(answers.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stands_still_is_disconnected_for_what_it_holds_only() {
        let (answers, records) = (Budget::new(Kind::Records, LIMIT, PATIENCE), Memory::new(LIMIT));
        let watching = tokio::spawn(watch(Arc::clone(&answers), Arc::clone(&records)));
        let (pins, copied, small) = (peer(), peer(), peer());
        let _answers = [(&pins, 100_000, true), (&copied, 100_000, false), (&small, 100, true)].map(
            |(peer, bytes, pins_records)| {
                let room = answers.room(bytes, None, None).now_or_never().unwrap().unwrap();
                room.hold([Bytes::from(vec![1; bytes])].into(), peer.clone(), pins_records)
            },
        );
        let cut = || [&pins, &copied, &small].map(Peer::is_cut);
        tokio::time::sleep(PATIENCE * 3).await;
        assert_eq!(cut(), [false; 3], "nobody waits");

        let all = records.charge(LIMIT, || false).await;
        let waits = tokio::spawn(async move { records.charge(1, || false).await });
        tokio::time::sleep(PATIENCE).await;
        assert_eq!(cut(), [true, false, false], "memory of records is waited for");
        drop(all);
        drop(waits.await.unwrap());

        assert!(tokio::time::timeout(PATIENCE, answers.room(LIMIT, None, None)).await.is_err());
        assert_eq!(cut(), [true, true, false], "memory of answers is waited for");
        watching.abort();
    }
}
