//! A ledger's entry headers, read once from the first to the last: what they say
//! of its end, and the partition's state if the ledger begins with a whole
//! snapshot. No I/O: [`Scan::next`] says what to read, and [`Scan::answered`]
//! takes what came of it.

use quire_ledger::clock::Millis;
use quire_ledger::message::{Read, Response};
use quire_ledger::record::Record;
use quire_ledger::recovery::{Silence, report};
use quire_proto::fault::{Fault, planted};
use quire_proto::id::{BookieId, EntryId, LedgerId, Offset};

use crate::entry::{EntryHeader, EntryKind};
use crate::log::cold;
use crate::log::partition::Segment;
use crate::producer::{Producers, Snapshot};
use crate::shard::writer::{Restored, line_append};

/// What a ledger's headers say.
#[derive(Clone, Debug)]
pub struct Headers {
    /// The partition's state after the last entry; `None` when the ledger ends
    /// before its snapshot does. Then it holds no batch.
    pub restored: Option<Restored>,
    /// The offset after the last entry; `None` without entries.
    pub next_offset: Option<Offset>,
    /// Greatest batch timestamp, `i64::MIN` without batches.
    pub max_timestamp_ms: i64,
    /// Payload bytes of all entries.
    pub bytes: u64,
    /// Entries that were left out, for their loss was accepted.
    pub lost: u64,
    /// How many of them come after the last that was read.
    pub lost_at_end: u64,
    snapshot: Vec<u8>,
}

impl Default for Headers {
    fn default() -> Self {
        Self {
            restored: None,
            next_offset: None,
            max_timestamp_ms: i64::MIN,
            bytes: 0,
            lost: 0,
            lost_at_end: 0,
            snapshot: Vec::new(),
        }
    }
}

/// How a ledger's headers are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Entries of one read.
    pub read_entries: u32,
    /// Bytes of one read.
    pub read_bytes: u32,
    /// When no replica gives an entry, all are asked again after this long, then
    /// after twice as long, and so on.
    pub retry_ms: u64,
    /// But at most this long.
    pub retry_max_ms: u64,
    /// A replica that has not answered for this long, while the others cannot
    /// give the entry, is reported with them.
    pub patience_ms: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            read_entries: u32::MAX,
            read_bytes: 1 << 20,
            retry_ms: 20,
            retry_max_ms: 2_000,
            patience_ms: 30_000,
        }
    }
}

/// A replica did not give an entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry} of ledger {ledger} cannot be read from bookie {bookie}: {cause}")]
pub struct ReadFailed {
    pub ledger: LedgerId,
    pub entry: EntryId,
    pub bookie: BookieId,
    pub cause: String,
    /// It gave something that the entry is not.
    pub is_wrong: bool,
    /// Every replica has failed now: there is a pause before the next round.
    pub is_last: bool,
}

/// An entry that no replica gives: each has answered that it cannot, or has not
/// answered for long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "entry {entry} of ledger {ledger}, which the partition's state is restored from, cannot be read{}{}",
    .refusals.iter().map(|refusal| format!("; {refusal}")).collect::<String>(),
    .silences.iter().map(may_have_it).collect::<String>()
)]
pub struct Unreadable {
    pub ledger: LedgerId,
    pub entry: EntryId,
    /// What the replicas said that have answered.
    pub refusals: Vec<Silence>,
    /// Why the others have not.
    pub silences: Vec<Silence>,
}

impl Unreadable {
    /// Whether whoever accepts this has accepted that as well: it is the same
    /// entry, and no other replica may still have it.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        (self.ledger, self.entry) == (other.ledger, other.entry)
            && report::are_among(&other.silences, &self.silences)
    }
}

fn may_have_it(Silence { bookie, why }: &Silence) -> String {
    format!("; bookie {bookie} does not answer and may still have it, and what follows it: {why}")
}

/// The scan of one ledger.
#[derive(Debug)]
pub struct Scan {
    ledger: LedgerId,
    /// Nothing at or past it is read (I5).
    end: EntryId,
    /// Those that are asked.
    replicas: Vec<BookieId>,
    options: Options,
    headers: Headers,
    /// The next entry.
    from: EntryId,
    /// Which replica is asked.
    source: usize,
    /// What the replicas said in this round that cannot give the next entry.
    refusals: Vec<Silence>,
    /// Why others did not answer in this round.
    silences: Vec<Silence>,
    /// Since when all have failed to give the next entry.
    failed_since: Option<Millis>,
    /// The next entry, when no replica gives it.
    unreadable: Option<Unreadable>,
    /// The losses that were accepted of this ledger.
    accepted: Vec<Unreadable>,
    under_way: Option<Read>,
    retry_at: Option<Millis>,
    /// How long the next pause is.
    pause_ms: u64,
}

