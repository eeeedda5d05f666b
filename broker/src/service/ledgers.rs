//! LedgerService: where byte ranges are and what state they are in.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use quire_ledger::message::{ReplicaState, Request as Ask, Response as Answer};
use quire_metadata::ledger::{LedgerMetadata, LedgerState};
use quire_metadata::view::{self, Link};
use quire_proto::id::{BookieId, LedgerId};
use quire_proto::v1;
use quire_proto::v1::ErrorReason;
use quire_proto::v1::ledger_service_server::LedgerService;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::context::Backoff;
use crate::failure::{self, Failure};
use crate::leadership::driver::{Patience, Wait};
use crate::log::PartitionLog;
use crate::log::partition::Standing;
use crate::service::Door;
use crate::service::connection::Peer;

/// What a segment takes in an answer.
const SEGMENT_BYTES: usize = 256;

/// How long an accepted loss is waited for.
const RECOVERY: Duration = Duration::from_secs(30);

/// LedgerService on a broker.
#[derive(Clone, Debug)]
pub struct Ledgers(pub Arc<Door>);

#[tonic::async_trait]
impl LedgerService for Ledgers {
    async fn list_segments(
        &self,
        request: Request<v1::ListSegmentsRequest>,
    ) -> Result<Response<v1::ListSegmentsResponse>, Status> {
        self.0.check_open()?;
        let v1::ListSegmentsRequest { topic, partition } = request.get_ref();
        let logs = self.0.logs(topic, *partition)?;
        let segments: usize = logs.iter().map(|log| log.segments().len() + 1).sum();
        let room = self.0.replies.room(segments * SEGMENT_BYTES, request.extensions().get(), None).await?;
        let segments = self.0.list_segments(&logs).await?;
        Ok(room.response(request.extensions().get(), v1::ListSegmentsResponse { segments }))
    }

    async fn describe_ledger(
        &self,
        request: Request<v1::DescribeLedgerRequest>,
    ) -> Result<Response<v1::DescribeLedgerResponse>, Status> {
        self.0.check_open()?;
        let ledger = self.0.ledger(LedgerId(request.into_inner().id)).await?;
        let replicas = join_all(ledger.replicas.iter().map(|&bookie| self.0.ask(bookie, ledger.id))).await;
        Ok(Response::new(v1::DescribeLedgerResponse { ledger: Some(self.0.public(&ledger)), replicas }))
    }

    async fn recover_ledger(
        &self,
        request: Request<v1::RecoverLedgerRequest>,
    ) -> Result<Response<v1::RecoverLedgerResponse>, Status> {
        self.0.check_open()?;
        let peer =
            request.extensions().get::<Peer>().map_or_else(String::new, |peer| peer.address.to_string());
        let v1::RecoverLedgerRequest { id, accept_loss } = request.into_inner();
        Ok(Response::new(self.0.recover(LedgerId(id), accept_loss.as_deref(), &peer).await?))
    }
}

impl Door {
    /// The partitions that are asked for.
    fn logs(&self, topic: &str, partition: Option<u32>) -> Result<Vec<Arc<PartitionLog>>, Failure> {
        let entry = self.catalog.topic(topic)?;
        Ok(match partition {
            Some(index) => vec![Arc::clone(entry.partition(index)?)],
            None => entry.partitions.clone(),
        })
    }

    async fn list_segments(&self, logs: &[Arc<PartitionLog>]) -> Result<Vec<v1::Segment>, Failure> {
        let context = &self.context;
        let ids: Vec<_> = logs.iter().map(|log| log.id).collect();
        let views = view::partitions(&*context.store, &context.keys, ids).await;
        let mut segments = Vec::new();
        for view in views.map_err(|error| failure::metadata("reading the chains", &error))? {
            let index = view.id.index.0;
            segments.extend(view.chain.iter().map(|link| self.segment(index, link)));
        }
        Ok(segments)
    }

    fn segment(&self, partition: u32, link: &Link) -> v1::Segment {
        v1::Segment {
            partition,
            sequence: link.sequence.0,
            base_offset: link.segment.value.base_offset.0,
            ledger: Some(self.public(&link.ledger.value)),
        }
    }

    async fn ledger(&self, id: LedgerId) -> Result<LedgerMetadata, Failure> {
        let context = &self.context;
        let found = view::get::<LedgerMetadata>(&*context.store, &context.keys.ledger(id)).await;
        let found = found.map_err(|error| failure::metadata("reading the ledger", &error))?;
        found.map(|found| found.value).ok_or_else(|| {
            Failure::new(
                ErrorReason::UnknownLedger,
                format!("ledger {id} does not exist: list those of a topic (quire segment list)"),
            )
        })
    }

