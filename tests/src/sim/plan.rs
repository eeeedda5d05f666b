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
}

impl Trouble {
    /// Every kind.
    pub const ALL: [Self; 21] = [
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
    ];
}

/// A run's setting.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
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
        let replicas = [1, 2, 2, 3, 3, 3][random.index(6)];
        let ack_quorum = 1 + random.index(replicas);
        let spare = random.index(2);
        let calm = random.chance(50);
        let chosen = |random: &mut Random, trouble: &Trouble| {
            // Seldom in all runs, often in some.
            let weight = [0, 0, 5, 20, 60][random.index(5)];
            (*trouble, if calm { 0 } else { weight })
        };
        let weights = Trouble::ALL.iter().map(|trouble| chosen(&mut random, trouble)).collect();
        Self {
            seed,
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
            weights,
            damaged_max: if random.chance(150) { replicas } else { ack_quorum - 1 },
        }
    }

    /// How often this kind of trouble is chosen, against 1000.
    #[must_use]
    pub fn weight(&self, trouble: Trouble) -> u32 {
        self.weights.iter().find(|(kind, _)| *kind == trouble).map_or(0, |(_, weight)| *weight)
    }

    /// Whether this kind of trouble strikes now, when its weight is out of
    /// 1000.
    pub fn strikes(&self, trouble: Trouble, random: &mut Random) -> bool {
        random.chance(self.weight(trouble))
    }
}
