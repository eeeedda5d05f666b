//! What can be read: which ledgers there are, how far each is durable, and in
//! which file each entry is. The log thread publishes to it after each sync;
//! any number of readers look things up. Derived from the log (L7).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use quire_ledger::record::{HEADER_LEN, Kind};
use quire_ledger::replica::RangeSet;
use quire_proto::id::{EntryId, LedgerId};

use crate::disk::DiskFile;
use crate::log::format::Generation;
use crate::log::index::{Directory, Line, Run, StoredLines};
use crate::log::scan::Placed;

/// A log file that can be read. Whoever holds one keeps it from being recycled.
pub struct LogFile<F> {
    /// Which one.
    pub generation: Generation,
    /// Its bytes.
    pub file: Arc<F>,
    /// All bytes below are durable.
    durable: AtomicU64,
}

impl<F: DiskFile> LogFile<F> {
    /// A file whose first bytes are durable.
    #[must_use]
    pub fn new(generation: Generation, file: Arc<F>, durable: u64) -> Self {
        Self { generation, file, durable: AtomicU64::new(durable) }
    }

    /// All bytes below are durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// After a sync.
    pub fn set_durable(&self, durable: u64) {
        self.durable.store(durable, Ordering::Release);
    }
}

impl<F> fmt::Debug for LogFile<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogFile").field("generation", &self.generation.0).finish_non_exhaustive()
    }
}

/// Where to look for an entry.
#[derive(Clone, Debug)]
pub struct Location<F> {
    /// The file.
    pub file: Arc<LogFile<F>>,
    /// The place in it, for this and the following entries.
    pub lines: Lines<F>,
}

/// Places of entries that follow one another; at least one.
#[derive(Clone, Debug)]
pub enum Lines<F> {
    /// Known.
    Known(Vec<Line>),
    /// To be read from the index: first line and number of lines.
    Stored(StoredLines<F>, u32, u32),
}

/// The answer to a look-up.
#[derive(Debug)]
pub enum Lookup<F> {
    /// It is here.
    Found(Location<F>),
    /// It certainly is not here.
    Absent,
    /// Its ledger is deleted.
    Deleted,
    /// It can't be told, for this reason (B5).
    Unknown(String),
}

/// Bytes of a file: of all its entries that still can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of living entries.
    pub live: u64,
}

#[derive(Debug)]
struct Extent {
    first: u64,
    count: u32,
    generation: Generation,
    bytes: u64,
    lines: ExtentLines,
}

#[derive(Debug)]
enum ExtentLines {
    Memory(Vec<Line>),
    Stored(u32),
}

impl Extent {
    const fn end(&self) -> u64 {
        self.first + self.count as u64
    }
}

#[derive(Debug)]
struct Readable {
    length: EntryId,
    /// Whether what is not here certainly never was.
    certain: bool,
    /// By their first entry. They overlap only where a hole was filled again.
    extents: Vec<Extent>,
}

struct Source<F> {
    file: Arc<LogFile<F>>,
    lines: Option<StoredLines<F>>,
}

struct Inner<F> {
    ledgers: HashMap<LedgerId, Readable>,
    tombstones: RangeSet,
    mark: LedgerId,
    files: BTreeMap<Generation, Source<F>>,
}

/// What can be read. Shared by the log thread and all readers.
pub struct Catalog<F> {
    inner: RwLock<Inner<F>>,
}

impl<F> fmt::Debug for Catalog<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog").finish_non_exhaustive()
    }
}

impl<F: DiskFile> Default for Catalog<F> {
    fn default() -> Self {
        Self {
            inner: RwLock::new(Inner {
                ledgers: HashMap::new(),
                tombstones: RangeSet::default(),
                mark: LedgerId(0),
                files: BTreeMap::new(),
            }),
        }
    }
}

impl<F: DiskFile> Catalog<F> {
    fn read(&self) -> RwLockReadGuard<'_, Inner<F>> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner<F>> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks an entry up, with as many after it, at most `max`, as are in the
    /// same place.
    pub fn lookup(&self, ledger: LedgerId, entry: EntryId, max: u32) -> Lookup<F> {
        let inner = self.read();
        if inner.tombstones.contains(ledger.0) {
            return Lookup::Deleted;
        }
        let marked = ledger < inner.mark;
        let Some(readable) = inner.ledgers.get(&ledger) else {
            return if marked { lost(inner.mark) } else { Lookup::Absent };
        };
        let Some(extent) = readable.covering(entry.0) else {
            // Below the length it was here: a hole is never `Absent` (L7).
            return match entry < readable.length {
                _ if marked => lost(inner.mark),
                true => Lookup::Unknown(format!("entry {entry} of ledger {ledger} is in no index")),
                false if !readable.certain => {
                    Lookup::Unknown(format!("this replica of ledger {ledger} may have lost entries"))
                }
                false => Lookup::Absent,
            };
        };
        let Some(source) = inner.files.get(&extent.generation) else {
            return Lookup::Unknown(format!("log file {} is gone", extent.generation.0));
        };
        #[expect(clippy::cast_possible_truncation, reason = "below the extent's count, which is a u32")]
        let skip = (entry.0 - extent.first) as u32;
        let count = (extent.count - skip).min(max.max(1));
        let lines = match (&extent.lines, &source.lines) {
            (ExtentLines::Memory(lines), _) => {
                Lines::Known(lines[skip as usize..(skip + count) as usize].to_vec())
            }
            (ExtentLines::Stored(first), Some(stored)) => Lines::Stored(stored.clone(), first + skip, count),
            (ExtentLines::Stored(_), None) => {
                return Lookup::Unknown(format!("the index of log file {} is gone", extent.generation.0));
            }
        };
        Lookup::Found(Location { file: Arc::clone(&source.file), lines })
    }

