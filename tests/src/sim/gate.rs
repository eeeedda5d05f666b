//! The metadata store as one process of a run sees it: through a gate that the
//! run opens and shuts.
//!
//! What brokers and bookies ask of the store is written as async functions over
//! the [`Store`] trait. A run polls them itself, one at a time: what they ask
//! piles up at the gate, and an answer lets the one that waits for it go on.
//! There is no runtime, no thread, and no order but the run's.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use quire_metadata::store::{Event, KeyValue, LeaseId, Page, Revision, Store, StoreError, Txn, TxnOutcome};

/// A request at a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ask(pub u32);

/// What is asked of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    Get(String),
    Range { prefix: String, from: String, limit: usize, revision: Option<Revision> },
    Transact(Txn),
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Get(Option<KeyValue>),
    Range(Page),
    Transact(TxnOutcome),
}

#[derive(Debug, Default)]
struct Slots {
    next: u32,
    outbox: Vec<(Ask, Question)>,
    answers: BTreeMap<Ask, Result<Answer, StoreError>>,
    wakers: BTreeMap<Ask, Waker>,
}

/// The gate of one process.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    slots: Arc<Mutex<Slots>>,
}

impl Gate {
    /// Everything that was asked since the last time.
    #[must_use]
    pub fn take_asked(&self) -> Vec<(Ask, Question)> {
        std::mem::take(&mut self.lock().outbox)
    }

    /// The store's answer to one request.
    pub fn answer(&self, ask: Ask, answer: Result<Answer, StoreError>) {
        let mut slots = self.lock();
        slots.answers.insert(ask, answer);
        if let Some(waker) = slots.wakers.remove(&ask) {
            waker.wake();
        }
    }

    fn ask(&self, question: Question) -> Waiting {
        let mut slots = self.lock();
        let ask = Ask(slots.next);
        slots.next += 1;
        slots.outbox.push((ask, question));
        Waiting { gate: self.clone(), ask }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One answer that is waited for.
struct Waiting {
    gate: Gate,
    ask: Ask,
}

impl Future for Waiting {
    type Output = Result<Answer, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slots = self.gate.lock();
        match slots.answers.remove(&self.ask) {
            Some(answer) => Poll::Ready(answer),
            None => {
                slots.wakers.insert(self.ask, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

fn mismatch() -> StoreError {
    StoreError::Invalid("the run answered another question".to_owned())
}

#[async_trait]
impl Store for Gate {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        match self.ask(Question::Get(key.to_owned())).await? {
            Answer::Get(found) => Ok(found),
            _ => Err(mismatch()),
        }
    }

    async fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        revision: Option<Revision>,
    ) -> Result<Page, StoreError> {
        let (prefix, from) = (prefix.to_owned(), from.to_owned());
        match self.ask(Question::Range { prefix, from, limit, revision }).await? {
            Answer::Range(page) => Ok(page),
            _ => Err(mismatch()),
        }
    }

    async fn transact(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        match self.ask(Question::Transact(txn)).await? {
            Answer::Transact(outcome) => Ok(outcome),
            _ => Err(mismatch()),
        }
    }

    async fn watch(
        &self,
        _: &str,
        _: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError> {
        Err(StoreError::Invalid("nothing in a run watches".to_owned()))
    }

    async fn grant(&self, _: Duration) -> Result<LeaseId, StoreError> {
        Err(StoreError::Invalid("nothing in a run holds a lease".to_owned()))
    }

    async fn keep_alive(&self, _: LeaseId) -> Result<(), StoreError> {
        Err(StoreError::LeaseExpired)
    }

    async fn revoke(&self, _: LeaseId) -> Result<(), StoreError> {
        Err(StoreError::LeaseExpired)
    }
}

/// Async functions of one process that are under way, each with what is to
/// happen when it is done.
pub struct Tasks<T> {
    tasks: BTreeMap<u32, BoxFuture<'static, T>>,
    next: u32,
}

impl<T> std::fmt::Debug for Tasks<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tasks").field("under_way", &self.tasks.len()).finish_non_exhaustive()
    }
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self { tasks: BTreeMap::new(), next: 0 }
    }
}

impl<T> Tasks<T> {
    /// Starts a function; it runs at the next [`Tasks::poll`].
    pub fn start(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.tasks.insert(self.next, Box::pin(task));
        self.next += 1;
    }

    /// Lets every function go on as far as it can, and returns what those that
    /// are done have come to.
    pub fn poll(&mut self) -> Vec<T> {
        let mut context = Context::from_waker(Waker::noop());
        let mut done = Vec::new();
        self.tasks.retain(|_, task| match task.as_mut().poll(&mut context) {
            Poll::Ready(result) => {
                done.push(result);
                false
            }
            Poll::Pending => true,
        });
        done
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_goes_on_when_its_answer_comes() {
        let gate = Gate::default();
        let mut tasks = Tasks::default();
        for key in ["a", "b"] {
            let gate = gate.clone();
            tasks.start(async move { (key, gate.get(key).await) });
        }
        assert_eq!(tasks.poll(), []);
        let asked = gate.take_asked();
        assert_eq!(asked[1], (Ask(1), Question::Get("b".to_owned())));
        gate.answer(Ask(1), Ok(Answer::Get(None)));
        assert_eq!(tasks.poll(), [("b", Ok(None))]);
        gate.answer(Ask(0), Err(StoreError::Unknown("lost".to_owned())));
        assert_eq!(tasks.poll(), [("a", Err(StoreError::Unknown("lost".to_owned())))]);
        assert!(tasks.is_empty() && gate.take_asked().is_empty());
    }

    #[test]
    fn reads_that_run_at_once_each_get_their_own_answer() {
        use futures_util::stream::{self, StreamExt};
        let gate = Gate::default();
        let mut tasks = Tasks::default();
        let read = |key: &'static str| {
            let store = gate.clone();
            async move { store.get(key).await.map(|_| key) }
        };
        let reads = [read("a"), read("b"), read("c")];
        tasks.start(stream::iter(reads).buffered(2).collect::<Vec<_>>());
        let mut order = Vec::new();
        let found = loop {
            let done = tasks.poll();
            if let Some(found) = done.into_iter().next() {
                break found;
            }
            let mut asked = gate.take_asked();
            asked.reverse();
            for (ask, _) in asked {
                order.push(ask);
                gate.answer(ask, Ok(Answer::Get(None)));
            }
        };
        assert_eq!(found, [Ok("a"), Ok("b"), Ok("c")]);
        assert_eq!(order, [Ask(1), Ask(0), Ask(2)]);
    }
}
