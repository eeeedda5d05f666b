//! A small file system of its own, in memory.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A tmpfs, unmounted when dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    directory: TempDir,
}

impl SmallDisk {
    /// # Panics
    /// When this process may not mount: the test wants root.
    pub(crate) fn new(mebibytes: u32) -> SmallDisk {
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={mebibytes}m");
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(directory.path())
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&mount.stderr);
        assert!(mount.status.success(), "cannot mount a tmpfs (the full-disk test runs as root): {why}");
        SmallDisk { directory }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily, for the server that held files on it may still be ending.
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
