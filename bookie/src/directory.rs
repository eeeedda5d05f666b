//! The data directory: who holds it, and whose it is (B1).

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use quire_metadata::operations::bookie_start::StartIntent;
use quire_proto::id::{BookieId, ClusterId, Nonce};
use rustix::fs::{FlockOperation, flock};
use uuid::Uuid;

use crate::disk::{Disk, RealDisk};
use crate::error::Error;

const LOCK: &str = "lock";
const IDENTITY: &str = "identity";
const VERSION: &str = "quire-bookie 1";

/// A directory that no other process has open.
#[derive(Debug)]
pub struct Directory<D: Disk = RealDisk> {
    /// Where it is.
    pub path: PathBuf,
    /// Its files.
    pub disk: D,
    /// Released when the file is closed.
    _lock: Option<File>,
}

/// Who the bookie of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Made when the directory is formatted.
    pub bookie: BookieId,
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The last generation that is known to be registered; 0: none yet.
    pub generation: u64,
    /// A start that was or is to be registered.
    pub intent: Option<StartIntent>,
}

impl Directory {
    /// Opens a directory, made when missing, and locks it. Blocks on the disk.
    ///
    /// # Errors
    /// When it is in use or the disk refuses.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let failed = |operation| {
            let file = path.display().to_string();
            move |source| Error::Disk { operation, file, source }
        };
        fs::create_dir_all(path).map_err(failed("making the data directory"))?;
        let lock = File::create(path.join(LOCK)).map_err(failed("locking"))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            rustix::io::Errno::WOULDBLOCK => Error::InUse(path.to_owned()),
            other => failed("locking")(other.into()),
        })?;
        let disk = RealDisk::open(path).map_err(failed("opening"))?;
        Ok(Self { path: path.to_owned(), disk, _lock: Some(lock) })
    }
}

impl<D: Disk> Directory<D> {
    /// A disk that nobody else can open, such as a simulated one.
    #[must_use]
    pub fn on(disk: D) -> Self {
        Self { path: PathBuf::from("(disk)"), disk, _lock: None }
    }

    /// Whether a bookie has its identity here.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn is_formatted(&self) -> Result<bool, Error> {
        let failed = |source| Error::Disk { operation: "reading", file: IDENTITY.to_owned(), source };
        Ok(self.disk.get(IDENTITY).map_err(failed)?.is_some())
    }

    /// The identity in the directory, or a new one in a directory that has
    /// none. A directory that has a log but no identity is never formatted.
    ///
    /// # Errors
    /// When the identity is of another cluster, or cannot be read.
    pub fn identity(&self, cluster: ClusterId) -> Result<Identity, Error> {
        let failed = |source| Error::Disk { operation: "reading", file: IDENTITY.to_owned(), source };
        let malformed = |cause: &str| Error::Malformed {
            dir: self.path.clone(),
            file: IDENTITY.to_owned(),
            cause: cause.to_owned(),
        };
        let Some(content) = self.disk.get(IDENTITY).map_err(failed)? else {
            let names = self.disk.list().map_err(failed)?;
            if names.iter().any(|name| crate::log::pool::log_generation(name).is_some()) {
                return Err(malformed("it is missing, though there is a log; bring it back from a copy"));
            }
            let bookie = BookieId(Uuid::new_v4());
            let identity = Identity { bookie, cluster, generation: 0, intent: None };
            self.keep(&identity)?;
            tracing::info!(%bookie, dir = %self.path.display(), "formatted a data directory");
            return Ok(identity);
        };
        let text = String::from_utf8(content).map_err(|_| malformed("it is not text"))?;
        let identity: Identity = text.parse().map_err(malformed)?;
        if identity.cluster != cluster {
            return Err(Error::OtherCluster {
                dir: self.path.clone(),
                found: identity.cluster.to_string(),
                expected: cluster.to_string(),
            });
        }
        Ok(identity)
    }

    /// Keeps the identity, durably.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn keep(&self, identity: &Identity) -> Result<(), Error> {
        let content = identity.to_string();
        let failed = |source| Error::Disk { operation: "writing", file: IDENTITY.to_owned(), source };
        self.disk.put(IDENTITY, content.as_bytes()).map_err(failed)
    }
}

