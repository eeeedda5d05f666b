//! Links between brokers and bookies.
//!
//! A link carries messages in order in each direction, with delays, as a TCP
//! connection does. It breaks: what is on its way may still arrive at the far
//! end for a while, or is lost. A new link to the same bookie may overtake what
//! the old one still carries. On top of that single messages are lost (the link
//! then breaks some time later) or come twice.

use std::collections::{BTreeMap, BTreeSet};

use super::random::Random;
use super::scheduler::Micros;

/// A link, never used again once it broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// One run of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessNumber(pub u32);

/// One of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Broker,
    Bookie,
}

/// A link's two ends and when the last message arrives at each.
#[derive(Clone, Debug)]
pub struct Link {
    pub process: ProcessNumber,
    pub bookie: usize,
    /// Whether this end still believes in it.
    broker_open: bool,
    bookie_open: bool,
    broker_last: Micros,
    bookie_last: Micros,
}

/// Delays of a network.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    pub typical: Micros,
    pub longest: Micros,
}

/// All links of a run.
#[derive(Debug)]
pub struct Network {
    links: BTreeMap<LinkId, Link>,
    next: u32,
    delays: Delays,
    /// Pairs that cannot reach one another at present: broker, bookie.
    parted: BTreeSet<(usize, usize)>,
}

impl Network {
    /// A network without links.
    #[must_use]
    pub const fn new(delays: Delays) -> Self {
        Self { links: BTreeMap::new(), next: 0, delays, parted: BTreeSet::new() }
    }

    /// Makes delays short and heals every parting.
    pub fn heal(&mut self) {
        self.delays.longest = self.delays.typical * 4;
        self.parted.clear();
    }

    /// Makes or ends a parting between a broker and a bookie. Tells whether
    /// they are parted now.
    pub fn toggle_parting(&mut self, broker: usize, bookie: usize) -> bool {
        if self.parted.remove(&(broker, bookie)) {
            return false;
        }
        self.parted.insert((broker, bookie));
        true
    }

    /// Whether the two cannot reach one another.
    #[must_use]
    pub fn is_parted(&self, broker: usize, bookie: usize) -> bool {
        self.parted.contains(&(broker, bookie))
    }

    /// A delay of this network.
    pub fn delay(&self, random: &mut Random) -> Micros {
        random.delay(self.delays.typical, self.delays.longest)
    }

    /// A link, open at both ends.
    pub fn open(&mut self, process: ProcessNumber, bookie: usize, now: Micros) -> LinkId {
        let id = LinkId(self.next);
        self.next += 1;
        let link = Link {
            process,
            bookie,
            broker_open: true,
            bookie_open: true,
            broker_last: now,
            bookie_last: now,
        };
        self.links.insert(id, link);
        id
    }

    /// The link, while one end believes in it.
    #[must_use]
    pub fn link(&self, id: LinkId) -> Option<&Link> {
        self.links.get(&id)
    }

    /// Whether this end believes in the link.
    #[must_use]
    pub fn is_open(&self, id: LinkId, end: End) -> bool {
        self.links.get(&id).is_some_and(|link| match end {
            End::Broker => link.broker_open,
            End::Bookie => link.bookie_open,
        })
    }

    /// Links that this end believes in and that match.
    pub fn open_links(&self, end: End, matches: impl Fn(&Link) -> bool) -> Vec<LinkId> {
        let open = self.links.iter().filter(|(id, link)| self.is_open(**id, end) && matches(link));
        open.map(|(id, _)| *id).collect()
    }

    /// When a message that is sent now arrives at `to`: after all earlier ones.
    pub fn arrival(&mut self, id: LinkId, to: End, now: Micros, random: &mut Random) -> Micros {
        let delay = self.delay(random);
        let Some(link) = self.links.get_mut(&id) else { return now + delay };
        let last = match to {
            End::Broker => &mut link.broker_last,
            End::Bookie => &mut link.bookie_last,
        };
        *last = (now + delay).max(*last);
        *last
    }

    /// One end no longer believes in the link. What comes for it is dropped.
    pub fn close(&mut self, id: LinkId, end: End) {
        let Some(link) = self.links.get_mut(&id) else { return };
        match end {
            End::Broker => link.broker_open = false,
            End::Bookie => link.bookie_open = false,
        }
        if !link.broker_open && !link.bookie_open {
            self.links.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_keeps_the_order_of_its_messages() {
        let mut random = Random::new(1);
        let mut network = Network::new(Delays { typical: 100, longest: 50_000 });
        let link = network.open(ProcessNumber(0), 0, 0);
        let arrivals: Vec<_> =
            (0..200).map(|now| network.arrival(link, End::Bookie, now, &mut random)).collect();
        assert!(arrivals.is_sorted());
        assert!(arrivals[199] > 10_000, "no message was late");
    }

    #[test]
    fn each_end_closes_by_itself() {
        let mut network = Network::new(Delays { typical: 1, longest: 1 });
        let link = network.open(ProcessNumber(0), 0, 0);
        network.close(link, End::Broker);
        assert!(!network.is_open(link, End::Broker) && network.is_open(link, End::Bookie));
        assert_eq!(network.open_links(End::Bookie, |link| link.bookie == 0), [link]);
        network.close(link, End::Bookie);
        assert!(network.link(link).is_none());
    }
}
