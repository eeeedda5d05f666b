//! What all typed values have in common: they are decoded with checks, and
//! carry the revision that a guard needs.

use bytes::Bytes;
use uuid::Uuid;

use crate::store::{Guard, KeyValue, Revision, StoreError};

/// A stored value in its typed form.
pub trait Typed: Sized {
    /// What the value is called in errors.
    const NAME: &'static str;

    /// The stored bytes. The same value always has the same bytes.
    fn encode(&self) -> Bytes;

    /// Reads the stored bytes.
    ///
    /// # Errors
    /// When they are no such value.
    fn decode(bytes: &Bytes) -> Result<Self, Malformed>;
}

/// Why bytes are not the value they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

impl From<prost::DecodeError> for Malformed {
    fn from(error: prost::DecodeError) -> Self {
        Self(error.to_string())
    }
}

/// A typed value and when it was last written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The revision that wrote it.
    pub revision: Revision,
}

impl<T: Typed> Versioned<T> {
    /// Reads the value that was found under a key.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when it is not such a value.
    pub fn read(found: &KeyValue) -> Result<Self, StoreError> {
        let value = T::decode(&found.value)
            .map_err(|why| StoreError::Corrupt(format!("{} is not a {}: {why}", found.key, T::NAME)))?;
        Ok(Self { value, revision: found.mod_revision })
    }

    /// Reads the value, if there is one.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when what is there is not such a value.
    pub fn read_option(found: Option<&KeyValue>) -> Result<Option<Self>, StoreError> {
        found.map(Self::read).transpose()
    }
}

impl<T> Versioned<T> {
    /// The guard that holds while the value, found under `key`, is unchanged.
    #[must_use]
    pub const fn unchanged(&self, key: String) -> Guard {
        Guard::Unchanged(key, self.revision)
    }
}

/// The guard that holds while a key is as it was read: unchanged or absent.
pub(crate) fn as_read<T>(key: String, read: Option<&Versioned<T>>) -> Guard {
    read.map_or_else(|| Guard::Absent(key.clone()), |versioned| versioned.unchanged(key.clone()))
}

pub(crate) fn uuid_bytes(uuid: Uuid) -> Bytes {
    Bytes::copy_from_slice(uuid.as_bytes())
}

pub(crate) fn uuid_from(bytes: &Bytes, what: &str) -> Result<Uuid, Malformed> {
    Uuid::from_slice(bytes).map_err(|_| Malformed(format!("{what} has {} bytes, not 16", bytes.len())))
}
