//! The index of a full log file: where each entry is (L7). Derived from the
//! log: one that is missing or damaged is built anew by a scan.
//!
//! A header of 64 bytes; the runs, 28 bytes each: ledger, first entry, number
//! of entries, bytes; the lines, 8 bytes an entry, in the runs' order. A boot
//! reads header and runs only; a read takes its lines by their place.

use std::io;
use std::sync::Arc;

use bytes::{Buf, BufMut};
use quire_proto::id::LedgerId;

use super::format::Generation;
use crate::disk::{Access, Disk, DiskFile};

const MAGIC: &[u8; 8] = b"quireidx";
const VERSION: u32 = 1;
const HEADER_LEN: usize = 64;
const RUN_LEN: usize = 28;
const LINE_LEN: usize = 8;

/// Where an entry's record is in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Of the record's header.
    pub position: u32,
    /// Of the payload.
    pub payload_len: u32,
}

/// Entries of one ledger that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their ledger.
    pub ledger: LedgerId,
    /// The first entry.
    pub first: u64,
    /// How many.
    pub count: u32,
    /// Bytes of their records.
    pub bytes: u64,
}

/// The runs of a file and where their lines begin.
#[derive(Debug)]
pub struct Directory<F> {
    /// In the order of their lines.
    pub runs: Vec<Run>,
    /// Reads the lines.
    pub lines: StoredLines<F>,
}

/// The lines of an index file.
#[derive(Debug)]
pub struct StoredLines<F> {
    file: Arc<F>,
    at: u64,
    count: u32,
}

impl<F> Clone for StoredLines<F> {
    fn clone(&self) -> Self {
        Self { file: Arc::clone(&self.file), at: self.at, count: self.count }
    }
}

impl<F> Clone for Directory<F> {
    fn clone(&self) -> Self {
        Self { runs: self.runs.clone(), lines: self.lines.clone() }
    }
}

impl<F: DiskFile> StoredLines<F> {
    /// Some lines.
    ///
    /// # Errors
    /// When they can't be read or there are not so many.
    pub fn read(&self, first: u32, count: u32) -> io::Result<Vec<Line>> {
        if first.checked_add(count).is_none_or(|end| end > self.count) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; count as usize * LINE_LEN];
        self.file.read_at(&mut bytes, self.at + u64::from(first) * LINE_LEN as u64)?;
        let mut at = &bytes[..];
        Ok((0..count).map(|_| Line { position: at.get_u32_le(), payload_len: at.get_u32_le() }).collect())
    }
}

/// The name of a file's index.
#[must_use]
pub fn name(generation: Generation) -> String {
    format!("{:020}.index", generation.0)
}

/// Writes an index and opens it.
///
/// # Errors
/// When the disk fails; the index is then not there.
pub fn write<D: Disk>(
    disk: &D,
    generation: Generation,
    runs: Vec<Run>,
    lines: &[Line],
) -> io::Result<Directory<D::File>> {
    let temporary = format!("{}.new", name(generation));
    let mut content = Vec::with_capacity(HEADER_LEN + runs.len() * RUN_LEN + lines.len() * LINE_LEN);
    content.put_bytes(0, HEADER_LEN);
    for run in &runs {
        content.put_u64_le(run.ledger.0);
        content.put_u64_le(run.first);
        content.put_u32_le(run.count);
        content.put_u64_le(run.bytes);
    }
    let lines_at = content.len();
    for line in lines {
        content.put_u32_le(line.position);
        content.put_u32_le(line.payload_len);
    }
    let too_many = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let count = u32::try_from(lines.len()).map_err(too_many)?;
    let mut header = Vec::with_capacity(HEADER_LEN);
    header.put_slice(MAGIC);
    header.put_u32_le(VERSION);
    header.put_u64_le(generation.0);
    header.put_u32_le(u32::try_from(runs.len()).map_err(too_many)?);
    header.put_u32_le(count);
    header.put_u32_le(crc32c::crc32c(&content[HEADER_LEN..lines_at]));
    header.put_u32_le(crc32c::crc32c(&content[lines_at..]));
    header.resize(HEADER_LEN - 4, 0);
    header.put_u32_le(crc32c::crc32c(&header));
    content[..HEADER_LEN].copy_from_slice(&header);

    if disk.list()?.contains(&temporary) {
        disk.remove(&temporary)?;
    }
    let file = disk.create(&temporary, content.len() as u64, Access::Cached)?;
    file.write_at(&content, 0)?;
    file.sync()?;
    disk.rename(&temporary, &name(generation))?;
    disk.sync_dir()?;
    Ok(Directory { runs, lines: StoredLines { file, at: lines_at as u64, count } })
}

/// Opens an index; nothing when it is missing or not whole.
pub fn open<D: Disk>(disk: &D, generation: Generation) -> Option<Directory<D::File>> {
    let file = disk.open(&name(generation), Access::Cached).ok()?;
    let mut header = [0; HEADER_LEN];
    file.read_at(&mut header, 0).ok()?;
    if (&header[HEADER_LEN - 4..]).get_u32_le() != crc32c::crc32c(&header[..HEADER_LEN - 4]) {
        return None;
    }
    let mut at = header.strip_prefix(MAGIC)?;
    if at.get_u32_le() != VERSION || at.get_u64_le() != generation.0 {
        return None;
    }
    let (run_count, count, crc) = (at.get_u32_le() as usize, at.get_u32_le(), at.get_u32_le());
    let lines_at = HEADER_LEN + run_count.checked_mul(RUN_LEN)?;
    if file.len() != (lines_at + count as usize * LINE_LEN) as u64 {
        return None;
    }
    let mut directory = vec![0; run_count * RUN_LEN];
    file.read_at(&mut directory, HEADER_LEN as u64).ok()?;
    if crc32c::crc32c(&directory) != crc {
        return None;
    }
    let mut at = &directory[..];
    let runs: Vec<_> = (0..run_count)
        .map(|_| Run {
            ledger: LedgerId(at.get_u64_le()),
            first: at.get_u64_le(),
            count: at.get_u32_le(),
            bytes: at.get_u64_le(),
        })
        .collect();
    let lines: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
    let whole = lines == u64::from(count) && runs.iter().all(|run| run.count > 0);
    whole.then_some(Directory { runs, lines: StoredLines { file, at: lines_at as u64, count } })
}
