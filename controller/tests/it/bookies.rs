//! Bookies that can only delete, and fail as they are told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quire_ledger::link::{AppendSink, BookieLink, Connector, LinkError};
use quire_ledger::message::{Append, Refusal, Request, Response};
use quire_proto::id::{BookieId, LedgerId};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// No connection can be made.
    NoConnection,
    /// Nothing happens and no answer comes.
    Hangs,
    /// It is done and no answer comes.
    DoneAndHangs,
    /// The link breaks before it arrives.
    Breaks,
    /// It is done, and the link breaks.
    DoneAndBreaks,
    /// The bookie can't tell.
    Unknown,
    /// An answer that makes no sense.
    Nonsense,
    /// A refusal.
    Refused,
}

pub(crate) const FAILURES: [Fate; 8] = [
    Fate::NoConnection,
    Fate::Hangs,
    Fate::DoneAndHangs,
    Fate::Breaks,
    Fate::DoneAndBreaks,
    Fate::Unknown,
    Fate::Nonsense,
    Fate::Refused,
];

#[derive(Clone, Debug, Default)]
pub(crate) struct Bookies(Arc<Mutex<BTreeMap<BookieId, Bookie>>>);

#[derive(Debug, Default)]
struct Bookie {
    /// Of the next requests; then all are done.
    fates: VecDeque<Fate>,
    always: Option<Fate>,
    deleted: BTreeSet<LedgerId>,
    requests: usize,
}

impl Bookies {
    fn with<T>(&self, bookie: BookieId, act: impl FnOnce(&mut Bookie) -> T) -> T {
        act(self.0.lock().unwrap().entry(bookie).or_default())
    }

    /// What becomes of the next requests.
    pub(crate) fn next(&self, bookie: BookieId, fates: impl IntoIterator<Item = Fate>) {
        self.with(bookie, |bookie| bookie.fates.extend(fates));
    }

    /// What becomes of all requests, or that they are done again.
    pub(crate) fn always(&self, bookie: BookieId, fate: Option<Fate>) {
        self.with(bookie, |bookie| bookie.always = fate);
    }

    pub(crate) fn deleted(&self, bookie: BookieId) -> Vec<u64> {
        self.with(bookie, |bookie| bookie.deleted.iter().map(|ledger| ledger.0).collect())
    }

    pub(crate) fn requests(&self, bookie: BookieId) -> usize {
        self.with(bookie, |bookie| bookie.requests)
    }
}

fn broken(bookie: BookieId) -> LinkError {
    LinkError { bookie, cause: "injected".to_owned() }
}

impl Connector for Bookies {
    fn connect(
        &self,
        bookie: BookieId,
        _sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'static, Result<Arc<dyn BookieLink>, LinkError>> {
        let refused = self.with(bookie, |bookie| {
            let refused = bookie.always.or(bookie.fates.front().copied()) == Some(Fate::NoConnection);
            if refused {
                bookie.requests += 1;
                bookie.fates.pop_front();
            }
            refused
        });
        let link: Arc<dyn BookieLink> = Arc::new(Link { bookie, bookies: self.clone() });
        async move { if refused { Err(broken(bookie)) } else { Ok(link) } }.boxed()
    }
}

#[derive(Debug)]
struct Link {
    bookie: BookieId,
    bookies: Bookies,
}

impl BookieLink for Link {
    fn bookie(&self) -> BookieId {
        self.bookie
    }

    fn append(&self, _append: Append) -> Result<(), LinkError> {
        panic!("the controller appends nothing");
    }

    fn call(&self, request: Request) -> BoxFuture<'static, Result<Response, LinkError>> {
        let Request::Delete { first, last } = request else { panic!("only deletes: {request:?}") };
        assert!(first <= last);
        let id = self.bookie;
        let fate = self.bookies.with(id, |bookie| {
            bookie.requests += 1;
            let fate = bookie.always.or_else(|| bookie.fates.pop_front()).unwrap_or(Fate::Done);
            if matches!(fate, Fate::Done | Fate::DoneAndHangs | Fate::DoneAndBreaks) {
                bookie.deleted.extend((first.0..=last.0).map(LedgerId));
            }
            fate
        });
        async move {
            match fate {
                Fate::Done => Ok(Response::Deleted),
                Fate::Hangs | Fate::DoneAndHangs => std::future::pending().await,
                Fate::NoConnection | Fate::Breaks | Fate::DoneAndBreaks => Err(broken(id)),
                Fate::Unknown => Ok(Response::Unknown("injected".to_owned())),
                Fate::Nonsense => Ok(Response::Absent),
                Fate::Refused => Ok(Response::Refused(Refusal::ReadOnly)),
            }
        }
        .boxed()
    }
}
