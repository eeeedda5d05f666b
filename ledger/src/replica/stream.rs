//! Attempts of append streams (B3): the first refusal of an attempt is told,
//! the appends behind it are dropped silently, so that one refusal is no storm.

use std::collections::BTreeMap;

use quire_proto::id::{Epoch, LedgerId};

use super::ConnectionId;

/// A sender's epoch and its attempt: a broker that leads again and recovers its
/// own ledger over the same connection counts from 0 anew.
pub(super) type Attempt = (Epoch, u32);

/// A stream's present attempt.
#[derive(Clone, Copy, Debug)]
struct Stream {
    attempt: Attempt,
    broken: bool,
}

/// The streams that are not at their first, unbroken attempt.
#[derive(Debug, Default)]
pub(super) struct Streams {
    streams: BTreeMap<(ConnectionId, LedgerId), Stream>,
}

impl Streams {
    /// Whether an append of this attempt is to be looked at, or dropped.
    pub(super) fn admits(&mut self, connection: ConnectionId, ledger: LedgerId, attempt: Attempt) -> bool {
        let Some(stream) = self.streams.get_mut(&(connection, ledger)) else {
            if attempt.1 > 0 {
                self.streams.insert((connection, ledger), Stream { attempt, broken: false });
            }
            return true;
        };
        if attempt > stream.attempt {
            *stream = Stream { attempt, broken: false };
        }
        attempt == stream.attempt && !stream.broken
    }

    /// Drops what follows of this attempt.
    pub(super) fn break_off(&mut self, connection: ConnectionId, ledger: LedgerId, attempt: Attempt) {
        self.streams.insert((connection, ledger), Stream { attempt, broken: true });
    }

    /// Forgets the connection's streams.
    pub(super) fn disconnect(&mut self, connection: ConnectionId) {
        let theirs = (connection, LedgerId(0))..=(connection, LedgerId(u64::MAX));
        let gone: Vec<_> = self.streams.range(theirs).map(|(&key, _)| key).collect();
        for key in gone {
            self.streams.remove(&key);
        }
    }
}
