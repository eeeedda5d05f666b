//! `quire ledger`

use quire_client::Error;
use quire_client::admin::Recovery;
use quire_proto::id::LedgerId;
use quire_proto::v1::{self, ErrorReason};
use serde::Serialize;

use super::connect;
use crate::cli::{Common, Ledger, LedgerRecover};
use crate::failure::{Exit, Failure};
use crate::output::{self, human_bytes};

/// # Errors
/// What the server or the user refused.
pub(crate) async fn run(command: &Ledger, common: &Common) -> Result<(), Failure> {
    match command {
        Ledger::Describe(arguments) => describe(arguments.id, common).await,
        Ledger::Recover(arguments) => recover(arguments, common).await,
    }
}

async fn describe(id: u64, common: &Common) -> Result<(), Failure> {
    let admin = connect::admin(common).await?;
    let (ledger, replicas) = admin.describe_ledger(LedgerId(id)).await.map_err(connect::failure)?;
    let view = DescriptionView {
        ledger: LedgerView::from(ledger),
        replicas: replicas.into_iter().map(ReplicaView::from).collect(),
    };
    output::emit(common.output, &view, DescriptionView::as_table)
}

/// How often one loss is stated again because it was not the present one when it
/// was accepted.
const REPEATS: usize = 8;

async fn recover(arguments: &LedgerRecover, common: &Common) -> Result<(), Failure> {
    let id = LedgerId(arguments.id);
    let admin = &connect::admin(common).await?;
    let mut losses = Vec::new();
    let call = async |accept_loss: Option<String>| admin.recover_ledger(id, accept_loss.as_deref()).await;
    let recovered = accept_all(call, |loss| confirm(arguments, loss), &mut losses).await;
    let loss = losses.join("; ");
    let ledger = recovered.inspect_err(|_| {
        if !loss.is_empty() {
            output::note(format_args!("ledger {id}: accepted so far: {loss}"));
        }
    })?;
    if loss.is_empty() {
        let state = if ledger.state() == v1::LedgerState::Sealed { "sealed" } else { "being written" };
        output::note(format_args!("ledger {id} is {state}: there is nothing to recover"));
    }
    let view = RecoveryView { ledger: LedgerView::from(ledger), loss };
    output::emit(common.output, &view, RecoveryView::as_table)
}

/// Asks the server, without accepting anything, what may be lost, and accepts just
/// that once it is confirmed; then what more may be lost, until nothing is.
/// `losses` are those that were accepted.
async fn accept_all(
    call: impl AsyncFn(Option<String>) -> Result<Recovery, Error>,
    confirm: impl Fn(&str) -> Result<(), Failure>,
    losses: &mut Vec<String>,
) -> Result<v1::Ledger, Failure> {
    let mut repeats = 0;
    loop {
        let Recovery { ledger, loss, accept_loss } = call(None).await.map_err(connect::failure)?;
        let Some(accept_loss) = accept_loss else { return Ok(ledger) };
        confirm(&loss)?;
        match call(Some(accept_loss)).await {
            // It says what it took; nothing when there was nothing left to lose.
            Ok(Recovery { ledger, loss, .. }) => {
                if !loss.is_empty() && !losses.contains(&loss) {
                    losses.push(loss);
                }
                return Ok(ledger);
            }
            Err(error) if error.reason() == Some(ErrorReason::AcceptLossRequired) && repeats < REPEATS => {
                if losses.contains(&loss) {
                    repeats += 1;
                } else {
                    losses.push(loss);
                }
            }
            Err(error) => return Err(connect::failure(error)),
        }
    }
}

/// The flag accepts the loss; on a terminal, whoever gave it is told what it is
/// and asked again.
fn confirm(arguments: &LedgerRecover, loss: &str) -> Result<(), Failure> {
    let id = arguments.id;
    if !arguments.accept_loss {
        return Err(Failure::message(Exit::Refused, format_args!("ledger {id}: {loss}")).remedy(format!(
            "restore another copy of the ledger, or accept the loss: quire ledger recover {id} --accept-loss"
        )));
    }
    output::note(format_args!("ledger {id}: {loss}"));
    let question = format!("Seal ledger {id} and accept that loss for good?");
    if !arguments.yes && output::confirm(&question) == Some(false) {
        return Err(Failure::usage(format!("ledger {id}: that loss is not accepted")));
    }
    Ok(())
}

