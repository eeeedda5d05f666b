//! What is wrong is refused with cause and remedy; nothing is lost, nobody
//! panics.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::harness::ports::Port;
use crate::harness::quire::{command, run};
use crate::harness::{Quire, Server, http, wait_until};

/// Exit codes of `docs/cli.md`.
const FAILURE: i32 = 1;
const USAGE: i32 = 2;
const NOT_ACKNOWLEDGED: i32 = 3;
const REFUSED: i32 = 4;
const UNAVAILABLE: i32 = 5;
const CANNOT_START: i32 = 6;

#[test]
fn requests_that_can_never_succeed_are_refused() {
    let server = Server::start();
    server.create_topic("known", 2);
    let long = "x".repeat(300);
    let endless = "x".repeat(100_000);
    let table: &[(&[&str], i32, &[&str])] = &[
        (&["topic", "describe", "nowhere"], REFUSED, &["nowhere", "what to do"]),
        (&["topic", "delete", "nowhere", "--yes"], REFUSED, &["nowhere"]),
        (&["topic", "delete", "known"], USAGE, &["known", "--yes"]),
        (&["topic", "create", "known", "--partitions", "1"], REFUSED, &["known"]),
        (&["topic", "create", "no/slash", "--partitions", "1"], REFUSED, &["no/slash"]),
        (&["topic", "create", "..", "--partitions", "1"], REFUSED, &[".."]),
        (&["topic", "create", "", "--partitions", "1"], REFUSED, &[]),
        (&["topic", "create", &long, "--partitions", "1"], REFUSED, &[]),
        (&["topic", "create", &endless, "--partitions", "1"], REFUSED, &["100000 bytes", "what to do"]),
        (&["topic", "describe", &endless], REFUSED, &["a topic's name of 100000 bytes", "249"]),
        (&["topic", "describe", "no/slash"], REFUSED, &["\"no/slash\" is not valid", "letters"]),
        (&["bench", "produce", "t", "--batch-bytes", "1GiB"], USAGE, &["--batch-bytes"]),
        (&["bench", "latency", "t", "--linger-ms", "70000"], USAGE, &["--linger-ms"]),
        (&["topic", "describe", "t"], REFUSED, &["does not exist"]),
        (&["topic", "create", "t", "--partitions", "0"], USAGE, &["--partitions"]),
        (&["topic", "create", "t", "--partitions", "10001"], USAGE, &["--partitions", "from 1 to 10000"]),
        (&["bench", "produce", "t", "--partitions", "10001"], USAGE, &["--partitions", "from 1 to 10000"]),
        (&["bench", "produce", "t", "--records", "-5"], USAGE, &["'-5'", "--records", "from 1 to"]),
        (&["bench", "produce", "t", "--batch-bytes", "-5"], USAGE, &["'-5'", "--batch-bytes", "64KiB"]),
        (&["bench", "consume", "t", "--server-http", "junk"], USAGE, &["junk", "--server-http", "HOST:PORT"]),
        (&["topic", "list", "--log-level", "a=b=c"], USAGE, &["--log-level", "QUIRE_LOG_LEVEL"]),
        (&["topic", "list", "--broker", &server.http()], UNAVAILABLE, &["does not speak gRPC", "--broker"]),
        (&["topic", "create", "t", "--partitions", "1", "--config", "x"], USAGE, &["KEY=VALUE"]),
        (
            &["topic", "create", "t", "--partitions", "1", "--config", "retention.ms=1"],
            REFUSED,
            &["retention.ms"],
        ),
        (
            &["topic", "create", "t", "--partitions", "1", "--config", "segment.bytes=many"],
            REFUSED,
            &["segment.bytes"],
        ),
        (
            &["topic", "create", "t", "--partitions", "1", "--config", "compression.type=zstd"],
            REFUSED,
            &["compression.type"],
        ),
        (
            &["topic", "create", "t", "--partitions", "1", "--replicas", "3", "--ack-quorum", "2"],
            REFUSED,
            &["what to do"],
        ),
        (
            &["topic", "create", "t", "--partitions", "1", "--replicas", "1", "--ack-quorum", "2"],
            REFUSED,
            &[],
        ),
        (&["produce", "nowhere"], REFUSED, &["nowhere", "what to do"]),
        (&["produce", "known", "--partition", "2"], REFUSED, &["partition 2", "what to do"]),
        (&["produce", "known", "--acks", "none", "--acked", "/dev/null"], USAGE, &["--acked"]),
        (&["consume", "nowhere", "--until", "end"], REFUSED, &["nowhere"]),
        (&["consume", "known", "--partition", "7", "--from", "start"], REFUSED, &["7"]),
        (&["consume", "known", "--from", "5"], USAGE, &["--partition"]),
        (&["produce", "known", "--acked", "/nowhere/acked"], USAGE, &["/nowhere/acked", "--acked"]),
        (&["consume", "known", "--from", "yesterday"], USAGE, &["--from"]),
        (&["consume", "known", "--from", "@9223372036854775808"], USAGE, &["--from", "64 bits"]),
        (&["consume", "known", "--from", "-5"], USAGE, &["--from", "'-5'"]),
        (&["consume", "known", "--format", "%q"], USAGE, &["%q"]),
        (&["consume", "known", "--partition", "0", "--from", "99"], REFUSED, &["99"]),
        (&["consume", "known", "--partition", "0", "--from", "99", "--until", "end"], REFUSED, &["99"]),
        (&["segment", "list", "nowhere"], REFUSED, &["nowhere"]),
        (&["ledger", "describe", "123456789"], REFUSED, &["123456789"]),
        (&["ledger", "recover", "123456789", "--accept-loss", "--yes"], REFUSED, &["123456789"]),
    ];
    for (arguments, code, texts) in table {
        println!("quire {}", arguments.join(" "));
        server.run(arguments).refused(*code, texts);
    }
    let topics = server.run(&["topic", "list", "-o", "json"]).success().json();
    assert_eq!(topics.as_array().unwrap().len(), 1, "{topics}");
    check_alive(&server);
}

