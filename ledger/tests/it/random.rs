//! Random scenarios: whatever commands are given in whatever order, once
//! everything is mended, what was acknowledged is in the log.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::world::World;

const BROKERS: [&str; 3] = ["A", "B", "C"];

/// A random scenario of one seed, as its commands.
struct Scenario {
    random: StdRng,
    bookies: Vec<String>,
    /// A bookie that may lose the tail of its log. Only where a second copy of
    /// everything acknowledged exists.
    lossy: Option<String>,
    words: usize,
    commands: Vec<String>,
    world: World,
}

impl Scenario {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let (bookies, replicas, quorum) =
            *[(1, 1, 1), (3, 3, 2), (3, 2, 2), (4, 3, 2), (4, 3, 3), (5, 3, 2), (3, 2, 1)]
                .choose(&mut random)
                .unwrap();
        let bookies = (1..=bookies).map(|bookie| format!("b{bookie}")).collect();
        let lossy = (quorum > 1).then(|| "b1".to_owned());
        let (commands, world) = (Vec::new(), World::default());
        let mut scenario = Self { random, bookies, lossy, words: 0, commands, world };
        scenario.run(format!("bookies {}", scenario.bookies.join(" ")));
        scenario.run(format!("{replicas} replicas, ack quorum {quorum}"));
        let entries = scenario.random.random_range(2..9);
        scenario.run(format!("ledgers roll at {entries} entries"));
        for broker in BROKERS {
            scenario.run(format!("{broker} takes over"));
        }
        scenario
    }

    fn run(&mut self, command: String) {
        self.world.command(&command).unwrap_or_else(|why| panic!("{command}: {why}"));
        self.commands.push(command);
    }

    fn broker(&mut self) -> &'static str {
        BROKERS.choose(&mut self.random).copied().unwrap_or("A")
    }

    fn bookie(&mut self) -> String {
        self.bookies.choose(&mut self.random).cloned().unwrap_or_default()
    }

    /// One more command, of those that may come at any time.
    fn step(&mut self) {
        let (broker, bookie) = (self.broker(), self.bookie());
        let command = match self.random.random_range(0..100) {
            0..24 => return self.append(broker),
            24..40 => format!("deliver {broker} to {bookie}"),
            40..50 => format!("{bookie} syncs"),
            50..64 => format!("deliver {bookie} to {broker}"),
            64..67 => format!("repeat {bookie} to {broker}"),
            67..69 => format!("repeat {broker} to {bookie}"),
            69..71 => format!("drop {broker} to {bookie}"),
            71..74 => format!("break {broker} {bookie}"),
            74..78 => format!("mend {broker} {bookie}"),
            78..80 => format!("{bookie} crashes"),
            80..84 => format!("{bookie} restarts"),
            84..86 => return self.take_over_halfway(broker),
            86..88 => format!("{broker} takes over"),
            88..89 => format!("{broker} wants a better ensemble"),
            89..90 => format!("{broker} hands over"),
            90..91 => "metadata loses the next answer".to_owned(),
            91..92 => "metadata loses the next request".to_owned(),
            92..93 => "metadata is away".to_owned(),
            93..95 => "metadata is back".to_owned(),
            95..98 => "700 ms pass".to_owned(),
            98..99 => "300 seconds pass".to_owned(),
            _ => "deliver".to_owned(),
        };
        if command.ends_with("crashes") && self.lossy.as_ref() == Some(&bookie) {
            return self.lose_tail();
        }
        if command.ends_with("restarts") && !self.world.is_down(&bookie) {
            return;
        }
        if command.starts_with("mend") && self.world.is_down(&bookie) {
            return;
        }
        self.run(command);
    }

    /// The lossy bookie loses the tail of its log, and notices.
    fn lose_tail(&mut self) {
        let Some(bookie) = self.lossy.clone() else { return };
        if !self.world.is_down(&bookie) {
            let records = self.random.random_range(0..6);
            self.run(format!("{bookie} crashes and loses {records} records"));
        }
        self.run(format!("{bookie} restarts and marks itself"));
    }

    /// A take-over that hears from two bookies only, one of which may just have
    /// lost something.
    fn take_over_halfway(&mut self, broker: &str) {
        if self.random.random_bool(0.5) {
            self.lose_tail();
        }
        let heard = [self.bookies[0].clone(), self.bookie()];
        self.run(format!("{broker} takes over"));
        for _ in 0..3 {
            for bookie in &heard {
                self.run(format!("deliver {broker} to {bookie}"));
                self.run(format!("{bookie} syncs"));
                self.run(format!("deliver {bookie} to {broker}"));
            }
            self.run("700 ms pass".to_owned());
        }
    }

    fn append(&mut self, broker: &str) {
        if self.world.leads(broker) {
            self.words += 1;
            let word = format!("w{}", self.words);
            self.run(format!("{broker} appends {word}"));
        }
    }

    /// Everything works again, and one more leader takes over.
    fn mend(&mut self) {
        self.run("metadata is back".to_owned());
        for bookie in self.bookies.clone() {
            if self.world.is_down(&bookie) {
                self.run(format!("{bookie} restarts"));
            }
            for broker in BROKERS {
                self.run(format!("break {broker} {bookie}"));
                self.run(format!("mend {broker} {bookie}"));
            }
        }
        for _ in 0..4 {
            self.run("deliver".to_owned());
            self.run("5 seconds pass".to_owned());
        }
        self.run("A takes over".to_owned());
        for _ in 0..3 {
            self.run("deliver".to_owned());
            self.run("5 seconds pass".to_owned());
        }
    }

    /// What is wrong in the end, if anything: something acknowledged is lost, or
    /// nobody can lead.
    fn verdict(&mut self) -> Result<(), String> {
        self.world.verdict()?;
        if !self.world.leads("A") {
            return Err("A does not lead though everything works".to_owned());
        }
        self.append("A");
        self.run("deliver".to_owned());
        self.run("1 seconds pass".to_owned());
        self.run("deliver".to_owned());
        let word = format!("w{}", self.words);
        if !self.world.acked.iter().any(|(_, acked)| *acked == word) {
            return Err(format!("{word} is not acknowledged though everything works"));
        }
        self.world.verdict().map(|_| ())
    }
}

fn run(seed: u64, steps: usize) -> Result<(), String> {
    let mut scenario = Scenario::new(seed);
    for _ in 0..steps {
        scenario.step();
    }
    scenario.mend();
    scenario.verdict().map_err(|why| format!("seed {seed}: {why}\n{}", scenario.commands.join("\n")))
}

#[test]
fn what_was_acknowledged_is_in_the_log_whatever_happened() {
    let seeds = std::env::var("QUIRE_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(400) {
        if let Err(why) = run(seed, 150) {
            panic!("{why}");
        }
    }
}

/// The same, with one rule broken: some seed must show it.
#[cfg(feature = "planted-faults")]
#[test]
fn a_planted_fault_loses_something() {
    use quire_ledger::fault::{Fault, plant};

    for fault in [
        Fault::RollEndBeyondCommitted,
        Fault::AckBeforeRollApplied,
        Fault::AckAfterRollIssued,
        Fault::FewerFences,
        Fault::UncertainCounted,
        Fault::SealBelowGreatest,
        Fault::ImportTargetCounted,
        Fault::FenceNotDurable,
    ] {
        plant(Some(fault));
        let found = (0..1_000).find(|&seed| run(seed, 150).is_err());
        plant(None);
        assert!(found.is_some(), "{fault:?} goes unnoticed");
    }
}
