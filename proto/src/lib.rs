//! What every part of quire and its clients agree on.
//!
//! - [`v1`]: the public gRPC services, generated from `proto/quire/v1/quire.proto`.
//! - [`id`]: identifiers, one type each.
//! - [`error`]: why a request failed, as a status, as a message and as a type.
//! - [`batch`]: the record batch: header view, checks, records, builder.
//! - [`codec`]: how a batch's records are compressed.
//! - [`murmur2`]: which partition a key belongs to.
//! - [`fault`]: rules broken on purpose, for the tests of the tests.

pub mod batch;
pub mod codec;
pub mod error;
pub mod fault;
pub mod id;
pub mod murmur2;

/// The public API, version 1.
#[allow(missing_docs, missing_debug_implementations, unreachable_pub, unused_qualifications, clippy::all)]
pub mod v1 {
    tonic::include_proto!("quire.v1");

    /// Encoded `FileDescriptorSet` of this package, for gRPC reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("quire.v1.descriptors");
}
