use std::time::Duration;

use quire_client::{
    Acks, Client, ClientOptions, Compression, Error, ErrorReason, Offset, Producer, ProducerOptions, Record,
};

use tokio::net::TcpListener;

use crate::double::{Broker, Cluster, ProduceFault};

/// A client that is not patient, so that tests are quick.
pub(crate) async fn client(address: &str) -> Client {
    let options = ClientOptions {
        addresses: vec![address.to_owned()],
        request_timeout: Duration::from_secs(2),
        call_timeout: Duration::from_secs(10),
        retry_backoff: Duration::from_millis(5),
        retry_backoff_max: Duration::from_millis(50),
        ..ClientOptions::default()
    };
    Client::with_options(options).await.unwrap()
}

fn options() -> ProducerOptions {
    ProducerOptions {
        linger: Duration::from_millis(1),
        batch_bytes: 1 << 10,
        memory_bytes: 64 << 10,
        retry_backoff: Duration::from_millis(2),
        retry_backoff_max: Duration::from_millis(20),
        delivery_timeout: Duration::from_secs(20),
        ..ProducerOptions::default()
    }
}

async fn send(producer: &Producer, topic: &str, numbers: std::ops::Range<u32>) -> Vec<Result<Offset, Error>> {
    let mut deliveries = Vec::new();
    for number in numbers {
        let value = format!("{number:06}");
        let record = Record::new(topic).partition(0).value(value.as_bytes());
        deliveries.push(producer.send(record).await.unwrap());
    }
    producer.flush().await;
    let mut outcomes = Vec::new();
    for delivery in deliveries {
        outcomes.push(delivery.await.map(|at| at.offset.unwrap()));
    }
    outcomes
}

fn numbers(count: u32) -> Vec<String> {
    (0..count).map(|number| format!("{number:06}")).collect()
}

/// Everything is acknowledged where it is, once, in order.
#[track_caller]
fn complete(cluster: &Cluster, outcomes: Vec<Result<Offset, Error>>) {
    let offsets: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap().0).collect();
    let count = u32::try_from(offsets.len()).unwrap();
    assert!(offsets.into_iter().eq(0..u64::from(count)));
    assert_eq!(cluster.values("topic", 0), numbers(count));
}

#[tokio::test]
async fn records_are_acknowledged_where_they_are() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    for compression in Compression::ALL {
        cluster.create("topic", 1);
        let producer =
            client(&broker.address).await.producer(ProducerOptions { compression, ..options() }).unwrap();
        complete(&cluster, send(&producer, "topic", 0..1000).await);
        assert_eq!(producer.memory_used(), 0);
    }
    assert!(
        cluster
            .requests()
            .iter()
            .all(|request| request.direct && request.acks() == quire_proto::v1::Acks::All)
    );
}

/// Every mix of faults below is met by the same promise.
#[tokio::test]
async fn faults_neither_lose_nor_double_nor_reorder() {
    use ProduceFault::{AppendAndBreak, Break, None, Refuse};
    let not_ready = || Refuse(ErrorReason::NotReady);
    let overloaded = || Refuse(ErrorReason::Overloaded);
    let scripts: [Vec<ProduceFault>; 6] = [
        vec![Break, None, Break, None, None, Break],
        vec![AppendAndBreak, AppendAndBreak, None, AppendAndBreak],
        vec![None, None, not_ready(), None, overloaded(), None, not_ready(), not_ready()],
        vec![
            None,
            None,
            None,
            AppendAndBreak,
            not_ready(),
            Break,
            None,
            AppendAndBreak,
            None,
            None,
            overloaded(),
        ],
        vec![Refuse(ErrorReason::NotLeader), None, None, Refuse(ErrorReason::NotLeader), AppendAndBreak],
        vec![not_ready(), AppendAndBreak, not_ready(), AppendAndBreak, Refuse(ErrorReason::ShuttingDown)],
    ];
    for script in scripts {
        let cluster = Cluster::default();
        let broker = Broker::start(&cluster).await;
        cluster.create("topic", 1);
        cluster.plan_produce(script.clone());
        let producer = client(&broker.address).await.producer(options()).unwrap();
        complete(&cluster, send(&producer, "topic", 0..3000).await);
        assert_eq!(cluster.faults_left(), 0, "{script:?}");
        assert_eq!(cluster.producers_given(), 1, "{script:?}");
    }
}

