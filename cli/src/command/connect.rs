//! The way to the brokers, and what their refusals mean to a script.

use quire_client::{Admin, Client, ClientOptions, Error};
use quire_proto::v1::ErrorReason;

use crate::cli::Common;
use crate::failure::{Exit, Failure};

/// # Errors
/// When none of the brokers answers.
pub(crate) async fn client(common: &Common) -> Result<Client, Failure> {
    let options = ClientOptions { addresses: common.broker.clone(), ..ClientOptions::default() };
    Client::with_options(options).await.map_err(failure)
}

/// # Errors
/// When none of the brokers answers.
pub(crate) async fn admin(common: &Common) -> Result<Admin, Failure> {
    Ok(client(common).await?.admin())
}

/// What a command ends with when the client failed of this.
pub(crate) fn failure(error: Error) -> Failure {
    let remedy = remedy(&error);
    let failure = Failure::new(exit(&error), error);
    match remedy {
        Some(remedy) => failure.remedy(remedy),
        None => failure,
    }
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

/// What the message does not say already.
fn remedy(error: &Error) -> Option<&'static str> {
    if matches!(error, Error::Connect { .. }) {
        return Some("start a server with: quire standalone; or name another with --broker or QUIRE_BROKER");
    }
    match error.reason()? {
        ErrorReason::UnknownTopic => Some("quire topic list shows the topics, quire topic create makes one"),
        ErrorReason::UnknownPartition => Some("quire topic describe NAME shows the partitions"),
        ErrorReason::TopicAlreadyExists => Some("choose another name, or delete that topic first"),
        ErrorReason::TooManyReplicas => Some("ask for fewer --replicas or a smaller --ack-quorum"),
        ErrorReason::UnknownLedger => Some("quire segment list TOPIC shows the ledgers"),
        ErrorReason::StorageFull => {
            Some("free space on the bookies' disks; they take writes again by themselves")
        }
        _ => None,
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