#[derive(Debug, Serialize)]
pub(super) struct LedgerView {
    pub(super) id: u64,
    topic: String,
    partition: u32,
    epoch: u64,
    pub(super) state: &'static str,
    ack_quorum: u32,
    pub(super) replicas: Vec<String>,
    // Of a sealed ledger only.
    entries: Option<u64>,
    pub(super) next_offset: Option<u64>,
    pub(super) bytes: Option<u64>,
    complete: Option<Vec<String>>,
}

impl From<v1::Ledger> for LedgerView {
    fn from(ledger: v1::Ledger) -> Self {
        let sealed = ledger.state() == v1::LedgerState::Sealed;
        LedgerView {
            id: ledger.id,
            state: match ledger.state() {
                v1::LedgerState::Unspecified => "unknown",
                v1::LedgerState::Open => "open",
                v1::LedgerState::Recovering => "recovering",
                v1::LedgerState::Sealed => "sealed",
            },
            topic: ledger.topic,
            partition: ledger.partition,
            epoch: ledger.epoch,
            ack_quorum: ledger.ack_quorum,
            replicas: ledger.replicas,
            entries: sealed.then_some(ledger.entries),
            next_offset: sealed.then_some(ledger.next_offset),
            bytes: sealed.then_some(ledger.bytes),
            complete: sealed.then_some(ledger.complete),
        }
    }
}

impl LedgerView {
    fn as_table(&self) -> String {
        let mut rows = vec![
            ("ledger", self.id.to_string()),
            ("topic", self.topic.clone()),
            ("partition", self.partition.to_string()),
            ("epoch", self.epoch.to_string()),
            ("state", self.state.to_owned()),
            ("ack quorum", self.ack_quorum.to_string()),
        ];
        rows.extend(self.entries.map(|entries| ("entries", entries.to_string())));
        rows.extend(self.next_offset.map(|offset| ("next offset", offset.to_string())));
        rows.extend(self.bytes.map(|bytes| ("size", human_bytes(bytes))));
        rows.extend(self.complete.as_ref().map(|complete| ("complete on", complete.join(", "))));
        output::pairs(rows)
    }
}

#[derive(Debug, Serialize)]
struct ReplicaView {
    bookie: String,
    /// Why the bookie could not say; what follows is absent then.
    error: Option<String>,
    fence_epoch: Option<u64>,
    entries: Option<u64>,
    committed: Option<u64>,
    certain: Option<bool>,
}

impl From<v1::ReplicaDescription> for ReplicaView {
    fn from(replica: v1::ReplicaDescription) -> Self {
        let known = replica.error.is_empty();
        ReplicaView {
            bookie: replica.bookie,
            error: (!known).then_some(replica.error),
            fence_epoch: known.then_some(replica.fence_epoch),
            entries: known.then_some(replica.entries),
            committed: known.then_some(replica.committed),
            certain: known.then_some(replica.certain),
        }
    }
}

impl ReplicaView {
    fn row(&self) -> [String; 6] {
        let number = |value: Option<u64>| value.map_or("-".to_owned(), |value| value.to_string());
        let certain = self.certain.map_or("-", |certain| if certain { "yes" } else { "no" });
        [
            self.bookie.clone(),
            number(self.entries),
            number(self.committed),
            number(self.fence_epoch),
            certain.to_owned(),
            self.error.clone().unwrap_or_default(),
        ]
    }
}

#[derive(Debug, Serialize)]
struct DescriptionView {
    ledger: LedgerView,
    replicas: Vec<ReplicaView>,
}

impl DescriptionView {
    fn as_table(&self) -> String {
        let replicas = output::columns(
            ["BOOKIE", "ENTRIES", "COMMITTED", "FENCE-EPOCH", "CERTAIN", "ERROR"],
            self.replicas.iter().map(ReplicaView::row),
        );
        format!("{}\n{replicas}", self.ledger.as_table())
    }
}

