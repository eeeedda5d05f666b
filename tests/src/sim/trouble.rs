//! Trouble, and its end.

use quire_ledger::chain;
use quire_metadata::bookie::BookieRegistration;
use quire_metadata::id_block::{IdBlock, IdKind};
use quire_metadata::operation::Operation;
use quire_metadata::operations::ids::ReleaseBlock;
use quire_metadata::typed::Versioned;

use super::bookie::State;
use super::history::PartitionNumber;
use super::network::End;
use super::plan::Trouble;
use super::scheduler::Micros;
use super::violation::Checked;
use super::world::{Happening, World, note};

/// A single blow that strikes somebody at a moment that was chosen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// A broker does nothing for so long.
    BrokerPauses(usize, Micros),
    /// Another broker takes the partition over.
    Challenge(PartitionNumber),
    BookieCrashes(usize),
    BookiePauses(usize),
    /// The newest of what a bookie holds durably is lost, and its process ends.
    TailLost(usize),
}

/// Pages of a log's tail.
const TAIL_PAGES: usize = 8;

impl World {
    /// Trouble of this kind strikes.
    ///
    /// # Errors
    /// When it breaks a promise.
    pub fn strike(&mut self, trouble: Trouble) -> Checked {
        match trouble {
            Trouble::LinkBreak | Trouble::MessageLost => self.break_a_link(),
            Trouble::Parting => self.part(),
            Trouble::BookieCrash | Trouble::BootCrash => return self.crash_a_bookie(),
            Trouble::BookiePause => {
                let at = self.random.index(self.bookies.len());
                self.pause_bookie(at);
            }
            Trouble::DiskSetBack => {
                return self.damageable().map_or(Ok(()), |at| self.set_back(at));
            }
            Trouble::BitFlip => {
                if let Some(at) = self.damageable() {
                    self.flip(at, usize::MAX);
                }
            }
            Trouble::BrokerCrash => self.crash_a_broker(),
            Trouble::BrokerPause => {
                let at = self.random.index(self.brokers.len());
                let length = self.random.delay(50_000, 1_500_000);
                self.pause_broker(at, length);
            }
            Trouble::StoreAway => self.lose_the_store(),
            Trouble::BlockReleased => return self.release_a_block(),
            Trouble::TakeOver => {
                let number = self.random.index(self.plan.partitions);
                self.challenge(number);
            }
            Trouble::PileUp => self.pile_up(),
            Trouble::Idle => self.fall_idle(),
            Trouble::MessageRepeated
            | Trouble::StoreUnknownApplied
            | Trouble::StoreUnknownNotApplied
            | Trouble::StoreLate
            | Trouble::StoreTwice
            | Trouble::ClientRetry
            | Trouble::TopicDelete
            | Trouble::Aftermath => return self.roll_somewhere(),
        }
        Ok(())
    }

    /// A blow falls.
    ///
    /// # Errors
    /// When it breaks a promise.
    pub fn struck(&mut self, blow: Blow) -> Checked {
        if self.healed {
            return Ok(());
        }
        match blow {
            Blow::BrokerPauses(at, length) => self.pause_broker(at, length),
            Blow::Challenge(number) => self.challenge(number),
            Blow::BookieCrashes(at) if self.bookies[at].is_up() => {
                return self.crash_bookie(at, "it is struck");
            }
            Blow::BookieCrashes(_) => {}
            Blow::BookiePauses(at) => self.pause_bookie(at),
            Blow::TailLost(at) => return self.lose_a_tail(at),
        }
        Ok(())
    }

    /// A bookie told something of what it holds: perhaps that is the last that
    /// is heard of it.
    pub fn aftermath(&mut self, at: usize) {
        if self.healed || !self.plan.strikes(Trouble::Aftermath, &mut self.random) {
            return;
        }
        self.hits.hit("a bookie was struck after it answered");
        let blow = if self.random.chance(500) { Blow::BookieCrashes(at) } else { Blow::TailLost(at) };
        let delay = self.random.between(0..=10_000);
        self.scheduler.after(delay, Happening::Struck(blow));
    }

