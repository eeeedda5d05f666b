use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;
use prost::Message as _;
use quire_metadata::store::Revision;
use quire_metadata::topic::Topic;
use quire_metadata::typed::Versioned;
use quire_proto::id::{Epoch, Offset, TopicId};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

use super::*;
use crate::bookies::fake;
use crate::catalog::{Catalog, TopicEntry};
use crate::failure;
use crate::leadership::manager::Manager;
use crate::log::Reader;
use crate::log::cold::Cold;
use crate::service::budget::{Budget, Kind};
use crate::shard::Inbox;
use crate::shard::piece::Piece;
use crate::testing::peer;

/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(20);

/// A door that leads partition 0 of topic `t`, whose only shard is this inbox.
fn door(inbox: &Arc<Inbox>) -> Arc<Door> {
    let context = fake::lonely();
    let catalog = Arc::new(Catalog::default());
    let topic = Topic {
        id: TopicId::default(),
        name: "t".parse().unwrap(),
        partitions: 1,
        replicas: 1,
        ack_quorum: 1,
        config: BTreeMap::new(),
        created_ms: 0,
    };
    let entry = TopicEntry::new(Versioned { value: topic, revision: Revision(1) });
    entry.partitions[0].leading(Epoch(1), Vec::new(), Offset(0));
    catalog.insert(Arc::new(entry));
    let shards = vec![Arc::clone(inbox)];
    Arc::new(Door {
        manager: Manager::new(Arc::clone(&context), Arc::clone(&catalog), shards, Arc::default()),
        reader: Reader::new(Arc::new(Cold::new(Arc::clone(&context.bookies), 1 << 20))),
        context,
        catalog,
        registration: Arc::default(),
        producers: Default::default(),
        answers: Budget::new(Kind::Records, 1 << 20, PATIENCE),
        replies: Budget::new(Kind::Replies, 1 << 20, PATIENCE),
        acknowledgements: Budget::new(Kind::Acknowledgements, 1 << 20, PATIENCE),
        fetches: Budget::new(Kind::Fetches, 1 << 20, PATIENCE),
        subscriptions: Budget::new(Kind::Subscriptions, 1 << 20, PATIENCE),
    })
}

fn request(correlation_id: u64) -> Result<v1::ProduceRequest, Status> {
    let message = v1::Message { value: Some(vec![1; 100].into()), ..v1::Message::default() };
    let part = v1::ProducePartition { topic: "t".to_owned(), messages: vec![message], ..Default::default() };
    Ok(v1::ProduceRequest { correlation_id, partitions: vec![part], ..Default::default() })
}

/// The next, all of it.
async fn answer(responses: &mut mpsc::Receiver<Pushed>) -> v1::ProduceResponse {
    let pieces = timeout(PATIENCE, responses.recv()).await.expect("it is answered").unwrap().unwrap();
    let message = pieces.iter().flatten().copied().collect::<Vec<u8>>();
    let (header, body) = message.split_at(5);
    assert_eq!(header, [&[0][..], &u32::try_from(body.len()).unwrap().to_be_bytes()].concat());
    v1::ProduceResponse::decode(body).unwrap()
}

async fn piece(inbox: &Inbox) -> Piece {
    let mut arrived = timeout(PATIENCE, inbox.take()).await.expect("it is handed over");
    arrived.produce.remove(0).pieces.remove(0)
}

#[tokio::test]
async fn what_is_settled_is_answered_while_the_next_request_waits_for_memory() {
    let inbox = Inbox::new(8);
    let door = door(&inbox);
    let memory = Arc::clone(&door.context.memory);
    let (requests, incoming) = mpsc::channel(8);
    let (outgoing, mut responses) = mpsc::channel(8);
    let serving = tokio::spawn(run(door, peer(), ReceiverStream::new(incoming), Held::default(), outgoing));
    requests.send(request(1)).await.unwrap();
    let first = piece(&inbox).await;
    // All that is left, as far as it is even.
    let others = memory.charge((memory.limit() - memory.used()) / 2, || false).await;
    requests.send(request(2)).await.unwrap();
    let waits = async {
        while !memory.is_pressed() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, waits).await.expect("the second waits");
    first.reply.end(Err(failure::shutting_down()));
    assert_eq!(answer(&mut responses).await.correlation_id, 1);
    drop(others);
    piece(&inbox).await.reply.end(Err(failure::shutting_down()));
    drop(requests);
    assert_eq!(answer(&mut responses).await.correlation_id, 2);
    timeout(PATIENCE, serving).await.expect("it ends with its requests").unwrap();
}