#[derive(Debug, Serialize)]
struct RecoveryView {
    ledger: LedgerView,
    loss: String,
}

impl RecoveryView {
    fn as_table(&self) -> String {
        let loss = if self.loss.is_empty() { "none" } else { &self.loss };
        format!("{}\naccepted as lost: {loss}\n", self.ledger.as_table())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_a_sealed_ledger_has_an_end() {
        let open =
            v1::Ledger { id: 7, state: v1::LedgerState::Open.into(), entries: 3, ..Default::default() };
        let view = LedgerView::from(open.clone());
        assert_eq!((view.state, view.entries), ("open", None));
        let sealed = v1::Ledger { state: v1::LedgerState::Sealed.into(), ..open };
        let view = LedgerView::from(sealed);
        assert_eq!((view.state, view.entries), ("sealed", Some(3)));
    }

    /// A server that states these losses one after the other, each under its
    /// number.
    struct Scripted {
        losses: Vec<&'static str>,
        present: Cell<usize>,
        /// How often it refuses what it has just stated.
        refusals: Cell<usize>,
    }

    impl Scripted {
        fn answer(&self, accept_loss: Option<String>) -> Result<Recovery, Error> {
            let present = self.present.get();
            let recovery = |at: usize, is_present: bool| Recovery {
                ledger: v1::Ledger { id: 7, ..Default::default() },
                loss: self.losses.get(at).copied().unwrap_or_default().to_owned(),
                accept_loss: is_present.then(|| at.to_string()),
            };
            let Some(accepted) = accept_loss else {
                return Ok(recovery(present, present < self.losses.len()));
            };
            assert_eq!(accepted, present.to_string(), "just what was stated");
            let refused =
                || Error::from(quire_proto::error::Failure::new(ErrorReason::AcceptLossRequired, "more"));
            if let Some(left) = self.refusals.get().checked_sub(1) {
                self.refusals.set(left);
                return Err(refused());
            }
            self.present.set(present + 1);
            if present + 1 < self.losses.len() { Err(refused()) } else { Ok(recovery(present, false)) }
        }
    }

    #[track_caller]
    fn check_recovery(
        losses: &[&'static str],
        refusals: usize,
        declined: &str,
        accepted: &[&str],
        ends: bool,
    ) {
        let server =
            Scripted { losses: losses.to_vec(), present: Cell::new(0), refusals: Cell::new(refusals) };
        let confirm = |loss: &str| {
            if loss == declined { Err(Failure::usage("no")) } else { Ok(()) }
        };
        let mut found = Vec::new();
        let call = async |accept_loss| server.answer(accept_loss);
        let recovered = futures_util::future::FutureExt::now_or_never(accept_all(call, confirm, &mut found));
        assert_eq!(recovered.expect("it waits for nothing").is_ok(), ends);
        assert_eq!(found, accepted);
    }

    #[test]
    fn each_loss_is_stated_and_accepted_until_nothing_is_left() {
        check_recovery(&[], 0, "", &[], true);
        check_recovery(&["a"], 0, "", &["a"], true);
        check_recovery(&["a", "b", "c"], 0, "", &["a", "b", "c"], true);
        check_recovery(&["a", "b", "c"], 0, "b", &["a"], false);
    }

    #[test]
    fn a_loss_that_is_never_the_present_one_is_given_up() {
        check_recovery(&["a", "b"], REPEATS, "", &["a", "b"], true);
        check_recovery(&["a", "b"], REPEATS + 1, "", &["a"], false);
    }

    #[test]
    fn a_bookie_that_cannot_say_has_no_figures() {
        let view = ReplicaView::from(v1::ReplicaDescription {
            bookie: "b".to_owned(),
            error: "away".to_owned(),
            entries: 5,
            ..Default::default()
        });
        assert_eq!(view.row(), ["b", "-", "-", "-", "-", "away"]);
    }
}
