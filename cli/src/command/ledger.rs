//! `quire ledger`

use quire_client::admin::Recovery;
use quire_proto::id::LedgerId;
use quire_proto::v1;
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

/// Asks the server first, without accepting anything, what may be lost. What is
/// accepted then is just that.
async fn recover(arguments: &LedgerRecover, common: &Common) -> Result<(), Failure> {
    let id = LedgerId(arguments.id);
    let admin = connect::admin(common).await?;
    let Recovery { ledger, loss, accept_loss } =
        admin.recover_ledger(id, None).await.map_err(connect::failure)?;
    let Some(accept_loss) = accept_loss else {
        let state = if ledger.state() == v1::LedgerState::Sealed { "sealed" } else { "being written" };
        output::note(format_args!("ledger {id} is {state}: there is nothing to recover"));
        return emit_recovery(common, ledger, String::new());
    };
    confirm(arguments, &loss)?;
    let Recovery { ledger, loss, .. } =
        admin.recover_ledger(id, Some(&accept_loss)).await.map_err(connect::failure)?;
    emit_recovery(common, ledger, loss)
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
        return Err(Failure::usage(format!("ledger {id} is left as it is")));
    }
    Ok(())
}

fn emit_recovery(common: &Common, ledger: v1::Ledger, loss: String) -> Result<(), Failure> {
    let view = RecoveryView { ledger: LedgerView::from(ledger), loss };
    output::emit(common.output, &view, RecoveryView::as_table)
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