impl Scan {
    /// A scan of what may be read of this segment.
    #[must_use]
    pub fn new(segment: &Segment, options: Options) -> Self {
        let beyond = planted(Fault::StateRebuiltBeyondEnd) && segment.end > EntryId(0);
        Self {
            ledger: segment.ledger,
            end: if beyond { EntryId(u64::MAX) } else { segment.end },
            replicas: segment.replicas.to_vec(),
            options,
            headers: Headers::default(),
            from: EntryId(0),
            source: 0,
            refusals: Vec::new(),
            silences: Vec::new(),
            failed_since: None,
            unreadable: None,
            accepted: Vec::new(),
            under_way: None,
            retry_at: None,
            pause_ms: options.retry_ms,
        }
    }

    /// The same, begun after the longest pause.
    #[must_use]
    pub fn after_pause(now: Millis, segment: &Segment, options: Options) -> Self {
        Self { retry_at: Some(now + options.retry_max_ms), ..Self::new(segment, options) }
    }

    /// Whether everything is read.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.from >= self.end
    }

    /// What was read.
    #[must_use]
    pub fn into_headers(self) -> Headers {
        self.headers
    }

    /// When [`Scan::next`] has something to read again, after a pause.
    #[must_use]
    pub const fn deadline(&self) -> Option<Millis> {
        self.retry_at
    }

    /// The next read, unless one is under way, or everything is read.
    pub fn next(&mut self, now: Millis) -> Option<(BookieId, Read)> {
        if self.is_done() || self.under_way.is_some() || self.retry_at.is_some_and(|at| at > now) {
            return None;
        }
        self.retry_at = None;
        let bookie = *self.replicas.get(self.source)?;
        let left = u32::try_from(self.end.0 - self.from.0).unwrap_or(u32::MAX);
        let max_entries = left.min(self.options.read_entries);
        let max_bytes = self.options.read_bytes;
        let read = Read { ledger: self.ledger, from: self.from, max_entries, max_bytes, prefix: true };
        self.under_way = Some(read);
        Some((bookie, read))
    }

    /// The next entry, when every replica was asked for it and has answered that
    /// it cannot give it, or has not answered for long.
    #[must_use]
    pub const fn unreadable(&self) -> Option<&Unreadable> {
        self.unreadable.as_ref()
    }

    /// Whether the last round of all replicas gave nothing, or a pause goes on.
    #[must_use]
    pub const fn is_held_up(&self) -> bool {
        self.retry_at.is_some() || self.pause_ms > self.options.retry_ms
    }

    /// The same, without the entries whose loss was accepted before.
    #[must_use]
    pub fn leaving_out(mut self, losses: &[Unreadable]) -> Self {
        self.accepted.extend(losses.iter().filter(|loss| loss.ledger == self.ledger).cloned());
        self
    }

    /// Leaves this entry out, once every replica has been asked once more and
    /// cannot give it. One that does not answer is waited for, unless the loss
    /// names it: it is not, from that entry on. Another entry is another loss.
    pub fn accept_loss(&mut self, loss: &Unreadable) {
        if loss.ledger == self.ledger {
            self.accepted.push(loss.clone());
            self.retry_at = None;
        }
    }

    /// Whether a loss was accepted that names this replica.
    fn is_given_up(&self, bookie: BookieId) -> bool {
        let behind = self.accepted.iter().filter(|loss| loss.entry <= self.from);
        behind.flat_map(|loss| &loss.silences).any(|silence| silence.bookie == bookie)
    }

    /// Whether this read is the one under way.
    #[must_use]
    pub fn awaits(&self, bookie: BookieId, read: &Read) -> bool {
        self.under_way.as_ref() == Some(read) && self.replicas.get(self.source) == Some(&bookie)
    }

    /// What became of the read under way.
    ///
    /// # Errors
    /// When the replica did not give the entry: another is asked next.
    pub fn answered(&mut self, now: Millis, result: Result<Response, String>) -> Result<(), ReadFailed> {
        let Some(read) = self.under_way.take() else { return Ok(()) };
        let answered = result.is_ok();
        let answer = match result {
            Ok(Response::Entries(records)) => self.add_all(&read, &records).map_err(|cause| (cause, true)),
            Ok(Response::Absent) if planted(Fault::StateRebuiltBeyondEnd) => {
                self.end = self.from;
                Ok(())
            }
            Ok(Response::Absent) => Err(("it does not hold the entry".to_owned(), false)),
            Ok(Response::Deleted) => Err(("the ledger is deleted there".to_owned(), false)),
            Ok(Response::Unknown(why)) => Err((why, false)),
            Ok(other) => Err((format!("it answered {other:?}"), true)),
            Err(why) => Err((why, false)),
        };
        // What came before the one that is wrong is known from now on.
        if self.from > read.from {
            self.begin_entry();
        }
        answer.map_err(|(cause, is_wrong)| self.failed(now, cause, answered, is_wrong))
    }

    /// Adds the entries up to the first one that is wrong.
    fn add_all(&mut self, read: &Read, records: &[Record]) -> Result<(), String> {
        if records.is_empty() {
            return Ok(cold::check(read, records)?);
        }
        for record in records.iter().take(read.max_entries as usize) {
            let next = Read { from: self.from, ..*read };
            cold::check(&next, std::slice::from_ref(record))?;
            let added = self.headers.add(record);
            added.map_err(|cause| format!("entry {} is malformed: {cause}", record.header.entry))?;
            self.from = self.from.next();
        }
        Ok(())
    }

    fn begin_entry(&mut self) {
        self.refusals.clear();
        self.silences.clear();
        self.failed_since = None;
        self.unreadable = None;
        self.pause_ms = self.options.retry_ms;
    }

    fn failed(&mut self, now: Millis, cause: String, answered: bool, is_wrong: bool) -> ReadFailed {
        let bookie = self.replicas.get(self.source).copied().unwrap_or_default();
        let failed = Silence { bookie, why: cause.clone() };
        if answered {
            self.refusals.push(failed);
            self.source += 1;
        } else if self.is_given_up(bookie) {
            self.replicas.remove(self.source);
        } else {
            self.silences.push(failed);
            self.source += 1;
        }
        self.source %= self.replicas.len().max(1);
        let (ledger, entry) = (self.ledger, self.from);
        let is_last = self.refusals.len() + self.silences.len() >= self.replicas.len();
        if is_last {
            self.end_round(now);
        }
        ReadFailed { ledger, entry, bookie, cause, is_wrong, is_last }
    }

    /// Every replica has failed.
    fn end_round(&mut self, now: Millis) {
        if self.replicas.is_empty() {
            return self.leave_out(self.end);
        }
        let refusals = std::mem::take(&mut self.refusals);
        let silences = std::mem::take(&mut self.silences);
        if silences.is_empty() && self.accepted.iter().any(|loss| loss.entry == self.from) {
            return self.leave_out(self.from.next());
        }
        let since = *self.failed_since.get_or_insert(now);
        let is_due = silences.is_empty() || now.since(since) >= self.options.patience_ms;
        let (ledger, entry) = (self.ledger, self.from);
        self.unreadable = is_due.then_some(Unreadable { ledger, entry, refusals, silences });
        self.retry_at = Some(now + self.pause_ms);
        self.pause_ms = (self.pause_ms * 2).min(self.options.retry_max_ms);
    }

    /// The loss of what is below this entry is accepted.
    fn leave_out(&mut self, next: EntryId) {
        self.headers.leave_out(next.0 - self.from.0);
        self.from = next;
        self.begin_entry();
    }
}

