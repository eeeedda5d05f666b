//! What comes into a shard. Produce requests wait for room; what bookies report
//! is merged, so that it never has to wait; answers to the shard's own questions
//! are as many as it asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quire_ledger::link::AppendSink;
use quire_ledger::message::AppendEvent;
use quire_proto::id::{BookieId, EntryId, LedgerId};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::shard::driver::Control;
use crate::shard::piece::Piece;

/// All parts of one produce request that belong to one shard.
#[derive(Debug)]
pub struct Produce {
    pub pieces: Vec<Piece>,
    _room: Room,
}

/// Room for one produce request, until the shard has taken it out.
#[derive(Debug)]
pub struct Room {
    _permit: OwnedSemaphorePermit,
}

/// What one bookie reported since the shard looked last.
#[derive(Debug, Default)]
pub struct Reports {
    /// Greatest length by ledger.
    pub durable: HashMap<LedgerId, EntryId>,
    /// The last gap or refusal by ledger.
    pub refused: HashMap<LedgerId, AppendEvent>,
    /// The link broke.
    pub broken: bool,
}

/// Everything that came in.
#[derive(Debug, Default)]
pub struct Arrived {
    pub produce: Vec<Produce>,
    pub control: Vec<Control>,
    /// By bookie and the number of the link.
    pub reports: HashMap<(BookieId, u64), Reports>,
}

impl Arrived {
    fn is_empty(&self) -> bool {
        self.produce.is_empty() && self.control.is_empty() && self.reports.is_empty()
    }
}

/// One shard's inbox.
#[derive(Debug)]
pub struct Inbox {
    arrived: Mutex<Arrived>,
    wake: Notify,
    room: Arc<Semaphore>,
}

impl Inbox {
    /// An inbox that holds this many produce requests.
    #[must_use]
    pub fn new(messages: usize) -> Arc<Self> {
        Arc::new(Self {
            arrived: Mutex::default(),
            wake: Notify::new(),
            room: Arc::new(Semaphore::new(messages.max(1))),
        })
    }

    /// Waits for room for one request, in order of arrival. Cancel-safe.
    pub async fn room(&self) -> Room {
        match Arc::clone(&self.room).acquire_owned().await {
            Ok(permit) => Room { _permit: permit },
            // The semaphore is never closed.
            Err(_) => std::future::pending().await,
        }
    }

    /// Hands pieces over, in order.
    pub fn produce(&self, pieces: Vec<Piece>, room: Room) {
        self.lock().produce.push(Produce { pieces, _room: room });
        self.wake.notify_one();
    }

    /// Answers a question of the shard's, or tells it something rare.
    pub fn control(&self, message: Control) {
        self.lock().control.push(message);
        self.wake.notify_one();
    }

    /// Waits until something is there and takes all of it. Cancel-safe.
    pub async fn take(&self) -> Arrived {
        loop {
            let arrived = std::mem::take(&mut *self.lock());
            if !arrived.is_empty() {
                return arrived;
            }
            self.wake.notified().await;
        }
    }

    fn report(&self, bookie: BookieId, link: u64, report: impl FnOnce(&mut Reports)) {
        report(self.lock().reports.entry((bookie, link)).or_default());
        self.wake.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Brings one link's reports into the inbox.
#[derive(Debug)]
pub struct Sink {
    pub inbox: Arc<Inbox>,
    /// Which of the shard's links to that bookie: reports of one that broke are
    /// not taken for the next one's.
    pub link: u64,
}

impl AppendSink for Sink {
    fn deliver(&self, bookie: BookieId, event: AppendEvent) {
        self.inbox.report(bookie, self.link, |reports| match event {
            AppendEvent::Durable(lengths) => {
                for (ledger, durable) in lengths {
                    let known = reports.durable.entry(ledger).or_default();
                    *known = durable.max(*known);
                }
            }
            AppendEvent::Gap { ledger, .. } | AppendEvent::Refused { ledger, .. } => {
                reports.refused.insert(ledger, event);
            }
        });
    }

    fn broken(&self, bookie: BookieId) {
        self.inbox.report(bookie, self.link, |reports| reports.broken = true);
    }
}
