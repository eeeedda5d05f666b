//! Bookies whose answers a test gives.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quire_ledger::link::{AppendSink, BookieLink, Connector, LinkError};
use quire_ledger::message::{Append, Request, Response};
use quire_ledger::record::{Header, Kind, Record};
use quire_metadata::chain::ChainSequence;
use quire_metadata::embedded::VolatileStore;
use quire_proto::batch::{Builder, NO_HEADERS, Producer};
use quire_proto::codec::Compression;
use quire_proto::id::{BookieId, EntryId, Epoch, LedgerId, Offset};
use uuid::Uuid;

use crate::bookies::Bookies;
use crate::context::Context;
use crate::entry::EntryBuilder;
use crate::log::partition::Segment;
use crate::options::Options;
use crate::testing::line;

type Answer = BoxFuture<'static, Result<Response, LinkError>>;

/// What becomes of the appends: they are swallowed.
#[derive(Debug, Default)]
pub struct Appends {
    /// How many there were.
    pub count: AtomicUsize,
    /// The next one breaks its link, and no link can be made from then on.
    pub breaks: AtomicBool,
    pub broken: AtomicBool,
}

/// Links to any bookie, whose requests this answers.
#[derive(Clone)]
struct Fake {
    bookie: BookieId,
    answer: Arc<dyn Fn(BookieId, Request) -> Answer + Send + Sync>,
    appends: Arc<Appends>,
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").field("bookie", &self.bookie).finish_non_exhaustive()
    }
}

impl Connector for Fake {
    fn connect(
        &self,
        bookie: BookieId,
        _: Arc<dyn AppendSink>,
    ) -> BoxFuture<'static, Result<Arc<dyn BookieLink>, LinkError>> {
        let link: Arc<dyn BookieLink> = Arc::new(Self { bookie, ..self.clone() });
        let made = if self.appends.broken.load(Ordering::SeqCst) { Err(away(bookie)) } else { Ok(link) };
        async move { made }.boxed()
    }
}

impl BookieLink for Fake {
    fn bookie(&self) -> BookieId {
        self.bookie
    }

    fn append(&self, _: Append) -> Result<(), LinkError> {
        self.appends.count.fetch_add(1, Ordering::SeqCst);
        if self.appends.breaks.load(Ordering::SeqCst) {
            self.appends.broken.store(true, Ordering::SeqCst);
            return Err(away(self.bookie));
        }
        Ok(())
    }

    fn call(&self, request: Request) -> Answer {
        (self.answer)(self.bookie, request)
    }
}

/// All bookies answer so.
pub fn connector(
    appends: &Arc<Appends>,
    answer: impl Fn(BookieId, Request) -> Answer + Send + Sync + 'static,
) -> Arc<dyn Connector> {
    Arc::new(Fake { bookie: BookieId::default(), answer: Arc::new(answer), appends: Arc::clone(appends) })
}

/// The bookies of [`connector`].
pub fn bookies(answer: impl Fn(BookieId, Request) -> Answer + Send + Sync + 'static) -> Arc<Bookies> {
    Bookies::new(connector(&Arc::default(), answer))
}

/// What a broker over such bookies shares.
pub fn context(
    appends: &Arc<Appends>,
    answer: impl Fn(BookieId, Request) -> Answer + Send + Sync + 'static,
) -> Arc<Context> {
    let store = Arc::new(VolatileStore::default());
    Arc::new(crate::broker::context(Options::default(), store, connector(appends, answer)).unwrap())
}

/// The same over bookies that are all away.
pub fn lonely() -> Arc<Context> {
    context(&Arc::default(), |bookie, _| async move { Err(away(bookie)) }.boxed())
}

pub fn bookie(n: u128) -> BookieId {
    BookieId(Uuid::from_u128(n))
}

pub fn away(bookie: BookieId) -> LinkError {
    LinkError { bookie, cause: "away".to_owned() }
}

/// A sealed segment of so many entries, one record in each, on these replicas.
pub fn segment(ledger: u64, base_offset: u64, entries: u64, replicas: &[u128]) -> Segment {
    Segment {
        sequence: ChainSequence(ledger),
        base_offset: Offset(base_offset),
        ledger: LedgerId(ledger),
        epoch: Epoch(1),
        replicas: replicas.iter().map(|&n| bookie(n)).collect(),
        end: EntryId(entries),
        next_offset: Offset(base_offset + entries),
        max_timestamp_ms: 5,
    }
}

/// An entry of such a segment, whose record has this offset.
pub fn record(ledger: LedgerId, entry: EntryId, offset: u64) -> Record {
    let mut builder = Builder::with_capacity(100);
    builder.append(5, None, Some(b"v"), NO_HEADERS).unwrap();
    let mut built = EntryBuilder::default();
    built.push(builder.seal(Compression::None, Producer::NONE).unwrap(), line(offset));
    let built = built.build(Offset(offset), Epoch(1), 5, 0).unwrap();
    let header = Header {
        kind: Kind::Append,
        ledger,
        own_epoch: Epoch(1),
        epoch: Epoch(1),
        entry,
        committed: EntryId(0),
        prefix_len: built.prefix_len,
        payload_len: u32::try_from(built.payload.len()).unwrap(),
        payload_crc: built.payload.crc(),
    };
    Record { header, payload: built.payload }
}

/// An append to this ledger.
pub fn append(ledger: LedgerId) -> Append {
    Append { attempt: 1, record: record(ledger, EntryId(0), 0) }
}
