//! ListOffsets: earliest, latest, by time.

use quire_proto::batch::{Batch, Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;
use quire_proto::v1;
use quire_proto::v1::ErrorReason;
use quire_proto::v1::list_offsets_partition::At;

use crate::server::{Server, eventually, options, reason};

fn at(timestamps: &[i64]) -> Batch {
    let mut builder = Builder::with_capacity(100);
    for timestamp_ms in timestamps {
        builder.append(*timestamp_ms, None, Some(b"v"), NO_HEADERS).unwrap();
    }
    builder.seal(Compression::None, Producer::NONE).unwrap()
}

async fn look_up(server: &mut Server, partition: u32, at: At) -> v1::ListOffsetsResult {
    let topic = "t".to_owned();
    let asked =
        v1::ListOffsetsPartition { topic, partition, at: Some(at), ..v1::ListOffsetsPartition::default() };
    let request = v1::ListOffsetsRequest { partitions: vec![asked] };
    server.log.list_offsets(request).await.unwrap().into_inner().results.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn by_time_it_is_the_first_batch_that_reaches_it() {
    let mut server = Server::start().await;
    server.create("t", 1, &[("segment.bytes", "1024")]).await;
    // Offsets 0-1, 2, 3, …: times go up and down.
    let batches = [vec![100, 300], vec![200], vec![50], vec![400], vec![350], vec![900]];
    for timestamps in &batches {
        assert_eq!(server.produce("t", 0, &[at(timestamps)]).await.error, None);
    }
    for restarted in [false, true] {
        for (timestamp_ms, expected) in [
            (i64::MIN, Some(0)),
            (100, Some(0)),
            (300, Some(0)),
            (301, Some(4)),
            (400, Some(4)),
            (401, Some(6)),
            (900, Some(6)),
            (901, None),
        ] {
            let found = look_up(&mut server, 0, At::TimestampMs(timestamp_ms)).await;
            assert_eq!(
                (found.error, found.offset),
                (None, expected),
                "{timestamp_ms}, restarted: {restarted}"
            );
        }
        if !restarted {
            server = Server::on(server.stop().await, options()).await;
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn earliest_and_latest() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let earliest = At::Earliest(v1::Earliest {});
    let latest = At::Latest(v1::Latest {});
    assert_eq!(look_up(&mut server, 0, latest).await.offset, Some(0));
    server.put("t", 0, "a").await;
    assert_eq!(look_up(&mut server, 0, earliest).await.offset, Some(0));
    let found = look_up(&mut server, 0, latest).await;
    assert_eq!((found.offset, found.leader_epoch), (Some(1), 1));
    assert_eq!(reason(&look_up(&mut server, 1, latest).await.error), ErrorReason::UnknownPartition);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_earliest_is_known_before_the_end_is() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "in a sealed ledger").await;
    server = Server::on(server.stop().await, options()).await;
    server.put("t", 0, "in an open one").await;
    let ground = server.crash().await;
    ground.gate.set_open(false);
    let mut server = Server::on(ground, options()).await;
    let earliest = eventually("the first ledger can be read", async || {
        look_up(&mut server, 0, At::Earliest(v1::Earliest {})).await.offset
    });
    assert_eq!(earliest.await, 0);
    let latest = look_up(&mut server, 0, At::Latest(v1::Latest {})).await;
    assert_eq!(reason(&latest.error), ErrorReason::NotReady);
}
