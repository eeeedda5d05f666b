//! Reads a log file from end to end: every batch that can be found, past bad
//! ones too (L4).

use quire_ledger::record::Header;

use super::format::{BATCH_HEADER_LEN, BatchHeader, Content, FileHeader, Found, check_batch, header_crc};
use crate::disk::{AlignedBuffer, BLOCK, DiskFile};

/// Read at once.
const WINDOW_BYTES: usize = 4 << 20;

/// A batch that was found. Its header is good.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Where it begins in the file.
    pub position: u64,
    /// Its header.
    pub header: BatchHeader,
    /// Its header's CRC, which the next batch names.
    pub crc: u32,
    /// Its records; nothing when the body is bad.
    pub records: Option<Vec<Placed>>,
    /// The body of a snapshot, and of nothing else.
    pub snapshot: Vec<u8>,
}

/// A record in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its header.
    pub header: Header,
    /// Where its header begins in the file.
    pub position: u64,
    /// Of a creation, the creator: the payload of no other record is kept.
    pub creator: Option<[u8; 16]>,
}

/// Reads the header of a file; nothing when it is none or can't be read.
pub fn file_header(file: &impl DiskFile) -> Option<FileHeader> {
    let mut block = AlignedBuffer::new(BLOCK);
    block.resize(BLOCK);
    file.read_at(block.as_mut_slice(), 0).ok()?;
    FileHeader::decode(block.as_slice())
}

/// Finds the batches of a file, in order of their place. What the disk refuses
/// to read counts as bad bytes.
pub fn scan(file: &impl DiskFile, header: &FileHeader, mut visit: impl FnMut(Batch)) {
    let block = header.block as usize;
    let mut window = Window::new(file, block);
    let mut position = block as u64;
    while let Some(bytes) = window.at(position, block) {
        let Some(batch) = BatchHeader::decode(bytes, header) else {
            position += block as u64;
            continue;
        };
        let crc = header_crc(bytes);
        let found = window.at(position, batch.length as usize).and_then(|bytes| {
            let records = check_batch(&batch, bytes, header.seed())?;
            let snapshot = match batch.content {
                Content::Snapshot { .. } => bytes[BATCH_HEADER_LEN..batch.length as usize].to_vec(),
                _ => Vec::new(),
            };
            Some((records.into_iter().map(|found| place(found, position, bytes)).collect(), snapshot))
        });
        let good = found.is_some();
        let (records, snapshot) = found.map_or((None, Vec::new()), |(records, body)| (Some(records), body));
        visit(Batch { position, header: batch, crc, records, snapshot });
        // Behind a bad body the next batch may begin at any block.
        let length = if good { (batch.length as usize).next_multiple_of(block) } else { block };
        position += length as u64;
    }
}

fn place(found: Found, position: u64, batch: &[u8]) -> Placed {
    use quire_ledger::record::{HEADER_LEN, Kind};
    let creator = match found.header.kind {
        Kind::Create => batch.get(found.at + HEADER_LEN..).and_then(|payload| payload.first_chunk()).copied(),
        _ => None,
    };
    Placed { header: found.header, position: position + found.at as u64, creator }
}

/// A part of the file in memory.
struct Window<'a, F> {
    file: &'a F,
    block: usize,
    buffer: AlignedBuffer,
    from: u64,
}

impl<'a, F: DiskFile> Window<'a, F> {
    fn new(file: &'a F, block: usize) -> Self {
        let whole = usize::try_from(file.len()).unwrap_or(usize::MAX).next_multiple_of(block);
        Self { file, block, buffer: AlignedBuffer::new(whole.clamp(block, WINDOW_BYTES)), from: 0 }
    }

    /// At least `length` bytes from this position on; nothing at the file's end.
    fn at(&mut self, position: u64, length: usize) -> Option<&[u8]> {
        let length = length.next_multiple_of(self.block);
        let left = usize::try_from(self.file.len().checked_sub(position)?).ok()? / self.block * self.block;
        if length == 0 || length > left {
            return None;
        }
        let start = position.checked_sub(self.from).and_then(|start| usize::try_from(start).ok());
        let loaded = start.is_some_and(|start| start + length <= self.buffer.len());
        if !loaded {
            self.load(position, length.max(WINDOW_BYTES).min(left));
        }
        let start = usize::try_from(position - self.from).ok()?;
        self.buffer.as_slice().get(start..)
    }

    fn load(&mut self, position: u64, length: usize) {
        if self.buffer.capacity() < length {
            self.buffer = AlignedBuffer::new(length);
        }
        self.buffer.resize(length);
        self.from = position;
        if self.file.read_at(self.buffer.as_mut_slice(), position).is_ok() {
            return;
        }
        let mut at = position;
        for block in self.buffer.as_mut_slice().chunks_mut(self.block) {
            if self.file.read_at(block, at).is_err() {
                block.fill(0);
            }
            at += block.len() as u64;
        }
    }
}
