//! A disk that fails a sync: the server acknowledges nothing more and ends; the
//! next start finds out what is there. `strace` makes the sync fail.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::harness::{Server, wait_until};

/// `docs/cli.md`: the server stopped because its disk failed it.
const STORAGE: i32 = 7;

#[test]
fn a_failed_sync_ends_the_server_and_loses_nothing() {
    let mut server = Server::start();
    server.create_topic("disk", 1);
    let directory = tempfile::tempdir().unwrap();
    let acked = directory.path().join("acked");
    let lines: String = (0..20).map(|number| format!("line {number}\n")).collect();
    // At work before, while and after the disk fails.
    let produce = ["produce", "disk", "--rate", "4", "--acked", acked.to_str().unwrap()];
    let producer = server.client(&produce, lines.clone());
    wait_until("a line is acknowledged", Duration::from_secs(60), || {
        std::fs::metadata(&acked).is_ok_and(|file| file.len() > 0)
    });

    let fault = SyncFault::attach(server.id(), &files(&server.data().join("bookie")));
    let status = server.wait_end();
    drop(fault);
    assert_eq!(status.code(), Some(STORAGE), "{}", server.log());
    assert!(server.log().contains("the disk failed"), "{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());

    server.restart();
    server.wait_ready();
    // The producer goes on by itself. Of the line whose sync failed it was not
    // known whether it was written; it is there once.
    producer.finish().success();
    assert_eq!(String::from_utf8_lossy(&server.read_all("disk")), lines);
}

/// A server that lived on without its metadata would serve nothing, and nobody
/// would start it again.
#[test]
fn a_failed_sync_of_the_metadata_ends_the_server() {
    let mut server = Server::start();
    server.create_topic("before", 1);
    let fault = SyncFault::attach(server.id(), &[server.data().join("metadata.redb")]);
    let create = server.client(&["topic", "create", "after", "--partitions", "1"], String::new());
    let status = server.wait_end();
    drop(fault);
    assert_eq!(status.code(), Some(STORAGE), "{}", server.log());
    assert!(server.log().contains("the metadata store stopped"), "{}", server.log());
    assert!(!server.log().contains("panicked"), "{}", server.log());

    server.restart();
    server.wait_ready();
    // Of the topic whose sync failed it was not known whether it was created.
    drop(create.finish());
    server.create_topic("later", 1);
    assert!(server.read_all("before").is_empty());
}

/// Every sync of these files fails with EIO, until dropped.
struct SyncFault(Child);

impl SyncFault {
    fn attach(process: u32, files: &[PathBuf]) -> SyncFault {
        let mut command = Command::new("strace");
        command.args(["-f", "-qq", "-o", "/dev/null", "-p", &process.to_string()]);
        command.args(["-e", "trace=fdatasync,fsync", "-e", "inject=fdatasync,fsync:error=EIO"]);
        for file in files {
            command.arg("-P").arg(file);
        }
        let child = command.stdin(Stdio::null()).spawn();
        let child =
            child.unwrap_or_else(|error| panic!("strace cannot be run ({error}): ./tests/run installs it"));
        let fault = SyncFault(child);
        wait_until("strace is attached", Duration::from_secs(60), || attached(process));
        fault
    }
}

impl Drop for SyncFault {
    fn drop(&mut self) {
        // Ended already, or ended now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Whether every thread has a tracer.
fn attached(process: u32) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default())
        .all(|status| !status.lines().any(|line| line.starts_with("TracerPid:") && line.ends_with("\t0")))
}