#[tokio::test]
async fn a_hanging_broker_is_left_and_found_again() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    let client = client(&broker.address).await;
    cluster.plan_produce([ProduceFault::None, ProduceFault::Hang, ProduceFault::Hang]);
    let producer =
        client.producer(ProducerOptions { delivery_timeout: Duration::from_secs(3), ..options() }).unwrap();
    let mut outcomes = send(&producer, "topic", 0..1).await;
    let failed = send(&producer, "topic", 1..2).await.remove(0).unwrap_err();
    assert!(matches!(failed, Error::Timeout { determinate: false, .. }), "{failed}");
    // What follows goes under another identity.
    outcomes.extend(send(&producer, "topic", 1..500).await);
    complete(&cluster, outcomes);
    assert_eq!(cluster.producers_given(), 2);
}

#[tokio::test]
async fn records_follow_the_leader() {
    let cluster = Cluster::default();
    let brokers = [Broker::start(&cluster).await, Broker::start(&cluster).await];
    cluster.create("topic", 1);
    let producer = client(&brokers[0].address).await.producer(options()).unwrap();
    let mut outcomes = Vec::new();
    for round in 0..6 {
        cluster.lead("topic", 0, round % 2);
        let from = u32::try_from(round).unwrap() * 300;
        outcomes.extend(send(&producer, "topic", from..from + 300).await);
    }
    // The address that the client was given is gone for good; it has heard of the
    // other broker.
    cluster.lead("topic", 0, 1);
    let [first, _second] = brokers;
    first.kill();
    outcomes.extend(send(&producer, "topic", 1800..2000).await);
    complete(&cluster, outcomes);
}

/// Takes so many connections, once the broker that was killed has let go of the
/// address, and drops them.
async fn hang_up(address: &str, times: usize) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    let nobody = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    for _ in 0..times {
        drop(nobody.accept().await.unwrap());
    }
}

#[tokio::test]
async fn a_killed_broker_is_waited_for() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    let address = broker.address.clone();
    let producer = client(&address).await.producer(options()).unwrap();
    let mut outcomes = send(&producer, "topic", 0..100).await;
    broker.kill();
    let (later, broker) = tokio::join!(send(&producer, "topic", 100..600), async {
        hang_up(&address, 3).await;
        Broker::start_at(&cluster, address.parse().unwrap(), 0).await
    });
    outcomes.extend(later);
    complete(&cluster, outcomes);
    drop(broker);
}

#[tokio::test]
async fn an_unreachable_leader_is_reached_through_another_broker() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    // Nobody listens on port 1.
    cluster.advertise(0, "127.0.0.1:1");
    let producer = client(&broker.address).await.producer(options()).unwrap();
    complete(&cluster, send(&producer, "topic", 0..100).await);
    assert!(cluster.requests().iter().all(|request| !request.direct));
}

#[track_caller]
fn unidentified(cluster: &Cluster) {
    assert_eq!(cluster.producers_given(), 0);
    assert!(cluster.batches("topic", 0).iter().all(|batch| batch.header.producer_id == -1));
}

#[tokio::test]
async fn weaker_acks_turn_idempotence_off() {
    for (acks, known) in [(Acks::Leader, true), (Acks::None, false)] {
        let cluster = Cluster::default();
        let broker = Broker::start(&cluster).await;
        cluster.create("topic", 1);
        cluster.plan_produce([ProduceFault::None, ProduceFault::Refuse(ErrorReason::NotReady)]);
        let producer = client(&broker.address).await.producer(ProducerOptions { acks, ..options() }).unwrap();
        assert!(!producer.options().is_idempotent());
        for number in 0..500_u32 {
            let value = format!("{number:06}");
            let delivery = producer.send(Record::new("topic").value(value.as_bytes())).await.unwrap();
            if number % 100 == 0 {
                assert_eq!(delivery.await.unwrap().offset.is_some(), known);
            }
        }
        producer.close().await;
        assert_eq!(cluster.values("topic", 0), numbers(500));
        unidentified(&cluster);
    }
}

