//! Whatever comes in, the answer is typed, and good input works afterwards.

use bytes::{Bytes, BytesMut};
use quire_proto::batch::{Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;
use quire_proto::v1;
use quire_proto::v1::ErrorReason;
use tokio::io::AsyncWriteExt;

use crate::server::{Server, batch, request, status_reason};

fn spoiled(at: usize, spoil: impl Fn(u8) -> u8) -> Bytes {
    let mut bytes = BytesMut::from(&batch(&["value"]).bytes[..]);
    bytes[at] = spoil(bytes[at]);
    bytes.freeze()
}

fn large(bytes: usize) -> Bytes {
    let mut builder = Builder::with_capacity(bytes);
    builder.append(0, None, Some(&vec![0; bytes]), NO_HEADERS).unwrap();
    builder.seal(Compression::None, Producer::NONE).unwrap().bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_batches_are_refused_and_nothing_is_written() {
    let mut server = Server::start().await;
    server.create("t", 1, &[("max.message.bytes", "2048")]).await;
    let good = batch(&["value"]).bytes;
    let table = [
        ("empty", Bytes::new(), ErrorReason::InvalidRequest),
        ("garbage", Bytes::from_static(b"garbage"), ErrorReason::CorruptBatch),
        ("zeroes", Bytes::from(vec![0; 200]), ErrorReason::UnsupportedBatchVersion),
        ("cut short", good.slice(..good.len() - 1), ErrorReason::CorruptBatch),
        ("left over", [&good[..], b"x"].concat().into(), ErrorReason::CorruptBatch),
        ("old magic", spoiled(16, |_| 1), ErrorReason::UnsupportedBatchVersion),
        ("flipped bit", spoiled(good.len() - 2, |byte| byte ^ 1), ErrorReason::CorruptBatch),
        ("wrong count", spoiled(60, |_| 9), ErrorReason::CorruptBatch),
        ("length lies", spoiled(8, |_| 0x7f), ErrorReason::CorruptBatch),
        ("too large", large(4_000), ErrorReason::BatchTooLarge),
    ];
    for (what, batches, expected) in table {
        let mut produce = request("t", 0, &[]);
        produce.partitions[0].batches = batches;
        let results = server.log.produce(produce).await.unwrap().into_inner().results;
        let error = results[0].error.clone().unwrap_or_else(|| panic!("{what} was taken"));
        assert_eq!(error.reason(), expected, "{what}: {}", error.message);
        assert!(!error.retryable, "{what}");
    }
    assert_eq!(server.put("t", 0, "good").await, 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let both = {
        let mut both = request("t", 0, &[batch(&["a"])]);
        both.partitions[0].messages = vec![v1::Message::default()];
        both
    };
    let table = [
        ("unknown topic", request("nope", 0, &[batch(&["a"])]), ErrorReason::UnknownTopic),
        ("unknown partition", request("t", 1, &[batch(&["a"])]), ErrorReason::UnknownPartition),
        ("both forms", both, ErrorReason::InvalidRequest),
        (
            "no such acks",
            v1::ProduceRequest { acks: 99, ..request("t", 0, &[batch(&["a"])]) },
            ErrorReason::InvalidRequest,
        ),
    ];
    for (what, produce, expected) in table {
        let results = server.log.produce(produce).await.unwrap().into_inner().results;
        let error = results[0].error.clone().unwrap_or_else(|| panic!("{what} was taken"));
        assert_eq!(error.reason(), expected, "{what}");
    }
    let empty = server.log.produce(v1::ProduceRequest::default()).await.unwrap().into_inner();
    assert!(empty.results.is_empty());
    let long = v1::FetchRequest { max_wait_ms: 60_001, ..v1::FetchRequest::default() };
    assert_eq!(status_reason(server.log.fetch(long).await), ErrorReason::InvalidRequest);
    let missing = server.topics.describe_topic(v1::DescribeTopicRequest { name: "nope".to_owned() }).await;
    assert_eq!(status_reason(missing), ErrorReason::UnknownTopic);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_above_the_limit_is_refused_before_it_is_held() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let mut produce = request("t", 0, &[]);
    produce.partitions[0].batches = Bytes::from(vec![0; 20 << 20]);
    let refused = server.log.produce(produce).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange);
    assert_eq!(server.put("t", 0, "good").await, 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_port_concerns_nobody_else() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff"]
    {
        let mut socket = tokio::net::TcpStream::connect(server.address).await.unwrap();
        // The server may have closed it already.
        _ = socket.write_all(garbage).await;
    }
    assert_eq!(server.put("t", 0, "good").await, 0);
    server.stop().await;
}
