//! The types of arguments.

mod byte_size;
mod config_pair;
mod delimiter;
mod position;

pub(crate) use byte_size::ByteSize;
pub(crate) use config_pair::ConfigPair;
pub(crate) use delimiter::Delimiter;
pub(crate) use position::Position;
