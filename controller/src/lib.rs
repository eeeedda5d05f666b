//! The controller: what has to be done once in a cluster and by nobody's
//! request. It is never on the data path: with no controller alive, produce and
//! consume go on.
//!
//! Any number of processes stand by; a leased key elects one, and every
//! transaction of the elected one is guarded by its election. Its work is
//! written down in the metadata store before it begins, may stop after any step
//! and is taken up by the next controller.
//!
//! - [`controller`]: standing by, election, shutdown.
//! - [`options`]: what can be set.
//! - `term`: what an elected controller runs.
//! - `work`: follows a prefix of the store and runs a job for each key there;
//!   `queue` decides which is next, without clock or task.
//! - `delete_ledgers`: carries out delete intents.
//! - `delete_topics`: finishes topics in `deleting/`.
//! - `reclaim_blocks`: releases the id blocks of processes that are gone, and
//!   deletes what was created under ids that were never published.
//! - `absence`: since when a process is gone.
//! - `bookies`: requests to bookies, with one pause for each that fails.

mod absence;
mod bookies;
pub mod controller;
mod delete_ledgers;
mod delete_topics;
pub mod options;
mod queue;
mod reclaim_blocks;
mod term;
mod work;

pub use controller::Controller;
pub use options::{InvalidOptions, Options};
