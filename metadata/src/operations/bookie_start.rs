//! B1: a bookie's identity and the generation that each start raises; and how
//! far its log is durable.

use quire_proto::id::{BookieId, Nonce};

use crate::bookie::{BookieLiveness, BookieRegistration, LogPosition};
use crate::key::Keys;
use crate::operation::{self, Operation, Outcome, Verdict, incomplete_evidence};
use crate::store::{KeyValue, LeaseId, Revision, Store, StoreError, Txn};
use crate::typed::{Typed, Versioned, as_read};

/// What a bookie wrote to its disk before it asks the registry (B1). It stays
/// on disk, the same, until it is known to have been registered or refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartIntent {
    /// One above the generation that the disk knows to be registered; 1 for a
    /// directory that was just formatted.
    pub generation: u64,
    /// Drawn for this start.
    pub nonce: Nonce,
}

/// Why a bookie must not serve from this directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartRefused {
    /// The directory says that it was registered, the registry does not know
    /// it.
    #[error(
        "the registry does not know this bookie, though its directory was in service: it was removed from \
         the cluster, or the metadata is of another cluster or from a backup; format a new directory to join"
    )]
    NotRegistered,
    /// The registry is at a higher generation than the directory, or another
    /// start has raised it to the same one.
    #[error(
        "the registry is at generation {registered}, this directory wants to start as {wanted}: it is an old \
         copy of the directory, or another process serves a copy of it; use the newest one, or format a new one"
    )]
    Behind {
        /// What the registry has.
        registered: u64,
        /// What the directory's intent says.
        wanted: u64,
    },
    /// The registry is behind the directory: it was restored from a backup.
    #[error(
        "the registry is at generation {registered}, this directory wants to start as {wanted}: the metadata \
         is older than the bookie, as after a restore from a backup"
    )]
    RegistryBehind {
        /// What the registry has.
        registered: u64,
        /// What the directory's intent says.
        wanted: u64,
    },
}

/// Raises a bookie's generation in the registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartBookie {
    bookie: BookieId,
    intent: StartIntent,
    rack: String,
    previous: Option<Versioned<BookieRegistration>>,
}

impl StartBookie {
    /// The start of a bookie, given what the registry has for it.
    #[must_use]
    pub const fn new(
        bookie: BookieId,
        intent: StartIntent,
        rack: String,
        previous: Option<Versioned<BookieRegistration>>,
    ) -> Self {
        Self { bookie, intent, rack, previous }
    }

    /// What to do, given what the registry was found to have.
    pub fn verdict(&self) -> Verdict<Versioned<BookieRegistration>, StartRefused> {
        self.compare(self.previous.clone())
    }

    fn compare(
        &self,
        found: Option<Versioned<BookieRegistration>>,
    ) -> Verdict<Versioned<BookieRegistration>, StartRefused> {
        let StartIntent { generation: wanted, nonce } = self.intent;
        let Some(found) = found else {
            return if wanted == 1 { Verdict::Pending } else { Verdict::lost(StartRefused::NotRegistered) };
        };
        let registered = found.value.generation;
        if (registered, found.value.nonce) == (wanted, nonce) {
            Verdict::done(found)
        } else if registered >= wanted {
            Verdict::lost(StartRefused::Behind { registered, wanted })
        } else if registered + 1 < wanted {
            Verdict::lost(StartRefused::RegistryBehind { registered, wanted })
        } else {
            Verdict::Pending
        }
    }

    fn registration(&self) -> BookieRegistration {
        BookieRegistration {
            generation: self.intent.generation,
            nonce: self.intent.nonce,
            rack: self.rack.clone(),
            durable: self.previous.as_ref().map(|previous| previous.value.durable).unwrap_or_default(),
        }
    }
}