    /// Records that were synced, in the order of the log.
    pub fn publish(&self, generation: Generation, records: &[Placed]) {
        let mut inner = self.write();
        for record in records {
            inner.apply(generation, record);
        }
    }

    /// A file that can be read from now on, and its index if it has one.
    pub fn add_file(&self, file: Arc<LogFile<F>>, directory: Option<Directory<F>>) {
        let mut inner = self.write();
        let generation = file.generation;
        let (runs, lines) = directory.map_or((Vec::new(), None), |d| (d.runs, Some(d.lines)));
        inner.files.insert(generation, Source { file, lines });
        let mut line = 0;
        for run in runs {
            let Run { ledger, first, count, bytes } = run;
            let extent = Extent { first, count, generation, bytes, lines: ExtentLines::Stored(line) };
            line += count;
            if !inner.tombstones.contains(ledger.0) {
                inner.readable(ledger).insert(extent);
            }
        }
    }

    /// Takes a file out: it is found no more. Who still reads it holds it.
    pub fn remove_file(&self, generation: Generation) -> Option<Arc<LogFile<F>>> {
        let mut inner = self.write();
        for readable in inner.ledgers.values_mut() {
            readable.extents.retain(|extent| extent.generation != generation);
        }
        inner.files.remove(&generation).map(|source| source.file)
    }

    /// A file.
    pub fn file(&self, generation: Generation) -> Option<Arc<LogFile<F>>> {
        self.read().files.get(&generation).map(|source| Arc::clone(&source.file))
    }

    /// The files whose lines are in memory, but for the newest, which is still
    /// written.
    pub fn unindexed(&self) -> Vec<Generation> {
        let inner = self.read();
        let newest = inner.files.keys().next_back().copied();
        let missing =
            inner.files.iter().filter(|&(&id, source)| source.lines.is_none() && Some(id) != newest);
        missing.map(|(&generation, _)| generation).collect()
    }

    /// The runs and lines of a file whose lines are in memory, as its index
    /// holds them.
    pub fn lines_of(&self, generation: Generation) -> (Vec<Run>, Vec<Line>) {
        let inner = self.read();
        let mut runs = Vec::new();
        for (&ledger, readable) in &inner.ledgers {
            for extent in readable.extents.iter().filter(|extent| extent.generation == generation) {
                if let ExtentLines::Memory(lines) = &extent.lines {
                    let Extent { first, count, bytes, .. } = *extent;
                    runs.push((Run { ledger, first, count, bytes }, lines.clone()));
                }
            }
        }
        runs.sort_by_key(|(run, _)| (run.ledger, run.first));
        let lines = runs.iter().flat_map(|(_, lines)| lines.iter().copied()).collect();
        (runs.into_iter().map(|(run, _)| run).collect(), lines)
    }

    /// The file's index is written: its lines are read from there from now on.
    pub fn switch_to_index(&self, generation: Generation, directory: Directory<F>) {
        let mut inner = self.write();
        let mut line = 0;
        for run in directory.runs {
            if let Some(readable) = inner.ledgers.get_mut(&run.ledger) {
                for extent in &mut readable.extents {
                    if extent.generation == generation && extent.first == run.first {
                        extent.lines = ExtentLines::Stored(line);
                    }
                }
            }
            line += run.count;
        }
        if let Some(source) = inner.files.get_mut(&generation) {
            source.lines = Some(directory.lines);
        }
    }

    /// Replaces what is known of a file by what a scan found in it.
    pub fn relearn(&self, generation: Generation, records: &[Placed]) {
        let mut inner = self.write();
        for readable in inner.ledgers.values_mut() {
            readable.extents.retain(|extent| extent.generation != generation);
        }
        if let Some(source) = inner.files.get_mut(&generation) {
            source.lines = None;
        }
        for record in records.iter().filter(|record| is_entry(record.header.kind)) {
            inner.learn_entry(generation, record);
        }
    }

    /// How a boot leaves the ledgers: their lengths, and what is known of the
    /// whole bookie.
    pub fn settle(&self, tombstones: &RangeSet, mark: LedgerId, ledgers: impl Iterator<Item = Settled>) {
        let mut inner = self.write();
        let mut extents = std::mem::take(&mut inner.ledgers);
        for settled in ledgers {
            let extents = extents.remove(&settled.ledger).map_or(Vec::new(), |readable| readable.extents);
            let readable = Readable { length: settled.length, certain: settled.certain, extents };
            inner.ledgers.insert(settled.ledger, readable);
        }
        inner.tombstones.clone_from(tombstones);
        inner.mark = mark;
    }

