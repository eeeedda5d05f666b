//! The gRPC door.
//!
//! - [`server`]: the services on a listener.
//! - [`connection`]: what is accepted there; [`requests`]: their messages; [`budget`]: the memory that clients
//!   share; [`receiving`] and [`answers`]: how requests and answers hold it;
//!   [`weight`]: what a request becomes.
//! - [`topics`]: the topics.
//! - [`door`]: fetch and subscribe without copying.
//! - [`records`]: the log; its parts are [`produce`], [`produce_stream`],
//!   [`fetch`], [`subscribe`] and [`offsets`].
//! - [`ledgers`]: the ledgers, for operators.

pub mod answers;
pub mod budget;
pub mod connection;
pub mod door;
pub mod fetch;
pub mod ledgers;
pub mod offsets;
pub mod plain;
pub mod produce;
pub mod produce_stream;
pub mod receiving;
pub mod records;
pub mod requests;
pub mod server;
pub mod subscribe;
pub mod topics;
pub mod weight;

use std::sync::Arc;

use quire_metadata::topic::TOPIC_NAME_MAX;
use quire_proto::v1;

use crate::catalog::{Catalog, TopicEntry};
use crate::context::Context;
use crate::failure::{self, Failure};
use crate::leadership::manager::Manager;
use crate::leadership::registration::Registration;
use crate::log::{PartitionLog, Reader};
use crate::service::budget::Budget;

/// A request may name at most this many topics or partitions.
const NAMES_MAX: usize = 10_000;

/// Whether a request names not too much.
///
/// # Errors
/// `INVALID_REQUEST`
pub fn check_count(named: usize) -> Result<(), Failure> {
    if named <= NAMES_MAX {
        return Ok(());
    }
    Err(failure::invalid(format!(
        "the request names {named} topics or partitions, the limit is {NAMES_MAX}: ask for fewer at once"
    )))
}

/// The same, and whether there could be such topics: the answer repeats their
/// names.
///
/// # Errors
/// `INVALID_REQUEST`, `INVALID_TOPIC_NAME`
pub fn check_names<'a>(topics: impl ExactSizeIterator<Item = &'a str>) -> Result<(), Failure> {
    check_count(topics.len())?;
    match topics.into_iter().find(|topic| topic.len() > TOPIC_NAME_MAX) {
        Some(topic) => Err(failure::invalid_topic_name(topic)),
        None => Ok(()),
    }
}

/// What the services work on.
#[derive(Debug)]
pub struct Door {
    pub context: Arc<Context>,
    pub catalog: Arc<Catalog>,
    pub manager: Arc<Manager>,
    pub reader: Reader,
    pub registration: Arc<Registration>,
    pub producers: records::ProducerIds,
    /// Memory of answers with records.
    pub answers: Arc<Budget>,
    /// Of all others, which need not wait for those.
    pub replies: Arc<Budget>,
    /// Of produce requests until they are answered, which need not wait for anybody
    /// who reads.
    pub acknowledgements: Arc<Budget>,
    /// Of what is fetched or looked up, until it is found.
    pub fetches: Arc<Budget>,
    /// Of what is subscribed to.
    pub subscriptions: Arc<Budget>,
}

impl Door {
    /// A partition by the name of its topic and its number. `topic_id` is empty,
    /// or says which topic of that name is meant.
    ///
    /// # Errors
    /// `UNKNOWN_TOPIC`, `INVALID_TOPIC_NAME`, `UNKNOWN_PARTITION`, `INVALID_REQUEST`
    pub fn partition(
        &self,
        topic: &str,
        topic_id: &[u8],
        index: u32,
    ) -> Result<(Arc<TopicEntry>, Arc<PartitionLog>), Failure> {
        let entry = self.catalog.topic(topic)?;
        let named = entry.topic.id.0.as_bytes();
        if !topic_id.is_empty() && topic_id != named {
            return Err(if topic_id.len() == named.len() {
                failure::recreated_topic(topic)
            } else {
                failure::invalid(format!("topic_id has {} bytes, not {}", named.len(), topic_id.len()))
            });
        }
        let log = Arc::clone(entry.partition(index)?);
        Ok((entry, log))
    }

    /// Whether what this broker knows may be called the latest (T8).
    ///
    /// # Errors
    /// `NOT_READY` while the lease is not certain to live.
    pub fn check_fresh(&self) -> Result<(), Failure> {
        if self.registration.is_valid() {
            return Ok(());
        }
        let reason = v1::ErrorReason::NotReady;
        Err(Failure::new(reason, "this broker's lease is not certain: it may not lead any more, try again"))
    }

    /// Refuses requests once the broker stops.
    ///
    /// # Errors
    /// `SHUTTING_DOWN`
    pub fn check_open(&self) -> Result<(), Failure> {
        if self.context.stop.is_cancelled() { Err(failure::shutting_down()) } else { Ok(()) }
    }
}
