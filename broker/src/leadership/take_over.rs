//! T1 and T2 for many partitions at once: an epoch each, minted with this
//! process's own nonce, never resumed.

use std::collections::HashMap;

use futures_util::{StreamExt, stream};
use quire_metadata::key::Keys;
use quire_metadata::operation::{self, Outcome};
use quire_metadata::operations::take_over::{Overtaken, TakeOver, TakenOver};
use quire_metadata::process::Process;
use quire_metadata::store::{Store, StoreError};
use quire_metadata::topic::Topic;
use quire_metadata::typed::Versioned;
use quire_metadata::view::{self, PartitionView};
use quire_proto::id::PartitionId;

use crate::context::{Backoff, Context};

/// Transactions of one take-over that are under way at once.
const TRANSACTIONS: usize = 16;

/// A partition whose epoch is ours, and its chain as it was then.
#[derive(Clone, Debug)]
pub struct Taken {
    pub view: PartitionView,
    pub taken: TakenOver,
}

/// Takes these partitions of one topic over. Partitions that others change at
/// the same moment are read and tried anew; when the topic itself changed or
/// went, what was not taken by then is left out.
///
/// # Errors
/// Those of the store that no retry helps against.
pub async fn take_over(
    context: &Context,
    topic: &Versioned<Topic>,
    partitions: Vec<PartitionId>,
) -> Result<Vec<Taken>, StoreError> {
    let Context { store, keys, process, .. } = context;
    let mut done = Vec::with_capacity(partitions.len());
    let mut left = partitions;
    let mut backoff = Backoff::default();
    while !left.is_empty() && topic_stands(context, topic).await {
        match attempt(&**store, keys, process, topic, &mut left, &mut done).await {
            Ok(()) => {}
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "partitions cannot be taken over, trying again");
            }
            Err(error) => return Err(error),
        }
        if !left.is_empty() {
            backoff.pause().await;
        }
    }
    Ok(done)
}

/// Reads the partitions that are left and tries once to take each over: those
/// that were taken go from `left` to `done`. An epoch whose minting has an
/// unknown outcome is not used; the next attempt mints a higher one.
///
/// # Errors
/// The store's. Some partitions may have been taken nevertheless.
pub async fn attempt(
    store: &dyn Store,
    keys: &Keys,
    process: &Process,
    topic: &Versioned<Topic>,
    left: &mut Vec<PartitionId>,
    done: &mut Vec<Taken>,
) -> Result<(), StoreError> {
    let views = view::partitions(store, keys, left.iter().copied()).await?;
    let candidates = views.iter().map(|view| view.candidate(topic.clone())).collect();
    let mut views: HashMap<PartitionId, PartitionView> =
        views.into_iter().map(|view| (view.id, view)).collect();
    let operations = TakeOver::pack(process, candidates);
    let runs: Vec<_> = operations.iter().map(|operation| operation::run(store, keys, operation)).collect();
    let mut runs = stream::iter(runs).buffer_unordered(TRANSACTIONS);
    let mut result = Ok(());
    while let Some(outcome) = runs.next().await {
        match outcome {
            Ok(Outcome::Done(taken)) => done.extend(taken.into_iter().filter_map(|taken| {
                let view = views.remove(&taken.leadership.partition)?;
                Some(Taken { view, taken })
            })),
            // All of the transaction's partitions are read anew.
            Ok(Outcome::Lost(Overtaken(_))) => {}
            // What is under way has an unknown outcome, too.
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    left.retain(|id| views.contains_key(id));
    result
}

/// Whether the topic is as it was read. While the store is away: yes.
async fn topic_stands(context: &Context, topic: &Versioned<Topic>) -> bool {
    match view::topic(&*context.store, &context.keys, &topic.value.name).await {
        Ok(found) => found.as_ref() == Some(topic),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests;