impl Headers {
    /// The next entries are lost. A snapshot that they were part of is lost whole:
    /// what is known of producers begins behind it.
    fn leave_out(&mut self, entries: u64) {
        self.lost += entries;
        self.lost_at_end += entries;
        self.snapshot = Vec::new();
        let unknown = Restored { running_max_ms: i64::MIN, ..Restored::default() };
        self.restored.get_or_insert(unknown);
    }

    /// Adds the next entry, or nothing of it.
    ///
    /// # Errors
    /// When it is none, or does not follow.
    pub fn add(&mut self, record: &Record) -> Result<(), String> {
        let prefix = record.payload.to_bytes();
        let (header, len) = EntryHeader::decode(&prefix).map_err(|error| error.to_string())?;
        let follows = self.next_offset.is_none_or(|next| next == header.base_offset);
        if !follows && self.lost_at_end == 0 {
            return Err("its offset does not follow the one before".to_owned());
        }
        match header.kind {
            // Of one that is not whole.
            EntryKind::Snapshot { .. } if self.lost > 0 => {}
            EntryKind::Snapshot { last: false } => self.snapshot.extend_from_slice(&prefix[len..]),
            EntryKind::Snapshot { last: true } => self.restore(&header, &prefix[len..])?,
            EntryKind::Data => self.apply(&header)?,
        }
        self.bytes += u64::from(record.header.payload_len);
        self.lost_at_end = 0;
        self.next_offset = Some(header.next_offset());
        Ok(())
    }

    /// The snapshot's last part is there.
    fn restore(&mut self, header: &EntryHeader, part: &[u8]) -> Result<(), String> {
        let before = self.snapshot.len();
        self.snapshot.extend_from_slice(part);
        let decoded = Snapshot::decode(header.base_offset, header.running_max_ms, &self.snapshot);
        let snapshot = decoded.map_err(|error| {
            self.snapshot.truncate(before);
            error.to_string()
        })?;
        self.snapshot = Vec::new();
        self.restored = Some(Restored {
            next_offset: snapshot.next_offset,
            running_max_ms: snapshot.running_max_ms,
            producers: Producers::of(snapshot.producers),
        });
        Ok(())
    }

    fn apply(&mut self, header: &EntryHeader) -> Result<(), String> {
        let Some(state) = &mut self.restored else {
            return Err("batches come before the snapshot".to_owned());
        };
        for (line, base_offset) in header.lines.iter().zip(header.base_offsets()) {
            self.max_timestamp_ms = self.max_timestamp_ms.max(line.max_timestamp_ms);
            if line.producer_id >= 0 {
                state.producers.commit(&line_append(line), base_offset, line.last_offset, header.appended_ms);
            }
        }
        state.next_offset = header.next_offset();
        state.running_max_ms = header.running_max_ms;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
