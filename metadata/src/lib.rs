//! The metadata store and what quire keeps in it. No policy: what to write and
//! when is for the crates above.
//!
//! The store:
//! - [`store`]: the trait, with etcd's semantics.
//! - [`embedded`]: the backend that keeps everything in one local file.
//!
//! What is kept:
//! - [`key`]: the keys. [`typed`]: what typed values have in common.
//! - [`cluster`], [`process`], [`bookie`], [`topic`], [`partition`], [`chain`],
//!   [`ledger`], [`id_block`], [`delete_intent`]: the values, typed.
//! - [`value`]: their stored form, generated from
//!   `proto/quire/metadata/v1/metadata.proto`.
//!
//! How it is read and changed:
//! - [`view`]: a partition's chain at one revision; topics.
//! - [`follow`]: a listing that is kept up to date.
//! - [`operation`]: guarded transactions whose outcome is found out by reading
//!   back; those of quire are in [`operations`].
//! - [`session`]: a lease that is kept alive.

pub mod bookie;
pub mod chain;
pub mod cluster;
pub mod delete_intent;
pub mod embedded;
pub mod follow;
pub mod id_block;
pub mod key;
pub mod ledger;
pub mod operation;
pub mod operations;
pub mod partition;
pub mod process;
pub mod session;
pub mod store;
pub mod topic;
pub mod typed;
pub mod view;

/// Stored values.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub, unused_qualifications, clippy::all)]
pub mod value {
    include!(concat!(env!("OUT_DIR"), "/quire.metadata.v1.rs"));
}
