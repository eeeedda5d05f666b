//! The log: one sequential write for each byte (L1 to L5). A plain synchronous
//! struct: in production one thread drives it, in simulation the simulator.
//!
//! - [`mod@format`]: files and batches, byte by byte.
//! - [`snapshot`]: the state of all ledgers at the start of a file.
//! - [`boot`]: opening a log: scan, verdict, new file.
//! - [`scan`]: finding batches in a file.
//! - [`index`]: the index of a full file.
//! - [`pool`]: files that wait for their use.

pub mod boot;
pub mod format;
pub mod index;
pub mod pool;
pub mod scan;
pub mod snapshot;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use quire_ledger::record::{HEADER_LEN, Kind, Record};
use quire_proto::id::BookieId;

use self::format::{BATCH_HEADER_LEN, BatchHeader, Content, FileHeader, Generation, Sequence, header_crc};
use self::pool::{FilePool, log_name};
use self::scan::Placed;
use crate::catalog::{Catalog, LogFile};
use crate::disk::{AlignedBuffer, BufferPool, Disk, DiskFile};
use crate::error::Error;
use crate::tail::Tail;

/// A commit batch closes at this size, or at a quarter of a file; a larger
/// record goes alone.
pub const BATCH_BYTES: usize = 4 << 20;

/// Buffers that are kept for further use.
const IDLE_BUFFERS: usize = 4;

/// Random numbers for salts.
pub type Random = Box<dyn FnMut() -> u64 + Send>;

/// What the log works with.
pub struct Parts<D: Disk> {
    /// The directory.
    pub disk: D,
    /// Whose log it is.
    pub bookie: BookieId,
    /// Where files come from.
    pub pool: Arc<FilePool>,
    /// Where durable records are published.
    pub catalog: Arc<Catalog<D::File>>,
    /// Where durable batches are kept for a while.
    pub tail: Arc<Tail>,
    /// Salts.
    pub random: Random,
}

impl<D: Disk> fmt::Debug for Parts<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("disk", &self.disk)
            .field("bookie", &self.bookie)
            .finish_non_exhaustive()
    }
}

/// The log of a bookie.
pub struct Log<D: Disk> {
    parts: Parts<D>,
    active: Active<D::File>,
    /// Of the next batch.
    sequence: Sequence,
    /// All batches below are durable.
    durable: Sequence,
    /// The highest mark in the log.
    marked: Sequence,
    /// At which size a batch closes.
    batch_bytes: usize,
    buffers: BufferPool,
    building: Building,
}

/// The file that is written.
struct Active<F> {
    file: Arc<LogFile<F>>,
    header: FileHeader,
    position: u64,
    /// Header CRC of its last batch.
    previous: u32,
}

/// The batch that is being filled.
struct Building {
    buffer: AlignedBuffer,
    /// The records' headers: the body's CRC is over them.
    headers: Vec<[u8; HEADER_LEN]>,
    placed: Vec<Placed>,
}

impl<D: Disk> fmt::Debug for Log<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("generation", &self.active.header.generation.0)
            .field("sequence", &self.sequence.0)
            .field("durable", &self.durable.0)
            .finish_non_exhaustive()
    }
}

/// A file of which header and first batches are durable.
struct Begun<F> {
    active: Active<F>,
    batches: u64,
}

/// What a new file begins with.
struct Beginning<'a> {
    generation: Generation,
    first_sequence: Sequence,
    mark: Sequence,
    /// Raw records that a boot copies, with what is known of each.
    cut: Option<&'a Copies>,
    snapshot: Vec<Vec<u8>>,
}

/// Records that are written as they were.
#[derive(Debug, Default)]
struct Copies {
    bytes: Vec<u8>,
    /// Positions count from the first byte of `bytes`.
    placed: Vec<Placed>,
}

impl Copies {
    fn push(&mut self, record: &Record) {
        let position = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&record.header.encode());
        record.payload.pieces().iter().for_each(|piece| self.bytes.extend_from_slice(piece));
        self.placed.push(Placed { header: record.header, position, creator: creator_of(record) });
    }
}

