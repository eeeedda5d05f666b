//! What waits to be sent on one connection: bounded by bytes, filled from any
//! thread, emptied by the connection's task.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Buf;
use quire_proto::id::{EntryId, LedgerId};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::codec::{Message, append_len, encode_appends};
use super::frame::Pieces;
use crate::message::{Append, AppendEvent, Response};

/// What a message weighs that has no payload.
const MESSAGE_BYTES: usize = 128;

/// The queue is full, or the connection over.
#[derive(Debug)]
pub(super) struct Refused;

#[derive(Debug)]
enum Item {
    Append(Append),
    Message(Message),
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Of each ledger only the greatest length is worth telling.
    lengths: BTreeMap<LedgerId, EntryId>,
    /// Of what waits and of what is being written.
    bytes: usize,
    /// Nothing more is taken; what is there is sent.
    finished: bool,
    cause: Option<String>,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.lengths.is_empty()
    }
}

/// The queue of one connection.
#[derive(Debug)]
pub(super) struct Outbox {
    queue: Mutex<Queue>,
    wake: Notify,
    /// Something was written.
    written: Notify,
    limit: usize,
    closed: CancellationToken,
}

impl Outbox {
    pub(super) fn new(limit: usize) -> Self {
        let (queue, closed) = (Mutex::new(Queue::default()), CancellationToken::new());
        Self { queue, wake: Notify::new(), written: Notify::new(), limit, closed }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection at once. The first cause is kept.
    pub(super) fn close(&self, cause: impl Into<String>) {
        let mut queue = self.lock();
        queue.cause.get_or_insert_with(|| cause.into());
        queue.items.clear();
        queue.lengths.clear();
        queue.finished = true;
        drop(queue);
        self.closed.cancel();
    }

    /// Ends the connection once what waits is sent, this message last.
    pub(super) fn finish(&self, last: Message) {
        let mut queue = self.lock();
        queue.items.push_back(Item::Message(last));
        queue.finished = true;
        drop(queue);
        self.wake.notify_one();
    }

    /// Why it was closed, once it is.
    pub(super) fn cause(&self) -> Option<String> {
        self.lock().cause.clone()
    }

    /// Ends when the connection is closed.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Ends when at least half of the queue is free.
    pub(super) async fn room(&self) {
        while self.lock().bytes > self.limit / 2 {
            self.written.notified().await;
        }
    }

    pub(super) fn append(&self, append: Append) -> Result<(), Refused> {
        self.put(append_len(&append), Item::Append(append))
    }

    pub(super) fn message(&self, message: Message) -> Result<(), Refused> {
        let bytes = match &message {
            Message::Response(_, Response::Entries(records)) => {
                records.iter().map(|record| record.payload.len() + MESSAGE_BYTES).sum()
            }
            _ => MESSAGE_BYTES,
        };
        self.put(bytes, Item::Message(message))
    }

    fn put(&self, bytes: usize, item: Item) -> Result<(), Refused> {
        let mut queue = self.lock();
        // One item is taken however large it is.
        if queue.finished || (queue.bytes > 0 && queue.bytes + bytes > self.limit) {
            return Err(Refused);
        }
        queue.bytes += bytes;
        queue.items.push_back(item);
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    /// Lengths are merged with those that wait; they take no space of the queue.
    pub(super) fn event(&self, event: AppendEvent) -> Result<(), Refused> {
        let AppendEvent::Durable(lengths) = event else { return self.message(Message::Event(event)) };
        let mut queue = self.lock();
        if queue.finished {
            return Err(Refused);
        }
        for (ledger, durable) in lengths {
            let known = queue.lengths.entry(ledger).or_default();
            *known = durable.max(*known);
        }
        drop(queue);
        self.wake.notify_one();
        Ok(())
    }

    /// Writes what comes in until the connection ends. Each piece of progress
    /// may take `patience`.
    pub(super) async fn write_to(
        &self,
        socket: &mut (impl AsyncWrite + Unpin),
        patience: Duration,
    ) -> io::Result<()> {
        let mut pieces = Pieces::default();
        let mut batch = Batch::default();
        loop {
            let Some(bytes) = self.encode(&mut pieces, &mut batch) else { return Ok(()) };
            if pieces.has_remaining() {
                while pieces.has_remaining() {
                    if timeout(patience, socket.write_buf(&mut pieces)).await?? == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                }
                self.lock().bytes -= bytes;
                self.written.notify_one();
            } else {
                self.wake.notified().await;
            }
        }
    }

    /// Moves all that waits into `pieces`, and says what it weighs; nothing once
    /// the outbox is finished and empty.
    fn encode(&self, pieces: &mut Pieces, batch: &mut Batch) -> Option<usize> {
        let bytes = {
            let mut queue = self.lock();
            if queue.is_empty() {
                return (!queue.finished).then_some(0);
            }
            mem::swap(&mut queue.items, &mut batch.items);
            mem::swap(&mut queue.lengths, &mut batch.lengths);
            queue.bytes
        };
        for item in batch.items.drain(..) {
            match item {
                Item::Append(append) => batch.appends.push(append),
                Item::Message(message) => {
                    encode_appends(&batch.appends, pieces);
                    batch.appends.clear();
                    message.encode(pieces);
                }
            }
        }
        encode_appends(&batch.appends, pieces);
        batch.appends.clear();
        let lengths = mem::take(&mut batch.lengths);
        if !lengths.is_empty() {
            Message::Event(AppendEvent::Durable(lengths.into_iter().collect())).encode(pieces);
        }
        Some(bytes)
    }
}

/// What is taken out of the queue at once. Its memory is used again.
#[derive(Debug, Default)]
struct Batch {
    items: VecDeque<Item>,
    lengths: BTreeMap<LedgerId, EntryId>,
    appends: Vec<Append>,
}
