//! A disk without space: producing is refused with the reason, reading goes on,
//! what was acknowledged is there, and space that comes back is used.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::harness::mount::SmallDisk;
use crate::harness::quire::run;
use crate::harness::{Finished, Server, wait_until};

/// Small files, so that a small disk holds some of them.
const OPTIONS: [&str; 4] = ["--bookie-file-bytes", "4MiB", "--bookie-reserve-bytes", "4MiB"];
/// `docs/cli.md`: not every line was acknowledged.
const NOT_ACKNOWLEDGED: i32 = 3;
/// The server cannot start.
const CANNOT_START: i32 = 6;

#[test]
fn a_full_disk_refuses_writes_loses_nothing_and_recovers() {
    let disk = SmallDisk::new(64);
    let mut server = Server::in_directory(&disk.path().join("data"), &OPTIONS);
    server.create_topic("disk", 1);
    let directory = tempfile::tempdir().unwrap();
    let acked = directory.path().join("acked");

    let refused = produce(&server, 96 << 10, &acked);
    refused.refused(NOT_ACKNOWLEDGED, &["was not acknowledged", "full", "what to do"]);
    assert!(server.running(), "{}", server.log());
    let kept = acked_offsets(&acked);
    assert!(!kept.is_empty());
    check(&server, &kept);

    // The space that is missing comes back: a larger disk under the same data.
    let remount = std::process::Command::new("mount")
        .args(["-o", "remount,size=512m"])
        .arg(disk.path())
        .status()
        .unwrap();
    assert!(remount.success());
    wait_until("producing goes on", Duration::from_secs(60), || {
        produce(&server, 1, &directory.path().join("again")).status.success()
    });
    check(&server, &kept);

    server.kill();
    server.restart();
    server.wait_ready();
    check(&server, &kept);
}

#[test]
fn a_server_does_not_start_on_a_full_disk_and_starts_when_there_is_space() {
    let disk = SmallDisk::new(64);
    let filler = disk.path().join("filler");
    let (data, free) = (disk.path().join("data"), "127.0.0.1:0");
    // Until nothing fits any more.
    fs::write(&filler, vec![0; 128 << 20]).unwrap_err();
    run(&["standalone", "--data", data.to_str().unwrap(), "--grpc", free, "--http", free])
        .refused(CANNOT_START, &["space", "--data"]);
    fs::remove_file(&filler).unwrap();
    Server::in_directory(&data, &OPTIONS).create_topic("disk", 1);
}

/// Lines of a kibibyte.
fn produce(server: &Server, lines: usize, acked: &Path) -> Finished {
    let text: String = (0..lines).map(|number| format!("{number:01023}\n")).collect();
    let arguments = ["produce", "disk", "--delivery-timeout-ms", "5000", "--acked", acked.to_str().unwrap()];
    server.client(&arguments, text).finish()
}

/// Line number and offset.
fn acked_offsets(path: &Path) -> Vec<(usize, usize)> {
    let text = fs::read_to_string(path).unwrap();
    let fields = |line: &str| -> Vec<usize> { line.split(' ').map(|field| field.parse().unwrap()).collect() };
    text.lines().map(fields).map(|fields| (fields[0], fields[2])).collect()
}

/// Every acknowledged line is at its offset.
#[track_caller]
fn check(server: &Server, acked: &[(usize, usize)]) {
    let read = server.read_all("disk");
    let lines: Vec<&[u8]> = read.split(|&byte| byte == b'\n').collect();
    for &(line, offset) in acked {
        let expected = format!("{:01023}", line - 1);
        assert_eq!(lines.get(offset), Some(&expected.as_bytes()), "line {line}");
    }
}
