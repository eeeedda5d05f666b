//! Opening a log (L4): what the files say is gathered as facts, in any order;
//! lengths come out after the whole scan; nothing is admitted again.
//!
//! The newest file's start holds the state of all ledgers. Its batches are the
//! end of the log: they are read one by one, past bad ones too. Older files only
//! hold entries; their indexes say which, and the snapshot says how many there
//! must be.
//!
//! A boot never continues a file. It begins a new one, whose first batch holds
//! what was good above the durable mark, read past the page cache: it may never
//! have been synced.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use quire_ledger::fault::{Fault, planted};
use quire_ledger::record::{Header, Kind, Payload, Record};
use quire_ledger::replica::{Facts, LedgerFacts, Replicas};
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId};

use super::format::{BATCH_HEADER_LEN, BatchHeader, Content, FileHeader, Generation, Sequence};
use super::index::{self, Directory};
use super::pool::{log_generation, log_name};
use super::scan::{self, Batch, Placed};
use super::snapshot::{self, Snapshot};
use super::{Active, Beginning, Begun, Copies, Log, Parts, begin_file};
use crate::catalog::{LogFile, Settled};
use crate::disk::{Access, AlignedBuffer, Disk, DiskFile};
use crate::error::Error;

/// What the files of a log say.
pub struct Boot<D: Disk> {
    facts: Facts,
    store_revision: u64,
    /// Files that were read batch by batch, oldest first.
    scanned: Vec<Scanned<D::File>>,
    /// Older files, of which only the entries are known.
    older: Vec<Older<D::File>>,
    /// End of the trusted run.
    end: Sequence,
    /// All batches below were durable, as the log itself says.
    mark: Sequence,
    /// One past the highest sequence that was seen, good or not.
    seen: Sequence,
    newest: Generation,
    damage: Vec<String>,
}

impl<D: Disk> fmt::Debug for Boot<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Boot")
            .field("end", &self.end.0)
            .field("mark", &self.mark.0)
            .field("damage", &self.damage)
            .finish_non_exhaustive()
    }
}

/// A file that was read batch by batch.
struct Scanned<F> {
    generation: Generation,
    header: Option<FileHeader>,
    file: Arc<F>,
    batches: Vec<Batch>,
    /// How many of its first batches are its start, or 0 when that is bad.
    start: usize,
}

/// A file of which only the entries matter.
struct Older<F> {
    generation: Generation,
    file: Arc<F>,
    found: Entries<F>,
}

enum Entries<F> {
    Indexed(Directory<F>),
    Scanned(Vec<Placed>),
}

/// The log, and the machine of its ledgers.
#[derive(Debug)]
pub struct Opened<D: Disk> {
    /// The log.
    pub log: Log<D>,
    /// Its ledgers.
    pub replicas: Replicas,
    /// The highest revision of the metadata store that the bookie had seen.
    pub store_revision: u64,
}

impl<D: Disk> Boot<D> {
    /// Reads the files of a directory. Writes nothing.
    ///
    /// # Errors
    /// When the directory cannot be listed or a file cannot be opened.
    pub fn scan(disk: &D, bookie: BookieId) -> Result<Self, Error> {
        let failed =
            |source| Error::Disk { operation: "listing", file: "the data directory".to_owned(), source };
        let names = disk.list().map_err(failed)?;
        let mut generations: Vec<_> = names.iter().filter_map(|name| log_generation(name)).collect();
        generations.sort_unstable();
        let mut boot = Self::empty(generations.last().copied().unwrap_or_default());
        while let Some(generation) = generations.pop() {
            let scanned = scan_file(disk, generation, bookie)?;
            let whole = scanned.start > 0;
            boot.scanned.insert(0, scanned);
            if whole {
                break;
            }
            boot.damage.push(format!("log file {} has no readable start", generation.0));
        }
        boot.follow_the_run();
        let ends = boot.scanned.first().and_then(|base| base.header).map(|header| header.first_sequence);
        boot.read_older(disk, &generations, ends)?;
        Ok(boot)
    }

    fn empty(newest: Generation) -> Self {
        Self {
            facts: Facts::default(),
            store_revision: 0,
            scanned: Vec::new(),
            older: Vec::new(),
            end: Sequence(0),
            mark: Sequence(0),
            seen: Sequence(0),
            newest,
            damage: Vec::new(),
        }
    }

