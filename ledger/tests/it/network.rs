//! Links between brokers and bookies. Messages wait until a command delivers
//! them, in order on each link and direction.

use std::collections::VecDeque;

use quire_ledger::message::{Append, AppendEvent, Request, Response};
use quire_ledger::replica::ConnectionId;

/// From a broker to a bookie.
#[derive(Clone, Debug)]
pub(crate) enum Down {
    Append(Append),
    Call(Request),
}

/// From a bookie to a broker.
#[derive(Clone, Debug)]
pub(crate) enum Up {
    Event(AppendEvent),
    Answer(Request, Response),
}

/// One broker's link to one bookie.
#[derive(Debug)]
pub(crate) struct Link {
    pub broker: usize,
    pub bookie: usize,
    /// Another one after each break.
    pub connection: ConnectionId,
    pub up: bool,
    pub down: VecDeque<Down>,
    pub back: VecDeque<Up>,
    pub hold_down: bool,
    pub hold_back: bool,
    /// What was last delivered, to be delivered once more.
    pub last_down: Option<Down>,
    pub last_back: Option<Up>,
}

impl Link {
    pub(crate) fn new(broker: usize, bookie: usize, connection: ConnectionId) -> Self {
        Self {
            broker,
            bookie,
            connection,
            up: true,
            down: VecDeque::new(),
            back: VecDeque::new(),
            hold_down: false,
            hold_back: false,
            last_down: None,
            last_back: None,
        }
    }

    /// Everything that is on its way is lost. Returns the calls among it: they
    /// end without an answer.
    pub(crate) fn cut(&mut self, awaited: impl Iterator<Item = Request>) -> Vec<Request> {
        self.up = false;
        let sent = self.down.drain(..).filter_map(|message| match message {
            Down::Call(request) => Some(request),
            Down::Append(_) => None,
        });
        let answered = self.back.drain(..).filter_map(|message| match message {
            Up::Answer(request, _) => Some(request),
            Up::Event(_) => None,
        });
        sent.chain(answered).chain(awaited).collect()
    }
}
