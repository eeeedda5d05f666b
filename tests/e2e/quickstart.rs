//! The first lines of the README.

use std::time::Duration;

use crate::harness::{Server, http, wait_until};

#[test]
fn a_topic_is_created_written_and_read() {
    let server = Server::start();
    server.run(&["topic", "create", "greetings", "--partitions", "1"]).success();
    server.client(&["produce", "greetings"], "hello\nworld\n").finish().success();
    let read = server.run(&["consume", "greetings", "--from", "start", "--until", "end"]).success();
    assert_eq!(read.text(), "hello\nworld\n");

    let listed = server.run(&["topic", "list"]).success();
    let lines: Vec<Vec<&str>> = listed.text().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [["NAME", "PARTITIONS", "REPLICAS", "ACK-QUORUM"], ["greetings", "1", "1", "1"]]);

    server.run(&["topic", "delete", "greetings", "--yes"]).success();
    assert_eq!(server.run(&["topic", "list", "-o", "json"]).success().json(), serde_json::json!([]));
}

#[test]
fn a_server_says_where_it_is_and_answers_health_checks() {
    let mut server = Server::start();
    // The line and the answer of /readyz come at the same moment.
    wait_until("the server says that it is ready", Duration::from_secs(30), || {
        server.log().contains("ready")
    });
    let log = server.log();
    let ready: Vec<_> = log.lines().filter(|line| line.contains("ready")).collect();
    assert_eq!(ready.len(), 1, "{log}");
    assert!(ready[0].contains(&server.grpc()) && ready[0].contains(&server.http()), "{log}");

    assert_eq!(http::get(&server.http(), "/livez").unwrap().0, 200);
    assert_eq!(http::get(&server.http(), "/readyz").unwrap().0, 200);
    assert_eq!(http::get(&server.http(), "/nothing").unwrap().0, 404);
    assert!(http::metric(&server.http(), "process_cpu_seconds_total") > 0.0);

    assert!(server.terminate().success(), "{}", server.log());
    assert!(http::get(&server.http(), "/livez").is_none());
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let mut server = Server::start();
    server.create_topic("kept", 3);
    let lines: String = (0..1000).map(|number| format!("key{},{number}\n", number % 7)).collect();
    server.client(&["produce", "kept", "--key-field", "1"], lines.clone()).finish().success();
    let before = sorted(&server.read_all("kept"));
    assert!(server.terminate().success(), "{}", server.log());
    server.restart();
    server.wait_ready();
    assert_eq!(sorted(&server.read_all("kept")), before);
    assert_eq!(before, sorted(lines.as_bytes()));
}

fn sorted(text: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = std::str::from_utf8(text).unwrap().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}
