//! A shard's append links, one a bookie, made when they are needed and made
//! again when they break.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use quire_ledger::link::BookieLink;
use quire_ledger::message::Append;
use quire_proto::id::BookieId;

use crate::context::{Backoff, Context};
use crate::shard::driver::Control;
use crate::shard::inbox::{Inbox, Sink};

#[derive(Debug)]
enum State {
    Connecting,
    Up(Arc<dyn BookieLink>),
}

#[derive(Debug)]
struct Link {
    /// Counts the links to this bookie: what an earlier one says is late.
    number: u64,
    state: State,
}

/// There is no link; one is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoLink;

/// A shard's append links.
#[derive(Debug)]
pub struct Links {
    context: Arc<Context>,
    inbox: Arc<Inbox>,
    links: HashMap<BookieId, Link>,
}

impl Links {
    /// No link yet.
    #[must_use]
    pub fn new(context: Arc<Context>, inbox: Arc<Inbox>) -> Self {
        Self { context, inbox, links: HashMap::new() }
    }

    /// Makes a link unless there is one.
    pub fn ensure(&mut self, bookie: BookieId) {
        if !self.links.contains_key(&bookie) {
            self.connect(bookie, 1);
        }
    }

    /// Sends an append. A link that breaks at it is broken for all partitions:
    /// [`Control::LinkBroken`] says so.
    ///
    /// # Errors
    /// [`NoLink`]; it is announced by [`Control::Linked`].
    pub fn send(&mut self, bookie: BookieId, append: Append) -> Result<(), NoLink> {
        let (link, _) = self.get(bookie)?;
        link.append(append).map_err(|error| {
            tracing::warn!(%bookie, error = error.cause, "the append link broke");
            // Before the next link can be announced.
            self.inbox.control(Control::LinkBroken { bookie });
            self.reconnect(bookie);
            NoLink
        })
    }

    /// The link and its number, for a request that belongs to an append stream.
    ///
    /// # Errors
    /// [`NoLink`]; it is announced by [`Control::Linked`].
    pub fn get(&mut self, bookie: BookieId) -> Result<(Arc<dyn BookieLink>, u64), NoLink> {
        self.ensure(bookie);
        match self.links.get(&bookie) {
            Some(Link { state: State::Up(link), number }) => Ok((Arc::clone(link), *number)),
            _ => Err(NoLink),
        }
    }

    /// Whether this is the link that is up now.
    #[must_use]
    pub fn is_current(&self, bookie: BookieId, number: u64) -> bool {
        self.links
            .get(&bookie)
            .is_some_and(|link| link.number == number && matches!(link.state, State::Up(_)))
    }

    /// A link was made. False when it is not the one that is waited for.
    pub fn linked(&mut self, link: Arc<dyn BookieLink>, number: u64) -> bool {
        match self.links.get_mut(&link.bookie()) {
            Some(slot) if slot.number == number => {
                slot.state = State::Up(link);
                true
            }
            _ => false,
        }
    }

    /// The link of this number broke, perhaps before [`Links::linked`]: the next
    /// one is made. True when it was up.
    pub fn broke(&mut self, bookie: BookieId, number: u64) -> bool {
        let Some(link) = self.links.get(&bookie).filter(|link| link.number == number) else { return false };
        let was_up = matches!(link.state, State::Up(_));
        self.reconnect(bookie);
        was_up
    }

    fn reconnect(&mut self, bookie: BookieId) {
        let number = self.links.get(&bookie).map_or(1, |link| link.number + 1);
        self.connect(bookie, number);
    }

    fn connect(&mut self, bookie: BookieId, number: u64) {
        self.links.insert(bookie, Link { number, state: State::Connecting });
        let inbox = Arc::clone(&self.inbox);
        let connector = self.context.bookies.connector();
        self.context.spawn(async move {
            let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
            loop {
                let sink = Sink { inbox: Arc::clone(&inbox), link: number };
                match connector.connect(bookie, Arc::new(sink)).await {
                    Ok(link) => return inbox.control(Control::Linked { link, number }),
                    Err(error) => {
                        tracing::debug!(%bookie, error = error.cause, "no append link yet");
                        backoff.pause().await;
                    }
                }
            }
        });
    }
}
