//! The disk: a flat directory of files. Everything is synchronous; who calls
//! is on a thread that may block.
//!
//! - [`real`]: a directory of the file system, past the page cache if it can be.
//! - [`sim`]: a disk that drops, tears and reorders what was not synced.
//! - [`aligned`]: buffers that start and end on a block.

pub mod aligned;
pub mod real;
pub mod sim;

use std::fmt;
use std::io;
use std::sync::Arc;

pub use aligned::{AlignedBuffer, BufferPool};
pub use real::RealDisk;
pub use sim::SimDisk;

/// Log batches start and end on a multiple of this, or of the disk's own block
/// when that is larger (L2).
pub const BLOCK: usize = 4096;

/// How a file is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache where the file system can: offsets, lengths and
    /// buffers are multiples of [`Disk::block`].
    Direct,
    /// Through the page cache.
    Cached,
}

/// Space of the disk, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// In use, by whatever.
    pub used: u64,
    /// What can still be written. A file system may keep some of the rest for
    /// itself or for the system's administrator.
    pub free: u64,
}

impl Space {
    /// The part in use when so many bytes are free: as `df` counts, without
    /// what a file system keeps back.
    #[must_use]
    pub fn part_in_use(&self, free: u64) -> f64 {
        1.0 - free as f64 / (self.used + self.free).max(1) as f64
    }
}

/// A directory of files.
pub trait Disk: Clone + Send + Sync + fmt::Debug + 'static {
    /// An open file.
    type File: DiskFile;

    /// What direct access is aligned to; at least [`BLOCK`].
    fn block(&self) -> usize;

    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Opens a file that exists.
    fn open(&self, name: &str, access: Access) -> io::Result<Arc<Self::File>>;

    /// Makes a file of this length, its space reserved; it reads as zeros.
    /// Fails if it exists. Durable after [`DiskFile::sync`] and
    /// [`Disk::sync_dir`].
    fn create(&self, name: &str, len: u64, access: Access) -> io::Result<Arc<Self::File>>;

    /// Renames a file, over another if there is one. Durable after
    /// [`Disk::sync_dir`].
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Durable after [`Disk::sync_dir`].
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes names durable.
    fn sync_dir(&self) -> io::Result<()>;

    /// A small file's content, if it exists.
    fn get(&self, name: &str) -> io::Result<Option<Vec<u8>>>;

    /// Replaces a small file's content, atomically and durably, by way of
    /// another file. The content is not empty.
    fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.new");
        if self.get(&temporary)?.is_some() {
            self.remove(&temporary)?;
        }
        let file = self.create(&temporary, content.len() as u64, Access::Cached)?;
        file.write_at(content, 0)?;
        file.sync()?;
        self.rename(&temporary, name)?;
        self.sync_dir()
    }

    /// Space left.
    fn space(&self) -> io::Result<Space>;
}

/// An open file. Its length never changes.
pub trait DiskFile: Send + Sync + fmt::Debug + 'static {
    /// Its length, bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills the buffer from this offset on.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of the buffer. Durable after [`DiskFile::sync`].
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;

    /// Makes what was written durable. After an error the file is in an unknown
    /// state and a later success means nothing (L5).
    fn sync(&self) -> io::Result<()>;
}