    /// What a replica says of itself.
    async fn ask(&self, bookie: BookieId, ledger: LedgerId) -> v1::ReplicaDescription {
        let description =
            v1::ReplicaDescription { bookie: bookie.to_string(), ..v1::ReplicaDescription::default() };
        let error = match self.context.bookies.call(bookie, Ask::State { ledger }).await {
            Ok(Answer::State(state)) => {
                let ReplicaState { fence, durable, committed, certain } = state;
                return v1::ReplicaDescription {
                    fence_epoch: fence.0,
                    entries: durable.0,
                    committed: committed.0,
                    certain,
                    ..description
                };
            }
            Ok(Answer::Absent) => "the bookie does not hold the ledger".to_owned(),
            Ok(Answer::Deleted) => "the ledger is deleted there".to_owned(),
            Ok(Answer::Unknown(why)) => why,
            Ok(other) => format!("unexpected answer {other:?}"),
            Err(error) => error.cause,
        };
        v1::ReplicaDescription { error, ..description }
    }

    /// T3's way on, which only an operator may take.
    async fn recover(
        &self,
        id: LedgerId,
        accept_loss: Option<&str>,
        peer: &str,
    ) -> Result<v1::RecoverLedgerResponse, Failure> {
        let ledger = self.ledger(id).await?;
        let place = self.place(&ledger);
        let is_led = place.as_ref().is_some_and(|(log, _)| log.check_led().is_ok());
        let is_settled = place.as_ref().is_none_or(|(log, _)| log.standing().0 != Standing::Recovering);
        let waiting = place.and_then(|(log, patience)| Some((patience.wait()?, log, patience)));
        let (wait, log, patience) = match waiting {
            Some(found) if found.0.waiting.ledger() == id => found,
            // It is written, or nothing waits for it.
            _ if is_led || ledger.sealed().is_some() && is_settled => {
                let ledger = Some(self.public(&ledger));
                return Ok(v1::RecoverLedgerResponse { ledger, ..v1::RecoverLedgerResponse::default() });
            }
            _ if ledger.sealed().is_some() => {
                return Err(Failure::new(
                    ErrorReason::NotReady,
                    format!(
                        "ledger {id} is sealed, and its partition is being taken over: what that waits for is \
                         known in less than a minute, try again then"
                    ),
                ));
            }
            _ => {
                return Err(Failure::new(
                    ErrorReason::NotReady,
                    format!("ledger {id} is being recovered, without loss so far: try again"),
                ));
            }
        };
        if !wait.waiting.is_loss() {
            return Err(Failure::new(
                ErrorReason::NotReady,
                format!("ledger {id}: {}; that is no loss that could be accepted: try again", wait.waiting),
            ));
        }
        let Some(name) = accept_loss else {
            let (ledger, loss) = (Some(self.public(&ledger)), wait.waiting.to_string());
            return Ok(v1::RecoverLedgerResponse { ledger, loss, accept_loss: Some(wait.name) });
        };
        let Some(accepted) = patience.stated(name).filter(|stated| stated.waiting.covers(&wait.waiting))
        else {
            return Err(not_accepted(id, &wait));
        };
        let loss = accepted.waiting.to_string();
        tracing::warn!(ledger = %id, peer, wait = name, loss, "an operator accepted the loss of entries");
        patience.accept_loss(accepted.waiting.clone());
        let ledger = self.wait_recovered(id, &accepted, &log, &patience).await?;
        Ok(v1::RecoverLedgerResponse { ledger: Some(self.public(&ledger)), loss, accept_loss: None })
    }

    /// The partition that the ledger is of.
    fn place(&self, ledger: &LedgerMetadata) -> Option<(Arc<PartitionLog>, Arc<Patience>)> {
        let entry = self.catalog.by_id(ledger.owner.topic)?;
        let index = ledger.owner.index.0 as usize;
        Some((Arc::clone(entry.partitions.get(index)?), Arc::clone(entry.patience.get(index)?)))
    }

