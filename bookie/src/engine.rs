//! The machine of the ledgers on its log: what the log thread drives in
//! production, and the simulator inline. Synchronous; nothing in it looks at a
//! clock.

use std::fmt;
use std::sync::Arc;

use quire_ledger::message::{AppendEvent, Response};
use quire_ledger::record::{Kind, Record};
use quire_ledger::replica::{Action, ConnectionId, Event, Replicas, RequestId, Ticket};
use quire_proto::id::{EntryId, LedgerId};

use crate::disk::Disk;
use crate::error::Error;
use crate::log::boot::Opened;
use crate::log::format::{Generation, Sequence};
use crate::log::{Log, snapshot};
use crate::reader::Reader;

/// What a bookie tells others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// About the append streams of a connection.
    Deliver(ConnectionId, AppendEvent),
    /// The response to a request.
    Respond(RequestId, Response),
    /// B7: copy these entries from peers, then answer the request.
    Import {
        /// Gets the response in the end.
        request: RequestId,
        /// The ledger.
        ledger: LedgerId,
        /// The first entry that is missing.
        from: EntryId,
        /// One past the last.
        end: EntryId,
    },
    /// B7: so many entries of the import are durable.
    ImportDurable {
        /// The ledger.
        ledger: LedgerId,
        /// Its length.
        durable: EntryId,
    },
}

/// All ledgers of a bookie, on its disk.
pub struct Engine<D: Disk> {
    replicas: Replicas,
    log: Log<D>,
    reader: Arc<Reader<D>>,
    store_revision: u64,
    /// The machine's records that are in the log, durable or in the batch.
    appended: Ticket,
    actions: Vec<Action>,
}

impl<D: Disk> fmt::Debug for Engine<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("log", &self.log).finish_non_exhaustive()
    }
}

impl<D: Disk> Engine<D> {
    /// On a log that was opened.
    #[must_use]
    pub fn new(opened: Opened<D>, reader: Arc<Reader<D>>) -> Self {
        let Opened { log, replicas, store_revision } = opened;
        let appended = replicas.logged();
        Self { replicas, log, reader, store_revision, appended, actions: Vec::new() }
    }

    /// The ledgers.
    #[must_use]
    pub const fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Reads entries; any thread may.
    #[must_use]
    pub const fn reader(&self) -> &Arc<Reader<D>> {
        &self.reader
    }

    /// Where the log is durable.
    #[must_use]
    pub const fn durable(&self) -> (Generation, Sequence) {
        self.log.durable()
    }

    /// Whether an empty batch should record the durable mark, 10 ms after the
    /// last append (L2).
    #[must_use]
    pub fn owes_mark(&self) -> bool {
        self.log.owes_mark()
    }

    /// The metadata store was seen at this revision.
    pub fn saw_store_revision(&mut self, revision: u64) {
        self.store_revision = self.store_revision.max(revision);
    }

    /// One event. What is to be told comes at once, or after a commit. Commits
    /// by itself only when the batch is full.
    ///
    /// # Errors
    /// [`Error::Disk`]: nothing further may be told, and the bookie must stop
    /// (L5).
    pub fn handle(&mut self, event: Event, out: &mut Vec<Output>) -> Result<(), Error> {
        let mut actions = std::mem::take(&mut self.actions);
        self.replicas.step(event, &mut actions);
        let handled = self.perform(&mut actions, out);
        actions.clear();
        self.actions = actions;
        handled
    }

    /// Appends living entries of a file that is to be recycled (L8). Those of
    /// ledgers that are gone are left out.
    ///
    /// # Errors
    /// As [`Engine::handle`].
    pub fn copy(&mut self, records: Vec<Record>, out: &mut Vec<Output>) -> Result<(), Error> {
        for mut record in records {
            if self.replicas.ledger(record.header.ledger).is_none() {
                continue;
            }
            record.header.kind = Kind::Copied;
            self.write(&record, out)?;
        }
        Ok(())
    }

    /// Writes and syncs what waits, then tells what became durable.
    ///
    /// # Errors
    /// As [`Engine::handle`].
    pub fn commit(&mut self, out: &mut Vec<Output>) -> Result<(), Error> {
        if self.log.is_empty() {
            return Ok(());
        }
        let (replicas, revision) = (&self.replicas, self.store_revision);
        self.log.commit(|| snapshot::encode(replicas, revision))?;
        self.handle(Event::Durable(self.appended), out)
    }

    /// Records the durable mark (L2).
    ///
    /// # Errors
    /// As [`Engine::handle`].
    pub fn commit_mark(&mut self, out: &mut Vec<Output>) -> Result<(), Error> {
        self.commit(out)?;
        let (replicas, revision) = (&self.replicas, self.store_revision);
        self.log.commit_mark(|| snapshot::encode(replicas, revision))
    }

    fn perform(&mut self, actions: &mut Vec<Action>, out: &mut Vec<Output>) -> Result<(), Error> {
        for action in actions.drain(..) {
            match action {
                Action::Log(record) => {
                    self.write(&record, out)?;
                    self.appended = Ticket(self.appended.0 + 1);
                }
                Action::Deliver(connection, event) => out.push(Output::Deliver(connection, event)),
                Action::Respond(request, response) => out.push(Output::Respond(request, response)),
                Action::Check { check, ledger, entry } => {
                    let payload_crc = self.reader.payload_crc(ledger, entry);
                    self.handle(Event::Checked { check, payload_crc }, out)?;
                }
                Action::Import { request, ledger, from, end } => {
                    out.push(Output::Import { request, ledger, from, end });
                }
                Action::ImportDurable { ledger, durable } => {
                    out.push(Output::ImportDurable { ledger, durable });
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, record: &Record, out: &mut Vec<Output>) -> Result<(), Error> {
        if !self.log.has_room(record.header.record_len()) {
            self.commit(out)?;
        }
        self.log.append(record);
        Ok(())
    }
}
