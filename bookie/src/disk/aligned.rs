//! Buffers that start on a block of memory, as direct I/O wants it. They are
//! pooled: a fresh one of some MiB costs a page fault every 4 KiB.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// All buffers start on a multiple of this; no file system asks for more.
const ALIGNMENT: usize = 4096;

/// A buffer of fixed capacity that starts on a block. Bytes that were never
/// written are zero, or left from an earlier use.
pub struct AlignedBuffer {
    /// Never reallocated: `start` is where the alignment begins.
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
    pool: Option<Arc<Shelf>>,
}

impl AlignedBuffer {
    /// A buffer of at least this capacity, rounded up to blocks.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.next_multiple_of(ALIGNMENT);
        let bytes = vec![0; capacity + ALIGNMENT].into_boxed_slice();
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        Self { bytes, start, len: 0, pool: None }
    }

    /// How much fits.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.bytes.len() - ALIGNMENT
    }

    /// How much is in it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds bytes at the end. The caller has checked that they fit.
    pub fn extend(&mut self, bytes: &[u8]) {
        let at = self.start + self.len;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    /// Sets the length; what is added has whatever content was there.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity(), "a buffer of {} bytes cannot hold {len}", self.capacity());
        self.len = len;
    }

    /// Adds zeros up to a multiple of `block`.
    pub fn pad(&mut self, block: usize) {
        let end = self.len.next_multiple_of(block);
        let (from, to) = (self.start + self.len, self.start + end);
        self.bytes[from..to].fill(0);
        self.len = end;
    }

    /// What is in it.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// What is in it.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuffer").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if let Some(shelf) = self.pool.take() {
            shelf.put_back(std::mem::take(&mut self.bytes));
        }
    }
}

/// Buffers of one size that come back when they are dropped.
#[derive(Clone, Debug)]
pub struct BufferPool {
    shelf: Arc<Shelf>,
}

struct Shelf {
    capacity: usize,
    idle_max: usize,
    idle: Mutex<Vec<Box<[u8]>>>,
}

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shelf").field("capacity", &self.capacity).finish_non_exhaustive()
    }
}

impl Shelf {
    fn put_back(&self, bytes: Box<[u8]>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.idle_max {
            idle.push(bytes);
        }
    }
}

impl BufferPool {
    /// A pool of buffers of this capacity that keeps at most `idle_max` unused.
    /// It starts empty.
    #[must_use]
    pub fn new(capacity: usize, idle_max: usize) -> Self {
        let capacity = capacity.next_multiple_of(ALIGNMENT);
        Self { shelf: Arc::new(Shelf { capacity, idle_max, idle: Mutex::default() }) }
    }

    /// An empty buffer.
    #[must_use]
    pub fn take(&self) -> AlignedBuffer {
        let idle = self.shelf.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = match idle {
            Some(bytes) => {
                let start = bytes.as_ptr().align_offset(ALIGNMENT);
                AlignedBuffer { bytes, start, len: 0, pool: None }
            }
            None => AlignedBuffer::new(self.shelf.capacity),
        };
        buffer.pool = Some(Arc::clone(&self.shelf));
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_on_a_block_and_pad_with_zeros() {
        let pool = BufferPool::new(8192, 1);
        for _ in 0..3 {
            let mut buffer = pool.take();
            assert_eq!(buffer.as_slice().as_ptr().align_offset(ALIGNMENT), 0);
            buffer.extend(&[7; 100]);
            buffer.pad(4096);
            assert_eq!(buffer.len(), 4096);
            assert!(buffer.as_slice()[100..].iter().all(|&byte| byte == 0));
            buffer.extend(&[9; 4096]);
        }
    }

    #[test]
    fn a_pool_keeps_no_more_than_it_may() {
        let pool = BufferPool::new(4096, 2);
        drop((0..5).map(|_| pool.take()).collect::<Vec<_>>());
        assert_eq!(pool.shelf.idle.lock().unwrap().len(), 2);
    }
}
