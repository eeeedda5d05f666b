//! The way to the brokers, and what their refusals mean to a script.

use std::borrow::Cow;

use quire_client::{Admin, Client, ClientOptions, Error};
use quire_proto::v1::ErrorReason;

use crate::cli::Common;
use crate::failure::{Exit, Failure};

/// # Errors
/// When none of the brokers answers.
pub(crate) async fn client(common: &Common) -> Result<Client, Failure> {
    let options = ClientOptions { addresses: common.broker.clone(), ..ClientOptions::default() };
    Client::with_options(options).await.map_err(|error| match error {
        Error::Invalid(_) => Failure::new(Exit::Usage, error)
            .remedy("correct --broker, QUIRE_BROKER, or broker in the configuration file"),
        error => failure(error),
    })
}

/// # Errors
/// When none of the brokers answers.
pub(crate) async fn admin(common: &Common) -> Result<Admin, Failure> {
    Ok(client(common).await?.admin())
}

/// What a command ends with when the client failed of this.
pub(crate) fn failure(error: Error) -> Failure {
    let remedy = remedy(&error);
    Failure::new(exit(&error), error).remedy(remedy)
}

fn exit(error: &Error) -> Exit {
    match error {
        Error::Invalid(_) => Exit::Usage,
        Error::RecordTooLarge { .. } => Exit::Refused,
        Error::Damaged { .. } => Exit::Failure,
        Error::Foreign { .. } => Exit::Unavailable,
        error if error.reason() == Some(ErrorReason::DataUnavailable) => Exit::Unavailable,
        error if error.is_retryable() => Exit::Unavailable,
        error if error.reason().is_some() => Exit::Refused,
        _ => Exit::Failure,
    }
}

/// What to do about it.
fn remedy(error: &Error) -> Cow<'static, str> {
    let text = match error {
        Error::Connect { .. } => {
            "start a server with: quire standalone; or name another with --broker or QUIRE_BROKER"
        }
        Error::Damaged { partition, next: Some(next), .. } => {
            let text = format!("to read on behind that batch: --partition {partition} --from {next}");
            return Cow::Owned(text);
        }
        Error::RecordTooLarge { .. } => TOO_LARGE,
        Error::Foreign { .. } => {
            "give the address of a broker's gRPC to --broker or QUIRE_BROKER, not that of its HTTP"
        }
        Error::Invalid(_) => "--help describes each option",
        error => error.reason().map_or(UNANSWERED, by_reason),
    };
    Cow::Borrowed(text)
}

const UNANSWERED: &str = "see whether the server runs (/readyz, its log), whether it has all the connections that it takes, and whether \
     --broker is its gRPC address";

const TOO_LARGE: &str = "send smaller records, or to a topic with a larger max.message.bytes";

const fn by_reason(reason: ErrorReason) -> &'static str {
    use ErrorReason as R;
    match reason {
        R::InvalidRequest => "correct what the message names",
        R::InvalidTopicName => "use a valid name: quire topic list shows the topics that there are",
        R::InvalidConfig => "correct --config: quire topic create --help lists the keys",
        R::TopicAlreadyExists => "choose another name, or delete that topic first",
        R::UnknownTopic => "quire topic list shows the topics, quire topic create makes one",
        R::UnknownPartition => "quire topic describe NAME shows the partitions",
        R::UnknownLedger => "quire segment list TOPIC shows the ledgers",
        R::BatchTooLarge => TOO_LARGE,
        R::CorruptBatch | R::UnsupportedBatchVersion | R::InvalidBatch => {
            "see to the program that made the batch: the server stored nothing of it"
        }
        R::OffsetOutOfRange => "quire topic describe NAME shows the offsets that there are",
        R::TooManyReplicas => "ask for fewer --replicas or a smaller --ack-quorum",
        R::OutOfOrderSequence | R::InvalidProducerEpoch => {
            "start the producer again: another one has taken its place, or the server has forgotten it"
        }
        R::AcceptLossRequired => "run it again to see what may be lost by now, and accept that if need be",
        R::NotLeader | R::NotReady => {
            "try again: the partition is being taken over; the server's log says what that waits for"
        }
        R::NotEnoughBookies => "start more bookies, or those that are away, then try again",
        R::StorageFull => "free space on the bookies' disks; they take writes again by themselves",
        R::Overloaded => "try again, or send less at once",
        R::MetadataUnavailable => "see to the metadata store, then try again",
        R::ShuttingDown => "try again when the server is back, or at another broker",
        R::OutcomeUnknown => "look whether it was done before trying again",
        R::DataUnavailable => {
            "quire ledger describe ID shows the copies of the ledger that it names; --partition and --from read on behind it"
        }
        R::Internal | R::Unspecified => "the server's log says more",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: &Error, expected: Exit) {
        assert_eq!(exit(error), expected, "{error}");
    }

    #[test]
    fn refusals_and_absences_have_their_codes() {
        let broker = |reason| quire_proto::error::Failure::new(reason, "no").into();
        check(&broker(ErrorReason::UnknownTopic), Exit::Refused);
        check(&broker(ErrorReason::InvalidConfig), Exit::Refused);
        check(&broker(ErrorReason::NotReady), Exit::Unavailable);
        check(&broker(ErrorReason::StorageFull), Exit::Unavailable);
        check(&broker(ErrorReason::DataUnavailable), Exit::Unavailable);
        check(&Error::Invalid("linger".to_owned()), Exit::Usage);
        check(&Error::RecordTooLarge { size: 2, limit: 1 }, Exit::Refused);
        let refused = Error::Connect { address: "a:1".to_owned(), cause: "refused".to_owned() };
        check(&refused, Exit::Unavailable);
    }
}
