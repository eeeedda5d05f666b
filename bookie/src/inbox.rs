//! The inbox of the log thread, bounded by bytes. What comes in during a sync
//! is taken at once afterwards and forms the next commit batch (L1).

use std::collections::VecDeque;
use std::fmt;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use quire_ledger::link::AppendSink;
use quire_ledger::message::Response;
use quire_ledger::record::{HEADER_LEN, Record};
use quire_ledger::replica::{ConnectionId, Event};
use quire_proto::id::{EntryId, Epoch, LedgerId, Nonce};
use tokio::sync::oneshot;

/// What the log thread is asked for.
pub(crate) enum Message {
    /// A connection: its events go there.
    Connected(ConnectionId, Arc<dyn AppendSink>),
    /// Something for the machine.
    Event(Event),
    /// A request and who waits for its response.
    Ask(Ask, oneshot::Sender<Response>),
    /// Living entries of a file that is to be recycled; told once durable.
    Copy(Vec<Record>, SyncSender<()>),
    /// The metadata store was seen at this revision.
    SawStore(u64),
}

/// A request that is the machine's.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    Create { ledger: LedgerId, creator: Nonce },
    Fence { ledger: LedgerId, epoch: Epoch },
    State { ledger: LedgerId },
    Import { ledger: LedgerId, end: EntryId },
    Delete { first: LedgerId, last: LedgerId },
}

impl Message {
    /// Whether nobody notices that it was not taken.
    const fn is_sent_once(&self) -> bool {
        matches!(self, Self::Event(Event::Disconnected(_) | Event::Admission(_)))
    }

    /// What it holds in memory, about.
    fn bytes(&self) -> u64 {
        let payload = match self {
            Self::Event(Event::Append { append, .. }) => append.record.payload.len(),
            Self::Event(Event::Imported(record)) => record.payload.len(),
            Self::Copy(records, _) => records.iter().map(|record| record.header.record_len()).sum(),
            _ => 0,
        };
        (payload + HEADER_LEN) as u64
    }
}

/// Why a message was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Rejected {
    #[error("its inbox is full: {0} bytes wait for the disk")]
    Full(u64),
    #[error("{0}")]
    Closed(Arc<str>),
}

/// Messages that wait for the log thread.
pub(crate) struct Inbox {
    bytes_max: u64,
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Message>,
    bytes: u64,
    waiting: bool,
    closed: Option<Arc<str>>,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("bytes_max", &self.bytes_max).finish_non_exhaustive()
    }
}

impl Inbox {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, state: Mutex::default(), arrived: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Never blocks. A message that is alone is always taken, and so is one that
    /// nobody sends again.
    pub(crate) fn push(&self, message: Message) -> Result<(), Rejected> {
        let mut state = self.state();
        if let Some(why) = &state.closed {
            return Err(Rejected::Closed(Arc::clone(why)));
        }
        let bytes = message.bytes();
        let room = state.bytes == 0 || state.bytes + bytes <= self.bytes_max;
        if !room && !message.is_sent_once() {
            return Err(Rejected::Full(state.bytes));
        }
        state.bytes += bytes;
        state.messages.push_back(message);
        if state.waiting {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Takes everything. Waits for something to come, at most until `deadline`:
    /// then nothing comes back. Nothing at all once it is closed and empty.
    pub(crate) fn take(&self, deadline: Option<Instant>) -> Option<VecDeque<Message>> {
        let mut state = self.state();
        while state.messages.is_empty() {
            if state.closed.is_some() {
                return None;
            }
            state.waiting = true;
            state = match deadline {
                None => self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        state.waiting = false;
                        return Some(VecDeque::new());
                    }
                    self.arrived.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            state.waiting = false;
        }
        state.bytes = 0;
        Some(std::mem::take(&mut state.messages))
    }

    /// Takes nothing more. What is in it is still handled.
    pub(crate) fn close(&self, why: &str) {
        self.state().closed.get_or_insert_with(|| why.into());
        self.arrived.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use quire_ledger::replica::Admission;

    use super::*;

    #[test]
    fn a_full_inbox_takes_what_nobody_sends_again() {
        let inbox = Inbox::new(1);
        let ask = || Message::Ask(Ask::State { ledger: LedgerId(1) }, oneshot::channel().0);
        inbox.push(ask()).unwrap();
        assert!(matches!(inbox.push(ask()), Err(Rejected::Full(_))));
        inbox.push(Message::Event(Event::Disconnected(ConnectionId(1)))).unwrap();
        inbox.push(Message::Event(Event::Admission(Admission::Fences))).unwrap();
        assert_eq!(inbox.take(None).unwrap().len(), 3);
    }
}