    /// Finds the end of the trusted run, and what lies beyond it.
    fn follow_the_run(&mut self) {
        for header in self.scanned.iter().flat_map(|file| &file.batches).map(|batch| &batch.header) {
            self.mark = self.mark.max(header.mark);
            self.seen = self.seen.max(header.sequence.next());
        }
        for header in self.scanned.iter().filter_map(|file| file.header) {
            // A file begins only when all before its predecessor's end is durable.
            self.mark = self.mark.max(Sequence(header.first_sequence.0.saturating_sub(1)));
        }
        let Some(base) = self.scanned.first().filter(|base| base.start > 0) else { return };
        let mut snapshot = Snapshot::default();
        for batch in &base.batches[..base.start] {
            if snapshot.add(&batch.snapshot).is_none() {
                self.damage.push(format!("the snapshot of log file {} is malformed", base.generation.0));
            }
        }
        self.facts = snapshot.facts;
        self.store_revision = snapshot.store_revision;
        let run = base.run();
        let last = &base.batches[run - 1];
        self.end = last.header.sequence.next();
        // The start was synced before the file had its name.
        self.mark = self.mark.max(base.batches[base.start - 1].header.sequence.next());
        if let Content::Continues(next) = last.header.content
            && self.newest < next
        {
            self.newest = next;
            self.damage
                .push(format!("log file {} goes on in {}, which is missing", base.generation.0, next.0));
        }
    }

    /// What older files hold: their indexes say, or a scan. `end`: what they
    /// hold from there on was replaced by a later file.
    fn read_older(
        &mut self,
        disk: &D,
        generations: &[Generation],
        mut end: Option<Sequence>,
    ) -> Result<(), Error> {
        for &generation in generations.iter().rev() {
            let file = open(disk, generation)?;
            let header = scan::file_header(&*file).filter(|header| header.generation == generation);
            let found = match (index::open(disk, generation), header) {
                (Some(directory), _) => Entries::Indexed(directory),
                (None, Some(header)) => Entries::Scanned(entries_below(&*file, &header, end)),
                (None, None) => {
                    self.damage.push(format!("log file {} has no readable start", generation.0));
                    Entries::Scanned(Vec::new())
                }
            };
            end = header.map(|header| header.first_sequence).or(end);
            self.older.insert(0, Older { generation, file, found });
        }
        Ok(())
    }

    /// Why this log lost what it had (B6), if it did. `published`: all batches
    /// below were durable, as the registry says. `complete`: so many entries of
    /// these ledgers were, as those say who sealed them.
    #[must_use]
    pub fn damage(&self, published: Sequence, complete: &[(LedgerId, EntryId)]) -> Option<String> {
        let mut damage = self.damage.clone();
        let durable = self.mark.max(published);
        if self.end < durable {
            damage.push(format!(
                "the log is readable to batch {}, but was durable to batch {}",
                self.end.0, durable.0
            ));
        }
        let facts = self.facts_with_entries(published, !damage.is_empty());
        let hole = |(ledger, facts): (&LedgerId, &LedgerFacts)| {
            (*ledger >= self.facts.mark && facts.has_hole()).then(|| (*ledger, facts.length()))
        };
        if let Some((ledger, length)) = facts.ledgers.iter().find_map(hole) {
            damage.push(format!("ledger {ledger} lost entries from {length} on"));
        }
        let short = complete.iter().find_map(|&(ledger, end)| {
            let is_known = ledger >= self.facts.mark && !facts.tombstones.contains(ledger.0);
            let length = facts.ledgers.get(&ledger).map_or(EntryId(0), LedgerFacts::length);
            (is_known && length < end).then_some((ledger, end, length))
        });
        if let Some((ledger, end, length)) = short {
            damage.push(format!("ledger {ledger} was sealed with {end} entries, of which {length} are here"));
        }
        (!damage.is_empty() && !planted(Fault::NoMark)).then(|| damage.join("; "))
    }

    /// The batches whose records count. With damage these are all good ones:
    /// what stands behind a hole is kept.
    fn kept(&self, damaged: bool) -> impl Iterator<Item = (&Scanned<D::File>, &Batch)> {
        let end = self.end;
        let batches =
            self.scanned.iter().flat_map(|file| file.batches.iter().map(move |batch| (file, batch)));
        batches.filter(move |(_, batch)| batch.records.is_some() && (damaged || batch.header.sequence < end))
    }

