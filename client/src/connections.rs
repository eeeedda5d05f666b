use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quire_proto::v1::ledger_service_client::LedgerServiceClient;
use quire_proto::v1::log_service_client::LogServiceClient;
use quire_proto::v1::topic_service_client::TopicServiceClient;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tracing::{debug, warn};

use crate::backoff::Backoff;
use crate::directory::Directory;
use crate::{ClientOptions, Error};

/// HTTP/2 frames and windows: the defaults of 16 KiB and 2 MiB cost half the
/// throughput.
const FRAME: u32 = 1 << 20;
const STREAM_WINDOW: u32 = 8 << 20;
const CONNECTION_WINDOW: u32 = 32 << 20;

/// A message may be this large: a produce or fetch carries many partitions.
pub(crate) const MESSAGE_MAX: usize = 64 << 20;

/// A peer that does not answer a ping for this long is gone.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// A call that is tried for this long is told of, once.
const QUIET: Duration = Duration::from_secs(3);

/// A cluster has at most this many brokers that a client keeps connections to.
const CHANNELS_MAX: usize = 1024;

/// Whether a call may be made again when it is not known what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// It changes nothing, or the same again.
    Safe,
    /// It may do the same a second time.
    Unsafe,
}

/// One connection a broker. They come about when they are needed, and again
/// after they broke.
#[derive(Debug)]
pub(crate) struct Connections {
    pub(crate) directory: Directory,
    channels: Mutex<HashMap<String, Channel>>,
    connect_timeout: Duration,
    request_timeout: Duration,
    call_timeout: Duration,
    backoff: Backoff,
}

impl Connections {
    /// Connects to the first address that answers.
    pub(crate) async fn open(options: &ClientOptions) -> Result<Self, Error> {
        let none = || Error::Invalid("no broker address is given: name at least one host:port".to_owned());
        let connections = Self {
            directory: Directory::new(&options.addresses).ok_or_else(none)?,
            channels: Mutex::default(),
            connect_timeout: options.connect_timeout,
            request_timeout: options.request_timeout,
            call_timeout: options.call_timeout,
            backoff: options.backoff(),
        };
        let mut causes = Vec::new();
        for address in connections.directory.given() {
            match connections.endpoint(address)?.connect().await {
                Ok(channel) => {
                    connections.directory.favour(address);
                    connections.lock().insert(address.to_string(), channel);
                    return Ok(connections);
                }
                Err(error) => causes.push(innermost(&error)),
            }
        }
        causes.dedup();
        Err(Error::Connect { address: connections.directory.given().join(","), cause: causes.join("; ") })
    }

    /// The channel to a broker. It connects with its first request.
    pub(crate) fn channel(&self, address: &str) -> Result<Channel, Error> {
        if let Some(channel) = self.lock().get(address) {
            return Ok(channel.clone());
        }
        let channel = self.endpoint(address)?.connect_lazy();
        let mut channels = self.lock();
        if channels.len() >= CHANNELS_MAX {
            channels.clear();
        }
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }

    /// The log service of one broker.
    pub(crate) fn log(&self, address: &str) -> Result<LogServiceClient<Channel>, Error> {
        self.channel(address).map(log_client)
    }

    /// How long one answer may take.
    pub(crate) const fn request_timeout(&self) -> Duration {
        self.request_timeout
    }

    /// Makes a call to any broker, and again elsewhere or later while that is
    /// safe and may help.
    pub(crate) async fn call<R, T, F>(
        &self,
        what: &str,
        repeat: Repeat,
        request: R,
        call: impl Fn(Channel, R) -> F,
    ) -> Result<T, Error>
    where
        R: Clone,
        F: Future<Output = Result<T, Status>>,
    {
        let began = Instant::now();
        let deadline = began + self.call_timeout;
        let mut known_effectless = true;
        let mut is_told = false;
        for attempt in 1.. {
            let address = self.directory.favourite();
            let error =
                match timeout_at(deadline, self.once(&address, |channel| call(channel, request.clone())))
                    .await
                {
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(error)) => error,
                    Err(_) => return Err(self.timed_out(what, None, false)),
                };
            known_effectless &= error.is_determinate();
            if !error.is_retryable() || (repeat == Repeat::Unsafe && !error.is_determinate()) {
                return Err(error);
            }
            self.directory.pass_over(&address);
            let round = self.directory.len();
            let wait = self.backoff.wait(attempt);
            // With none of the addresses reachable, waiting helps only a broker
            // that is just starting.
            let unreachable = matches!(error, Error::Connect { .. }) && attempt as usize >= round + 4;
            if unreachable || Instant::now() + wait >= deadline {
                return Err(if unreachable {
                    self.unreachable(error)
                } else {
                    self.timed_out(what, Some(error), known_effectless)
                });
            }
            if is_told || began.elapsed() < QUIET {
                debug!(what, attempt, %error, "trying again");
            } else {
                is_told = true;
                warn!(what, attempt, %error, "not done yet, trying again");
            }
            sleep(wait).await;
        }
        Err(self.timed_out(what, None, known_effectless))
    }

    async fn once<T, F>(&self, address: &str, call: impl FnOnce(Channel) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let channel = self.channel(address)?;
        let answer = tokio::time::timeout(self.request_timeout, call(channel)).await;
        let status = Status::deadline_exceeded("no answer in time");
        answer.unwrap_or(Err(status)).map_err(|status| Error::from_status(address, &status))
    }

    fn timed_out(&self, what: &str, last: Option<Error>, determinate: bool) -> Error {
        let (what, last) = (what.to_owned(), last.map(Box::new));
        Error::Timeout { what, after: self.call_timeout, last, determinate }
    }

    fn unreachable(&self, error: Error) -> Error {
        match error {
            Error::Connect { cause, .. } => {
                Error::Connect { address: self.directory.given().join(","), cause }
            }
            other => other,
        }
    }

    fn endpoint(&self, address: &str) -> Result<Endpoint, Error> {
        let invalid = || Error::Invalid(format!("{address:?} is not an address: write host:port"));
        let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
        if host.is_empty() || host.contains('/') || port.parse::<u16>().is_err() {
            return Err(invalid());
        }
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| invalid())?;
        Ok(endpoint
            .connect_timeout(self.connect_timeout)
            .tcp_nodelay(true)
            .max_frame_size(FRAME)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Channel>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn log_client(channel: Channel) -> LogServiceClient<Channel> {
    LogServiceClient::new(channel)
        .max_decoding_message_size(MESSAGE_MAX)
        .max_encoding_message_size(MESSAGE_MAX)
}

pub(crate) fn topic_client(channel: Channel) -> TopicServiceClient<Channel> {
    TopicServiceClient::new(channel).max_decoding_message_size(MESSAGE_MAX)
}

pub(crate) fn ledger_client(channel: Channel) -> LedgerServiceClient<Channel> {
    LedgerServiceClient::new(channel).max_decoding_message_size(MESSAGE_MAX)
}

/// What the operating system said, rather than the layers above it.
fn innermost(error: &(dyn std::error::Error + 'static)) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .last()
        .map_or_else(String::new, ToString::to_string)
}
