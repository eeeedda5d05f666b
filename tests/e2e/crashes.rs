//! The server killed at random moments while one producer goes on.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rand::RngExt as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::harness::quire::command;
use crate::harness::{Quire, Server, wait_until};

const CRASHES: usize = 10;
const RATE: usize = 2000;
const PARTITIONS: u32 = 3;
const KEYS: usize = 13;

#[test]
fn acknowledged_lines_survive_ten_kills_in_order_and_once() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut server = Server::start();
    server.create_topic("survivors", PARTITIONS);

    let directory = tempfile::tempdir().unwrap();
    let acked = directory.path().join("acked");
    let produce = [
        "produce",
        "survivors",
        "--key-field",
        "1",
        "--rate",
        &RATE.to_string(),
        "--acked",
        acked.to_str().unwrap(),
    ];
    let mut command = command();
    command.args(produce).env("QUIRE_BROKER", server.grpc());
    // The producer is at work through all crashes, however long they take.
    let over = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicUsize::new(0));
    let feed = {
        let (over, sent) = (Arc::clone(&over), Arc::clone(&sent));
        move |input| feed(input, &over, &sent)
    };
    let mut producer = Quire::spawn_fed(command, feed);

    for crash in 1..=CRASHES {
        // Progress first, so that each crash interrupts something.
        let before = acked_count(&acked);
        wait_until("lines are acknowledged", Duration::from_secs(60), || acked_count(&acked) > before + 100);
        let moment = Duration::from_millis(random.random_range(0..300));
        let crash_at = std::time::Instant::now() + moment;
        wait_until("the moment", Duration::from_secs(5), || std::time::Instant::now() >= crash_at);
        assert!(producer.running(), "the producer ended before crash {crash}");
        server.kill();
        server.restart();
        server.wait_ready();
    }
    over.store(true, Ordering::Relaxed);
    let finished = producer.finish().success();
    println!("{}", finished.stderr);
    check(&server, sent.load(Ordering::Relaxed), &fs::read_to_string(&acked).unwrap());
}

/// Writes lines until it is over, as fast as they are read.
fn feed(mut input: ChildStdin, over: &AtomicBool, sent: &AtomicUsize) {
    for number in 1.. {
        if over.load(Ordering::Relaxed) {
            return;
        }
        writeln!(input, "{}", line_of(number)).unwrap();
        sent.store(number, Ordering::Relaxed);
    }
}

fn line_of(number: usize) -> String {
    format!("key{},{number}", number % KEYS)
}

fn acked_count(path: &std::path::Path) -> usize {
    fs::read(path).map(|text| text.iter().filter(|&&byte| byte == b'\n').count()).unwrap_or(0)
}

/// Every acknowledged line is where its acknowledgement says; every line is
/// there once; each key is in order.
fn check(server: &Server, sent: usize, acked: &str) {
    let consume = ["consume", "survivors", "--from", "start", "--until", "end", "--format", "%p %o %v\\n"];
    let read = server.run(&consume).success();
    let mut places = HashMap::new();
    let mut last_of_key: HashMap<&str, usize> = HashMap::new();
    for line in read.text().lines() {
        let [partition, offset, value] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let (key, number) = value.split_once(',').unwrap();
        let number: usize = number.parse().unwrap();
        assert_eq!(line_of(number), value);
        let place = (partition.parse::<u32>().unwrap(), offset.parse::<u64>().unwrap());
        assert_eq!(places.insert(number, place), None, "line {number} is there twice");
        if let Some(last) = last_of_key.insert(key, number) {
            assert!(last < number, "{key}: {number} comes after {last}");
        }
    }
    let mut acknowledged = 0;
    for line in acked.lines() {
        let fields: Vec<u64> = line.split(' ').map(|field| field.parse().unwrap()).collect();
        let [number, partition, offset] = fields[..] else { panic!("'{line}'") };
        let place = (u32::try_from(partition).unwrap(), offset);
        assert_eq!(places.get(&usize::try_from(number).unwrap()), Some(&place), "line {number}");
        acknowledged += 1;
    }
    // The producer said that all were acknowledged.
    assert_eq!(acknowledged, sent);
    assert_eq!(places.len(), sent);
}