impl<D: Disk> Log<D> {
    fn new(parts: Parts<D>, active: Active<D::File>, sequence: Sequence) -> Self {
        let quarter = usize::try_from(parts.pool.file_bytes() / 4).unwrap_or(BATCH_BYTES);
        let block = active.header.block as usize;
        let batch_bytes = quarter.min(BATCH_BYTES).next_multiple_of(block);
        let buffers = BufferPool::new(batch_bytes + block, IDLE_BUFFERS);
        let building = Building::new(buffers.take());
        Self { parts, active, sequence, durable: sequence, marked: sequence, batch_bytes, buffers, building }
    }

    /// Where the log is durable: the present file and the end of what is.
    #[must_use]
    pub const fn durable(&self) -> (Generation, Sequence) {
        (self.active.header.generation, self.durable)
    }

    /// Whether a record of this length still goes into the batch.
    #[must_use]
    pub fn has_room(&self, record_len: usize) -> bool {
        self.building.placed.is_empty() || self.building.buffer.len() + record_len <= self.batch_bytes
    }

    /// Whether nothing waits for a commit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.building.placed.is_empty()
    }

    /// Whether what is durable is not yet recorded as such (L2).
    #[must_use]
    pub fn owes_mark(&self) -> bool {
        self.marked < self.durable
    }

    /// Adds a record to the batch: the one time that its bytes are copied. The
    /// caller has committed when there was no room.
    pub fn append(&mut self, record: &Record) {
        let needed = BATCH_HEADER_LEN + record.header.record_len();
        if needed > self.building.buffer.capacity() {
            self.building.buffer = AlignedBuffer::new(needed + self.active.header.block as usize);
            self.building.buffer.resize(BATCH_HEADER_LEN);
        }
        self.building.push(record);
    }

    /// Writes the batch and syncs it; what it held is then published. Does
    /// nothing when the batch is empty. `snapshot` is asked when a new file
    /// begins: the state of all ledgers, as [`snapshot::encode`] gives it.
    ///
    /// # Errors
    /// [`Error::Disk`]: the log is in an unknown state and must be opened anew
    /// (L5).
    pub fn commit(&mut self, snapshot: impl FnOnce() -> Vec<Vec<u8>>) -> Result<(), Error> {
        if self.is_empty() { Ok(()) } else { self.write(snapshot) }
    }

    /// Records the durable mark in an empty batch, if it is not yet in the log
    /// (L2) and nothing waits that would record it anyway.
    ///
    /// # Errors
    /// As [`Log::commit`].
    pub fn commit_mark(&mut self, snapshot: impl FnOnce() -> Vec<Vec<u8>>) -> Result<(), Error> {
        if !self.is_empty() || !self.owes_mark() {
            return self.commit(snapshot);
        }
        self.write(snapshot)?;
        // The mark's own batch holds nothing that needs one.
        self.marked = self.durable;
        Ok(())
    }

    fn write(&mut self, snapshot: impl FnOnce() -> Vec<Vec<u8>>) -> Result<(), Error> {
        let block = self.active.header.block as usize;
        let length = self.building.buffer.len().next_multiple_of(block);
        // The last block is kept for "continues in".
        if self.active.position + (length + block) as u64 > self.active.file.file.len() {
            self.roll(snapshot(), length)?;
        }
        let next = Building::new(self.buffers.take());
        let Building { mut buffer, headers, mut placed } = std::mem::replace(&mut self.building, next);
        let (position, seed) = (self.active.position, self.active.header.seed());
        let header = BatchHeader {
            content: Content::Records,
            generation: self.active.header.generation,
            sequence: self.sequence,
            mark: self.durable,
            length: batch_len(buffer.len()),
            records: batch_len(headers.len()),
            previous: self.active.previous,
            body: headers.iter().fold(seed, |crc, header| crc32c::crc32c_append(crc, header)),
        };
        let encoded = header.encode(seed);
        buffer.as_mut_slice()[..BATCH_HEADER_LEN].copy_from_slice(&encoded);
        buffer.pad(block);
        self.put(&buffer, position)?;
        placed.iter_mut().for_each(|record| record.position += position);
        self.marked = self.durable;
        self.sequence = self.sequence.next();
        self.durable = self.sequence;
        self.active.previous = header_crc(&encoded);
        self.active.position += buffer.len() as u64;
        self.publish(position, buffer, &placed);
        Ok(())
    }

    /// Writes at the end of the active file and syncs.
    fn put(&self, buffer: &AlignedBuffer, position: u64) -> Result<(), Error> {
        let file = &self.active.file.file;
        file.write_at(buffer.as_slice(), position).map_err(|source| self.failed("write", source))?;
        file.sync().map_err(|source| self.failed("sync", source))?;
        metrics::counter!("quire_bookie_written_bytes_total").increment(buffer.len() as u64);
        metrics::counter!("quire_bookie_commits_total").increment(1);
        Ok(())
    }

    fn failed(&self, operation: &'static str, source: std::io::Error) -> Error {
        Error::Disk { operation, file: log_name(self.active.header.generation), source }
    }

    /// What is durable can be found and read from here on.
    fn publish(&self, position: u64, buffer: AlignedBuffer, placed: &[Placed]) {
        self.active.file.set_durable(position + buffer.len() as u64);
        if placed.is_empty() {
            return;
        }
        let generation = self.active.header.generation;
        // A small batch must not hold a large buffer.
        let batch = if buffer.len() < buffer.capacity() / 2 {
            Bytes::copy_from_slice(buffer.as_slice())
        } else {
            Bytes::from_owner(buffer)
        };
        self.parts.tail.push(generation, position, batch);
        self.parts.catalog.publish(generation, placed);
    }

    /// Goes on in the next file: begun and durable before the old one says so,
    /// which is durable before anything is acknowledged from the new (L3).
    fn roll(&mut self, snapshot: Vec<Vec<u8>>, room: usize) -> Result<(), Error> {
        let generation = self.active.header.generation.next();
        let first_sequence = self.sequence.next();
        let beginning = Beginning { generation, first_sequence, mark: self.durable, cut: None, snapshot };
        let Begun { active, batches } = begin_file(&mut self.parts, beginning, room)?;
        let block = self.active.header.block as usize;
        let seed = self.active.header.seed();
        let continues = BatchHeader {
            content: Content::Continues(generation),
            generation: self.active.header.generation,
            sequence: self.sequence,
            mark: self.durable,
            length: batch_len(BATCH_HEADER_LEN),
            records: 0,
            previous: self.active.previous,
            body: seed,
        };
        let mut buffer = AlignedBuffer::new(block);
        buffer.extend(&continues.encode(seed));
        buffer.pad(block);
        self.put(&buffer, self.active.position)?;
        self.active.file.set_durable(self.active.position + buffer.len() as u64);
        self.parts.catalog.add_file(Arc::clone(&active.file), None);
        self.active = active;
        self.sequence = Sequence(first_sequence.0 + batches);
        self.durable = self.sequence;
        metrics::counter!("quire_bookie_log_files_total").increment(1);
        tracing::debug!(generation = generation.0, "the log goes on in a new file");
        Ok(())
    }
}

