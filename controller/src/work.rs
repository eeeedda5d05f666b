//! Follows a prefix of the store and runs a job for each key there, some at
//! once, until there is nothing left to do for it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use quire_metadata::follow::{Change, Follow};
use quire_metadata::key::Key;
use quire_metadata::operation::{self, Operation, Outcome};
use quire_metadata::operations::election::{Elected, ElectedLost};
use quire_metadata::store::{Event, KeyValue, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::queue::{Next, Queue};
use crate::term::Term;

/// Why a job could not go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Stopped {
    /// This process is no longer the controller.
    #[error("this process is no longer the controller")]
    NotElected,
    /// The store's.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// One kind of work.
#[async_trait]
pub(crate) trait Job: Send + Sync + 'static {
    /// What it is called in logs and metrics.
    const NAME: &'static str;

    /// The keys that it works on.
    fn prefix(&self) -> String;

    /// Does what can be done for one key now. May be dropped at any await and
    /// is begun anew then.
    async fn run(&self, key: &Key, value: &KeyValue) -> Result<Next, Stopped>;
}

/// Runs an operation under the controller's election. `None`: what it was built
/// on has changed.
pub(crate) async fn run_elected<O>(term: &Term, operation: O) -> Result<Option<O::Done>, Stopped>
where
    O: Operation + Send,
{
    let elected = Elected { election: term.election, operation };
    match operation::run(&*term.store, &term.options.keys, &elected).await? {
        Outcome::Done(done) => Ok(Some(done)),
        Outcome::Lost(ElectedLost::NotElected) => Err(Stopped::NotElected),
        Outcome::Lost(ElectedLost::Lost(_)) => Ok(None),
    }
}

/// Wakes what waits.
pub(crate) type Bell = watch::Sender<()>;

type Running = BoxFuture<'static, (String, Result<Next, Stopped>)>;

/// Works on all keys of a job until this process is no longer the controller.
/// Dropping the future stops it; nothing is lost.
pub(crate) async fn work<J: Job>(term: Arc<Term>, job: J, mut bell: watch::Receiver<()>) {
    let job = Arc::new(job);
    let options = &term.options;
    let mut follow = Follow::new(Arc::clone(&term.store), job.prefix());
    let mut queue = Queue::new(options.retry_min, options.retry_max);
    let mut running: FuturesUnordered<Running> = FuturesUnordered::new();
    let start = Instant::now();
    loop {
        while queue.running() < options.jobs_at_once
            && let Some((key, value)) = queue.start(start.elapsed())
        {
            running.push(run_one(Arc::clone(&term), Arc::clone(&job), key, value).boxed());
        }
        let room = queue.running() < options.jobs_at_once;
        let due = queue.next_due().filter(|_| room).map(|due| start + due);
        tokio::select! {
            change = follow.next() => {
                apply(&mut queue, change, start.elapsed());
                metrics::gauge!("quire_controller_pending", "work" => J::NAME).set(queue.len() as f64);
            }
            Some((key, next)) = running.next() => match next {
                Ok(next) => queue.finished(&key, next, start.elapsed()),
                Err(Stopped::NotElected) => return,
                Err(Stopped::Store(error)) => {
                    tracing::warn!(work = J::NAME, key, %error, "a step failed, trying again");
                    queue.finished(&key, Next::Failed, start.elapsed());
                }
            },
            Ok(()) = bell.changed() => queue.wake_all(start.elapsed()),
            () = sleep_until(due.unwrap_or(start)), if due.is_some() => {}
        }
    }
}

async fn run_one<J: Job>(
    term: Arc<Term>,
    job: Arc<J>,
    key: String,
    value: KeyValue,
) -> (String, Result<Next, Stopped>) {
    let next = match term.options.keys.parse(&key) {
        Some(parsed) => job.run(&parsed, &value).await,
        None => {
            tracing::error!(work = J::NAME, key, "a key is of no known form and is left alone");
            Ok(Next::Done)
        }
    };
    (key, next)
}

fn apply(queue: &mut Queue<String, KeyValue>, change: Change, now: Duration) {
    match change {
        Change::Reset(all, _) => {
            queue.reset(all.into_iter().map(|found| (found.key.clone(), found)).collect(), now);
        }
        Change::Events(events) => {
            for event in events {
                match event {
                    Event::Put(found) => queue.put(found.key.clone(), found, now),
                    Event::Delete { key, .. } => queue.remove(&key),
                }
            }
        }
    }
}
