//! The metadata store and what quire keeps in it. No policy: what to write and
//! when is for the crates above.
//!
//! - [`store`]: the trait, with etcd's semantics.
//! - [`value`]: stored values, generated from
//!   `proto/quire/metadata/v1/metadata.proto`.

pub mod store;

/// Stored values.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub, unused_qualifications, clippy::all)]
pub mod value {
    include!(concat!(env!("OUT_DIR"), "/quire.metadata.v1.rs"));
}
