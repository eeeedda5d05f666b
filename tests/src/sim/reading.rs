//! Readers' requests at a broker: from the tail in memory, or from bookies.

use bytes::Bytes;
use quire_broker::log::StoredEntry;
use quire_broker::log::partition::{Found, Segment};
use quire_broker::log::stored::Batches;
use quire_ledger::message::{Read, Request, Response};
use quire_proto::id::{EntryId, Offset};

use super::batches;
use super::broker::Purpose;
use super::history::{PartitionNumber, Reader};
use super::inspector::Shown;
use super::network::ProcessNumber;
use super::violation::{Checked, Invariant, Violation};
use super::world::{Happening, World, note};

/// Bytes of one answer: a few batches.
const ANSWER_BYTES: usize = 1 << 10;

/// A reader's request.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    pub reader: Reader,
    pub question: u32,
    pub partition: PartitionNumber,
    /// Where to read; none: the latest offset is asked for.
    pub offset: Option<u64>,
}

/// The answer to a reader's request.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub reader: Reader,
    pub question: u32,
    pub answer: ReadAnswer,
}

/// What a broker says to a reader.
#[derive(Clone, Debug)]
pub enum ReadAnswer {
    Batches(Bytes),
    /// The offset is the next one to be committed.
    End(u64),
    Latest(u64),
    Failed,
}

/// A read that goes to bookies.
#[derive(Debug)]
pub struct ColdRead {
    fetch: Fetch,
    segment: Segment,
    from: EntryId,
    source: usize,
}

impl World {
    /// A reader's request arrives at a broker.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn fetch(&mut self, process: ProcessNumber, fetch: Fetch) -> Checked {
        let Some(at) = self.awake(process, || Happening::Fetch(process, fetch)) else { return Ok(()) };
        let Some(slot) = self.brokers[at].slots.get(&fetch.partition) else {
            return self.answer_reader(at, fetch, ReadAnswer::Failed);
        };
        let Some(offset) = fetch.offset else {
            let answer = match slot.log.bounds() {
                Ok(bounds) => ReadAnswer::Latest(bounds.latest.0),
                Err(_) => ReadAnswer::Failed,
            };
            return self.answer_reader(at, fetch, answer);
        };
        let mut out = Batches::default();
        match slot.log.find(Offset(offset), ANSWER_BYTES, &mut out) {
            Ok(Found::Tail(_)) => {
                self.hits.hit("a read from the tail");
                self.answer_reader(at, fetch, ReadAnswer::Batches(out.into_bytes()))
            }
            Ok(Found::End) => self.answer_reader(at, fetch, ReadAnswer::End(offset)),
            Ok(Found::Cold(segment)) => {
                let broker = &mut self.brokers[at];
                let id = broker.next_read;
                broker.next_read += 1;
                broker.reads.insert(id, ColdRead { fetch, segment, from: EntryId(0), source: 0 });
                self.read_on(at, id)
            }
            Err(_) => self.answer_reader(at, fetch, ReadAnswer::Failed),
        }
    }

    /// Asks the next bookie for the next entries. Entries at or past the end
    /// that may be read are never asked for (I5).
    fn read_on(&mut self, at: usize, id: u64) -> Checked {
        let Some(read) = self.brokers[at].reads.get(&id) else { return Ok(()) };
        let (fetch, end) = (read.fetch, read.segment.end);
        let source = read.segment.replicas.get(read.source).copied();
        let (Some(bookie), true) = (source, read.from < end) else {
            self.brokers[at].reads.remove(&id);
            self.hits.hit("a read that no bookie answered");
            return self.answer_reader(at, fetch, ReadAnswer::Failed);
        };
        let max_entries = u32::try_from((end.0 - read.from.0).min(16)).unwrap_or(16);
        let request = Read {
            ledger: read.segment.ledger,
            from: read.from,
            max_entries,
            max_bytes: 64 << 10,
            prefix: false,
        };
        self.call(at, bookie, Request::Read(request), Purpose::Read(id))
    }

    /// A bookie's answer to a read.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn read_answered(&mut self, at: usize, id: u64, result: Result<Response, String>) -> Checked {
        let Some(read) = self.brokers[at].reads.get_mut(&id) else { return Ok(()) };
        let offset = Offset(read.fetch.offset.unwrap_or_default());
        let Ok(Response::Entries(records)) = result else {
            read.source += 1;
            return self.read_on(at, id);
        };
        let mut out = Batches::default();
        for record in records {
            let right = record.header.ledger == read.segment.ledger && record.header.entry == read.from;
            let stored = StoredEntry::decode(record.payload.to_bytes());
            let (true, true, Ok(stored)) = (right, record.verify().is_ok(), stored) else {
                return Violation::of(
                    Invariant::NothingEarly,
                    format!("a bookie answered a read of {:?} with {:?}", read.from, record.header),
                );
            };
            read.from = read.from.next();
            stored.collect(offset, ANSWER_BYTES, &mut out);
            if out.bytes > 0 {
                let fetch = read.fetch;
                self.brokers[at].reads.remove(&id);
                self.hits.hit("a read from bookies");
                return self.answer_reader(at, fetch, ReadAnswer::Batches(out.into_bytes()));
            }
        }
        self.read_on(at, id)
    }

    /// Sends an answer to a reader. That is the moment at which it must be true.
    fn answer_reader(&mut self, at: usize, fetch: Fetch, answer: ReadAnswer) -> Checked {
        match &answer {
            ReadAnswer::Batches(bytes) => self.check_served(at, fetch, bytes)?,
            ReadAnswer::Latest(latest) | ReadAnswer::End(latest) => {
                note!(self, "broker {at} tells reader {} of latest {latest}", fetch.reader);
                self.check_latest(fetch.partition, *latest)?;
            }
            ReadAnswer::Failed => {}
        }
        let delay = self.network.delay(&mut self.random);
        let fetched = Fetched { reader: fetch.reader, question: fetch.question, answer };
        self.scheduler.after(delay, Happening::Fetched(fetched));
        Ok(())
    }

    /// I5, and what was known of these offsets.
    fn check_served(&mut self, at: usize, fetch: Fetch, bytes: &Bytes) -> Checked {
        let Some((base, records)) = batches::open(bytes.clone())? else { return Ok(()) };
        note!(self, "broker {at} serves reader {} {} records from {base}", fetch.reader, records.len());
        let id = self.partition(fetch.partition);
        if self.inspector.is_gone(id) {
            return Ok(());
        }
        for (offset, record) in (base..).zip(&records) {
            if record.index == 0 {
                self.inspector.shown(id, record.batch, offset, Shown::Reader)?;
            }
        }
        self.history.served(fetch.partition, base, &records)
    }

    /// I5: nothing past what is committed is called readable.
    fn check_latest(&self, number: PartitionNumber, latest: u64) -> Checked {
        let id = self.partition(number);
        let committed = self.inspector.committed_end(id);
        if latest > committed && !self.inspector.is_gone(id) {
            return Violation::of(
                Invariant::NothingEarly,
                format!("partition {number} is called readable to {latest}, committed to {committed}"),
            );
        }
        Ok(())
    }
}
