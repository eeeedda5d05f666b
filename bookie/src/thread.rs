//! The log thread: one OS thread that steps the machine, fills the commit
//! batch, writes and syncs (L1).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use quire_ledger::link::AppendSink;
use quire_ledger::message::Response;
use quire_ledger::replica::{ConnectionId, Event, RequestId};
use quire_metadata::bookie::LogPosition;
use quire_proto::id::{BookieId, EntryId, LedgerId};
use tokio::sync::{mpsc, oneshot, watch};

use crate::disk::Disk;
use crate::engine::{Engine, Output};
use crate::error::Error;
use crate::inbox::{Ask, Inbox, Message};
use crate::log::format::Generation;
use crate::shared::Shared;
use crate::space::Space;

/// After the last append, when an empty batch records the durable mark (L2).
const MARK_AFTER: Duration = Duration::from_millis(10);

/// An import that the machine is ready for (B7).
#[derive(Debug)]
pub(crate) struct ImportJob {
    pub(crate) ledger: LedgerId,
    pub(crate) from: EntryId,
    pub(crate) end: EntryId,
    /// How much of it is durable.
    pub(crate) durable: watch::Receiver<EntryId>,
    pub(crate) respond: oneshot::Sender<Response>,
}

/// What the log thread owns.
pub(crate) struct LogThread<D: Disk> {
    pub(crate) bookie: BookieId,
    pub(crate) engine: Engine<D>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) space: Arc<Space<D>>,
    /// The file in which the space was looked at last.
    pub(crate) looked_in: Generation,
    pub(crate) imports: mpsc::Sender<ImportJob>,
    pub(crate) sinks: HashMap<ConnectionId, Arc<dyn AppendSink>>,
    pub(crate) asked: HashMap<RequestId, oneshot::Sender<Response>>,
    pub(crate) importing: HashMap<LedgerId, watch::Sender<EntryId>>,
    pub(crate) copied: Vec<SyncSender<()>>,
    pub(crate) next_request: RequestId,
    pub(crate) out: Vec<Output>,
}

impl<D: Disk> LogThread<D> {
    /// Runs until the inbox is closed or the disk fails.
    pub(crate) fn run(mut self) {
        match self.serve() {
            Ok(()) => self.inbox.close("the bookie is stopped"),
            Err(error) => {
                self.inbox.close(&error.to_string());
                self.shared.fail(error);
            }
        }
        for sink in self.sinks.values() {
            sink.broken(self.bookie);
        }
    }

    fn serve(&mut self) -> Result<(), Error> {
        let mut mark_at = None;
        self.look_at_space()?;
        while let Some(messages) = self.inbox.take(mark_at) {
            if messages.is_empty() {
                self.engine.commit_mark(&mut self.out)?;
            }
            for message in messages {
                self.handle(message)?;
                self.look_at_space()?;
            }
            // Refusals need no sync.
            self.tell();
            self.commit()?;
            self.look_at_space()?;
            mark_at = self.engine.owes_mark().then(|| Instant::now() + MARK_AFTER);
        }
        self.engine.commit_mark(&mut self.out)?;
        self.tell();
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        let before = self.engine.durable();
        let started = Instant::now();
        self.engine.commit(&mut self.out)?;
        let (generation, sequence) = self.engine.durable();
        if before != (generation, sequence) {
            metrics::histogram!("quire_bookie_commit_seconds").record(started.elapsed());
        }
        let durable = LogPosition { generation: generation.0, sequence: sequence.0 };
        self.shared.set_durable(durable);
        for copied in self.copied.drain(..) {
            // Who waited may be gone.
            _ = copied.try_send(());
        }
        self.tell();
        Ok(())
    }

    /// Once a file: the next one is a whole file away.
    fn look_at_space(&mut self) -> Result<(), Error> {
        let (generation, _) = self.engine.durable();
        if generation == self.looked_in {
            return Ok(());
        }
        self.looked_in = generation;
        match self.space.look() {
            None => Ok(()),
            Some(admission) => self.engine.handle(Event::Admission(admission), &mut self.out),
        }
    }

    fn handle(&mut self, message: Message) -> Result<(), Error> {
        match message {
            Message::Connected(connection, sink) => {
                self.sinks.insert(connection, sink);
                Ok(())
            }
            Message::Event(event) => {
                if let Event::Disconnected(connection) = event {
                    self.sinks.remove(&connection);
                }
                let event = match event {
                    // This thread may have looked since.
                    Event::Admission(_) => Event::Admission(self.shared.admission()),
                    event => event,
                };
                self.engine.handle(event, &mut self.out)
            }
            Message::Ask(ask, respond) => {
                let request = self.next_request;
                self.next_request = RequestId(request.0 + 1);
                self.asked.insert(request, respond);
                self.engine.handle(event(ask, request), &mut self.out)
            }
            Message::Copy(records, done) => {
                self.copied.push(done);
                self.engine.copy(records, &mut self.out)
            }
            Message::SawStore(revision) => {
                self.engine.saw_store_revision(revision);
                Ok(())
            }
        }
    }

    fn tell(&mut self) {
        for output in std::mem::take(&mut self.out) {
            match output {
                Output::Deliver(connection, event) => {
                    if let Some(sink) = self.sinks.get(&connection) {
                        sink.deliver(self.bookie, event);
                    }
                }
                Output::Respond(request, response) => {
                    if let Some(respond) = self.asked.remove(&request) {
                        // Who asked may have given up.
                        _ = respond.send(response);
                    }
                }
                Output::Import { request, ledger, from, end } => self.import(request, ledger, from, end),
                Output::ImportDurable { ledger, durable } => {
                    if let Some(progress) = self.importing.get(&ledger) {
                        progress.send_replace(durable);
                    }
                }
            }
        }
    }

    fn import(&mut self, request: RequestId, ledger: LedgerId, from: EntryId, end: EntryId) {
        let Some(respond) = self.asked.remove(&request) else { return };
        self.importing.retain(|_, progress| progress.receiver_count() > 0);
        let (progress, durable) = watch::channel(from);
        self.importing.insert(ledger, progress);
        if let Err(full) = self.imports.try_send(ImportJob { ledger, from, end, durable, respond }) {
            let (mpsc::error::TrySendError::Full(job) | mpsc::error::TrySendError::Closed(job)) = full;
            _ = job.respond.send(Response::Unknown("too many imports are under way".to_owned()));
        }
    }
}

const fn event(ask: Ask, request: RequestId) -> Event {
    match ask {
        Ask::Create { ledger, creator } => Event::Create { request, ledger, creator },
        Ask::Fence { ledger, epoch } => Event::Fence { request, ledger, epoch },
        Ask::State { ledger } => Event::State { request, ledger },
        Ask::Import { ledger, end } => Event::Import { request, ledger, end },
        Ask::Delete { first, last } => Event::Delete { request, first, last },
    }
}
