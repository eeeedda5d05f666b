//! `quire standalone`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::ports::Port;
use super::quire::{Finished, Quire, command};
use super::{http, wait_until};

/// A server must be ready by then, also on a busy machine after a crash.
const READY: Duration = Duration::from_secs(30);

/// A server, killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    data: PathBuf,
    log: PathBuf,
    grpc: Port,
    http: Port,
    options: Vec<String>,
    started: Instant,
    /// Removed with the server, if it is the test's own.
    _directory: Option<tempfile::TempDir>,
}

impl Server {
    /// Starts one in a new directory and waits until it is ready.
    #[track_caller]
    pub(crate) fn start() -> Server {
        Server::with_options(&[])
    }

    #[track_caller]
    pub(crate) fn with_options(options: &[&str]) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let mut server = Server::in_directory(&data, options);
        server._directory = Some(directory);
        server
    }

    /// Starts one with its data here and waits until it is ready.
    #[track_caller]
    pub(crate) fn in_directory(data: &Path, options: &[&str]) -> Server {
        let (grpc, http) = (Port::take(), Port::take());
        let log = data.with_extension("log");
        fs::create_dir_all(data.parent().unwrap()).unwrap();
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let child = spawn(data, &log, &grpc, &http, &options);
        let started = Instant::now();
        let mut server =
            Server { child, data: data.to_owned(), log, grpc, http, options, started, _directory: None };
        server.wait_ready();
        server
    }

    pub(crate) fn grpc(&self) -> String {
        self.grpc.address()
    }

    pub(crate) fn http(&self) -> String {
        self.http.address()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// What it has written to stdout and stderr, over all its runs.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// Since its process was started.
    pub(crate) fn age(&self) -> Duration {
        self.started.elapsed()
    }

    #[track_caller]
    pub(crate) fn wait_ready(&mut self) {
        let start = Instant::now();
        let address = self.http();
        while http::get(&address, "/readyz").is_none_or(|(status, _)| status != 200) {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the server ended: {status}\n{}", self.log());
            }
            assert!(start.elapsed() < READY, "not ready within {READY:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// SIGKILL, without notice.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM, and waits for its end.
    #[track_caller]
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        let pid = self.child.id().to_string();
        let killed = std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(killed.success());
        self.wait_end()
    }

    #[track_caller]
    pub(crate) fn wait_end(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the server's end", READY, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    pub(crate) fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Starts it again on its data and ports, without waiting for it.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(&self.data, &self.log, &self.grpc, &self.http, &self.options);
        self.started = Instant::now();
    }

    /// Starts a client command that asks this server.
    pub(crate) fn client(&self, arguments: &[&str], stdin: impl Into<Vec<u8>>) -> Quire {
        let mut command = command();
        command.args(arguments).env("QUIRE_BROKER", self.grpc());
        Quire::spawn(command, stdin.into())
    }

    /// Runs a client command to its end.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Finished {
        self.client(arguments, Vec::new()).finish()
    }

    /// Creates a topic.
    #[track_caller]
    pub(crate) fn create_topic(&self, name: &str, partitions: u32) {
        self.run(&["topic", "create", name, "--partitions", &partitions.to_string()]).success();
    }

    /// All values of a topic's partition, one a line.
    #[track_caller]
    pub(crate) fn read_all(&self, topic: &str) -> Vec<u8> {
        self.run(&["consume", topic, "--from", "start", "--until", "end"]).success().stdout
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already, or ended now.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- the server's log\n{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

fn spawn(data: &Path, log: &Path, grpc: &Port, http: &Port, options: &Vec<String>) -> Child {
    let log = File::options().create(true).append(true).open(log).unwrap();
    let mut command = command();
    command.arg("standalone").arg("--data").arg(data);
    command.args(["--grpc", &grpc.address(), "--http", &http.address()]).args(options);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
