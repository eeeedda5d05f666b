//! What a run is like: drawn from its seed before anything happens.

use super::network::Delays;
use super::random::Random;

/// A kind of trouble that a run may be given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// A link breaks; what is on its way is lost, or still arrives.
    LinkBreak,
    /// A broker and a bookie cannot reach one another for a while.
    Parting,
    /// A message to a bookie is lost, and its link breaks some time later.
    MessageLost,
    /// An append arrives twice, the second time late.
    MessageRepeated,
    /// A bookie's process ends; what it had not synced is dropped or torn.
    BookieCrash,
    /// And once more while it boots.
    BootCrash,
    /// A bookie does nothing for a while.
    BookiePause,
    /// A bookie's disk is set back to an older copy.
    DiskSetBack,
    /// One bit of what a bookie holds durably flips.
    BitFlip,
    /// A broker's process ends.
    BrokerCrash,
    /// A broker does nothing for a while, then goes on as if nothing had been.
    BrokerPause,
    /// A transaction is not answered; it applied.
    StoreUnknownApplied,
    /// A transaction is not answered; it did not apply.
    StoreUnknownNotApplied,
    /// A transaction is not answered and applies much later.
    StoreLate,
    /// A transaction is delivered twice.
    StoreTwice,
    /// The store cannot be reached for a while.
    StoreAway,
    /// The id blocks of a process that is alive are released.
    BlockReleased,
    /// Another broker takes a partition over although its leader is well.
    TakeOver,
    /// A producer's answer is lost: it asks again.
    ClientRetry,
    /// Nothing is produced for a while: partitions fall idle.
    Idle,
    /// A topic is deleted.
    TopicDelete,
    /// A bookie is struck right after it answered.
    Aftermath,
    /// Several troubles at once, all about one partition: its leader pauses and
    /// is deposed while its bookies crash, pause or lose the tail of their logs.
    PileUp,
}

impl Trouble {
    /// Every kind.
    pub const ALL: [Self; 23] = [
        Self::LinkBreak,
        Self::Parting,
        Self::MessageLost,
        Self::MessageRepeated,
        Self::BookieCrash,
        Self::BootCrash,
        Self::BookiePause,
        Self::DiskSetBack,
        Self::BitFlip,
        Self::BrokerCrash,
        Self::BrokerPause,
        Self::StoreUnknownApplied,
        Self::StoreUnknownNotApplied,
        Self::StoreLate,
        Self::StoreTwice,
        Self::StoreAway,
        Self::BlockReleased,
        Self::TakeOver,
        Self::ClientRetry,
        Self::Idle,
        Self::TopicDelete,
        Self::Aftermath,
        Self::PileUp,
    ];
}

/// What a run is about, beside the mixture of troubles that its seed gives it.
/// Histories of many steps are too seldom where everything is equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Nothing in particular.
    Mixed,
    /// Few bookies, all of which may lose the newest of what they had, while
    /// leaders pause and are deposed.
    FrailDisks,
    /// Bookies crash and start again at once, also in the middle of a commit.
    Restarts,
    /// Bookies stay away for long, and others are there to step in.
    Absences,
}

impl Profile {
    /// How often each is drawn.
    const WEIGHTS: [(Self, u32); 4] =
        [(Self::Mixed, 55), (Self::FrailDisks, 20), (Self::Restarts, 15), (Self::Absences, 10)];

    fn drawn(random: &mut Random) -> Self {
        Self::WEIGHTS[random.weighted(&Self::WEIGHTS.map(|(_, weight)| weight))].0
    }
}

/// A run's setting.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub profile: Profile,
    /// Steps of workload and trouble before everything is healed.
    pub operations: u64,
    pub bookies: usize,
    /// n of each ledger, when so many bookies can take it.
    pub replicas: usize,
    /// A.
    pub ack_quorum: usize,
    pub brokers: usize,
    pub partitions: usize,
    pub producers: usize,
    pub readers: usize,
    /// A ledger rolls at this many entries.
    pub roll_entries: u64,
    /// A ledger is sealed when nothing was appended for this long.
    pub idle_ms: u64,
    /// Ids of a block.
    pub block: u64,
    /// The time between two steps of the workload, typically.
    pub pace_us: u64,
    pub delays: Delays,
    /// How long a bookie is down after a crash: typically, and at most.
    pub outage_us: (u64, u64),
    /// How long a bookie waits before it publishes again how far its log is
    /// durable. Older copies of its disk are as far apart.
    pub publish_us: (u64, u64),
    /// How often each kind of trouble is chosen, against 1000 for the workload.
    pub weights: Vec<(Trouble, u32)>,
    /// Bookies whose disk may be damaged: with more than A − 1 of them an
    /// acknowledged entry may have no copy left.
    pub damaged_max: usize,
}