    /// What of each file can still be read.
    pub fn usage(&self) -> BTreeMap<Generation, Usage> {
        let inner = self.read();
        let mut usage: BTreeMap<_, _> =
            inner.files.keys().map(|&generation| (generation, Usage::default())).collect();
        for extent in inner.ledgers.values().flat_map(|readable| &readable.extents) {
            usage.entry(extent.generation).or_default().live += extent.bytes;
        }
        usage
    }

    /// The runs of living ledgers in a file.
    pub fn runs_of(&self, generation: Generation) -> Vec<Run> {
        let inner = self.read();
        let mut runs = Vec::new();
        for (&ledger, readable) in &inner.ledgers {
            for extent in readable.extents.iter().filter(|extent| extent.generation == generation) {
                let Extent { first, count, bytes, .. } = *extent;
                runs.push(Run { ledger, first, count, bytes });
            }
        }
        runs.sort_by_key(|run| (run.ledger, run.first));
        runs
    }

    /// Number of ledgers.
    pub fn ledgers(&self) -> usize {
        self.read().ledgers.len()
    }
}

/// A ledger as a boot found it.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// Which.
    pub ledger: LedgerId,
    /// Its number of entries.
    pub length: EntryId,
    /// Whether what is not here certainly never was.
    pub certain: bool,
}

fn lost<F>(mark: LedgerId) -> Lookup<F> {
    Lookup::Unknown(format!(
        "this bookie lost a tail of its log and may have lost entries of ledgers below {mark}"
    ))
}

const fn is_entry(kind: Kind) -> bool {
    matches!(kind, Kind::Append | Kind::Copied)
}

impl<F> Inner<F> {
    fn readable(&mut self, ledger: LedgerId) -> &mut Readable {
        self.ledgers.entry(ledger).or_insert_with(|| Readable {
            length: EntryId(0),
            certain: true,
            extents: Vec::new(),
        })
    }

    fn apply(&mut self, generation: Generation, record: &Placed) {
        let header = &record.header;
        match header.kind {
            Kind::Append | Kind::Copied => self.learn_entry(generation, record),
            Kind::Create => _ = self.readable(header.ledger),
            Kind::Fence if header.entry > EntryId(0) => self.readable(header.ledger).certain = false,
            Kind::Fence => _ = self.readable(header.ledger),
            Kind::Import => self.readable(header.ledger).certain = false,
            Kind::Mark => self.mark = self.mark.max(header.ledger),
            Kind::Tombstone => {
                let (first, last) = (header.ledger.0, header.entry.0);
                self.tombstones.insert(first, last);
                self.ledgers.retain(|ledger, _| !(first..=last).contains(&ledger.0));
            }
        }
    }

    fn learn_entry(&mut self, generation: Generation, record: &Placed) {
        let header = &record.header;
        let Ok(position) = u32::try_from(record.position) else { return };
        if self.tombstones.contains(header.ledger.0) {
            return;
        }
        let line = Line { position, payload_len: header.payload_len };
        let readable = self.readable(header.ledger);
        readable.push(generation, header.entry.0, line);
        if header.entry == readable.length {
            readable.length = header.entry.next();
        }
    }
}

impl Readable {
    /// The extent that holds the entry; of several the one of the newest file.
    fn covering(&self, entry: u64) -> Option<&Extent> {
        let before = &self.extents[..self.extents.partition_point(|extent| extent.first <= entry)];
        let nearest = before.last().filter(|extent| entry < extent.end());
        // Only where a hole was filled again does an earlier one reach further.
        nearest.or_else(|| before.iter().rev().find(|extent| entry < extent.end()))
    }

    fn push(&mut self, generation: Generation, entry: u64, line: Line) {
        let bytes = HEADER_LEN as u64 + u64::from(line.payload_len);
        let grows = self.extents.iter_mut().rev().take(2).find(|extent| {
            extent.generation == generation
                && extent.end() == entry
                && matches!(extent.lines, ExtentLines::Memory(_))
        });
        if let Some(extent) = grows
            && let ExtentLines::Memory(lines) = &mut extent.lines
        {
            lines.push(line);
            extent.count += 1;
            extent.bytes += bytes;
            return;
        }
        let lines = ExtentLines::Memory(vec![line]);
        self.insert(Extent { first: entry, count: 1, generation, bytes, lines });
    }

    /// Keeps the order; of two that hold the same the newer file's stays.
    fn insert(&mut self, extent: Extent) {
        self.extents.retain(|old| {
            let covered = extent.first <= old.first && old.end() <= extent.end();
            !(covered && old.generation < extent.generation)
        });
        let superseded = self.extents.iter().any(|other| {
            other.generation > extent.generation && other.first <= extent.first && extent.end() <= other.end()
        });
        if superseded {
            return;
        }
        let at = self.extents.partition_point(|other| other.first <= extent.first);
        self.extents.insert(at, extent);
    }
}