#[tokio::test]
async fn keys_go_where_kafkas_clients_send_them() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 6);
    let producer = client(&broker.address).await.producer(options()).unwrap();
    for key in ["AA", "UA", "DL", "B6", "WN", "EV"] {
        for _ in 0..20 {
            drop(
                producer.send(Record::new("topic").key(key.as_bytes()).value(key.as_bytes())).await.unwrap(),
            );
        }
    }
    producer.close().await;
    for partition in 0..6 {
        for value in cluster.values("topic", partition) {
            let expected = quire_proto::murmur2::partition_for_key(value.as_bytes(), 6);
            assert_eq!(expected as usize, partition);
        }
    }
    assert_eq!((0..6).map(|partition| cluster.values("topic", partition).len()).sum::<usize>(), 120);
}

#[tokio::test]
async fn every_tag_is_reported_once_and_in_order() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 3);
    cluster.plan_produce([ProduceFault::None, ProduceFault::AppendAndBreak]);
    let producer =
        client(&broker.address).await.producer(ProducerOptions { completions: true, ..options() }).unwrap();
    let sending = async {
        for tag in 0..5000_u64 {
            let record = Record::new("topic").partition(u32::try_from(tag % 3).unwrap());
            producer.send_with(record.value(b"value"), tag).await.unwrap();
        }
        producer.close().await;
    };
    let reporting = async {
        let mut next = [0, 1, 2];
        let mut offsets = [0; 3];
        while let Some(completion) = producer.completed().await {
            let partition = completion.partition as usize;
            assert_eq!(&*completion.topic, "topic");
            for (tag, offset) in completion.records() {
                assert_eq!(tag, next[partition]);
                assert_eq!(offset, Some(Offset(offsets[partition])));
                next[partition] += 3;
                offsets[partition] += 1;
            }
        }
        assert_eq!(offsets.iter().sum::<u64>(), 5000);
    };
    tokio::join!(sending, reporting);
    assert_eq!(producer.memory_used(), 0);
}

#[tokio::test]
async fn memory_is_bounded_and_its_end_is_told() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    cluster.lead("topic", 0, -1);
    let limit = 8 << 10;
    let options = ProducerOptions { memory_bytes: limit, max_block: Duration::from_millis(100), ..options() };
    let producer = client(&broker.address).await.producer(options).unwrap();
    let record = Record::new("topic").value(&[b'x'; 500]);
    let mut deliveries = Vec::new();
    let error = loop {
        match producer.send(record).await {
            Ok(delivery) => deliveries.push(delivery),
            Err(error) => break error,
        }
        assert!(producer.memory_used() <= limit);
    };
    assert!(matches!(error, Error::Timeout { determinate: true, .. }), "{error}");
    assert!((8..=16).contains(&deliveries.len()), "{}", deliveries.len());
    // A leader comes: sending goes on.
    cluster.lead("topic", 0, 0);
    drop(producer.send(record).await.unwrap());
    for delivery in deliveries {
        delivery.await.unwrap();
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_at_once() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 2);
    let producer = client(&broker.address).await.producer(options()).unwrap();
    let error = producer.send(Record::new("missing")).await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::UnknownTopic));
    let error = producer.send(Record::new("topic").partition(2)).await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::UnknownPartition));
    let error = producer.send(Record::new("topic").value(&vec![0; 2 << 20])).await.unwrap_err();
    assert!(matches!(error, Error::RecordTooLarge { limit: 1_048_576, .. }), "{error}");
    producer.close().await;
    assert!(matches!(producer.send(Record::new("topic")).await, Err(Error::Closed)));
}

#[tokio::test]
async fn a_refused_batch_does_not_stop_the_next() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    let producer = client(&broker.address).await.producer(options()).unwrap();
    complete(&cluster, send(&producer, "topic", 0..10).await);
    cluster.plan_produce([ProduceFault::Refuse(ErrorReason::InvalidBatch)]);
    let outcomes = send(&producer, "topic", 10..1000).await;
    let refused: Vec<_> = outcomes.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(!refused.is_empty() && refused.len() < 900, "{}", refused.len());
    for error in &refused {
        assert_eq!(error.reason(), Some(ErrorReason::InvalidBatch));
        assert!(error.is_determinate() && !error.is_retryable());
    }
    let expected: Vec<_> =
        numbers(10).into_iter().chain(numbers(1000).split_off(10 + refused.len())).collect();
    assert_eq!(cluster.values("topic", 0), expected);
    assert_eq!(cluster.producers_given(), 2, "the gap is left behind");
}

