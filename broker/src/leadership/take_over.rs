//! T1 and T2 for many partitions at once: an epoch each, minted with this
//! process's own nonce, never resumed.

use std::collections::HashMap;

use quire_metadata::operation::Outcome;
use quire_metadata::operations::take_over::{Overtaken, TakeOver, TakenOver};
use quire_metadata::store::StoreError;
use quire_metadata::topic::Topic;
use quire_metadata::typed::Versioned;
use quire_metadata::view::{self, PartitionView};
use quire_proto::id::PartitionId;

use crate::context::{Backoff, Context};

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
    let mut done = Vec::with_capacity(partitions.len());
    let mut left = partitions;
    let mut backoff = Backoff::default();
    while !left.is_empty() && topic_stands(context, topic).await {
        let views = match view::partitions(&*context.store, &context.keys, left.iter().copied()).await {
            Ok(views) => views,
            Err(error) if error.is_retryable() => {
                tracing::warn!(%error, "partitions cannot be read, trying again");
                backoff.pause().await;
                continue;
            }
            Err(error) => return Err(error),
        };
        left = take_over_once(context, topic, views, &mut done).await?;
        if !left.is_empty() {
            backoff.pause().await;
        }
    }
    Ok(done)
}

/// Tells which partitions were changed by others.
async fn take_over_once(
    context: &Context,
    topic: &Versioned<Topic>,
    views: Vec<PartitionView>,
    done: &mut Vec<Taken>,
) -> Result<Vec<PartitionId>, StoreError> {
    let candidates = views.iter().map(|view| view.candidate(topic.clone())).collect();
    let mut views: HashMap<PartitionId, PartitionView> =
        views.into_iter().map(|view| (view.id, view)).collect();
    for operation in TakeOver::pack(&context.process, candidates) {
        match context.settle(&operation).await? {
            Outcome::Done(taken) => {
                for taken in taken {
                    if let Some(view) = views.remove(&taken.leadership.partition) {
                        done.push(Taken { view, taken });
                    }
                }
            }
            // All of the transaction's partitions are read anew.
            Outcome::Lost(Overtaken(_)) => {}
        }
    }
    Ok(views.into_keys().collect())
}

/// Whether the topic is as it was read. While the store is away: yes.
async fn topic_stands(context: &Context, topic: &Versioned<Topic>) -> bool {
    match view::topic(&*context.store, &context.keys, &topic.value.name).await {
        Ok(found) => found.as_ref() == Some(topic),
        Err(_) => true,
    }
}
