//! A third of a million records, keyed, to seven readers at once.

use std::time::Duration;

use crate::harness::flights::{by_key, key, lines, load};
use crate::harness::{Quire, Server};

const PARTITIONS: u32 = 6;
const READERS: usize = 7;
/// How long the producing may take. The shipped build is given 3 s; see
/// `docs/performance.md` for what it takes.
const PRODUCE: Duration = Duration::from_secs(3);

#[test]
fn all_flights_come_back_byte_for_byte_in_order_per_key() {
    let sent = load();
    let server = Server::start();
    let took = produce_fast_enough(&server, &sent);

    let consume = ["consume", "flights", "--from", "start", "--until", "end", "--format", "%p %o %k|%v\\n"];
    let readers: Vec<Quire> = (0..READERS).map(|_| server.client(&consume, "")).collect();
    for reader in readers {
        let read = reader.finish().success();
        check(&read.stdout, &sent);
    }
    println!("produced within {took:?}");
}

/// A busy machine may be slow once; a server that is slow is slow each time.
fn produce_fast_enough(server: &Server, sent: &[u8]) -> Duration {
    let mut fastest = Duration::MAX;
    for _ in 0..3 {
        server.create_topic("flights", PARTITIONS);
        let produce = ["produce", "flights", "--key-field", "10", "--delimiter", ","];
        let took = server.client(&produce, sent).finish().success().took;
        fastest = fastest.min(took);
        if fastest <= PRODUCE {
            return fastest;
        }
        server.run(&["topic", "delete", "flights", "--yes"]).success();
    }
    panic!("the fastest of three runs took {fastest:?}");
}

/// Each line once, each key in one partition and in the order it was sent,
/// offsets dense.
#[track_caller]
fn check(read: &[u8], sent: &[u8]) {
    let mut next_offsets = [0u64; PARTITIONS as usize];
    let mut values = Vec::with_capacity(sent.len());
    for line in lines(read) {
        let bar = line.iter().position(|&byte| byte == b'|').unwrap();
        let head = std::str::from_utf8(&line[..bar]).unwrap();
        let value = &line[bar + 1..];
        let [partition, offset, found_key] = head.split(' ').collect::<Vec<_>>()[..] else {
            panic!("'{head}'")
        };
        let next = &mut next_offsets[partition.parse::<usize>().unwrap()];
        assert_eq!(offset.parse::<u64>().unwrap(), *next, "partition {partition}");
        *next += 1;
        assert_eq!(found_key.as_bytes(), key(value));
        values.extend_from_slice(value);
        values.push(b'\n');
    }
    let (found, expected) = (by_key(&values), by_key(sent));
    assert_eq!(values.len(), sent.len());
    for (key, lines) in &expected {
        assert!(found.get(key) == Some(lines), "key {}: other lines", String::from_utf8_lossy(key));
    }
}
