//! The link of a broker in the same process: payloads are passed on in the
//! pieces that they came in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use quire_ledger::link::{BookieLink, LinkError};
use quire_ledger::message::{Append, Read, Request, Response};
use quire_ledger::record::Kind;
use quire_ledger::replica::{ConnectionId, Event};
use quire_proto::id::BookieId;
use tokio::sync::{Semaphore, oneshot};

use crate::disk::Disk;
use crate::importer::Importer;
use crate::inbox::{Ask, Inbox, Message, Rejected};
use crate::reader::Reader;

/// How a bookie is reached.
pub(crate) struct Door<D: Disk> {
    pub(crate) bookie: BookieId,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) reader: Arc<Reader<D>>,
    /// Reads that may be on the disk at once.
    pub(crate) reads: Arc<Semaphore>,
}

impl<D: Disk> Clone for Door<D> {
    fn clone(&self) -> Self {
        Self {
            bookie: self.bookie,
            inbox: Arc::clone(&self.inbox),
            reader: Arc::clone(&self.reader),
            reads: Arc::clone(&self.reads),
        }
    }
}

/// A connection within the process.
pub(crate) struct InProcessLink<D: Disk> {
    door: Door<D>,
    importer: Arc<Importer>,
    connection: ConnectionId,
    broken: AtomicBool,
}

impl<D: Disk> fmt::Debug for InProcessLink<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessLink").field("bookie", &self.door.bookie).finish_non_exhaustive()
    }
}

impl<D: Disk> Door<D> {
    fn error(&self, cause: impl fmt::Display) -> LinkError {
        LinkError { bookie: self.bookie, cause: cause.to_string() }
    }

    async fn ask(&self, ask: Ask) -> Result<Response, LinkError> {
        let (respond, response) = oneshot::channel();
        self.inbox.push(Message::Ask(ask, respond)).map_err(|rejected| self.error(rejected))?;
        response.await.map_err(|_| self.error("it stopped before it answered"))
    }

    async fn read(&self, read: Read) -> Result<Response, LinkError> {
        if let Some(response) = self.reader.read_memory(&read) {
            return Ok(response);
        }
        let permit = Arc::clone(&self.reads).acquire_owned().await.map_err(|error| self.error(error))?;
        let reader = Arc::clone(&self.reader);
        let response = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            reader.read(&read)
        });
        response.await.map_err(|error| self.error(error))
    }
}

impl<D: Disk> InProcessLink<D> {
    pub(crate) const fn new(door: Door<D>, importer: Arc<Importer>, connection: ConnectionId) -> Self {
        Self { door, importer, connection, broken: AtomicBool::new(false) }
    }

    fn push(&self, event: Event) -> Result<(), Rejected> {
        self.door.inbox.push(Message::Event(event))
    }
}

impl<D: Disk> BookieLink for InProcessLink<D> {
    fn bookie(&self) -> BookieId {
        self.door.bookie
    }

    fn append(&self, append: Append) -> Result<(), LinkError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(self.door.error("the link broke before"));
        }
        // Checked here, on the sender's thread: the log thread only copies.
        let header = &append.record.header;
        let event = if header.kind == Kind::Append && append.record.verify().is_ok() {
            Event::Append { connection: self.connection, append }
        } else {
            Event::Corrupt {
                connection: self.connection,
                ledger: header.ledger,
                epoch: header.epoch,
                attempt: append.attempt,
            }
        };
        self.push(event).map_err(|rejected| {
            // Later appends must not overtake this one.
            self.broken.store(true, Ordering::Relaxed);
            self.door.error(rejected)
        })
    }

    fn call(&self, request: Request) -> BoxFuture<'static, Result<Response, LinkError>> {
        let (door, importer) = (self.door.clone(), Arc::clone(&self.importer));
        Box::pin(async move {
            match request {
                Request::Create { ledger, creator } => door.ask(Ask::Create { ledger, creator }).await,
                Request::Fence { ledger, epoch } => door.ask(Ask::Fence { ledger, epoch }).await,
                Request::State { ledger } => door.ask(Ask::State { ledger }).await,
                Request::Import { ledger, end } => match importer.allows(ledger, end).await {
                    Ok(()) => door.ask(Ask::Import { ledger, end }).await,
                    Err(response) => Ok(response),
                },
                Request::Delete { first, last } => door.ask(Ask::Delete { first, last }).await,
                Request::Read(read) => door.read(read).await,
            }
        })
    }
}

impl<D: Disk> Drop for InProcessLink<D> {
    fn drop(&mut self) {
        // A bookie that is stopped has forgotten the connection.
        _ = self.push(Event::Disconnected(self.connection));
    }
}
