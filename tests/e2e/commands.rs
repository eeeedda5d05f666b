//! What the client commands promise to scripts.

use std::fs;
use std::io::Read as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::json;

use crate::harness::quire::{command, run};
use crate::harness::{Quire, Server, wait_until};

#[test]
fn describe_and_segments_say_the_same_as_table_and_as_json() {
    let server = Server::start();
    let create =
        ["topic", "create", "t", "--partitions", "2", "--config", "segment.bytes=1048576", "-o", "json"];
    let created = server.run(&create).success().json();
    assert_eq!((&created["name"], &created["partitions"]), (&json!("t"), &json!(2)));
    assert_eq!(created["config"]["segment.bytes"], "1048576");
    server.client(&["produce", "t", "--partition", "1"], "a\nb\n").finish().success();

    let described = server.run(&["topic", "describe", "t", "-o", "json"]).success().json();
    assert_eq!(described["topic"]["ack_quorum"], 1);
    assert_eq!(described["partitions"][0]["latest_offset"], 0);
    assert_eq!(described["partitions"][1]["latest_offset"], 2);
    assert_eq!(described["partitions"][1]["leader"], server.grpc());
    let table = server.run(&["topic", "describe", "t"]).success();
    for text in ["segment.bytes", "1048576", "PARTITION", "LATEST"] {
        assert!(table.text().contains(text), "{text}: {}", table.text());
    }

    let segments = server.run(&["segment", "list", "t", "--partition", "1", "-o", "json"]).success().json();
    assert_eq!(segments[0]["base_offset"], 0);
    assert_eq!(segments[0]["ledger"]["state"], "open");
    let id = segments[0]["ledger"]["id"].to_string();
    let ledger = server.run(&["ledger", "describe", &id, "-o", "json"]).success().json();
    assert_eq!((&ledger["ledger"]["topic"], &ledger["ledger"]["partition"]), (&json!("t"), &json!(1)));
    assert_eq!(ledger["replicas"][0]["certain"], true);
    let listed = server.run(&["segment", "list", "t"]).success();
    assert!(listed.text().lines().nth(1).unwrap().contains(&id), "{}", listed.text());
}

#[test]
fn consume_reads_from_where_it_is_told() {
    let server = Server::start();
    server.create_topic("places", 1);
    server.client(&["produce", "places"], "0\n1\n2\n3\n4\n").finish().success();
    let read = |arguments: &[&str]| {
        let arguments = [&["consume", "places", "--until", "end"], arguments].concat();
        server.run(&arguments).success().text().to_owned()
    };
    assert_eq!(read(&["--from", "start"]), "0\n1\n2\n3\n4\n");
    assert_eq!(read(&["--from", "end"]), "");
    assert_eq!(read(&[]), "");
    assert_eq!(read(&["--from", "3", "--partition", "0"]), "3\n4\n");
    assert_eq!(read(&["--from", "start", "--max", "2"]), "0\n1\n");
    assert_eq!(read(&["--from", "@0"]), "0\n1\n2\n3\n4\n");
    assert_eq!(read(&["--from", "@2100-01-01T00:00:00Z"]), "");
    assert_eq!(
        read(&["--from", "4", "--partition", "0", "--format", "%t[%p]@%o=%v %S %K;"]),
        "places[0]@4=4 1 -1;"
    );
    let json = read(&["--from", "4", "--partition", "0", "-o", "json"]);
    let record: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&record["offset"], &record["value"], &record["key"]), (&json!(4), &json!("4"), &json!(null)));
}

#[test]
fn a_time_is_where_its_record_is() {
    let server = Server::start();
    server.create_topic("times", 1);
    server.client(&["produce", "times"], "early\n").finish().success();
    let format = ["consume", "times", "--from", "start", "--until", "end", "--format", "%T"];
    let early: i64 = server.run(&format).success().text().parse().unwrap();
    wait_until("the clock moves on", Duration::from_secs(5), || now_ms() > early + 1);
    server.client(&["produce", "times"], "late\n").finish().success();
    let from = format!("@{}", early + 1);
    let read = server.run(&["consume", "times", "--from", &from, "--until", "end"]).success();
    assert_eq!(read.text(), "late\n");
}

