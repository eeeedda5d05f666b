//! The measurements run and report the promised fields.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Server, wait_until};

const FIELDS: [&str; 7] =
    ["max_ms", "mb_per_s", "p50_ms", "p999_ms", "p99_ms", "records_per_s", "server_cpu_us_per_record"];

#[track_caller]
fn check(server: &Server, arguments: &[&str]) -> Value {
    let common = ["--size", "100", "-o", "json", "--server-http", &server.http()];
    let report = server.run(&[&["bench"], arguments, &common].concat()).success().json();
    let fields: Vec<&String> = report.as_object().unwrap().keys().collect();
    assert_eq!(fields, FIELDS);
    for field in FIELDS {
        assert!(report[field].as_f64().unwrap() > 0.0, "{field}: {report}");
    }
    assert!(report["p50_ms"].as_f64() <= report["max_ms"].as_f64(), "{report}");
    report
}

#[test]
fn produce_consume_and_latency_are_measured() {
    let server = Server::start();
    check(&server, &["produce", "bench", "--records", "20000", "--partitions", "2"]);
    let topics = server.run(&["topic", "list", "-o", "json"]).success().json();
    assert_eq!((&topics[0]["name"], &topics[0]["partitions"]), (&"bench".into(), &2.into()));

    // More than there are: the rest is written first.
    check(&server, &["consume", "bench", "--records", "30000"]);
    let paced = check(&server, &["produce", "bench", "--records", "2000", "--rate", "4000"]);
    let rate = paced["records_per_s"].as_f64().unwrap();
    // No faster; a busy machine may be slower.
    assert!(rate <= 4200.0, "{rate}");
    check(&server, &["latency", "bench", "--records", "2000", "--rate", "2000"]);
}

#[test]
fn a_measurement_without_waits_is_interrupted_as_well() {
    let server = Server::start();
    server.create_topic("tiny", 1);
    let bench = ["bench", "produce", "tiny", "--size", "0", "--records", "4000000000"];
    let bench = server.client(&bench, "");
    wait_until("records are there", Duration::from_secs(30), || {
        let described = server.run(&["topic", "describe", "tiny", "-o", "json"]).success().json();
        described["partitions"][0]["latest_offset"].as_u64() > Some(0)
    });
    let interrupted = Command::new("kill").args(["-INT", &bench.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    bench.finish().refused(130, &["interrupted"]);
}
