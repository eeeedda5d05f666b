//! Producing: records are batched by partition and sent to the leaders.
//!
//! - [`Producer`]: the handle: send, flush, close.
//! - [`ProducerOptions`]: what can be set.
//! - [`Record`]: what is sent; [`Delivery`]: what becomes of one;
//!   [`Completion`]: what became of a batch of them.

mod accumulator;
mod delivery;
mod driver;
mod handle;
mod link;
mod options;
mod sequencer;

pub use delivery::{Completion, Delivery, RecordMetadata};
pub use handle::{Producer, Record};
pub use options::{Acks, BATCH_BYTES, LINGER_MAX, ProducerOptions};