    /// Several blows about one partition. Each of them alone is harmless.
    fn pile_up(&mut self) {
        let number = self.random.index(self.plan.partitions);
        let Some(leader) = self.led_by(number) else { return };
        let last = self.inspector.chain(self.partition(number)).pop();
        let replicas = last.map(|(_, ledger)| ledger.replicas).unwrap_or_default();
        self.hits.hit("troubles piled up");
        let mut blows = Vec::new();
        if self.random.chance(800) {
            let length = self.random.between(100_000..=600_000);
            blows.push((Blow::BrokerPauses(leader, length), 20_000));
        }
        if self.random.chance(800) {
            blows.push((Blow::Challenge(number), 60_000));
        }
        for at in (0..self.bookies.len()).filter(|at| replicas.contains(&self.bookies[*at].id)) {
            match self.random.index(10) {
                0..2 => blows.push((Blow::BookieCrashes(at), 200_000)),
                2..4 => blows.push((Blow::BookiePauses(at), 100_000)),
                4..8 => blows.push((Blow::TailLost(at), 200_000)),
                _ => {}
            }
        }
        for (blow, longest) in blows {
            let delay = self.random.between(0..=longest);
            self.scheduler.after(delay, Happening::Struck(blow));
        }
    }

    fn lose_a_tail(&mut self, at: usize) -> Checked {
        if !self.may_be_damaged(at) {
            return Ok(());
        }
        if self.random.chance(700) {
            return self.set_back(at);
        }
        self.flip(at, TAIL_PAGES);
        self.crash_bookie(at, "its tail is damaged")
    }

    fn break_a_link(&mut self) {
        let links = self.network.open_links(End::Broker, |_| true);
        let Some(&link) = self.random.pick(&links) else { return };
        note!(self, "link {} breaks", link.0);
        let (near, far) =
            if self.random.chance(500) { (End::Broker, End::Bookie) } else { (End::Bookie, End::Broker) };
        let delay = self.network.delay(&mut self.random);
        self.scheduler.after(0, Happening::Broken(link, near));
        self.scheduler.after(delay, Happening::Broken(link, far));
    }

    fn part(&mut self) {
        let (broker, bookie) = (self.random.index(self.brokers.len()), self.random.index(self.bookies.len()));
        if !self.network.is_parted(broker, bookie) {
            self.network.toggle_parting(broker, bookie);
            note!(self, "broker {broker} and bookie {bookie} are parted");
            self.hits.hit("a broker and a bookie were parted");
            let number = self.brokers[broker].number;
            for link in
                self.network.open_links(End::Broker, |link| link.process == number && link.bookie == bookie)
            {
                let delay = self.random.between(0..=50_000);
                self.scheduler.after(delay, Happening::Broken(link, End::Broker));
            }
            let length = self.random.delay(50_000, 1_500_000);
            self.scheduler.after(length, Happening::Rejoin(broker, bookie));
        }
    }

    fn crash_a_bookie(&mut self) -> Checked {
        let at = self.random.index(self.bookies.len());
        if !self.bookies[at].is_up() {
            return Ok(());
        }
        if self.random.chance(400) {
            // In the middle of what it is doing on its disk.
            let operations = self.random.between(0..=4);
            self.bookies[at].disk.cut_after(operations);
            self.hits.hit("a bookie's power is cut in a commit");
            return Ok(());
        }
        self.crash_bookie(at, "its process ends")
    }

    fn pause_bookie(&mut self, at: usize) {
        if !self.bookies[at].is_up() || std::mem::replace(&mut self.bookies[at].paused, true) {
            return;
        }
        note!(self, "bookie {at} pauses");
        self.hits.hit("a bookie paused");
        let pause = self.random.delay(20_000, 800_000);
        self.scheduler.after(pause, Happening::BookieResumes(at));
    }

    /// Bookies that may still be damaged, and that serve.
    fn damageable(&mut self) -> Option<usize> {
        let candidates: Vec<_> = (0..self.bookies.len()).filter(|at| self.may_be_damaged(*at)).collect();
        self.random.pick(&candidates).copied()
    }

    fn may_be_damaged(&self, at: usize) -> bool {
        let bookie = &self.bookies[at];
        let damaged = self.bookies.iter().filter(|bookie| self.inspector.is_damaged(bookie.id)).count();
        bookie.is_up() && (self.inspector.is_damaged(bookie.id) || damaged < self.plan.damaged_max)
    }