fn now_ms() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

#[test]
fn a_follower_sees_records_as_they_come() {
    let server = Server::start();
    server.create_topic("live", 1);
    let mut command = command();
    command.args(["consume", "live", "--max", "2"]).env("QUIRE_BROKER", server.grpc());
    let mut follower = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = follower.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    // It starts at the end, which may be after the first few.
    wait_until("two records are followed", Duration::from_secs(60), || {
        server.client(&["produce", "live"], "tick\n").finish().success();
        follower.try_wait().unwrap().is_some()
    });
    assert!(follower.wait().unwrap().success());
    assert_eq!(reader.join().unwrap(), "tick\ntick\n");
}

#[test]
fn every_codec_and_every_acks_comes_through() {
    let server = Server::start();
    let lines: String = (0..2000).map(|number| format!("{number}:{}\n", "abc".repeat(20))).collect();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = format!("codec-{codec}");
        server.create_topic(&topic, 1);
        server.client(&["produce", &topic, "--compression", codec], lines.clone()).finish().success();
        assert_eq!(server.read_all(&topic), lines.as_bytes(), "{codec}");
    }
    for acks in ["all", "leader", "none"] {
        let topic = format!("acks-{acks}");
        server.create_topic(&topic, 1);
        let produced = server.client(&["produce", &topic, "--acks", acks], lines.clone()).finish().success();
        assert_eq!(produced.stderr.contains("idempotence is off"), acks != "all", "{}", produced.stderr);
        // Without acknowledgements the last records may be still on their way.
        wait_until("all records are there", Duration::from_secs(30), || {
            server.read_all(&topic) == lines.as_bytes()
        });
    }
}

#[test]
fn acknowledged_lines_are_listed_with_their_places() {
    let server = Server::start();
    server.create_topic("acked", 3);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("acked");
    let produce = ["produce", "acked", "--key-field", "1", "--acked", file.to_str().unwrap(), "-o", "json"];
    let lines: String = (0..500).map(|number| format!("{},{number}\n", number % 11)).collect();
    let summary = server.client(&produce, lines).finish().success().json();
    assert_eq!((&summary["lines"], &summary["acknowledged"]), (&json!(500), &json!(500)));

    let read = ["consume", "acked", "--from", "start", "--until", "end", "--format", "%p %o %v\\n"];
    let read = server.run(&read).success();
    let mut found: Vec<String> = read
        .text()
        .lines()
        .map(|line| {
            let (place, value) = line.rsplit_once(' ').unwrap();
            let number: usize = value.split_once(',').unwrap().1.parse().unwrap();
            format!("{} {place}", number + 1)
        })
        .collect();
    let acked = fs::read_to_string(&file).unwrap();
    let mut acked: Vec<_> = acked.lines().collect();
    acked.sort_unstable();
    found.sort_unstable();
    assert_eq!(acked, found);
}

#[test]
fn a_reader_that_has_enough_ends_a_consumer_quietly() {
    let server = Server::start();
    server.create_topic("pipe", 1);
    let lines: String = (0..200_000).map(|number| format!("{number}\n")).collect();
    server.client(&["produce", "pipe"], lines).finish().success();
    let mut command = command();
    command.args(["consume", "pipe", "--from", "start"]).env("QUIRE_BROKER", server.grpc());
    let mut consumer = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 2];
    consumer.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let output = consumer.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!((&first, String::from_utf8_lossy(&output.stderr).as_ref()), (b"0\n", ""));
}