    /// Waits until the ledger is sealed and no longer in the way of its partition.
    ///
    /// # Errors
    /// When the operator has to be asked anew, for more may be lost than in the
    /// wait that was accepted.
    async fn wait_recovered(
        &self,
        id: LedgerId,
        accepted: &Wait,
        log: &PartitionLog,
        patience: &Patience,
    ) -> Result<LedgerMetadata, Failure> {
        let deadline = Instant::now() + RECOVERY;
        let mut backoff = Backoff::default();
        while Instant::now() < deadline {
            let ledger = self.ledger(id).await?;
            let is_passed = match patience.wait() {
                Some(wait) => is_passed(id, accepted, &wait)?,
                None => log.standing().0 != Standing::Recovering,
            };
            if ledger.sealed().is_some() && is_passed {
                return Ok(ledger);
            }
            backoff.pause().await;
        }
        Err(failure::unknown_outcome(&format!("ledger {id}"), "it was not recovered in time"))
    }

    /// The ledger as operators see it.
    fn public(&self, ledger: &LedgerMetadata) -> v1::Ledger {
        let owner = ledger.owner;
        let topic = self.catalog.by_id(owner.topic).map(|entry| entry.topic.name.to_string());
        let names = |bookies: &[BookieId]| bookies.iter().map(ToString::to_string).collect();
        let public = v1::Ledger {
            id: ledger.id.0,
            topic: topic.unwrap_or_else(|| owner.topic.to_string()),
            partition: owner.index.0,
            epoch: ledger.epoch.0,
            state: match ledger.state {
                LedgerState::Open => v1::LedgerState::Open,
                LedgerState::Recovering(_) => v1::LedgerState::Recovering,
                LedgerState::Sealed(_) => v1::LedgerState::Sealed,
            }
            .into(),
            ack_quorum: ledger.ack_quorum,
            replicas: names(&ledger.replicas),
            ..v1::Ledger::default()
        };
        match ledger.sealed() {
            Some(sealed) => v1::Ledger {
                entries: sealed.end.0,
                next_offset: sealed.next_offset.0,
                bytes: sealed.bytes,
                complete: names(&sealed.complete),
                ..public
            },
            None => public,
        }
    }
}

/// Whether the partition waits for another ledger by now.
///
/// # Errors
/// When it waits for this one, and more may be lost than was accepted.
fn is_passed(id: LedgerId, accepted: &Wait, present: &Wait) -> Result<bool, Failure> {
    let Wait { waiting, .. } = present;
    if waiting.ledger() == id && waiting.is_loss() && !accepted.waiting.covers(waiting) {
        return Err(Failure::new(
            ErrorReason::AcceptLossRequired,
            format!("ledger {id}: that loss was accepted; now more may be lost: {waiting}"),
        ));
    }
    Ok(waiting.ledger() != id)
}

/// What may be lost in this wait is not what the operator would accept.
fn not_accepted(id: LedgerId, wait: &Wait) -> Failure {
    Failure::new(
        ErrorReason::AcceptLossRequired,
        format!("ledger {id}: more may be lost than was accepted: {}; nothing was done", wait.waiting),
    )
}

#[cfg(test)]
mod tests {
    use quire_ledger::recovery::Silence;
    use quire_proto::id::EntryId;
    use uuid::Uuid;

    use super::*;
    use crate::leadership::promotion::Waiting;
    use crate::leadership::scan::Unreadable;

    fn wait(ledger: u64, entry: u64, silent: &[u128]) -> Wait {
        let silence = |&n: &u128| Silence { bookie: BookieId(Uuid::from_u128(n)), why: "away".to_owned() };
        let waiting = Waiting::Restoring(Unreadable {
            ledger: LedgerId(ledger),
            entry: EntryId(entry),
            refusals: Vec::new(),
            silences: silent.iter().map(silence).collect(),
        });
        Wait { name: "2.1".to_owned(), waiting }
    }

    #[test]
    fn more_than_was_accepted_is_asked_about() {
        let accepted = wait(9, 1, &[1, 2]);
        for (present, expected) in [
            (wait(9, 1, &[1, 2]), Some(false)),
            (wait(9, 1, &[2]), Some(false)),
            (wait(8, 5, &[3]), Some(true)),
            (wait(9, 1, &[3]), None),
            (wait(9, 2, &[]), None),
        ] {
            let passed = is_passed(LedgerId(9), &accepted, &present);
            assert_eq!(passed.as_ref().ok().copied(), expected, "{}", present.waiting);
            if let Err(failure) = passed {
                assert_eq!(failure.reason, ErrorReason::AcceptLossRequired);
                assert!(failure.message.contains("that loss was accepted"), "{}", failure.message);
            }
        }
    }
}
