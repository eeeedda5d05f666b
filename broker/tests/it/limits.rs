//! Clients that do not take what they asked for, or do not send what they began,
//! are bounded in what they cost, and cost nobody else anything for long.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};

use prost::Message;
use quire_broker::Options;
use quire_proto::v1;
use quire_proto::v1::subscribe_request::Request;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::server::{PATIENCE, Server, batch, fetch, options, reason, request, status_reason};

const CLIENT_PATIENCE: Duration = Duration::from_secs(1);

/// A frame of HTTP/2 that wants an answer.
const PING: [u8; 17] = [0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// One large request and one large answer at a time.
fn small() -> Options {
    Options { request_bytes: 8 << 20, answer_bytes: 2 << 20, client_patience: CLIENT_PATIENCE, ..options() }
}

/// A connection without a client that behaves.
async fn connect(address: SocketAddr) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    (client, tokio::spawn(connection))
}

fn call(client: &mut SendRequest<Bytes>, method: &str) -> (ResponseFuture, SendStream<Bytes>) {
    try_call(client, method).unwrap()
}

fn try_call(
    client: &mut SendRequest<Bytes>,
    method: &str,
) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
    let request = http::Request::post(format!("http://quire/quire.v1.LogService/{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .unwrap();
    client.send_request(request, false)
}

/// As a message of a gRPC stream.
fn framed(message: &impl Message) -> Bytes {
    let body = message.encode_to_vec();
    [&[0][..], &u32::try_from(body.len()).unwrap().to_be_bytes(), &body].concat().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_never_whole_is_given_up() {
    let mut server = Server::with(small()).await;
    server.create("t", 1, &[]).await;
    let (mut client, _connection) = connect(server.address).await;
    let large = framed(&request("t", 0, &[batch(&["x".repeat(5 << 20).as_str()])]));
    // Together they want more than there is: one has it, one waits.
    let begun: Vec<_> = (0..8)
        .map(|_| {
            let (response, mut body) = call(&mut client, "Produce");
            body.send_data(large.slice(..10_000), false).unwrap();
            (response, body)
        })
        .collect();
    let (responses, _bodies): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
    let ended = tokio::spawn(join_all(responses));
    assert_eq!(server.put("t", 0, "small").await, 0);
    assert!(!ended.is_finished(), "it need not wait for them");
    let ended = tokio::time::timeout(PATIENCE, ended).await.expect("they are given up").unwrap();
    let code = |response: Result<http::Response<RecvStream>, h2::Error>| {
        tonic::Code::from_bytes(response.unwrap().headers()["grpc-status"].as_bytes())
    };
    let codes: Vec<_> = ended.into_iter().map(code).collect();
    let count = |code| codes.iter().filter(|&&other| other == code).count();
    // The one that waits may or may not get what the first gives up.
    let (refused, late) = (count(tonic::Code::ResourceExhausted), count(tonic::Code::DeadlineExceeded));
    assert!(refused >= 6 && late >= 1 && refused + late == 8, "{codes:?}");
    let value = "x".repeat(900_000);
    assert_eq!(server.put("t", 0, &value).await, 1);
}

/// With so many large values in partition 0.
async fn filled(values: usize) -> Server {
    let mut server = Server::with(small()).await;
    server.create("t", 1, &[]).await;
    let value = "x".repeat(900_000);
    for _ in 0..values {
        server.put("t", 0, &value).await;
    }
    server
}

/// Subscribes to all of partition 0, and takes nothing.
async fn subscribe(client: &mut SendRequest<Bytes>) -> (http::Response<RecvStream>, SendStream<Bytes>) {
    let (response, mut body) = call(client, "Subscribe");
    let start = v1::SubscribeStart {
        partitions: fetch("t", 0, 0).partitions,
        credit_bytes: 1 << 30,
        ..v1::SubscribeStart::default()
    };
    body.send_data(framed(&v1::SubscribeRequest { request: Some(Request::Start(start)) }), false).unwrap();
    (response.await.unwrap(), body)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_take_its_answers_is_disconnected() {
    let mut server = filled(8).await;
    let (mut client, connection) = connect(server.address).await;
    let _untaken = subscribe(&mut client).await;
    // What it holds is waited for, and then it is gone.
    let read = server.read_from("t", 0, 0).await;
    assert_eq!(read.len(), 8);
    _ = tokio::time::timeout(PATIENCE, connection).await.expect("it is disconnected");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_even_read_is_disconnected() {
    // More than the sockets between them hold.
    let mut server = filled(20).await;
    let stream = std::net::TcpStream::connect(server.address).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut raw = TcpStream::from_std(stream.try_clone().unwrap()).unwrap();
    let stream = TcpStream::from_std(stream).unwrap();
    let (mut client, mut connection) = h2::client::Builder::new()
        .initial_window_size(1 << 30)
        .initial_connection_window_size(1 << 30)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    let _untaken = tokio::select! {
        subscribed = subscribe(&mut client) => subscribed,
        _ = &mut connection => unreachable!("it is not done yet"),
    };
    // What it asks for on top of that cannot be written either, and from then on
    // the server does not read.
    let asks = tokio::spawn(async move {
        while raw.write_all(&PING).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let read = server.read_from("t", 0, 0).await;
    assert_eq!(read.len(), 20);
    asks.abort();
    // It is still there, and learns that it is cut as soon as it reads.
    _ = tokio::time::timeout(PATIENCE, connection).await.expect("it is disconnected");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_takes_only_the_first_byte_of_its_acknowledgements_is_disconnected() {
    let mut server = Server::with(small()).await;
    server.create("t", 1, &[]).await;
    let stream = TcpStream::connect(server.address).await.unwrap();
    let begun = h2::client::Builder::new().initial_window_size(1).handshake::<_, Bytes>(stream).await;
    let (mut client, connection) = begun.unwrap();
    let connection = tokio::spawn(connection);
    let partitions = vec![v1::ProducePartition { topic: "t".to_owned(), ..Default::default() }; 200];
    let request = framed(&v1::ProduceRequest { partitions, ..Default::default() });
    // Together they are more than one connection may hold.
    let asks = async {
        let mut untaken = Vec::new();
        while let Ok((response, mut body)) = try_call(&mut client, "ProduceStream") {
            let Ok(()) = body.send_data(request.clone(), false) else { break };
            untaken.push((response.await, body));
            tokio::time::sleep(CLIENT_PATIENCE / 20).await;
        }
    };
    tokio::time::timeout(PATIENCE, asks).await.expect("it is disconnected");
    let ended = connection.await.unwrap();
    assert!(!ended.is_err_and(|error| error.is_go_away()), "it has not given up by itself");
    assert_eq!(server.put("t", 0, "others go on").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_is_disconnected() {
    let server = Server::with(small()).await;
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    // The server's greeting, and its end.
    _ = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await.expect("it is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_limit_connections_are_closed() {
    let mut server = Server::with(Options { connections_max: 2, ..options() }).await;
    server.create("t", 1, &[]).await;
    let second = TcpStream::connect(server.address).await.unwrap();
    let mut third = TcpStream::connect(server.address).await.unwrap();
    let read = tokio::time::timeout(PATIENCE, third.read(&mut [0; 1])).await.expect("it is closed");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert_eq!(server.put("t", 0, "the first goes on").await, 0);
    drop(second);
    // There is room again.
    crate::server::eventually("a connection is accepted", async || {
        let mut next = TcpStream::connect(server.address).await.ok()?;
        let quiet = tokio::time::timeout(Duration::from_millis(100), next.read(&mut [0; 1])).await;
        (quiet.is_err() || matches!(quiet, Ok(Ok(1)))).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_asked_for_nothing_makes_room() {
    let mut server = Server::with(Options { connections_max: 3, ..small() }).await;
    server.create("t", 1, &[]).await;
    let (mut client, asked) = connect(server.address).await;
    let (response, _body) = call(&mut client, "ProduceStream");
    response.await.unwrap();
    let (_idle, idle) = connect(server.address).await;
    // Requests are what counts, not when: the one that goes is the younger.
    let next = crate::server::eventually("there is room", async || {
        let stream = TcpStream::connect(server.address).await.ok()?;
        let (mut client, connection) = h2::client::handshake(stream).await.ok()?;
        tokio::spawn(connection);
        let (response, _body) = try_call(&mut client, "ProduceStream").ok()?;
        response.await.ok()
    });
    assert!(next.await.status().is_success());
    _ = tokio::time::timeout(PATIENCE, idle).await.expect("it is disconnected");
    assert!(!asked.is_finished());
    assert_eq!(server.put("t", 0, "a").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_nothing_to_read_waits_for_no_memory() {
    let mut server = filled(8).await;
    let ground = server.stop().await;
    server = Server::on(ground, Options { client_patience: PATIENCE * 2, ..small() }).await;
    server.create("quiet", 1, &[]).await;
    let (mut client, _connection) = connect(server.address).await;
    let mut untaken = subscribe(&mut client).await;
    // It has begun, so that it has its memory.
    assert!(untaken.0.body_mut().data().await.is_some());
    let mut log = server.log.clone();
    let waits = tokio::spawn(async move { log.fetch(fetch("t", 0, 0)).await });
    let poll = v1::FetchRequest { max_wait_ms: 100, ..fetch("quiet", 0, 0) };
    let polled = tokio::time::timeout(PATIENCE, server.fetch(poll)).await.expect("it is answered");
    assert_eq!((polled.error, polled.next_offset), (None, 0));
    assert_eq!(server.put("quiet", 0, "a").await, 0);
    let read = tokio::time::timeout(PATIENCE, server.read_from("quiet", 0, 0)).await.expect("it is answered");
    assert_eq!(read, [(0, "a".to_owned())]);
    assert!(!waits.is_finished(), "who wants much waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_waited_for_memory_does_not_wait_for_more_to_read() {
    let mut server = Server::with(Options { client_patience: PATIENCE * 2, ..small() }).await;
    server.create("t", 1, &[]).await;
    // Nearly all the memory that there is for answers with records.
    assert_eq!(server.put("t", 0, &"x".repeat(1_040_000)).await, 0);
    server.create("quiet", 1, &[]).await;
    server.create("little", 1, &[]).await;
    assert_eq!(server.put("little", 0, &"x".repeat(10_000)).await, 0);
    let poll = v1::FetchRequest { min_bytes: 20_000, max_wait_ms: 50_000, ..fetch("little", 0, 0) };
    let answered = crate::server::eventually("memory is wanted before there is some", async || {
        let (mut client, _connection) = connect(server.address).await;
        let mut untaken = subscribe(&mut client).await;
        assert!(untaken.0.body_mut().data().await.is_some());
        let (mut log, poll) = (server.log.clone(), poll.clone());
        let waits = tokio::spawn(async move { log.fetch(poll).await });
        // What is asked after it is answered before it.
        let mut log = server.log.clone();
        for _ in 0..100 {
            assert!(log.fetch(fetch("quiet", 0, 0)).await.is_ok());
        }
        drop((untaken, client));
        tokio::time::timeout(PATIENCE / 4, waits).await.ok()
    });
    let answer = answered.await.unwrap().unwrap().into_inner();
    assert_eq!((answer.results[0].next_offset, answer.results[0].error.clone()), (1, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_take_nothing_hold_their_parts_only() {
    let ground = filled(8).await.stop().await;
    // Parts of one message each; for as long as the test nobody is disconnected.
    let options = Options { answer_bytes: 16 << 20, client_patience: PATIENCE * 2, ..small() };
    let mut server = Server::on(ground, options).await;
    let stalls = async || {
        let mut stalled = Vec::new();
        for _ in 0..6 {
            let (mut client, _connection) = connect(server.address).await;
            let mut first = subscribe(&mut client).await;
            assert!(first.0.body_mut().data().await.is_some());
            for _ in 0..10 {
                stalled.push(subscribe(&mut client).await);
            }
            stalled.push(first);
        }
        stalled
    };
    let _stalled = tokio::time::timeout(PATIENCE, stalls()).await.expect("each begins");
    let read = tokio::time::timeout(PATIENCE, server.read_from("t", 0, 0)).await.expect("it is answered");
    assert_eq!(read.len(), 8);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_memory_holds_up_no_reads() {
    let ground = filled(8).await.stop().await;
    // All that is read is read from the bookie.
    let cold = Options { client_patience: PATIENCE * 2, tail_cache_bytes: 0, ..small() };
    let mut server = Server::on(ground, cold).await;
    server.create("small", 1, &[]).await;
    assert_eq!(server.put("small", 0, "a").await, 0);
    let (mut client, _connection) = connect(server.address).await;
    let mut untaken = subscribe(&mut client).await;
    assert!(untaken.0.body_mut().data().await.is_some());
    // More than may read at once.
    let waiting: Vec<_> = (0..40)
        .map(|_| {
            let mut log = server.log.clone();
            tokio::spawn(async move { log.fetch(fetch("t", 0, 0)).await })
        })
        .collect();
    // However many of them have come: what they hold they would hold for long.
    for _ in 0..100 {
        let read = tokio::time::timeout(PATIENCE, server.read_from("small", 0, 0)).await;
        assert_eq!(read.expect("it is answered"), [(0, "a".to_owned())]);
    }
    assert!(!waiting.iter().any(JoinHandle::is_finished));
    // Once there is memory, they read what is there.
    drop((untaken, client));
    let read = join_all(waiting);
    for answer in tokio::time::timeout(PATIENCE, read).await.expect("they are answered") {
        let results = answer.unwrap().unwrap().into_inner().results;
        assert!(results[0].next_offset > 0, "{:?}", results[0].error);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_no_topic_can_have_is_not_repeated() {
    let mut server = Server::start().await;
    let long = "n".repeat(250);
    let asked = v1::ListOffsetsPartition { topic: long.clone(), ..v1::ListOffsetsPartition::default() };
    let refused = [
        server.log.fetch(fetch(&long, 0, 0)).await.unwrap_err(),
        server.log.list_offsets(v1::ListOffsetsRequest { partitions: vec![asked] }).await.unwrap_err(),
        server.log.metadata(v1::MetadataRequest { topics: vec![long.clone()] }).await.unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.message(), "a topic's name of 250 bytes: it has at most 249");
        assert_eq!(status_reason::<()>(Err(status)), v1::ErrorReason::InvalidTopicName);
    }
    // What else is produced goes on.
    let mut both = request(&long, 0, &[batch(&["a"])]);
    server.create("t", 1, &[]).await;
    both.partitions.extend(request("t", 0, &[batch(&["a"])]).partitions);
    let results = server.log.produce(both).await.unwrap().into_inner().results;
    assert_eq!(reason(&results[0].error), v1::ErrorReason::InvalidTopicName);
    assert_eq!(results[0].topic.len(), 249);
    assert_eq!(results[1].error, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_that_finds_no_memory_may_be_tried_again() {
    let server = Server::with(small()).await;
    let names = (0..500).map(|at| v1::FetchPartition { topic: format!("topic-{at}"), ..Default::default() });
    let start = v1::SubscribeStart { partitions: names.collect(), ..v1::SubscribeStart::default() };
    let subscribe = v1::SubscribeRequest { request: Some(Request::Start(start)) };
    let refused = crate::server::eventually("memory is taken before it is asked for", async || {
        // All that there is for questions is half-sent.
        let (mut client, _connection) = connect(server.address).await;
        let (_response, mut begun) = call(&mut client, "Metadata");
        let half = [&[0][..], &(4_u32 << 20).to_be_bytes(), &[0; 10_000]].concat();
        begun.send_data(half.into(), false).unwrap();
        // One is refused; the other waits until that is given up, which may be too long.
        let ended = join_all([1, 2].map(|_| {
            let (mut log, subscribe) = (server.log.clone(), subscribe.clone());
            async move {
                let answers = log.subscribe(futures_util::stream::iter([subscribe])).await;
                answers.unwrap().into_inner().message().await
            }
        }));
        let ended = tokio::time::timeout(PATIENCE, ended).await.expect("both are answered");
        let refused: Vec<_> = ended.into_iter().filter(Result::is_err).map(status_reason).collect();
        (!refused.is_empty()).then_some(refused)
    });
    let refused = refused.await;
    assert!(refused.iter().all(|reason| *reason == v1::ErrorReason::Overloaded), "{refused:?}");
}
