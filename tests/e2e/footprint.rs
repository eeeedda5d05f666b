//! Start-up time and idle memory. The bounds are promises for the shipped
//! build; `tests/run` gives that build to these tests.

use std::time::Duration;

use crate::harness::{Server, http};

const START: Duration = Duration::from_secs(1);
const IDLE_BYTES: f64 = 100.0 * 1024.0 * 1024.0;

/// Ready, a topic created and a record acknowledged: each by a process of its
/// own.
#[test]
fn a_record_is_acknowledged_within_a_second_of_the_start() {
    // A busy machine may be slow once; a server that is slow is slow each time.
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let server = Server::start();
        server.create_topic("first", 1);
        server.client(&["produce", "first"], "record\n").finish().success();
        fastest = fastest.min(server.age());
        if fastest <= START {
            return;
        }
    }
    panic!("the fastest of five starts took {fastest:?}");
}

#[test]
fn an_idle_server_is_small() {
    let server = Server::start();
    server.create_topic("small", 6);
    server.client(&["produce", "small"], "record\n").finish().success();
    let resident = http::metric(&server.http(), "process_resident_memory_bytes");
    assert!(resident <= IDLE_BYTES, "{resident} bytes");
}