impl Identity {
    /// The intent of this start: one that is open stays as it is.
    #[must_use]
    pub fn next_start(self) -> (Self, StartIntent) {
        let intent = self
            .intent
            .unwrap_or_else(|| StartIntent { generation: self.generation + 1, nonce: Nonce(Uuid::new_v4()) });
        (Self { intent: Some(intent), ..self }, intent)
    }

    /// Once the intent is registered.
    #[must_use]
    pub const fn registered(self, intent: StartIntent) -> Self {
        Self { generation: intent.generation, intent: None, ..self }
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = format!(
            "{VERSION}\nbookie {}\ncluster {}\ngeneration {}\n",
            self.bookie, self.cluster, self.generation
        );
        if let Some(intent) = self.intent {
            writeln!(text, "intent {} {}", intent.generation, intent.nonce)?;
        }
        let crc = crc32c::crc32c(text.as_bytes());
        writeln!(f, "{text}crc {crc:08x}")
    }
}

impl FromStr for Identity {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let (content, crc) = text.split_at(text.rfind("crc ").ok_or("it has no checksum")?);
        if crc.trim_end() != format!("crc {:08x}", crc32c::crc32c(content.as_bytes())) {
            return Err("its checksum does not match");
        }
        let mut lines = content.lines();
        if lines.next() != Some(VERSION) {
            return Err("it is of another version");
        }
        let mut identity =
            Self { bookie: BookieId::default(), cluster: ClusterId::default(), generation: 0, intent: None };
        for line in lines {
            let (name, value) = line.split_once(' ').ok_or("a line has no value")?;
            match name {
                "bookie" => identity.bookie = parsed(value)?,
                "cluster" => identity.cluster = parsed(value)?,
                "generation" => identity.generation = parsed(value)?,
                "intent" => {
                    let (generation, nonce) = value.split_once(' ').ok_or("the intent has no nonce")?;
                    let (generation, nonce) = (parsed(generation)?, parsed(nonce)?);
                    identity.intent = Some(StartIntent { generation, nonce });
                }
                _ => return Err("it has a line of an unknown kind"),
            }
        }
        Ok(identity)
    }
}

fn parsed<T: FromStr>(value: &str) -> Result<T, &'static str> {
    value.parse().map_err(|_| "a value is malformed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(number: u128) -> ClusterId {
        ClusterId(Uuid::from_u128(number))
    }

    #[test]
    fn b1_the_identity_is_made_once_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let identity = directory.identity(cluster(1)).unwrap();
        let (started, intent) = identity.next_start();
        directory.keep(&started).unwrap();
        assert_eq!(directory.identity(cluster(1)).unwrap(), started);
        assert_eq!(started.next_start(), (started, intent), "an open intent stays");
        let registered = started.registered(intent);
        assert_eq!((registered.generation, registered.intent), (1, None));
    }

    #[test]
    fn b1_the_directory_of_another_cluster_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        directory.identity(cluster(1)).unwrap();
        let error = directory.identity(cluster(2)).unwrap_err();
        assert!(matches!(error, Error::OtherCluster { .. }), "{error}");
    }

    #[test]
    fn b1_a_directory_that_lost_its_identity_is_not_formatted() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        fs::write(dir.path().join("00000000000000000001.log"), b"x").unwrap();
        assert!(matches!(directory.identity(cluster(1)), Err(Error::Malformed { .. })));
    }

    #[test]
    fn a_directory_has_one_holder() {
        let dir = tempfile::tempdir().unwrap();
        let held = Directory::open(dir.path()).unwrap();
        assert!(matches!(Directory::open(dir.path()), Err(Error::InUse(_))));
        drop(held);
        Directory::open(dir.path()).unwrap();
    }

    #[test]
    fn a_flipped_bit_in_the_identity_is_noticed() {
        let (identity, _) = Identity {
            bookie: BookieId(Uuid::from_u128(1)),
            cluster: cluster(2),
            generation: 7,
            intent: None,
        }
        .next_start();
        let text = identity.to_string();
        assert_eq!(text.parse(), Ok(identity));
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            let flipped = String::from_utf8(bytes).unwrap();
            assert_ne!(
                flipped.parse::<Identity>().ok(),
                Some(identity).filter(|_| flipped.trim_end() != text.trim_end())
            );
        }
    }
}
