//! The cluster's identity: written by the first starter, checked by all others.

use quire_proto::id::ClusterId;

use crate::cluster::{Cluster, FORMAT_VERSION};
use crate::key::Keys;
use crate::operation::{Operation, Verdict, incomplete_evidence};
use crate::store::{Guard, KeyValue, Revision, StoreError, Txn};
use crate::typed::{Typed, Versioned};

/// Founds the cluster, or joins the one that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// The identity that a cluster founded now gets.
    pub id: ClusterId,
    /// The identity that an existing cluster must have, where it is known: a
    /// data directory belongs to one cluster.
    pub expected: Option<ClusterId>,
    /// Where objects go; empty without tiering.
    pub bucket: String,
    /// What the names of objects start with.
    pub prefix: String,
}

/// Why this process must not start in this cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterMismatch {
    /// The store was written by another version.
    #[error(
        "the metadata has format version {found}, this program reads {FORMAT_VERSION}: \
         run the version of quire that wrote it"
    )]
    Format {
        /// The version that is there.
        found: u32,
    },
    /// The store belongs to another cluster than the data directory.
    #[error(
        "the metadata is of cluster {found}, but this data directory belongs to cluster {expected}: \
         check the address and name of the metadata store, or use another data directory"
    )]
    Identity {
        /// The cluster that is there.
        found: ClusterId,
        /// The cluster that the data directory belongs to.
        expected: ClusterId,
    },
    /// Objects of the cluster are elsewhere.
    #[error(
        "the cluster keeps its objects in bucket {bucket:?} under {prefix:?}: configure the same bucket and prefix"
    )]
    Objects {
        /// The bucket of the cluster.
        bucket: String,
        /// The prefix of the cluster.
        prefix: String,
    },
}

impl Bootstrap {
    fn cluster(&self) -> Cluster {
        Cluster {
            id: self.expected.unwrap_or(self.id),
            format_version: FORMAT_VERSION,
            bucket: self.bucket.clone(),
            prefix: self.prefix.clone(),
        }
    }

    fn check(&self, found: Cluster) -> Verdict<Cluster, ClusterMismatch> {
        if found.format_version != FORMAT_VERSION {
            return Verdict::lost(ClusterMismatch::Format { found: found.format_version });
        }
        if let Some(expected) = self.expected.filter(|expected| *expected != found.id) {
            return Verdict::lost(ClusterMismatch::Identity { found: found.id, expected });
        }
        if (&found.bucket, &found.prefix) != (&self.bucket, &self.prefix) {
            let Cluster { bucket, prefix, .. } = found;
            return Verdict::lost(ClusterMismatch::Objects { bucket, prefix });
        }
        Verdict::done(found)
    }
}

impl Operation for Bootstrap {
    type Done = Cluster;
    type Lost = ClusterMismatch;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.cluster();
        Txn::default().require(Guard::Absent(key.clone())).put(key, self.cluster().encode())
    }

    fn done(&self, _at: Revision) -> Cluster {
        self.cluster()
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.cluster()]
    }

    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<Cluster, ClusterMismatch>, StoreError> {
        let [cluster] = found else { return Err(incomplete_evidence()) };
        let cluster = Versioned::<Cluster>::read_option(cluster.as_ref())?;
        Ok(cluster.map_or(Verdict::Pending, |found| self.check(found.value)))
    }
}