#[test]
fn a_line_that_is_too_large_is_named_and_what_is_before_it_is_kept() {
    let server = Server::start();
    server.create_topic("large", 1);
    let lines = format!("small\n{}\nnever sent\n", "x".repeat(2 << 20));
    let produced = server.client(&["produce", "large"], lines).finish();
    produced.refused(NOT_ACKNOWLEDGED, &["line 2", "max.message.bytes"]);
    assert_eq!(server.read_all("large"), b"small\n");
    check_alive(&server);
}

#[test]
fn a_line_without_its_key_is_named() {
    let server = Server::start();
    server.create_topic("keyed", 1);
    let produced = server.client(&["produce", "keyed", "--key-field", "2"], "a,b\nc\nd,e\n").finish();
    produced.refused(NOT_ACKNOWLEDGED, &["line 2", "field 2", "1 of 2 line(s) acknowledged"]);
    assert_eq!(server.read_all("keyed"), b"a,b\n");
}

#[test]
fn the_file_of_acknowledged_lines_is_kept_until_lines_can_be_sent() {
    let server = Server::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    std::fs::write(path, "of before\n").unwrap();
    server.client(&["produce", "nowhere", "--acked", path], "a\n").finish().refused(REFUSED, &["nowhere"]);
    assert_eq!(std::fs::read(path).unwrap(), b"of before\n");

    server.create_topic("t", 1);
    let unwritable = ["produce", "t", "--acked", "/dev/full", "-o", "json"];
    let produced = server.client(&unwritable, "a\nb\n").finish().refused(FAILURE, &["/dev/full", "--acked"]);
    assert_eq!(produced.json()["acknowledged"], 2);
}

