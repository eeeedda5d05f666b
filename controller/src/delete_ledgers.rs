//! Carries out delete intents: asks each bookie that the intent names, notes
//! who confirmed, and ends the intent when each has confirmed or has left the
//! registry (B8).

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;
use quire_metadata::delete_intent::DeleteIntent;
use quire_metadata::key::Key;
use quire_metadata::operations::deletion::AdvanceDelete;
use quire_metadata::store::KeyValue;
use quire_metadata::typed::Versioned;
use quire_proto::id::{BookieId, LedgerId};

use crate::queue::Next;
use crate::term::Term;
use crate::work::{Job, Stopped, run_elected};

/// The job of all delete intents.
pub(crate) struct DeleteLedgers(pub(crate) Arc<Term>);

#[async_trait]
impl Job for DeleteLedgers {
    const NAME: &'static str = "delete-ledgers";

    fn prefix(&self) -> String {
        self.0.options.keys.deletes()
    }

    async fn run(&self, key: &Key, value: &KeyValue) -> Result<Next, Stopped> {
        let Key::Delete(ledger) = *key else { return Ok(Next::Done) };
        let intent = Versioned::<DeleteIntent>::read(value)?;
        let (confirmed, departed) = self.ask(ledger, intent.value.outstanding()).await?;
        let advance = AdvanceDelete { ledger, intent, confirmed, departed };
        let ends = advance.ends();
        if advance.confirmed.is_empty() && !ends {
            return Ok(Next::Failed);
        }
        match run_elected(&self.0, advance).await? {
            Some(None) => {
                tracing::info!(%ledger, "a ledger is deleted from all its bookies");
                metrics::counter!("quire_controller_ledgers_deleted_total").increment(1);
                Ok(Next::Done)
            }
            // Those that did not confirm are asked again; what was noted comes
            // with the watch.
            Some(Some(_)) | None => Ok(Next::Failed),
        }
    }
}

impl DeleteLedgers {
    /// Which bookies have confirmed, and which of the others have left.
    async fn ask(
        &self,
        ledger: LedgerId,
        bookies: Vec<BookieId>,
    ) -> Result<(Vec<BookieId>, Vec<BookieId>), Stopped> {
        let asked = bookies.into_iter().map(|bookie| async move {
            (bookie, self.0.bookies.delete(bookie, ledger, ledger).await.is_ok())
        });
        let (mut confirmed, mut departed) = (Vec::new(), Vec::new());
        for (bookie, deleted) in join_all(asked).await {
            if deleted {
                confirmed.push(bookie);
            } else if !self.0.is_registered(bookie).await? {
                departed.push(bookie);
            }
        }
        Ok((confirmed, departed))
    }
}