    fn facts_with_entries(&self, published: Sequence, damaged: bool) -> Facts {
        let damaged = damaged || self.end < self.mark.max(published);
        let mut facts = self.facts.clone();
        for record in self.kept(damaged).filter_map(|(_, batch)| batch.records.as_ref()).flatten() {
            let payload = record.creator.map(|creator| Bytes::copy_from_slice(&creator));
            facts.apply(&record.header, &payload.map_or_else(Payload::default, Payload::from));
        }
        let mut add = |ledger: LedgerId, first: u64, count: u32| {
            // An older file says nothing of which ledgers there are, unless
            // what says so is lost.
            let known = facts.ledgers.contains_key(&ledger) || damaged;
            if let Some(facts) = facts.ledger(ledger).filter(|_| known && count > 0) {
                facts.entries.insert(first, first + u64::from(count) - 1);
            }
        };
        for older in &self.older {
            match &older.found {
                Entries::Indexed(directory) => {
                    directory.runs.iter().for_each(|run| add(run.ledger, run.first, run.count));
                }
                Entries::Scanned(records) => {
                    records.iter().for_each(|record| add(record.header.ledger, record.header.entry.0, 1));
                }
            }
        }
        facts.ledgers.retain(|_, ledger| *ledger != LedgerFacts::default());
        facts
    }

    /// Begins a new file and opens the log. `lost`: the present value of the
    /// ledger allocator when there is damage (B6); it is durable before this
    /// returns.
    ///
    /// # Errors
    /// [`Error::Disk`].
    pub fn open(
        self,
        mut parts: Parts<D>,
        published: Sequence,
        lost: Option<LedgerId>,
    ) -> Result<Opened<D>, Error> {
        let damaged = lost.is_some();
        let mark = self.mark.max(published);
        let mut facts = self.facts_with_entries(published, damaged);
        facts.mark = facts.mark.max(lost.unwrap_or_default());
        let replicas = Replicas::restore(facts.clone());
        let keep_unsynced = planted(Fault::UnsyncedCounted) || planted(Fault::BootContinuesFile);
        let end = match damaged {
            true => self.seen.max(mark).max(self.end),
            false if keep_unsynced => self.end,
            false => mark,
        };
        let copies = self.copies(mark, damaged, lost)?;
        let cut_in_place = if damaged { Sequence(u64::MAX) } else { end };
        self.fill_catalog(&parts, damaged, cut_in_place);
        let (active, next) = match self.continued() {
            Some((active, next)) => (active, next),
            None => {
                let beginning = Beginning {
                    generation: self.newest.next(),
                    first_sequence: end,
                    mark: end,
                    cut: (!keep_unsynced).then_some(&copies),
                    snapshot: snapshot::encode(&replicas, self.store_revision),
                };
                let Begun { active, batches } = begin_file(&mut parts, beginning, 0)?;
                parts.catalog.add_file(Arc::clone(&active.file), None);
                if !keep_unsynced {
                    let at = (active.header.block as usize + BATCH_HEADER_LEN) as u64;
                    let placed = copies.placed.iter();
                    let placed: Vec<_> = placed.map(|r| Placed { position: r.position + at, ..*r }).collect();
                    parts.catalog.relearn(active.header.generation, &placed);
                }
                (active, Sequence(end.0 + batches))
            }
        };
        let settled = facts.ledgers.iter().map(|(&ledger, facts)| Settled {
            ledger,
            length: facts.length(),
            certain: !facts.unknown_when_fenced && facts.import.is_none(),
        });
        parts.catalog.settle(&facts.tombstones, facts.mark, settled);
        let store_revision = self.store_revision;
        Ok(Opened { log: Log::new(parts, active, next), replicas, store_revision })
    }

    /// Planted fault: the file that was found is written on.
    fn continued(&self) -> Option<(Active<D::File>, Sequence)> {
        if !planted(Fault::BootContinuesFile) {
            return None;
        }
        let base = self.scanned.first().filter(|base| base.start > 0)?;
        let header = base.header?;
        let last = &base.batches[base.run() - 1];
        let length = u64::from(last.header.length).next_multiple_of(u64::from(header.block));
        let position = last.position + length;
        let file = Arc::new(LogFile::new(base.generation, Arc::clone(&base.file), position));
        Some((Active { file, header, position, previous: last.crc }, self.end))
    }

    /// What is good from the mark on, and X when something was lost: they
    /// become durable together.
    fn copies(&self, mark: Sequence, damaged: bool, lost: Option<LedgerId>) -> Result<Copies, Error> {
        let mut copies = Copies::default();
        for (file, batch) in self.kept(damaged).filter(|(_, batch)| batch.header.sequence >= mark) {
            let records = batch.records.as_deref().unwrap_or_default();
            if records.is_empty() {
                continue;
            }
            let bytes = read_batch(&*file.file, batch, file.header.as_ref()).map_err(|source| {
                Error::Disk { operation: "read", file: log_name(file.generation), source }
            })?;
            let at = copies.bytes.len() as u64;
            copies.bytes.extend_from_slice(&bytes.as_slice()[BATCH_HEADER_LEN..batch.header.length as usize]);
            let body = batch.position + BATCH_HEADER_LEN as u64;
            copies.placed.extend(records.iter().map(|r| Placed { position: r.position - body + at, ..*r }));
        }
        if let Some(ledger) = lost {
            copies.push(&mark_record(ledger));
        }
        Ok(copies)
    }

