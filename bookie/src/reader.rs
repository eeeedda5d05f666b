//! Reading entries (B5): from the tail in memory, else through the block cache.
//! No error becomes `Absent`.

use std::fmt;
use std::io;
use std::sync::Arc;

use quire_ledger::message::{Read, Response};
use quire_ledger::record::{HEADER_LEN, Header, Kind, Payload, Record};
use quire_proto::id::{EntryId, LedgerId};

use crate::cache::BlockCache;
use crate::catalog::{Catalog, Lines, Location, LogFile, Lookup};
use crate::disk::Disk;
use crate::log::format::Generation;
use crate::log::index::Line;
use crate::log::scan;
use crate::tail::Tail;

/// Lines that are looked up at once.
const LOOK_UP_MAX: u32 = 256;

/// Reads entries. Shared; may block on the disk.
pub struct Reader<D: Disk> {
    catalog: Arc<Catalog<D::File>>,
    tail: Arc<Tail>,
    cache: BlockCache,
}

impl<D: Disk> fmt::Debug for Reader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// Why an entry was not read.
enum Trouble {
    /// It is not in memory, and the disk was not to be asked.
    NotInMemory,
    /// Another record is where the index of this file says.
    Misplaced(Generation),
    /// The bytes are bad or can't be read.
    Unreadable(String),
}

/// Where bytes may come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Memory,
    Anywhere,
}

/// What was gathered so far.
struct Gathered<'a> {
    read: &'a Read,
    next: EntryId,
    records: Vec<Record>,
    bytes: usize,
}

impl Gathered<'_> {
    fn is_full(&self) -> bool {
        self.records.len() >= self.read.max_entries.max(1) as usize
            || (!self.records.is_empty() && self.bytes >= self.read.max_bytes as usize)
    }

    /// Whether a record of this length is still wanted; the first one always.
    fn wants(&self, length: usize) -> bool {
        self.records.is_empty() || self.bytes + length <= self.read.max_bytes as usize
    }
}

impl<D: Disk> Reader<D> {
    /// A reader of this log.
    #[must_use]
    pub const fn new(catalog: Arc<Catalog<D::File>>, tail: Arc<Tail>, cache: BlockCache) -> Self {
        Self { catalog, tail, cache }
    }

    /// B5, whatever it takes.
    pub fn read(&self, read: &Read) -> Response {
        self.gather(read, From::Anywhere).unwrap_or_else(|| Response::Unknown("not in memory".to_owned()))
    }

    /// B5, if it can be answered without the disk: then at least one entry, or
    /// the answer that there is none.
    #[must_use]
    pub fn read_memory(&self, read: &Read) -> Option<Response> {
        self.gather(read, From::Memory)
    }

    /// The payload CRC of a durable entry, for comparison with a duplicate (B3).
    #[must_use]
    pub fn payload_crc(&self, ledger: LedgerId, entry: EntryId) -> Option<u32> {
        let read = Read { ledger, from: entry, max_entries: 1, max_bytes: 0, prefix: true };
        match self.read(&read) {
            Response::Entries(records) => records.first().map(|record| record.header.payload_crc),
            _ => None,
        }
    }