impl Operation for StartBookie {
    type Done = Versioned<BookieRegistration>;
    type Lost = StartRefused;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.bookie_registration(self.bookie);
        let guard = as_read(key.clone(), self.previous.as_ref());
        Txn::default().require(guard).put(key, self.registration().encode())
    }

    fn done(&self, at: Revision) -> Self::Done {
        Versioned { value: self.registration(), revision: at }
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.bookie_registration(self.bookie)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Self::Done, Self::Lost>, StoreError> {
        let [registration] = found else { return Err(incomplete_evidence()) };
        Ok(self.compare(Versioned::read_option(registration.as_ref())?))
    }
}

/// Registers a bookie's start (B1): a registration that equals the intent is
/// one's own.
///
/// # Errors
/// Those of [`operation::run`].
pub async fn start_bookie(
    store: &dyn Store,
    keys: &Keys,
    bookie: BookieId,
    intent: StartIntent,
    rack: &str,
) -> Result<Outcome<Versioned<BookieRegistration>, StartRefused>, StoreError> {
    let found = store.get(&keys.bookie_registration(bookie)).await?;
    let start = StartBookie::new(bookie, intent, rack.to_owned(), Versioned::read_option(found.as_ref())?);
    match start.verdict() {
        Verdict::Settled(outcome) => Ok(outcome),
        Verdict::Pending => operation::run(store, keys, &start).await,
    }
}

/// Publishes how far a bookie's log is durable, and that it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishBookie {
    /// The bookie.
    pub bookie: BookieId,
    /// Its registration, as this start last wrote it.
    pub registration: Versioned<BookieRegistration>,
    /// What is to be known. The durable position never goes back.
    pub liveness: BookieLiveness,
    /// The lease of the liveness key.
    pub lease: LeaseId,
}

/// Why nothing was published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishRefused {
    /// A later start serves the directory, or the bookie was removed: stop.
    #[error("another start of this bookie has been registered, or the bookie was removed from the registry")]
    Superseded,
    /// An earlier publication of this start came in between: go on from it.
    #[error("the registration was last written at revision {}", .0.revision.0)]
    Stale(Versioned<BookieRegistration>),
}

impl PublishBookie {
    fn registration(&self) -> BookieRegistration {
        let old = &self.registration.value;
        BookieRegistration { durable: self.durable(), ..old.clone() }
    }

    fn durable(&self) -> LogPosition {
        self.liveness.durable.max(self.registration.value.durable)
    }
}

impl Operation for PublishBookie {
    type Done = Versioned<BookieRegistration>;
    type Lost = PublishRefused;

    fn txn(&self, keys: &Keys) -> Txn {
        let registration = keys.bookie_registration(self.bookie);
        Txn::default()
            .require(self.registration.unchanged(registration.clone()))
            .put(registration, self.registration().encode())
            .put_leased(keys.bookie(self.bookie), self.liveness.encode(), self.lease)
    }

    fn done(&self, at: Revision) -> Self::Done {
        Versioned { value: self.registration(), revision: at }
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.bookie_registration(self.bookie), keys.bookie(self.bookie)]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Self::Done, Self::Lost>, StoreError> {
        let [registration, liveness] = found else { return Err(incomplete_evidence()) };
        let Some(registered) = Versioned::<BookieRegistration>::read_option(registration.as_ref())? else {
            return Ok(Verdict::lost(PublishRefused::Superseded));
        };
        let own = &self.registration.value;
        if (registered.value.generation, registered.value.nonce) != (own.generation, own.nonce) {
            return Ok(Verdict::lost(PublishRefused::Superseded));
        }
        if registered.revision == self.registration.revision {
            return Ok(Verdict::Pending);
        }
        let together = liveness.as_ref().is_some_and(|liveness| {
            liveness.mod_revision == registered.revision
                && liveness.lease == Some(self.lease)
                && liveness.value == self.liveness.encode()
        });
        Ok(if together && registered.value == self.registration() {
            Verdict::done(registered)
        } else {
            Verdict::lost(PublishRefused::Stale(registered))
        })
    }
}