impl Building {
    fn new(mut buffer: AlignedBuffer) -> Self {
        buffer.resize(BATCH_HEADER_LEN);
        Self { buffer, headers: Vec::new(), placed: Vec::new() }
    }

    fn push(&mut self, record: &Record) {
        let position = self.buffer.len() as u64;
        let header = record.header.encode();
        self.buffer.extend(&header);
        record.payload.pieces().iter().for_each(|piece| self.buffer.extend(piece));
        self.headers.push(header);
        self.placed.push(Placed { header: record.header, position, creator: creator_of(record) });
    }
}

/// Makes a file that begins with header, cut and snapshot, all synced before
/// the name says that it is a log file: what has such a name is whole.
fn begin_file<D: Disk>(
    parts: &mut Parts<D>,
    beginning: Beginning<'_>,
    room: usize,
) -> Result<Begun<D::File>, Error> {
    let Beginning { generation, first_sequence, mark, cut, snapshot } = beginning;
    let block = parts.disk.block();
    let header = FileHeader {
        block: batch_len(block),
        generation,
        salt: (parts.random)(),
        first_sequence,
        bookie: parts.bookie,
    };
    let mut writer = FileStart::new(header, mark, cut, &snapshot);
    if let Some(copies) = cut {
        let body = copies
            .placed
            .iter()
            .fold(header.seed(), |crc, placed| crc32c::crc32c_append(crc, &placed.header.encode()));
        writer.push(Content::Cut(first_sequence), batch_len(copies.placed.len()), body, &copies.bytes);
    }
    for (at, part) in snapshot.iter().enumerate() {
        let last = at + 1 == snapshot.len();
        let body = crc32c::crc32c_append(header.seed(), part);
        writer.push(Content::Snapshot { last }, 0, body, part);
    }
    let FileStart { buffer, previous, sequence, .. } = writer;

    let name = log_name(generation);
    let failed = |operation| {
        let file = name.clone();
        move |source| Error::Disk { operation, file, source }
    };
    // Room for what waits, for "continues in", and for a mark between them.
    let needed = (buffer.len() + room + 2 * block) as u64;
    let (waiting, file) = parts.pool.take(&parts.disk, needed).map_err(failed("creation"))?;
    file.write_at(buffer.as_slice(), 0).map_err(failed("write"))?;
    file.sync().map_err(failed("sync"))?;
    parts.disk.rename(&waiting, &name).map_err(failed("rename"))?;
    parts.disk.sync_dir().map_err(failed("sync of the directory"))?;
    let position = buffer.len() as u64;
    let file = Arc::new(LogFile::new(generation, file, position));
    let active = Active { file, header, position, previous };
    Ok(Begun { active, batches: sequence.0 - first_sequence.0 })
}

