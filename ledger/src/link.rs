//! How a broker reaches a bookie. Three things implement it: framed TCP, the
//! in-process link of a standalone server, and the simulator.

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use quire_proto::id::BookieId;

use crate::message::{Append, AppendEvent, Request, Response};

/// A connection to one bookie.
///
/// Dropping the last reference closes it. A link that broke stays broken:
/// connect again.
pub trait BookieLink: Send + Sync + fmt::Debug {
    /// The bookie that every request names.
    fn bookie(&self) -> BookieId;

    /// Queues an append. What becomes of it comes to the link's [`AppendSink`].
    /// Never blocks: the queue's bound is the writer's window of bytes.
    ///
    /// # Errors
    /// [`LinkError`] when the link is broken; the append may have arrived.
    fn append(&self, append: Append) -> Result<(), LinkError>;

    /// Sends a request and waits for the response. Dropping the future abandons
    /// the response, not the request.
    fn call(&self, request: Request) -> BoxFuture<'static, Result<Response, LinkError>>;
}

/// Where a link's append events go: into the inbox of the shard that owns the
/// link. Called from the bookie's or the socket's thread: it must not block.
pub trait AppendSink: Send + Sync + fmt::Debug {
    /// Something about this bookie's append streams.
    fn deliver(&self, bookie: BookieId, event: AppendEvent);

    /// The link broke. No further event comes.
    fn broken(&self, bookie: BookieId);
}

/// Makes links.
pub trait Connector: Send + Sync + fmt::Debug {
    /// Connects to a bookie. Cancel-safe.
    fn connect(
        &self,
        bookie: BookieId,
        sink: Arc<dyn AppendSink>,
    ) -> BoxFuture<'static, Result<Arc<dyn BookieLink>, LinkError>>;
}

/// The link broke or could not be made. Whether the request happened is not
/// known.
#[derive(Clone, Debug, thiserror::Error)]
#[error("bookie {bookie} cannot be reached: {cause}")]
pub struct LinkError {
    /// The bookie that was to be reached.
    pub bookie: BookieId,
    /// Why not.
    pub cause: String,
}
