//! Whoever carries out deletions: a controller in a few lines. It deletes a
//! ledger from its bookies only for a durable intent, or when its id is in a
//! released block and has no key in two reads one after the other (L9).

use std::ops::Range;

use quire_metadata::delete_intent::DeleteIntent;
use quire_metadata::key::Key;
use quire_metadata::typed::Typed;
use quire_proto::id::LedgerId;

use super::violation::Checked;
use super::world::{Happening, World, note};

impl World {
    /// The ids of a block that was released are looked at in a while.
    pub fn reclaim_later(&mut self, ids: Range<u64>) {
        let pause = self.random.between(1_000..=200_000);
        self.scheduler.after(pause, Happening::Reclaims(ids));
    }

    /// What was created under a released block's ids and not published goes.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn reclaim(&mut self, ids: Range<u64>) -> Checked {
        for id in ids.map(LedgerId) {
            if self.store.state().get(&self.keys.ledger(id)).is_none() {
                note!(self, "ledger {id} was never published and goes");
                self.hits.hit("a ledger of a released block was reclaimed");
                self.delete_everywhere(id)?;
            }
        }
        Ok(())
    }

    /// Intents are carried out.
    ///
    /// # Errors
    /// When a promise is broken.
    pub fn carry_out_deletions(&mut self) -> Checked {
        self.scheduler.after(60_000, Happening::Deletes);
        let Ok(page) = self.store.state().range(&self.keys.deletes(), "", 1000, None) else { return Ok(()) };
        for found in page.keys {
            let Some(Key::Delete(id)) = self.keys.parse(&found.key) else { continue };
            let Ok(intent) = DeleteIntent::decode(&found.value) else { continue };
            let outstanding: Vec<_> = (0..self.bookies.len())
                .filter(|at| intent.bookies.contains(&self.bookies[*at].id))
                .filter(|at| self.bookies[*at].is_up() && !self.bookies[*at].has_deleted(id))
                .collect();
            for at in outstanding {
                self.delete_on(at, id)?;
            }
        }
        Ok(())
    }

    fn delete_everywhere(&mut self, id: LedgerId) -> Checked {
        (0..self.bookies.len()).try_for_each(|at| self.delete_on(at, id))
    }
}
