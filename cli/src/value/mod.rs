//! The types of arguments.

mod address;
mod byte_size;
mod config_pair;
mod delimiter;
mod position;
mod whole;

pub(crate) use address::host_and_port;
pub(crate) use byte_size::{ByteSize, record_size};
pub(crate) use config_pair::ConfigPair;
pub(crate) use delimiter::Delimiter;
pub(crate) use position::Position;
pub(crate) use whole::whole;
