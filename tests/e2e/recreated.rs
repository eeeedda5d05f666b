//! A topic that is deleted and created again under the same name is another one.

use std::fs::{self, File};
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::harness::quire::command;
use crate::harness::{Quire, Server, wait_until};

const PATIENCE: Duration = Duration::from_secs(60);

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

/// A consumer, killed when dropped.
struct Consumer(Child);

impl Drop for Consumer {
    fn drop(&mut self) {
        // Ended already, or ended now.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn consumer_and_producer_do_not_go_on_in_another_topic() {
    let mut server = Server::start();
    server.create_topic("again", 1);
    let directory = tempfile::tempdir().unwrap();
    let [acked, read, errors] = ["acked", "read", "errors"].map(|name| directory.path().join(name));

    let mut produce = command();
    let arguments = ["produce", "again", "--acked", acked.to_str().unwrap()];
    produce.args(arguments).env("QUIRE_BROKER", server.grpc());
    let (lines, fed) = mpsc::channel::<&str>();
    let producer = Quire::spawn_fed(produce, move |mut input| {
        fed.into_iter().for_each(|line| writeln!(input, "{line}").unwrap());
    });
    let mut consume = command();
    consume.args(["consume", "again", "--from", "start"]).env("QUIRE_BROKER", server.grpc());
    let output = (File::create(&read).unwrap(), File::create(&errors).unwrap());
    let mut consumer =
        Consumer(consume.stdin(Stdio::null()).stdout(output.0).stderr(output.1).spawn().unwrap());
    lines.send("old").unwrap();
    wait_until("a line is acknowledged and read", PATIENCE, || {
        fs::read(&acked).is_ok_and(|text| !text.is_empty()) && fs::read(&read).unwrap() == b"old\n"
    });

    let clients = [producer.id(), consumer.0.id()];
    clients.iter().for_each(|&client| signal("-STOP", client));
    server.kill();
    server.restart();
    server.wait_ready();
    server.run(&["topic", "delete", "again", "--yes"]).success();
    server.create_topic("again", 1);
    let new = "new\n".repeat(10);
    server.client(&["produce", "again"], new.clone()).finish().success();
    clients.iter().for_each(|&client| signal("-CONT", client));

    let mut ended = None;
    wait_until("the consumer's end", PATIENCE, || {
        ended = consumer.0.try_wait().unwrap();
        ended.is_some()
    });
    let said = fs::read_to_string(&errors).unwrap();
    assert_eq!(ended.unwrap().code(), Some(4), "{said}");
    assert!(said.contains("deleted and created again"), "{said}");
    assert_eq!(fs::read(&read).unwrap(), b"old\n");

    lines.send("late").unwrap();
    drop(lines);
    producer.finish().refused(3, &["line 2 was not acknowledged", "deleted and created again"]);
    assert_eq!(fs::read_to_string(&acked).unwrap(), "1 0 0\n");
    assert_eq!(server.read_all("again"), new.as_bytes());
}
