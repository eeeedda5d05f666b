use std::time::Duration;

use quire_client::{
    Consumer, ConsumerOptions, Error, ErrorReason, Offset, ProducerOptions, Record, Start, Until,
};
use tokio::time::timeout;

use crate::double::{Broker, Cluster, ReadFault};
use crate::producing::{client, refused};

fn options(until: Until) -> ConsumerOptions {
    ConsumerOptions {
        until,
        prefetch_bytes: 64 << 10,
        retry_backoff: Duration::from_millis(2),
        retry_backoff_max: Duration::from_millis(20),
        stall_timeout: Duration::from_secs(10),
        ..ConsumerOptions::default()
    }
}

/// Produces `count` records to each partition, ten a batch: value = offset,
/// timestamp = 1000 + offset.
async fn fill(address: &str, partitions: u32, offsets: std::ops::Range<u64>) {
    let options = ProducerOptions { linger: Duration::from_secs(10), ..ProducerOptions::default() };
    let producer = client(address).await.producer(options).unwrap();
    for offset in offsets.clone() {
        for partition in 0..partitions {
            let value = format!("{partition}/{offset}");
            let record = Record::new("topic").partition(partition).value(value.as_bytes());
            let timestamp_ms = 1000 + i64::try_from(offset).unwrap();
            drop(producer.send(record.timestamp_ms(timestamp_ms)).await.unwrap());
        }
        if (offset + 1).is_multiple_of(10) {
            producer.flush().await;
        }
    }
    producer.close().await;
}

struct World {
    cluster: Cluster,
    brokers: Vec<Broker>,
    partitions: u32,
}

impl World {
    /// A topic of which each partition holds `count` records.
    async fn new(partitions: u32, count: u64) -> Self {
        let cluster = Cluster::default();
        let brokers = vec![Broker::start(&cluster).await, Broker::start(&cluster).await];
        cluster.create("topic", partitions as usize);
        fill(&brokers[0].address, partitions, 0..count).await;
        Self { cluster, brokers, partitions }
    }

    async fn consumer(&self, until: Until, start: Start) -> Consumer {
        let client = client(&self.brokers[0].address).await;
        let mut consumer = client.consumer(options(until)).unwrap();
        consumer.assign((0..self.partitions).map(|partition| ("topic", partition, start))).await.unwrap();
        consumer
    }
}

/// Reads until each partition has come from `from` to `to`, checking that every
/// record comes once, in order, with what was sent.
async fn read(consumer: &mut Consumer, partitions: u32, from: u64, to: u64) {
    let mut next = vec![from; partitions as usize];
    while next.iter().any(|&next| next < to) {
        let batch = timeout(Duration::from_secs(20), consumer.next_batch()).await.expect("in time");
        let batch = batch.unwrap().expect("records before the end");
        let partition = batch.partition();
        let next = &mut next[partition as usize];
        for record in batch {
            let record = record.unwrap();
            assert_eq!(record.offset, Offset(*next), "partition {partition}");
            assert_eq!(record.value.unwrap(), format!("{partition}/{next}"));
            assert_eq!(record.timestamp_ms, 1000 + i64::try_from(*next).unwrap());
            *next += 1;
        }
        assert_eq!(consumer.position("topic", partition), Some(Offset(*next)));
    }
    assert!(next.iter().all(|&next| next == to));
}

#[tokio::test]
async fn all_is_read_to_the_end() {
    let world = World::new(3, 200).await;
    let mut consumer = world.consumer(Until::End, Start::Earliest).await;
    assert_eq!(consumer.end("topic", 1), Some(Offset(200)));
    fill(&world.brokers[0].address, 3, 200..210).await;
    read(&mut consumer, 3, 0, 200).await;
    assert!(consumer.next_batch().await.unwrap().is_none(), "what came later is not read");
}

#[tokio::test]
async fn an_empty_topic_ends_at_once() {
    let world = World::new(2, 0).await;
    let mut consumer = world.consumer(Until::End, Start::Earliest).await;
    assert!(consumer.next_batch().await.unwrap().is_none());
}

#[tokio::test]
async fn what_comes_is_followed() {
    let world = World::new(3, 50).await;
    let mut consumer = world.consumer(Until::Forever, Start::Earliest).await;
    read(&mut consumer, 3, 0, 50).await;
    for round in 5..10 {
        let (from, to) = (round * 10, round * 10 + 10);
        tokio::join!(fill(&world.brokers[0].address, 3, from..to), read(&mut consumer, 3, from, to));
    }
}

async fn begins(start: Start, expected: u64) {
    for until in [Until::Forever, Until::End] {
        let world = World::new(1, 100).await;
        let mut consumer = world.consumer(until, start).await;
        assert_eq!(consumer.position("topic", 0).map(|at| at.0 <= expected), Some(true), "{start:?}");
        read(&mut consumer, 1, expected, 100).await;
    }
}