#[test]
fn a_log_that_cannot_be_written_stops_nothing() {
    let (grpc, http, directory) = (Port::take(), Port::take(), tempfile::tempdir().unwrap());
    let (grpc, http_address) = (grpc.address(), http.address());
    let mut server = command();
    server.args(["standalone", "--grpc", &grpc, "--http", &http_address, "--data"]).arg(directory.path());
    server.stdin(Stdio::null()).stdout(Stdio::null());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut server = KilledWhenDropped(server.stderr(full).spawn().unwrap());
    wait_until("the server is ready", Duration::from_secs(30), || {
        http::get(&http_address, "/readyz").is_some_and(|(status, _)| status == 200)
    });
    for _ in 0..3 {
        run(&["topic", "create", "t", "--partitions", "2", "--broker", &grpc]).success();
        Quire::start(&["produce", "t", "--broker", &grpc], b"a\nb\n".to_vec()).finish().success();
        run(&["topic", "delete", "t", "--yes", "--broker", &grpc]).success();
    }
    let terminated = Command::new("kill").args(["-TERM", &server.0.id().to_string()]).status().unwrap();
    assert!(terminated.success());
    let mut ended = None;
    wait_until("the server's end", Duration::from_secs(30), || {
        ended = server.0.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.unwrap().code(), Some(0));
}

struct KilledWhenDropped(Child);

impl Drop for KilledWhenDropped {
    fn drop(&mut self) {
        // Ended already, or ended now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nobody_listening_is_said_with_the_address() {
    let port = Port::take();
    run(&["topic", "list", "--broker", &port.address()])
        .refused(UNAVAILABLE, &[&port.address(), "quire standalone", "--broker"]);
}

#[test]
fn settings_that_mean_nothing_are_named() {
    run(&["topic", "list", "--config", "/nowhere.toml"]).refused(USAGE, &["/nowhere.toml"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("quire.toml");
    std::fs::write(&file, "[standalone]\ndatta = \"x\"\n").unwrap();
    run(&["--config", file.to_str().unwrap(), "topic", "list"])
        .refused(USAGE, &["quire.toml", "standalone.datta"]);
}

#[test]
fn a_second_server_is_told_what_is_in_its_way() {
    let server = Server::start();
    let (grpc, http) = (server.grpc(), server.http());
    let data = server.data().to_str().unwrap();
    let other = tempfile::tempdir().unwrap();
    let other = other.path().join("data");
    let other = other.to_str().unwrap();
    let free = "127.0.0.1:0";

    run(&["standalone", "--data", other, "--grpc", &grpc, "--http", free])
        .refused(CANNOT_START, &[&grpc, "in use", "--grpc"]);
    run(&["standalone", "--data", other, "--grpc", free, "--http", &http])
        .refused(CANNOT_START, &[&http, "in use", "--http"]);
    run(&["standalone", "--data", data, "--grpc", free, "--http", free])
        .refused(CANNOT_START, &[data, "in use", "--data"]);
    run(&["standalone", "--data", "/proc/nowhere", "--grpc", free, "--http", free])
        .refused(CANNOT_START, &["/proc/nowhere", "--data"]);
    run(&["standalone", "--data", other, "--grpc", "nonsense", "--http", free])
        .refused(USAGE, &["nonsense", "--grpc"]);
    run(&["standalone", "--data", other, "--grpc", free, "--http", free, "--bookie-high-water", "80"])
        .refused(USAGE, &["--bookie-low-water of 90", "--bookie-high-water"]);
    run(&["standalone", "--data", other, "--grpc", free, "--http", free, "--bookie-file-bytes", "1000000"])
        .refused(USAGE, &["--bookie-file-bytes of 1000000", "1MiB to 4GiB"]);
    let sizes = ["--memory-bytes", "1MiB", "--tail-cache-bytes", "2MiB"];
    run(&[&["standalone", "--data", other, "--grpc", free, "--http", free], &sizes[..]].concat())
        .refused(USAGE, &["--tail-cache-bytes of 2097152", "--memory-bytes, 1048576"]);
    run(&["standalone", "--data", other, "--grpc", free, "--http", free, "--cluster", "a/b"])
        .refused(USAGE, &["--cluster", "a/b"]);
    assert!(!Path::new(other).exists(), "what is refused makes nothing");
    run(&["standalone", "--data", other, "--shards", "4294967295"]).refused(USAGE, &["--shards", "1024"]);
    run(&["standalone", "--data", other, "--producer-expiry-ms", "0"])
        .refused(USAGE, &["--producer-expiry-ms", "300000"]);
    check_alive(&server);
}

#[test]
fn a_bookie_of_another_cluster_is_refused_and_left_as_it_is() {
    let mut first = Server::start();
    let mut second = Server::start();
    first.create_topic("mine", 1);
    first.client(&["produce", "mine"], "kept\n").finish().success();
    assert!(first.terminate().success() && second.terminate().success());

    let (mine, theirs) = (first.data().join("bookie"), second.data().join("bookie"));
    let aside = second.data().join("aside");
    std::fs::rename(&theirs, &aside).unwrap();
    std::fs::rename(&mine, &theirs).unwrap();
    second.restart();
    let status = second.wait_end();
    assert_eq!(status.code(), Some(CANNOT_START), "{}", second.log());
    assert!(second.log().contains("belongs to cluster"), "{}", second.log());

    std::fs::rename(&theirs, &mine).unwrap();
    let data = first.data().to_str().unwrap();
    run(&[
        "standalone",
        "--data",
        data,
        "--grpc",
        "127.0.0.1:0",
        "--http",
        "127.0.0.1:0",
        "--cluster",
        "other",
    ])
    .refused(CANNOT_START, &["belongs to cluster", "--cluster"]);
    first.restart();
    first.wait_ready();
    assert_eq!(first.read_all("mine"), b"kept\n");
}

#[test]
fn a_data_directory_that_has_lost_its_bookie_is_refused() {
    let mut server = Server::start();
    server.create_topic("kept", 1);
    server.client(&["produce", "kept"], "kept\n").finish().success();
    assert!(server.terminate().success());

    let (bookie, aside) = (server.data().join("bookie"), server.data().join("aside"));
    std::fs::rename(&bookie, &aside).unwrap();
    server.restart();
    let status = server.wait_end();
    assert_eq!(status.code(), Some(CANNOT_START), "{}", server.log());
    assert!(server.log().contains("has lost its bookie"), "{}", server.log());

    std::fs::remove_dir_all(&bookie).unwrap();
    std::fs::rename(&aside, &bookie).unwrap();
    server.restart();
    server.wait_ready();
    assert_eq!(server.read_all("kept"), b"kept\n");
}

#[test]
fn garbage_on_every_port_is_survived_with_bounded_memory() {
    let server = Server::start();
    server.create_topic("safe", 1);
    server.client(&["produce", "safe"], "kept\n").finish().success();
    let before = http::metric(&server.http(), "process_resident_memory_bytes");
    let mut random = StdRng::seed_from_u64(7);
    for address in [server.grpc(), server.http()] {
        for round in 0..50 {
            let mut garbage = vec![0; 1 << 16];
            random.fill_bytes(&mut garbage);
            if round % 3 == 1 {
                // A right beginning, so that what follows is looked at.
                garbage[..24].copy_from_slice(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
            }
            if round % 3 == 2 {
                garbage[..16].copy_from_slice(b"GET / HTTP/1.1\r\n");
            }
            send(&address, &garbage);
        }
    }
    check_alive(&server);
    assert_eq!(server.read_all("safe"), b"kept\n");
    let after = http::metric(&server.http(), "process_resident_memory_bytes");
    assert!(after < before + 64.0 * 1024.0 * 1024.0, "{before} bytes before, {after} after");
}

/// Sends and waits until the other side has had enough.
fn send(address: &str, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // The other side may close as soon as it has seen enough.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.take(1 << 20).read_to_end(&mut answer);
}

#[track_caller]
fn check_alive(server: &Server) {
    assert_eq!(http::get(&server.http(), "/readyz").unwrap().0, 200);
    assert!(!server.log().contains("panicked"), "{}", server.log());
    server.run(&["topic", "list"]).success();
}
