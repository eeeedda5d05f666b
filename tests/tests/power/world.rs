//! The machine, the process on it and its clients, for one seed.

use std::net::TcpListener;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::load::Load;
use crate::node::{Boot, Node};
use crate::supply::Machine;

pub(crate) struct World {
    seed: u64,
    pub(crate) random: StdRng,
    pub(crate) machine: Machine,
    /// Outlives the process: who connects meanwhile waits.
    listener: TcpListener,
    pub(crate) load: Load,
    /// Whether the bookie has lost something.
    pub(crate) lost: bool,
    /// Power cuts so far, and those of them during a boot.
    pub(crate) cuts: u32,
    pub(crate) boot_cuts: u32,
    /// Writes and syncs of the last boot.
    boot_operations: u64,
}

impl World {
    /// A new machine, whose first boot is done and whose clients are at work.
    pub(crate) fn begin(seed: u64) -> (Self, Node) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let load = Load::new(listener.local_addr().unwrap());
        let mut world = Self {
            seed,
            random: StdRng::seed_from_u64(seed),
            machine: Machine::new(seed),
            listener,
            load,
            lost: false,
            cuts: 0,
            boot_cuts: 0,
            boot_operations: 0,
        };
        let node = world.boot(0.0);
        world.load.begin(&mut world.random);
        (world, node)
    }

    /// Boots until it serves. With this chance the power goes before that.
    pub(crate) fn boot(&mut self, cut: f64) -> Node {
        loop {
            if self.random.random_bool(cut) {
                self.machine.cut_after(self.random.random_range(0..=self.boot_operations));
            }
            match self.try_boot() {
                Boot::Ready(node) => {
                    self.machine.cut_never();
                    return node;
                }
                Boot::Dark => {
                    self.cuts += 1;
                    self.boot_cuts += 1;
                    self.machine.restore();
                }
                Boot::Refused(error) => panic!("it does not start: {error}"),
            }
        }
    }

    pub(crate) fn try_boot(&mut self) -> Boot {
        let booted = Node::boot(&self.machine, &self.listener, self.lost);
        if let Boot::Ready(node) = &booted {
            self.lost |= node.bookie_says_damaged();
        }
        self.boot_operations = self.machine.spent();
        booted
    }

    /// Lets the node run until the power goes, after so many writes and syncs.
    pub(crate) fn cut(&mut self, node: Node, operations: u64) {
        self.machine.cut_after(operations);
        let linger = Duration::from_millis(self.random.random_range(0..15));
        node.run_until_dark(&self.machine, linger);
        self.cuts += 1;
    }
}

impl Drop for World {
    #[expect(clippy::print_stderr, reason = "the seed of a failed run")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, after {} cuts: QUIRE_SIM_POWER_SEED={}", self.seed, self.cuts, self.seed);
        }
    }
}
