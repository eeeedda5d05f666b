//! The read cache: aligned blocks of log files, not entries, so that ledgers
//! that lie side by side and are read together cost one pass over the disk.
//! Only what is wholly durable is in it.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use moka::policy::EvictionPolicy;
use moka::sync::Cache;

use crate::catalog::LogFile;
use crate::disk::{AlignedBuffer, DiskFile};
use crate::log::format::Generation;

/// Size of a block, bytes.
pub const CACHE_BLOCK: usize = 256 << 10;

/// So many blocks are read at once by one who reads block after block.
const READ_AHEAD: u64 = 4;

type Key = (Generation, u64);

/// Blocks of log files, at most so many bytes of them.
pub struct BlockCache {
    /// Nothing: every read goes to the disk.
    blocks: Option<Cache<Key, Bytes>>,
}

impl fmt::Debug for BlockCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockCache").field("enabled", &self.blocks.is_some()).finish()
    }
}

impl BlockCache {
    /// A cache of this many bytes; 0 for none.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let weight = |_: &Key, block: &Bytes| u32::try_from(block.len()).unwrap_or(u32::MAX);
        // Reading moves on: a block that was read often is behind, no reason to keep out
        // the next.
        let policy = EvictionPolicy::lru();
        let cache =
            || Cache::builder().max_capacity(bytes_max).weigher(weight).eviction_policy(policy).build();
        Self { blocks: (bytes_max > 0).then(cache) }
    }

    /// The bytes from `position` on, in pieces, each handed to `take`.
    ///
    /// # Errors
    /// When the disk refuses, or the bytes are not all durable.
    pub fn read<F: DiskFile>(
        &self,
        file: &LogFile<F>,
        position: u64,
        length: usize,
        mut take: impl FnMut(Bytes),
    ) -> io::Result<()> {
        let end = position.checked_add(length as u64).filter(|&end| end <= file.durable());
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = position;
        while at < end {
            let number = at / CACHE_BLOCK as u64;
            let start = number * CACHE_BLOCK as u64;
            let block = self.block(file, number)?;
            let from = offset(at - start);
            let to = offset(end - start).min(block.len());
            if from >= to {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            take(block.slice(from..to));
            at = start + to as u64;
        }
        Ok(())
    }

    fn block<F: DiskFile>(&self, file: &LogFile<F>, number: u64) -> io::Result<Bytes> {
        let whole = (number + 1) * CACHE_BLOCK as u64 <= file.durable();
        let Some(blocks) = self.blocks.as_ref().filter(|_| whole) else {
            return load(file, number, 1);
        };
        let key = (file.generation, number);
        if let Some(block) = blocks.get(&key) {
            metrics::counter!("quire_bookie_cache_hits_total").increment(1);
            return Ok(block);
        }
        let loaded = blocks.try_get_with(key, || {
            metrics::counter!("quire_bookie_cache_misses_total").increment(1);
            let in_sequence = number > 0 && blocks.contains_key(&(file.generation, number - 1));
            let durable = file.durable() / CACHE_BLOCK as u64;
            let count = if in_sequence { READ_AHEAD.min(durable - number) } else { 1 };
            let bytes = load(file, number, count)?;
            if count == 1 {
                return Ok(bytes);
            }
            // Each block becomes an allocation of its own: a slice would keep
            // the whole run in memory after its neighbours have made room.
            let block = |at: u64| {
                let from = offset(at) * CACHE_BLOCK;
                Bytes::copy_from_slice(&bytes[from..from + CACHE_BLOCK])
            };
            for ahead in 1..count {
                blocks.insert((file.generation, number + ahead), block(ahead));
            }
            Ok(block(0))
        });
        loaded.map_err(|error: Arc<io::Error>| io::Error::new(error.kind(), error.to_string()))
    }
}

/// Reads blocks, the last one as far as it is durable.
fn load<F: DiskFile>(file: &LogFile<F>, number: u64, count: u64) -> io::Result<Bytes> {
    let start = number * CACHE_BLOCK as u64;
    let end = (start + count * CACHE_BLOCK as u64).min(file.durable());
    let length = offset(end.saturating_sub(start));
    let mut buffer = AlignedBuffer::new(length);
    buffer.resize(length);
    file.file.read_at(buffer.as_mut_slice(), start)?;
    metrics::counter!("quire_bookie_disk_read_bytes_total").increment(length as u64);
    Ok(Bytes::from_owner(buffer))
}

/// Offsets within a few blocks, far below 4 GiB.
fn offset(distance: u64) -> usize {
    usize::try_from(distance).unwrap_or(usize::MAX)
}