#[tokio::test]
async fn a_deleted_topic_fails_what_waits_for_it() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    cluster.lead("topic", 0, -1);
    let producer = client(&broker.address).await.producer(options()).unwrap();
    let delivery = producer.send(Record::new("topic").value(b"x")).await.unwrap();
    cluster.delete("topic");
    let error = delivery.await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::UnknownTopic));
    let error = producer.send(Record::new("topic").value(b"x")).await.unwrap_err();
    assert_eq!(error.reason(), Some(ErrorReason::UnknownTopic));
}

#[track_caller]
pub(crate) fn refused(error: &Error, says: &str) {
    assert_eq!(error.reason(), Some(ErrorReason::UnknownTopic), "{error}");
    assert!(error.to_string().contains(says) && !error.is_retryable(), "{error}");
}

#[tokio::test]
async fn a_broker_refuses_what_is_for_another_topic_of_the_name() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    let client = client(&broker.address).await;
    let producer = client.producer(options()).unwrap();
    complete(&cluster, send(&producer, "topic", 0..10).await);
    cluster.create("topic", 1);
    for _ in 0..2 {
        for outcome in send(&producer, "topic", 10..20).await {
            refused(&outcome.unwrap_err(), "another topic");
        }
    }
    assert!(cluster.values("topic", 0).is_empty());
    let producer = client.producer(options()).unwrap();
    complete(&cluster, send(&producer, "topic", 0..10).await);
}

#[tokio::test]
async fn metadata_of_another_topic_of_the_name_fails_what_waits() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    let producer = client(&broker.address).await.producer(options()).unwrap();
    complete(&cluster, send(&producer, "topic", 0..10).await);
    let before = cluster.requests().len();
    cluster.lead("topic", 0, -1);
    let delivery = producer.send(Record::new("topic").value(b"x")).await.unwrap();
    wait_for(|| cluster.requests().len() > before).await;
    cluster.create("topic", 1);
    refused(&delivery.await.unwrap_err(), "created again");
    for _ in 0..2 {
        let error = producer.send(Record::new("topic").value(b"x")).await.unwrap_err();
        refused(&error, "created again");
    }
    assert!(cluster.values("topic", 0).is_empty());
}

#[tokio::test]
async fn a_dropped_producer_leaves_nothing_waiting() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    let client = client(&broker.address).await;
    let lingering =
        client.producer(ProducerOptions { linger: Duration::from_secs(10), ..options() }).unwrap();
    let unsent = lingering.send(Record::new("topic").value(b"x")).await.unwrap();
    drop(lingering);
    assert!(matches!(unsent.await, Err(Error::Closed)));

    cluster.plan_produce([ProduceFault::Hang]);
    let hanging = client.producer(options()).unwrap();
    let sent = hanging.send(Record::new("topic").value(b"x")).await.unwrap();
    wait_for(|| !cluster.requests().is_empty()).await;
    drop(hanging);
    let error = sent.await.unwrap_err();
    assert!(!error.is_determinate(), "{error}");
}

#[tokio::test]
async fn an_address_that_nobody_serves_is_named() {
    let error = Client::connect(["127.0.0.1:1"]).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }));
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1") && text.contains("refused") && text.contains("check"), "{text}");
    for wrong in ["nonsense", "host:port", ":9650", "host:99999", "http://host:9650"] {
        let error = Client::connect([wrong]).await.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{wrong}: {error}");
    }
    assert!(matches!(Client::connect(Vec::<String>::new()).await, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn the_first_address_that_answers_is_enough() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    cluster.create("topic", 1);
    let client = Client::connect(["127.0.0.1:1", &broker.address]).await.unwrap();
    let producer = client.producer(options()).unwrap();
    complete(&cluster, send(&producer, "topic", 0..10).await);
}

#[tokio::test]
async fn options_out_of_range_are_named() {
    let cluster = Cluster::default();
    let broker = Broker::start(&cluster).await;
    let client = client(&broker.address).await;
    let wrong = [
        (ProducerOptions { batch_bytes: 10, ..options() }, "batch_bytes"),
        (ProducerOptions { memory_bytes: 1 << 10, ..options() }, "memory_bytes"),
        (ProducerOptions { linger: Duration::from_secs(90), ..options() }, "linger"),
        (ProducerOptions { delivery_timeout: Duration::ZERO, ..options() }, "delivery_timeout"),
        (ProducerOptions { max_in_flight: 17, ..options() }, "max_in_flight"),
    ];
    for (options, name) in wrong {
        let error = client.producer(options).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// Waits until this holds, for at most ten seconds.
pub(crate) async fn wait_for(mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "waited for in vain");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