#[tokio::test]
async fn reading_begins_where_it_is_told_to() {
    begins(Start::Earliest, 0).await;
    begins(Start::Offset(Offset(0)), 0).await;
    begins(Start::Offset(Offset(37)), 37).await;
    begins(Start::Offset(Offset(40)), 40).await;
    begins(Start::Time(0), 0).await;
    begins(Start::Time(1037), 37).await;
    begins(Start::Time(1040), 40).await;
    begins(Start::Time(2000), 100).await;
    begins(Start::Latest, 100).await;
}

#[tokio::test]
async fn latest_is_where_the_partition_ends_now() {
    let world = World::new(2, 30).await;
    let mut consumer = world.consumer(Until::Forever, Start::Latest).await;
    tokio::join!(fill(&world.brokers[0].address, 2, 30..60), read(&mut consumer, 2, 30, 60));
}

#[tokio::test]
async fn borrowed_records_are_trimmed_too() {
    let world = World::new(1, 30).await;
    let mut consumer = world.consumer(Until::End, Start::Offset(Offset(15))).await;
    let mut next = 15;
    while let Some(mut batch) = consumer.next_batch().await.unwrap() {
        while let Some(record) = batch.next_view().unwrap() {
            assert_eq!(record.offset, Offset(next));
            assert_eq!(record.value, Some(format!("0/{next}").as_bytes()));
            next += 1;
        }
    }
    assert_eq!(next, 30);
}

#[tokio::test]
async fn breaks_and_refusals_neither_lose_nor_double() {
    use ReadFault::{Break, None, Refuse};
    for until in [Until::Forever, Until::End] {
        let world = World::new(3, 1000).await;
        let not_ready = Refuse(ErrorReason::NotReady);
        world.cluster.plan_read([
            Break,
            None,
            Refuse(ErrorReason::NotLeader),
            None,
            Break,
            Break,
            not_ready.clone(),
            None,
            not_ready,
            Refuse(ErrorReason::Overloaded),
        ]);
        let mut consumer = world.consumer(until, Start::Earliest).await;
        read(&mut consumer, 3, 0, 1000).await;
        assert_eq!(world.cluster.faults_left(), 0);
    }
}

#[tokio::test]
async fn reading_follows_the_leader_and_outlives_a_broker() {
    for until in [Until::Forever, Until::End] {
        let mut world = World::new(2, 300).await;
        let mut consumer = world.consumer(until, Start::Earliest).await;
        read_one(&mut consumer).await;
        (0..2).for_each(|partition| world.cluster.lead("topic", partition, 1));
        world.brokers.remove(0).kill();
        // The address that the client was given is gone for good; it has heard of
        // the other broker.
        let mut seen = [0, 0];
        while seen.iter().any(|&seen| seen < 300) {
            let batch = timeout(Duration::from_secs(20), consumer.next_batch()).await.expect("in time");
            let batch = batch.unwrap().expect("records before the end");
            let partition = batch.partition() as usize;
            for record in batch {
                let offset = record.unwrap().offset.0;
                assert!(
                    seen[partition] == offset || seen[partition] == 0,
                    "{offset} after {}",
                    seen[partition]
                );
                seen[partition] = offset + 1;
            }
        }
    }
}

async fn read_one(consumer: &mut Consumer) {
    let batch = consumer.next_batch().await.unwrap().expect("a batch");
    assert!(batch.into_iter().count() > 0);
}

#[tokio::test]
async fn an_unreachable_leader_is_read_through_another_broker() {
    let world = World::new(1, 50).await;
    world.cluster.advertise(0, "127.0.0.1:1");
    for until in [Until::Forever, Until::End] {
        let mut consumer = world.consumer(until, Start::Earliest).await;
        read(&mut consumer, 1, 0, 50).await;
    }
}

