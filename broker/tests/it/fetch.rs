//! Fetching: long polls, limits, many partitions.

use std::time::{Duration, Instant};

use quire_proto::v1;
use quire_proto::v1::ErrorReason;

use crate::server::{PATIENCE, Server, batch, fetch, reason, values};

#[tokio::test(flavor = "multi_thread")]
async fn all_partitions_that_have_something_go_on_at_one_pace() {
    let mut server = Server::start().await;
    server.create("t", 4, &[]).await;
    for _ in 0..30 {
        // The last has nothing.
        for partition in 0..3 {
            server.put("t", partition, &"x".repeat(1_000)).await;
        }
    }
    let mut request = v1::FetchRequest { max_bytes: 33_000, ..fetch("t", 0, 0) };
    request.partitions = (0..4).flat_map(|partition| fetch("t", partition, 0).partitions).collect();
    let answer = server.log.fetch(request).await.unwrap().into_inner();
    let next: Vec<_> = answer.results.iter().map(|result| result.next_offset).collect();
    assert!(next[..3].iter().all(|next| (9..=11).contains(next)) && next[3] == 0, "{next:?}");
    // One that is alone with something takes all that there is room for.
    let mut request = v1::FetchRequest { max_bytes: 20_000, ..fetch("t", 0, 0) };
    request.partitions = [(0, 0), (1, 30), (2, 30), (3, 0)]
        .into_iter()
        .flat_map(|(partition, offset)| fetch("t", partition, offset).partitions)
        .collect();
    let answer = server.log.fetch(request).await.unwrap().into_inner();
    assert!((17..=19).contains(&answer.results[0].next_offset), "{}", answer.results[0].next_offset);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_ends_when_a_record_comes() {
    let mut server = Server::start().await;
    server.create("t", 2, &[]).await;
    let mut poll = fetch("t", 0, 0);
    poll.partitions.extend(fetch("t", 1, 0).partitions);
    poll.max_wait_ms = 60_000;
    let mut log = server.log.clone();
    let polling = tokio::spawn(async move { log.fetch(poll).await.unwrap().into_inner() });
    server.put("t", 1, "a").await;
    let answer = tokio::time::timeout(PATIENCE, polling).await.expect("the poll ends").unwrap();
    assert!(answer.results[0].batches.is_empty());
    assert_eq!(values(&answer.results[1]), [(0, "a".to_owned())]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_waits_for_min_bytes() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let size = u32::try_from(batch(&["a"]).bytes.len()).unwrap();
    let poll = v1::FetchRequest { max_wait_ms: 60_000, min_bytes: 3 * size, ..fetch("t", 0, 0) };
    let mut log = server.log.clone();
    let polling = tokio::spawn(async move { log.fetch(poll).await.unwrap().into_inner() });
    for _ in 0..3 {
        server.put("t", 0, "a").await;
    }
    let answer = tokio::time::timeout(PATIENCE, polling).await.expect("the poll ends").unwrap();
    assert_eq!(values(&answer.results[0]).len(), 3);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_ends_when_there_is_no_room_for_more() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let value = "v".repeat(1_000);
    let size = u32::try_from(batch(&[&value]).bytes.len()).unwrap();
    for _ in 0..3 {
        server.put("t", 0, &value).await;
    }
    // The third batch does not fit, and the first two are fewer bytes than wanted.
    let most = 3 * size - 1;
    let poll = v1::FetchRequest { max_wait_ms: 60_000, min_bytes: most, max_bytes: most, ..fetch("t", 0, 0) };
    for plain in [false, true] {
        let answer = server.fetch(v1::FetchRequest { plain, ..poll.clone() });
        let result = tokio::time::timeout(PATIENCE, answer).await.expect("the poll ends");
        assert_eq!(result.next_offset, 2);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_poll_ends_in_time_without_records() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    let began = Instant::now();
    let result = server.fetch(v1::FetchRequest { max_wait_ms: 200, ..fetch("t", 0, 0) }).await;
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert_eq!((result.error, result.next_offset, result.latest_offset), (None, 0, 0));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_hold_but_for_one_whole_batch() {
    let mut server = Server::start().await;
    server.create("t", 2, &[]).await;
    let value = "v".repeat(1_000);
    for partition in 0..2 {
        for _ in 0..5 {
            server.put("t", partition, &value).await;
        }
    }
    let one = server.fetch(v1::FetchRequest { max_bytes: 1, ..fetch("t", 0, 0) }).await;
    assert_eq!((values(&one).len(), one.next_offset), (1, 1));
    let three = server.fetch(v1::FetchRequest { max_bytes: 3_300, ..fetch("t", 0, 0) }).await;
    assert_eq!((values(&three).len(), three.next_offset), (3, 3));
    let mut wide = v1::FetchRequest { max_bytes: 3_300, ..fetch("t", 0, 0) };
    wide.partitions.extend(fetch("t", 1, 0).partitions);
    let both = server.log.fetch(wide).await.unwrap().into_inner().results;
    assert_eq!(both.iter().map(|result| values(result).len()).sum::<usize>(), 3);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_partition_keeps_another_out() {
    let mut server = Server::start().await;
    server.create("t", 2, &[]).await;
    for partition in 0..2 {
        for _ in 0..40 {
            server.put("t", partition, &"v".repeat(1_000)).await;
        }
    }
    let mut served = [false; 2];
    for _ in 0..200 {
        let mut wide = v1::FetchRequest { max_bytes: 1_500, ..fetch("t", 0, 0) };
        wide.partitions.extend(fetch("t", 1, 0).partitions);
        let results = server.log.fetch(wide).await.unwrap().into_inner().results;
        for (served, result) in served.iter_mut().zip(&results) {
            *served |= !result.batches.is_empty();
        }
    }
    assert_eq!(served, [true, true]);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_out_of_range_says_what_there_is() {
    let mut server = Server::start().await;
    server.create("t", 1, &[]).await;
    server.put("t", 0, "a").await;
    let result = server.fetch(v1::FetchRequest { max_wait_ms: 60_000, ..fetch("t", 0, 2) }).await;
    assert_eq!(reason(&result.error), ErrorReason::OffsetOutOfRange);
    assert!(result.error.unwrap().message.contains("0 to 1"));
    server.stop().await;
}