/// Header and first batches of a file, in one buffer.
struct FileStart {
    header: FileHeader,
    mark: Sequence,
    buffer: AlignedBuffer,
    previous: u32,
    sequence: Sequence,
}

impl FileStart {
    fn new(header: FileHeader, mark: Sequence, cut: Option<&Copies>, snapshot: &[Vec<u8>]) -> Self {
        let block = header.block as usize;
        let padded = |body: usize| (BATCH_HEADER_LEN + body).next_multiple_of(block);
        let bytes = block
            + cut.map_or(0, |copies| padded(copies.bytes.len()))
            + snapshot.iter().map(|part| padded(part.len())).sum::<usize>();
        let mut buffer = AlignedBuffer::new(bytes);
        buffer.extend(&header.encode());
        buffer.pad(block);
        Self { header, mark, buffer, previous: header.crc(), sequence: header.first_sequence }
    }

    fn push(&mut self, content: Content, records: u32, body_crc: u32, body: &[u8]) {
        let header = BatchHeader {
            content,
            generation: self.header.generation,
            sequence: self.sequence,
            mark: self.mark,
            length: batch_len(BATCH_HEADER_LEN + body.len()),
            records,
            previous: self.previous,
            body: body_crc,
        };
        let encoded = header.encode(self.header.seed());
        self.buffer.extend(&encoded);
        self.buffer.extend(body);
        self.buffer.pad(self.header.block as usize);
        self.previous = header_crc(&encoded);
        self.sequence = self.sequence.next();
    }
}

fn creator_of(record: &Record) -> Option<[u8; 16]> {
    if record.header.kind == Kind::Create { record.payload.to_bytes().first_chunk().copied() } else { None }
}

/// Lengths within a batch: bounded by the largest payload and by what a boot
/// copies, far below 4 GiB.
fn batch_len(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