    fn gather(&self, read: &Read, from: From) -> Option<Response> {
        let mut gathered = Gathered { read, next: read.from, records: Vec::new(), bytes: 0 };
        let mut relearnt = false;
        while !gathered.is_full() {
            let left =
                read.max_entries.saturating_sub(u32::try_from(gathered.records.len()).unwrap_or(u32::MAX));
            let location = match self.catalog.lookup(read.ledger, gathered.next, left.min(LOOK_UP_MAX)) {
                Lookup::Found(location) => location,
                // What was gathered is an answer of its own.
                _ if !gathered.records.is_empty() => break,
                Lookup::Absent => return Some(Response::Absent),
                Lookup::Deleted => return Some(Response::Deleted),
                Lookup::Unknown(why) => return Some(Response::Unknown(why)),
            };
            match self.gather_run(&location, &mut gathered, from) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) if !gathered.records.is_empty() => break,
                Err(Trouble::NotInMemory) => return None,
                Err(Trouble::Misplaced(generation)) if !relearnt => {
                    relearnt = true;
                    self.relearn(&location.file, generation);
                }
                Err(Trouble::Misplaced(_)) => {
                    return Some(Response::Unknown(format!(
                        "another record is in the place of entry {} of ledger {}",
                        gathered.next, read.ledger
                    )));
                }
                Err(Trouble::Unreadable(why)) => return Some(Response::Unknown(why)),
            }
        }
        Some(Response::Entries(gathered.records))
    }

    /// Gathers what is in one place; false when no more is wanted.
    fn gather_run(
        &self,
        location: &Location<D::File>,
        gathered: &mut Gathered<'_>,
        from: From,
    ) -> Result<bool, Trouble> {
        let (lines, stored) = match &location.lines {
            Lines::Known(lines) => (lines.clone(), false),
            Lines::Stored(..) if from == From::Memory => return Err(Trouble::NotInMemory),
            Lines::Stored(stored, first, count) => {
                let misplaced = |_| Trouble::Misplaced(location.file.generation);
                (stored.read(*first, *count).map_err(misplaced)?, true)
            }
        };
        for line in lines {
            if gathered.is_full() {
                return Ok(false);
            }
            let length = HEADER_LEN + line.payload_len as usize;
            if !gathered.read.prefix && !gathered.wants(length) {
                return Ok(false);
            }
            let record = self.record(&location.file, line, gathered.read, gathered.next, from);
            let record = record.map_err(|trouble| match trouble {
                // What is known from writing it is not wrong: the bytes are.
                Trouble::Misplaced(_) if !stored => Trouble::Unreadable(format!(
                    "entry {} of ledger {} is damaged on the disk",
                    gathered.next, gathered.read.ledger
                )),
                trouble => trouble,
            })?;
            let length = HEADER_LEN + record.payload.len();
            if !gathered.wants(length) {
                return Ok(false);
            }
            gathered.bytes += length;
            gathered.next = gathered.next.next();
            gathered.records.push(record);
        }
        Ok(true)
    }

    fn record(
        &self,
        file: &LogFile<D::File>,
        line: Line,
        read: &Read,
        entry: EntryId,
        from: From,
    ) -> Result<Record, Trouble> {
        let position = u64::from(line.position);
        let payload_len = line.payload_len as usize;
        if position + (HEADER_LEN + payload_len) as u64 > file.durable() {
            return Err(Trouble::Misplaced(file.generation));
        }
        let tail = self.tail.get(file.generation, position, HEADER_LEN + payload_len);
        let in_memory = tail.is_some();
        if !in_memory && from == From::Memory {
            return Err(Trouble::NotInMemory);
        }
        let unreadable = |error: io::Error| Trouble::Unreadable(format!("the disk cannot be read: {error}"));
        let mut head = [0; HEADER_LEN];
        match &tail {
            Some(bytes) => head.copy_from_slice(&bytes[..HEADER_LEN]),
            None => {
                let mut at = 0;
                let copy = |piece: bytes::Bytes| {
                    head[at..at + piece.len()].copy_from_slice(&piece);
                    at += piece.len();
                };
                self.cache.read(file, position, HEADER_LEN, copy).map_err(unreadable)?;
            }
        }
        let mut header = Header::decode(&head)
            .ok()
            .filter(|header| {
                header.ledger == read.ledger
                    && header.entry == entry
                    && matches!(header.kind, Kind::Append | Kind::Copied)
                    && header.payload_len == line.payload_len
            })
            .ok_or(Trouble::Misplaced(file.generation))?;
        header.kind = Kind::Append;
        let wanted = if read.prefix { header.prefix_len as usize } else { payload_len };
        let payload = match tail {
            Some(bytes) => Payload::from(bytes.slice(HEADER_LEN..HEADER_LEN + wanted)),
            None => {
                let mut payload = Payload::default();
                let at = position + HEADER_LEN as u64;
                self.cache.read(file, at, wanted, |piece| payload.push(piece)).map_err(unreadable)?;
                payload
            }
        };
        // What is in memory was checked when it came in; of a prefix that is not
        // the whole payload nothing but its owner can tell.
        if !in_memory && wanted == payload_len && payload.crc() != header.payload_crc {
            metrics::counter!("quire_bookie_corrupt_entries_total").increment(1);
            tracing::error!(ledger = read.ledger.0, entry = entry.0, "an entry is damaged on the disk");
            return Err(Trouble::Unreadable(format!(
                "entry {entry} of ledger {} is damaged on the disk",
                read.ledger
            )));
        }
        Ok(Record { header, payload })
    }

    /// An index that is wrong is dropped, and what it should say found by a scan
    /// (L7).
    fn relearn(&self, file: &Arc<LogFile<D::File>>, generation: Generation) {
        metrics::counter!("quire_bookie_indexes_rebuilt_total").increment(1);
        tracing::warn!(generation = generation.0, "an index is wrong: scanning its log file");
        let mut records = Vec::new();
        if let Some(header) = scan::file_header(&*file.file) {
            scan::scan(&*file.file, &header, |batch| records.extend(batch.records.into_iter().flatten()));
        }
        self.catalog.relearn(generation, &records);
    }
}
