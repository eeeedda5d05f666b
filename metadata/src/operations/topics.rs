//! Creating and deleting topics. Deleting is marked here and carried
//! out in steps (see [`super::deletion`]): the name is free again at once.

use crate::key::Keys;
use crate::operation::{Operation, Verdict, incomplete_evidence};
use crate::store::{Guard, KeyValue, Revision, StoreError, Txn};
use crate::topic::Topic;
use crate::typed::{Typed, Versioned};

/// Creates a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopic {
    /// The topic, with an id that was never used.
    pub topic: Topic,
}

/// There is a topic of this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("topic {} exists", .0.value.name)]
pub struct TopicExists(pub Versioned<Topic>);

impl Operation for CreateTopic {
    type Done = Versioned<Topic>;
    type Lost = TopicExists;

    fn txn(&self, keys: &Keys) -> Txn {
        let key = keys.topic(&self.topic.name);
        Txn::default()
            .require(Guard::Absent(key.clone()))
            // A late copy does not bring back a topic that is being deleted.
            .require(Guard::Absent(keys.deleting(self.topic.id)))
            .put(key, self.topic.encode())
    }

    fn done(&self, at: Revision) -> Versioned<Topic> {
        Versioned { value: self.topic.clone(), revision: at }
    }

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.topic(&self.topic.name), keys.deleting(self.topic.id)]
    }

    fn judge(
        &self,
        found: &[Option<KeyValue>],
    ) -> Result<Verdict<Versioned<Topic>, TopicExists>, StoreError> {
        let [topic, deleting] = found else { return Err(incomplete_evidence()) };
        if let Some(deleting) = Versioned::<Topic>::read_option(deleting.as_ref())? {
            return Ok(Verdict::done(deleting));
        }
        Ok(match Versioned::<Topic>::read_option(topic.as_ref())? {
            None => Verdict::Pending,
            Some(found) if found.value.id == self.topic.id => Verdict::done(found),
            Some(found) => Verdict::lost(TopicExists(found)),
        })
    }
}

/// The topic is not as it was read; what there is now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the topic was changed by another")]
pub struct TopicChanged(pub Option<Versioned<Topic>>);

/// Marks a topic for deletion: from now on it has no name and no leader can be
/// minted for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopic {
    /// The topic, as read.
    pub topic: Versioned<Topic>,
}

impl Operation for DeleteTopic {
    type Done = ();
    type Lost = TopicChanged;

    fn txn(&self, keys: &Keys) -> Txn {
        let Topic { id, name, .. } = &self.topic.value;
        let key = keys.topic(name);
        Txn::default()
            .require(self.topic.unchanged(key.clone()))
            .delete(key)
            .put(keys.deleting(*id), self.topic.value.encode())
    }

    fn done(&self, _at: Revision) {}

    fn evidence(&self, keys: &Keys) -> Vec<String> {
        vec![keys.topic(&self.topic.value.name)]
    }

    /// A topic whose id is gone from its name has been deleted: by this
    /// transaction or by another, which is the same to whoever asked.
    fn judge(&self, found: &[Option<KeyValue>]) -> Result<Verdict<(), TopicChanged>, StoreError> {
        let [topic] = found else { return Err(incomplete_evidence()) };
        Ok(match Versioned::<Topic>::read_option(topic.as_ref())? {
            Some(found) if found.revision == self.topic.revision => Verdict::Pending,
            Some(found) if found.value.id == self.topic.value.id => Verdict::lost(TopicChanged(Some(found))),
            Some(_) | None => Verdict::done(()),
        })
    }
}