impl Plan {
    /// The setting of this seed.
    #[must_use]
    pub fn new(seed: u64, operations: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed_00fa_91a4);
        let mut plan = Self::mixed(seed, operations, &mut random);
        plan.profile = Profile::drawn(&mut random);
        match plan.profile {
            Profile::Mixed => {}
            Profile::FrailDisks => plan.with_frail_disks(&mut random),
            Profile::Restarts => plan.with_restarts(&mut random),
            Profile::Absences => plan.with_absences(&mut random),
        }
        plan
    }

    fn mixed(seed: u64, operations: u64, random: &mut Random) -> Self {
        let replicas = [1, 2, 2, 3, 3, 3][random.index(6)];
        let ack_quorum = 1 + random.index(replicas);
        let spare = random.index(2);
        let calm = random.chance(50);
        let chosen = |random: &mut Random, trouble: &Trouble| {
            // Seldom in all runs, often in some.
            let weight = [0, 0, 5, 20, 60][random.index(5)];
            (*trouble, if calm { 0 } else { weight })
        };
        let weights = Trouble::ALL.iter().map(|trouble| chosen(random, trouble)).collect();
        Self {
            seed,
            profile: Profile::Mixed,
            operations,
            bookies: replicas + spare,
            replicas,
            ack_quorum,
            brokers: 2 + random.index(2),
            partitions: 1 + random.index(2),
            producers: 1 + random.index(3),
            readers: 1 + random.index(2),
            roll_entries: [3, 6, 12, 40, 200][random.index(5)],
            idle_ms: [20, 100, 2_000][random.index(3)],
            block: [3, 10, 100][random.index(3)],
            pace_us: [500, 2_000, 6_000][random.index(3)],
            delays: Delays { typical: 200, longest: [1_000, 20_000, 400_000][random.index(3)] },
            outage_us: [(20_000, 600_000), (5_000, 100_000)][random.index(2)],
            publish_us: (100_000, 400_000),
            weights,
            damaged_max: if random.chance(150) { replicas } else { ack_quorum - 1 },
        }
    }

    fn with_frail_disks(&mut self, random: &mut Random) {
        self.replicas = [1, 1, 2, 2, 3][random.index(5)];
        self.ack_quorum = 1 + random.index(self.replicas.min(2));
        self.bookies = self.replicas + random.index(2);
        self.damaged_max = self.bookies;
        self.roll_entries = [12, 40, 200][random.index(3)];
        self.idle_ms = 2_000;
        self.delays.longest = [1_000, 20_000][random.index(2)];
        self.outage_us = (5_000, 100_000);
        self.publish_us = (10_000, 40_000);
        self.quieten(random);
        self.stress(&[Trouble::PileUp, Trouble::Aftermath], random);
    }

    fn with_restarts(&mut self, random: &mut Random) {
        self.outage_us = (5_000, 50_000);
        self.quieten(random);
        self.stress(&[Trouble::BookieCrash, Trouble::BootCrash, Trouble::Aftermath], random);
    }

    fn with_absences(&mut self, random: &mut Random) {
        self.replicas = 2 + random.index(2);
        self.ack_quorum = if random.chance(700) { self.replicas } else { 2 };
        self.bookies = self.replicas + 1 + random.index(2);
        self.damaged_max = self.ack_quorum - 1;
        self.outage_us = (300_000, 2_000_000);
        self.quieten(random);
        self.stress(&[Trouble::BookieCrash, Trouble::BrokerCrash, Trouble::TakeOver], random);
    }

    /// Switches half of the troubles off: what strikes too often hides the rest.
    fn quieten(&mut self, random: &mut Random) {
        for (_, weight) in &mut self.weights {
            *weight = if random.chance(500) { 0 } else { *weight };
        }
    }

    /// Makes these kinds of trouble frequent.
    fn stress(&mut self, troubles: &[Trouble], random: &mut Random) {
        for (trouble, weight) in &mut self.weights {
            if troubles.contains(trouble) {
                *weight = [20, 60, 120][random.index(3)];
            }
        }
    }

    /// How often this kind of trouble is chosen, against 1000.
    #[must_use]
    pub fn weight(&self, trouble: Trouble) -> u32 {
        self.weights.iter().find(|(kind, _)| *kind == trouble).map_or(0, |(_, weight)| *weight)
    }

    /// Whether a disk may ever be set back to an older copy.
    #[must_use]
    pub fn may_set_back(&self) -> bool {
        let troubles = [Trouble::DiskSetBack, Trouble::Aftermath, Trouble::PileUp];
        self.damaged_max > 0 && troubles.iter().any(|trouble| self.weight(*trouble) > 0)
    }

    /// Whether this kind of trouble strikes now, when its weight is out of
    /// 1000.
    pub fn strikes(&self, trouble: Trouble, random: &mut Random) -> bool {
        random.chance(self.weight(trouble))
    }
}
