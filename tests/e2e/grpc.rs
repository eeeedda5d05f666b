//! Any language's client, here `grpcurl`, with nothing but reflection.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::Server;

/// What `GRPCURL` names, else what is on the path. `tests/run` installs it.
fn grpcurl() -> PathBuf {
    std::env::var_os("GRPCURL").map_or_else(|| "grpcurl".into(), PathBuf::from)
}

#[track_caller]
fn call(server: &Server, method: &str, request: &Value) -> Value {
    let output = Command::new(grpcurl())
        .args(["-plaintext", "-max-time", "20", "-d", &request.to_string(), &server.grpc(), method])
        .output()
        .unwrap_or_else(|error| panic!("grpcurl cannot be run ({error}): ./tests/run installs it"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{method}: {stderr}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn grpcurl_lists_services() {
    let server = Server::start();
    let output = Command::new(grpcurl())
        .args(["-plaintext", &server.grpc(), "list"])
        .output()
        .unwrap_or_else(|error| panic!("grpcurl cannot be run ({error}): ./tests/run installs it"));
    let services = String::from_utf8_lossy(&output.stdout);
    for service in
        ["grpc.health.v1.Health", "quire.v1.LedgerService", "quire.v1.LogService", "quire.v1.TopicService"]
    {
        assert!(services.lines().any(|line| line == service), "{service} is missing in: {services}");
    }
    let health = call(&server, "grpc.health.v1.Health/Check", &json!({}));
    assert_eq!(health["status"], "SERVING");
}

#[test]
fn grpcurl_produces_and_fetches_plain_messages() {
    let server = Server::start();
    call(&server, "quire.v1.TopicService/CreateTopic", &json!({"name": "plain", "partitions": 1}));
    // Bytes are base64 in JSON: k, v0, v1.
    let produced = call(
        &server,
        "quire.v1.LogService/Produce",
        &json!({"partitions": [{"topic": "plain", "partition": 0, "messages": [
            {"key": "aw==", "value": "djA=", "headers": [{"key": "trace", "value": "YWJj"}]},
            {"value": "djE=", "timestamp_ms": 1_700_000_000_000_i64},
        ]}]}),
    );
    assert_eq!(produced["results"][0]["error"], Value::Null, "{produced}");
    let fetched = call(
        &server,
        "quire.v1.LogService/Fetch",
        &json!({"plain": true, "max_wait_ms": 5000, "min_bytes": 1, "partitions": [
            {"topic": "plain", "partition": 0, "offset": 0}
        ]}),
    );
    let messages = fetched["results"][0]["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 2, "{fetched}");
    assert_eq!((&messages[0]["key"], &messages[0]["value"]), (&json!("aw=="), &json!("djA=")));
    assert_eq!(messages[0]["headers"], json!([{"key": "trace", "value": "YWJj"}]));
    assert_eq!(messages[1]["value"], "djE=");
    assert_eq!(messages[1]["offset"], "1");
    assert_eq!(messages[1]["timestampMs"], "1700000000000");

    let read = server
        .run(&["consume", "plain", "--from", "start", "--until", "end", "--format", "%o %k %v %h\\n"])
        .success();
    assert_eq!(read.text(), "0 k v0 trace=abc\n1  v1 \n");
}