    /// A disk is set back to a copy that is older than what the bookie had
    /// published of its log: only such a loss can be noticed (L4).
    fn set_back(&mut self, at: usize) -> Checked {
        let key = self.keys.bookie_registration(self.bookies[at].id);
        let found = Versioned::<BookieRegistration>::read_option(self.store.state().get(&key));
        let Ok(Some(found)) = found else { return Ok(()) };
        let images = self.bookies[at].images_before(found.value.durable.sequence);
        // The newest one mostly: a tail is lost, no more.
        let older = if self.random.chance(500) { 0 } else { self.random.index(images.len().max(1)) };
        let Some(image) = images.iter().rev().nth(older).copied().cloned() else { return Ok(()) };
        self.hits.hit("a disk was set back");
        self.inspector.damaged(self.bookies[at].id);
        self.crash_bookie(at, "its disk is set back")?;
        self.bookies[at].disk = self.bookies[at].disk.set_back(&image);
        Ok(())
    }

    /// A bit of a log file flips, at or below the durable mark, in one of so
    /// many last pages.
    fn flip(&mut self, at: usize, newest: usize) {
        let State::Up(up) = &self.bookies[at].state else { return };
        if !up.is_settled() {
            return;
        }
        let disk = self.bookies[at].disk.clone();
        if let Some(flip) = disk.flip_bit(&mut self.random, newest, |name| name.ends_with(".log")) {
            note!(self, "bookie {at}: a bit flips in {} at {}", flip.file, flip.offset);
            self.hits.hit("a bit flipped");
            self.inspector.damaged(self.bookies[at].id);
        }
    }

    fn crash_a_broker(&mut self) {
        let at = self.random.index(self.brokers.len());
        if self.brokers[at].alive {
            self.crash_broker(at);
        }
    }

    fn pause_broker(&mut self, at: usize, length: Micros) {
        let now = self.scheduler.now();
        let broker = &mut self.brokers[at];
        if !broker.alive || broker.paused_since.is_some() {
            return;
        }
        broker.paused_since = Some(now);
        note!(self, "broker {at} pauses");
        self.scheduler.after(length, Happening::BrokerResumes(at));
    }

    fn lose_the_store(&mut self) {
        if std::mem::replace(&mut self.store.away, true) {
            return;
        }
        note!(self, "the store is away");
        self.hits.hit("the store was away");
        let length = self.random.delay(20_000, 600_000);
        self.scheduler.after(length, Happening::StoreReturns);
    }

    /// The id block of a process that may well be alive is released, and what
    /// was created under its ids and not published is deleted (L9).
    fn release_a_block(&mut self) -> Checked {
        let page = self.store.state().range(&self.keys.id_blocks(IdKind::Ledgers), "", 1000, None);
        let Ok(page) = page else { return Ok(()) };
        let held: Vec<_> = page
            .keys
            .iter()
            .filter_map(|found| Versioned::<IdBlock>::read(found).ok())
            .filter(|block| block.value.holder.is_some())
            .collect();
        let Some(block) = self.random.pick(&held).cloned() else { return Ok(()) };
        note!(self, "the block {:?} is released", block.value.ids());
        self.hits.hit("a block was released");
        let ids = block.value.ids();
        let release = ReleaseBlock { kind: IdKind::Ledgers, block };
        let (_, changes) = self.store.apply(&release.txn(&self.keys));
        self.changed(&changes)?;
        self.reclaim_later(ids);
        Ok(())
    }

    /// Another broker takes a partition over.
    fn challenge(&mut self, number: PartitionNumber) {
        let leader = self.led_by(number);
        let others: Vec<_> =
            (0..self.brokers.len()).filter(|at| Some(*at) != leader && self.brokers[*at].alive).collect();
        if let Some(&at) = self.random.pick(&others) {
            self.hits.hit("a leader was challenged");
            let process = self.brokers[at].number;
            self.scheduler.after(0, Happening::TakeOver(process, number));
        }
    }

    fn fall_idle(&mut self) {
        // Nothing for long enough that partitions are sealed.
        self.hits.hit("everybody fell idle");
        self.idle_until = self.scheduler.now() + self.plan.idle_ms * 1500;
    }

    /// Somebody wants a ledger rolled, or holds a bookie for sick.
    fn roll_somewhere(&mut self) -> Checked {
        let number = self.random.index(self.plan.partitions);
        let Some(at) = self.led_by(number) else { return Ok(()) };
        if self.brokers[at].paused_since.is_some() {
            return Ok(());
        }
        let event = if self.random.chance(700) {
            self.hits.hit("a roll was wanted");
            chain::Event::RollWanted
        } else {
            self.hits.hit("a bookie was held for sick");
            let bookie = self.random.index(self.bookies.len());
            chain::Event::GiveUp { bookie: self.bookies[bookie].id }
        };
        self.nudge(at, number, event)
    }
}
