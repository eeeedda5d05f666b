//! Ports for servers. They lie below the range from which the kernel takes
//! ports for connections, so that a server that is restarted finds its port
//! free; a locked file keeps other tests away from them.

use std::fs::{self, File, TryLockError};
use std::net::TcpListener;

/// A port that is this test's until it is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    _lock: File,
}

impl Port {
    pub(crate) fn take() -> Port {
        let directory = std::env::temp_dir().join("quire-test-ports");
        fs::create_dir_all(&directory).unwrap();
        for _ in 0..1000 {
            let number = rand::random_range(15_000..30_000);
            let lock = File::create(directory.join(number.to_string())).unwrap();
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => continue,
                Err(TryLockError::Error(error)) => panic!("cannot lock a file: {error}"),
            }
            if TcpListener::bind(("127.0.0.1", number)).is_ok() {
                return Port { number, _lock: lock };
            }
        }
        panic!("no free port in a thousand tries");
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.number)
    }
}
