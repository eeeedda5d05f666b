//! Commands of `quire`.

use std::ffi::OsStr;
use std::io::{Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No command of a test takes as long as this.
const DEADLINE: Duration = Duration::from_secs(120);

/// The program under test: what `QUIRE_TEST_BINARY` names, else the one that
/// was built beside the tests.
pub(crate) fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("QUIRE_TEST_BINARY") {
        return path.into();
    }
    let test = std::env::current_exe().unwrap();
    let path = test.parent().and_then(|deps| deps.parent()).unwrap().join("quire");
    assert!(path.exists(), "{} is missing: cargo build -p quire-cli", path.display());
    path
}

/// A command without the settings of whoever runs the tests.
pub(crate) fn command() -> Command {
    let mut command = Command::new(binary());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUIRE_") {
            command.env_remove(name);
        }
    }
    // However full the disk of whoever runs the tests is.
    command.env("QUIRE_STANDALONE_BOOKIE_HIGH_WATER", "100");
    command.env("RUST_BACKTRACE", "1");
    command
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Finished {
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert!(self.status.success(), "{}: {}", self.status, self.stderr);
        self
    }

    /// Failed with this exit code, said all of this, and what to do.
    #[track_caller]
    pub(crate) fn refused(self, code: i32, texts: &[&str]) -> Self {
        assert_eq!(self.status.code(), Some(code), "{}", self.stderr);
        for text in texts {
            assert!(self.stderr.contains(text), "'{text}' is missing in: {}", self.stderr);
        }
        // Who interrupts knows what to do.
        let advises = self.stderr.contains("what to do: ") || self.stderr.contains("--help") || code == 130;
        assert!(advises, "nothing is said of what to do: {}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

/// A running command, killed when dropped.
#[derive(Debug)]
pub(crate) struct Quire {
    child: Child,
    started: Instant,
    feed: Option<JoinHandle<()>>,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
}

impl Quire {
    /// Starts a command with this on its stdin.
    pub(crate) fn start<S: AsRef<OsStr>>(arguments: &[S], stdin: Vec<u8>) -> Quire {
        let mut command = command();
        command.args(arguments);
        Quire::spawn(command, stdin)
    }

    pub(crate) fn spawn(command: Command, stdin: Vec<u8>) -> Quire {
        // A command that does not read its input closes it: not ours to judge.
        Quire::spawn_fed(command, move |mut input| drop(input.write_all(&stdin)))
    }

    /// Starts a command with what this writes on its stdin.
    pub(crate) fn spawn_fed(mut command: Command, feed: impl FnOnce(ChildStdin) + Send + 'static) -> Quire {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = child.stdin.take().unwrap();
        let feed = std::thread::spawn(move || feed(input));
        let stdout = collect(child.stdout.take().unwrap());
        let stderr = collect(child.stderr.take().unwrap());
        Quire { child, started, feed: Some(feed), stdout: Some(stdout), stderr: Some(stderr) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn finish(mut self) -> Finished {
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if self.started.elapsed() > DEADLINE => {
                    self.child.kill().unwrap();
                    self.child.wait().unwrap();
                    let stderr = self.stderr.take().unwrap().join().unwrap();
                    panic!("not ended within {DEADLINE:?}: {}", String::from_utf8_lossy(&stderr));
                }
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        let took = self.started.elapsed();
        self.feed.take().unwrap().join().unwrap();
        let stdout = self.stdout.take().unwrap().join().unwrap();
        let stderr = self.stderr.take().unwrap().join().unwrap();
        Finished { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned(), took }
    }
}

impl Drop for Quire {
    fn drop(&mut self) {
        // Ended already, or ended now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A stream that breaks ends.
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

/// Runs a command to its end with nothing on stdin.
#[track_caller]
pub(crate) fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Finished {
    Quire::start(arguments, Vec::new()).finish()
}