#[test]
fn a_consumer_that_waits_ends_when_its_reader_goes_away() {
    let server = Server::start();
    server.create_topic("idle", 1);
    server.client(&["produce", "idle"], "only\n").finish().success();
    let mut command = command();
    command.args(["consume", "idle", "--from", "start"]).env("QUIRE_BROKER", server.grpc());
    let mut consumer = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = consumer.stdout.take().unwrap();
    let mut first = [0; 5];
    stdout.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"only\n");
    assert!(consumer.try_wait().unwrap().is_none(), "it waits for more");
    drop(stdout);
    wait_until("the consumer's end", Duration::from_secs(30), || consumer.try_wait().unwrap().is_some());
    let output = consumer.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn a_consumer_that_writes_to_a_file_goes_on() {
    let server = Server::start();
    server.create_topic("kept", 1);
    server.client(&["produce", "kept"], "one\n").finish().success();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut command = command();
    command.args(["consume", "kept", "--from", "start", "--max", "2"]).env("QUIRE_BROKER", server.grpc());
    let mut consumer = command.stdout(file.reopen().unwrap()).spawn().unwrap();
    let is_written = |text: &str| fs::read_to_string(file.path()).unwrap() == text;
    wait_until("the first is written", Duration::from_secs(30), || is_written("one\n"));
    assert!(consumer.try_wait().unwrap().is_none(), "it waits for more");
    server.client(&["produce", "kept"], "two\n").finish().success();
    assert!(consumer.wait().unwrap().success());
    assert!(is_written("one\ntwo\n"));
}

#[test]
fn lines_without_acknowledgements_are_sent() {
    let server = Server::start();
    server.create_topic("unheard", 1);
    let produced = server.client(&["produce", "unheard", "--acks", "none"], "a\nb\n").finish().success();
    assert!(produced.stderr.contains("2 of 2 line(s) sent"), "{}", produced.stderr);
    let produced = server.client(&["produce", "unheard"], "a\nb\n").finish().success();
    assert!(produced.stderr.contains("2 of 2 line(s) acknowledged"), "{}", produced.stderr);
}

#[test]
fn a_producer_whose_pipe_has_no_reader_is_interrupted_as_well() {
    let server = Server::start();
    server.create_topic("pipe", 1);
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("acked");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let producer = server.client(&["produce", "pipe", "--acked", pipe.to_str().unwrap()], "a\n");
    wait_until("it opens the pipe", Duration::from_secs(30), || waits_for_a_reader(producer.id()));
    interrupt(&producer);
    let ended = producer.finish().refused(130, &["interrupted"]);
    assert!(ended.took < Duration::from_secs(60), "{:?}", ended.took);
    assert!(server.read_all("pipe").is_empty());
}

/// Whether a thread of the process opens a named pipe that nobody reads, by the
/// kernel's name for that wait.
fn waits_for_a_reader(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks
        .filter_map(|task| fs::read_to_string(task.unwrap().path().join("wchan")).ok())
        .any(|place| place == "wait_for_partner")
}

fn interrupt(command: &Quire) {
    let signalled =
        std::process::Command::new("kill").args(["-INT", &command.id().to_string()]).status().unwrap();
    assert!(signalled.success());
}

#[test]
fn an_interrupted_producer_says_so_and_keeps_what_it_sent() {
    let server = Server::start();
    server.create_topic("interrupted", 1);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("acked");
    let lines: String = (0..100_000).map(|number| format!("{number}\n")).collect();
    let produce = ["produce", "interrupted", "--rate", "1000", "--acked", file.to_str().unwrap()];
    let producer: Quire = server.client(&produce, lines);
    wait_until("lines are acknowledged", Duration::from_secs(30), || {
        fs::read_to_string(&file).is_ok_and(|text| text.lines().count() > 10)
    });
    interrupt(&producer);
    producer.finish().refused(130, &["interrupted"]);
    let acked = fs::read_to_string(&file).unwrap().lines().count();
    assert_eq!(server.read_all("interrupted").iter().filter(|&&byte| byte == b'\n').count(), acked);
}

#[test]
fn help_and_completion_need_no_server() {
    for arguments in [&["--help"][..], &["--version"], &["bench", "latency", "--help"]] {
        run(arguments).success();
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&["completion", shell]).success();
        assert!(script.text().contains("standalone"), "{shell}");
    }
    run::<&str>(&[]).refused(2, &["Usage"]);
    run(&["topik"]).refused(2, &["topik"]);
}