    /// Tells the catalog where the entries are that stay in their files.
    fn fill_catalog(&self, parts: &Parts<D>, damaged: bool, end: Sequence) {
        let log_file = |generation, file: &Arc<D::File>| {
            Arc::new(LogFile::new(generation, Arc::clone(file), file.len()))
        };
        for older in &self.older {
            let file = log_file(older.generation, &older.file);
            match &older.found {
                Entries::Indexed(directory) => parts.catalog.add_file(file, Some(directory.clone())),
                Entries::Scanned(records) => {
                    parts.catalog.add_file(file, None);
                    parts.catalog.relearn(older.generation, records);
                }
            }
        }
        for scanned in &self.scanned {
            parts.catalog.add_file(log_file(scanned.generation, &scanned.file), None);
            let records: Vec<_> = self
                .kept(damaged)
                .filter(|(file, batch)| file.generation == scanned.generation && batch.header.sequence < end)
                .filter_map(|(_, batch)| batch.records.as_ref())
                .flatten()
                .copied()
                .collect();
            parts.catalog.relearn(scanned.generation, &records);
        }
    }
}

impl<F> Scanned<F> {
    /// How many of its first batches follow one another without a flaw.
    fn run(&self) -> usize {
        let Some(header) = self.header else { return 0 };
        let mut expected = Expected::first(&header);
        self.batches.iter().take_while(|batch| expected.takes(batch, header.block)).count()
    }
}

/// What the next batch of an unbroken run must be.
struct Expected {
    sequence: Sequence,
    previous: u32,
    position: u64,
}

impl Expected {
    fn first(header: &FileHeader) -> Self {
        let position = u64::from(header.block);
        Self { sequence: header.first_sequence, previous: header.crc(), position }
    }

    fn takes(&mut self, batch: &Batch, block: u32) -> bool {
        let BatchHeader { sequence, previous, length, .. } = batch.header;
        let fits = batch.records.is_some()
            && sequence == self.sequence
            && previous == self.previous
            && batch.position == self.position;
        self.sequence = sequence.next();
        self.previous = batch.crc;
        self.position = batch.position + u64::from(length).next_multiple_of(u64::from(block));
        fits
    }
}

fn open<D: Disk>(disk: &D, generation: Generation) -> Result<Arc<D::File>, Error> {
    let name = log_name(generation);
    disk.open(&name, Access::Direct).map_err(|source| Error::Disk {
        operation: "opening",
        file: name,
        source,
    })
}

fn scan_file<D: Disk>(disk: &D, generation: Generation, bookie: BookieId) -> Result<Scanned<D::File>, Error> {
    let file = open(disk, generation)?;
    let header =
        scan::file_header(&*file).filter(|header| header.generation == generation && header.bookie == bookie);
    let mut batches = Vec::new();
    if let Some(header) = &header {
        scan::scan(&*file, header, |batch| batches.push(batch));
    }
    let mut scanned = Scanned { generation, header, file, batches, start: 0 };
    let run = scanned.run();
    let last = |batch: &Batch| batch.header.content == Content::Snapshot { last: true };
    scanned.start = scanned.batches[..run].iter().position(last).map_or(0, |at| at + 1);
    Ok(scanned)
}

/// The entries of a file that no later one replaced.
fn entries_below(file: &impl DiskFile, header: &FileHeader, end: Option<Sequence>) -> Vec<Placed> {
    let mut entries = Vec::new();
    scan::scan(file, header, |batch| {
        if end.is_none_or(|end| batch.header.sequence < end) {
            let records = batch.records.into_iter().flatten();
            entries.extend(records.filter(|r| matches!(r.header.kind, Kind::Append | Kind::Copied)));
        }
    });
    entries
}

fn read_batch(file: &impl DiskFile, batch: &Batch, header: Option<&FileHeader>) -> io::Result<AlignedBuffer> {
    let block = header.map_or(crate::disk::BLOCK, |header| header.block as usize);
    let length = (batch.header.length as usize).next_multiple_of(block);
    let mut buffer = AlignedBuffer::new(length);
    buffer.resize(length);
    file.read_at(buffer.as_mut_slice(), batch.position)?;
    Ok(buffer)
}

fn mark_record(ledger: LedgerId) -> Record {
    let header = Header {
        kind: Kind::Mark,
        ledger,
        own_epoch: Epoch(0),
        epoch: Epoch(0),
        entry: EntryId(0),
        committed: EntryId(0),
        prefix_len: 0,
        payload_len: 0,
        payload_crc: 0,
    };
    Record { header, payload: Payload::default() }
}