#[tokio::test]
async fn damage_is_told_and_never_delivered() {
    for until in [Until::Forever, Until::End] {
        let world = World::new(1, 50).await;
        world.cluster.plan_read([ReadFault::Flip]);
        let mut consumer = world.consumer(until, Start::Earliest).await;
        let mut delivered = 0;
        let error = loop {
            match consumer.next_batch().await {
                Ok(batch) => {
                    delivered += batch.expect("before the end").into_iter().map(Result::unwrap).count() as u64
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(&error, Error::Damaged { offset, .. } if *offset == delivered), "{error}");
        assert_eq!(consumer.position("topic", 0), Some(Offset(delivered)));
        // The damage was on the way: the next reading is whole.
        read(&mut consumer, 1, delivered, 50).await;
    }
}

#[tokio::test]
async fn an_offset_out_of_range_is_told_and_seeking_helps() {
    for until in [Until::Forever, Until::End] {
        let world = World::new(1, 50).await;
        world.cluster.trim("topic", 0, 20);
        let mut consumer = world.consumer(until, Start::Offset(Offset(5))).await;
        let error = consumer.next_batch().await.unwrap_err();
        assert_eq!(error.reason(), Some(ErrorReason::OffsetOutOfRange));
        consumer.seek("topic", 0, Start::Earliest).await.unwrap();
        read(&mut consumer, 1, 20, 50).await;
    }
}

#[tokio::test]
async fn seeking_drops_what_was_read_ahead() {
    let world = World::new(2, 100).await;
    let mut consumer = world.consumer(Until::Forever, Start::Earliest).await;
    read_one(&mut consumer).await;
    for partition in 0..2 {
        consumer.seek("topic", partition, Start::Offset(Offset(60))).await.unwrap();
    }
    read(&mut consumer, 2, 60, 100).await;
    for partition in 0..2 {
        consumer.seek("topic", partition, Start::Offset(Offset(10))).await.unwrap();
    }
    read(&mut consumer, 2, 10, 100).await;
    let error = consumer.seek("topic", 2, Start::Earliest).await.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
}

#[tokio::test]
async fn credit_is_what_the_options_say() {
    let world = World::new(1, 2000).await;
    let mut consumer = world.consumer(Until::Forever, Start::Earliest).await;
    read(&mut consumer, 1, 0, 2000).await;
    assert_eq!(world.cluster.credits(), [64 << 10]);
}

#[tokio::test]
async fn a_partition_that_nobody_serves_is_told_of() {
    let world = World::new(1, 10).await;
    let client = client(&world.brokers[0].address).await;
    let options = ConsumerOptions { stall_timeout: Duration::from_millis(200), ..options(Until::Forever) };
    let mut consumer = client.consumer(options).unwrap();
    consumer.assign([("topic", 0, Start::Earliest)]).await.unwrap();
    world.cluster.lead("topic", 0, -1);
    let error = consumer.next_batch().await.unwrap_err();
    assert!(
        matches!(error, Error::Timeout { .. }) && error.reason() == Some(ErrorReason::NotReady),
        "{error}"
    );
    world.cluster.lead("topic", 0, 0);
    read(&mut consumer, 1, 0, 10).await;
}

#[tokio::test]
async fn assigning_what_is_not_there_is_refused() {
    let world = World::new(1, 10).await;
    let mut consumer = world.consumer(Until::Forever, Start::Earliest).await;
    let error = consumer.assign([("missing", 0, Start::Earliest)]).await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::UnknownTopic));
    let error = consumer.assign([("topic", 1, Start::Earliest)]).await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::UnknownPartition));
    read(&mut consumer, 1, 0, 10).await;
    let mut unassigned = client(&world.brokers[0].address).await.consumer(options(Until::End)).unwrap();
    assert!(matches!(unassigned.next_batch().await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn a_topic_that_is_created_again_is_another() {
    // A broker refuses it, or metadata shows it once the connection is broken.
    for (broken, says) in [(false, "another topic"), (true, "created again")] {
        let mut world = World::new(1, 10).await;
        let client = client(&world.brokers[1].address).await;
        let mut consumer = client.consumer(options(Until::Forever)).unwrap();
        consumer.assign([("topic", 0, Start::Earliest)]).await.unwrap();
        read(&mut consumer, 1, 0, 10).await;
        if broken {
            world.brokers.remove(0).kill();
        }
        world.cluster.create("topic", 1);
        world.cluster.lead("topic", 0, 1);
        fill(&world.brokers.last().unwrap().address, 1, 0..20).await;
        for says in [says, "created again"] {
            let next = timeout(Duration::from_secs(20), consumer.next_batch()).await.expect("in time");
            refused(&next.unwrap_err(), says);
        }
        refused(&consumer.seek("topic", 0, Start::Latest).await.unwrap_err(), "another topic");
        let again = consumer.assign([("topic", 0, Start::Offset(Offset(10)))]).await;
        refused(&again.unwrap_err(), "created again");
        let mut consumer = client.consumer(options(Until::Forever)).unwrap();
        consumer.assign([("topic", 0, Start::Earliest)]).await.unwrap();
        read(&mut consumer, 1, 0, 20).await;
    }
}

#[tokio::test]
async fn waiting_for_a_batch_can_be_given_up_and_taken_up() {
    let world = World::new(1, 20).await;
    let mut consumer = world.consumer(Until::Forever, Start::Earliest).await;
    let mut next = 0;
    while next < 20 {
        // A deadline that has passed: polled once, then dropped.
        match timeout(Duration::ZERO, consumer.next_batch()).await {
            Ok(batch) => {
                for record in batch.unwrap().expect("no end") {
                    assert_eq!(record.unwrap().offset, Offset(next));
                    next += 1;
                }
            }
            Err(_) => tokio::task::yield_now().await,
        }
    }
}