/// With so many parts that its answer takes memory, which fail at once.
fn large_request() -> v1::ProduceRequest {
    let part = v1::ProducePartition { topic: "unknown".to_owned(), ..Default::default() };
    v1::ProduceRequest { partitions: vec![part; 20], timeout_ms: 50, ..Default::default() }
}

#[tokio::test]
async fn an_answer_has_its_memory_until_it_is_sent() {
    let door = door(&Inbox::new(8));
    let memory = Arc::clone(&door.acknowledgements);
    let (outgoing, mut responses) = mpsc::channel(8);
    let requests = futures_util::stream::iter([Ok(large_request())]);
    timeout(PATIENCE, run(door, peer(), requests, Held::default(), outgoing)).await.expect("it ends");
    assert!(memory.used() > 0);
    assert_eq!(answer(&mut responses).await.results.len(), 20);
    assert_eq!(memory.used(), 0);
}

#[tokio::test]
async fn who_finds_no_memory_waits_and_the_stream_ends_when_that_is_too_long() {
    let inbox = Inbox::new(8);
    let door = door(&inbox);
    let all = door.acknowledgements.room_now(usize::MAX, None).unwrap();
    let (requests, incoming) = mpsc::channel(8);
    let (outgoing, mut responses) = mpsc::channel(8);
    let stream = ReceiverStream::new(incoming);
    let serving = tokio::spawn(run(Arc::clone(&door), peer(), stream, Held::default(), outgoing));
    let patient = v1::ProduceRequest { timeout_ms: 0, ..large_request() };
    requests.send(Ok(patient)).await.unwrap();
    requests.send(request(2)).await.unwrap();
    let waits = async {
        while door.acknowledgements.waits_since().is_none() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, waits).await.expect("it waits");
    assert!(
        responses.is_empty() && inbox.take().now_or_never().is_none(),
        "what comes after it keeps its place"
    );
    drop(all);
    assert_eq!(answer(&mut responses).await.results.len(), 20);
    piece(&inbox).await.reply.end(Err(failure::shutting_down()));
    assert_eq!(answer(&mut responses).await.correlation_id, 2);

    let _all = door.acknowledgements.room_now(usize::MAX, None).unwrap();
    requests.send(Ok(large_request())).await.unwrap();
    let refused = timeout(PATIENCE, responses.recv()).await.unwrap().unwrap().unwrap_err();
    let reason = failure::Failure::from_status(&refused).unwrap().reason;
    assert_eq!(reason, v1::ErrorReason::Overloaded);
    timeout(PATIENCE, serving).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn what_is_not_taken_is_bounded_however_many_streams_there_are() {
    let door = door(&Inbox::new(8));
    let peer = peer();
    // One part each, which fails at once.
    let asked =
        v1::ProduceRequest { partitions: vec![v1::ProducePartition::default()], ..Default::default() };
    let streams: Vec<_> = (0..20)
        .map(|_| {
            let (outgoing, untaken) = mpsc::channel(64);
            let requests = futures_util::stream::repeat(asked.clone()).map(Ok);
            let serve = run(Arc::clone(&door), peer.clone(), requests, Held::default(), outgoing);
            (tokio::spawn(serve), untaken)
        })
        .collect();
    let part = door.acknowledgements.part();
    let is_full = async {
        while door.acknowledgements.room_now(1 << 10, Some(&peer)).is_some() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, is_full).await.expect("the connection holds its part");
    let untaken = streams.iter().map(|(_, untaken)| untaken.len()).sum::<usize>();
    assert!((1..=part / 1024).contains(&untaken), "{untaken}");
    streams.iter().for_each(|(serving, _)| serving.abort());
}
