//! `deletes/<ledger id>`: a ledger that is to go from its bookies.

use bytes::Bytes;
use prost::Message;
use quire_proto::id::BookieId;

use crate::ledger::{LedgerMetadata, decode_bookies, encode_bookies};
use crate::typed::{Malformed, Typed};
use crate::value;

/// An intent to delete. It stays until every bookie has confirmed or has left
/// the registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteIntent {
    /// Every bookie that the ledger's metadata ever named.
    pub bookies: Vec<BookieId>,
    /// Those that have confirmed.
    pub confirmed: Vec<BookieId>,
}

impl DeleteIntent {
    /// The intent to delete this ledger from all bookies that it ever named.
    #[must_use]
    pub fn of(ledger: &LedgerMetadata) -> Self {
        Self { bookies: ledger.ever_named(), confirmed: Vec::new() }
    }

    /// The bookies that have not confirmed.
    #[must_use]
    pub fn outstanding(&self) -> Vec<BookieId> {
        self.bookies.iter().filter(|bookie| !self.confirmed.contains(bookie)).copied().collect()
    }
}

impl Typed for DeleteIntent {
    const NAME: &'static str = "delete intent";

    fn encode(&self) -> Bytes {
        value::DeleteIntent {
            bookies: encode_bookies(&self.bookies),
            confirmed: encode_bookies(&self.confirmed),
        }
        .encode_to_vec()
        .into()
    }

    fn decode(bytes: &Bytes) -> Result<Self, Malformed> {
        let value::DeleteIntent { bookies, confirmed } = value::DeleteIntent::decode(bytes.clone())?;
        Ok(Self { bookies: decode_bookies(&bookies)?, confirmed: decode_bookies(&confirmed)? })
    }
}
