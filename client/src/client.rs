use std::sync::Arc;
use std::time::Duration;

use crate::backoff::Backoff;
use crate::connections::Connections;
use crate::consumer::{Consumer, ConsumerOptions};
use crate::metadata::Metadata;
use crate::producer::{Producer, ProducerOptions};
use crate::{Admin, Error};

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// `host:port` of brokers to begin with; one that answers is enough.
    pub addresses: Vec<String>,
    /// For a connection to come about. 5 s.
    pub connect_timeout: Duration,
    /// For one answer. 30 s.
    pub request_timeout: Duration,
    /// For a call with all its tries. 60 s.
    pub call_timeout: Duration,
    /// What is known of a topic is asked for again after this long. 5 min.
    pub metadata_age: Duration,
    /// Wait before a second try; doubles with each further one. 100 ms.
    pub retry_backoff: Duration,
    /// The longest wait between tries. 1 s.
    pub retry_backoff_max: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            addresses: vec!["127.0.0.1:9650".to_owned()],
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(60),
            metadata_age: Duration::from_secs(300),
            retry_backoff: Duration::from_millis(100),
            retry_backoff_max: Duration::from_secs(1),
        }
    }
}

impl ClientOptions {
    pub(crate) const fn backoff(&self) -> Backoff {
        Backoff { first: self.retry_backoff, most: self.retry_backoff_max }
    }
}

/// A way into a cluster. Cheap to clone; clones share their connections.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) options: ClientOptions,
    pub(crate) connections: Connections,
    pub(crate) metadata: Metadata,
}

impl Client {
    /// Connects to the first of these brokers that answers; the others are found
    /// through it.
    ///
    /// # Errors
    /// `Invalid` for an address that is none, else `Connect`, which names them
    /// all, when none answers.
    ///
    /// Cancel-safe: nothing is left behind.
    pub async fn connect<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Result<Self, Error> {
        let addresses = addresses.into_iter().map(Into::into).collect();
        Self::with_options(ClientOptions { addresses, ..ClientOptions::default() }).await
    }

    /// As [`Client::connect`], with options.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn with_options(options: ClientOptions) -> Result<Self, Error> {
        let connections = Connections::open(&options).await?;
        let metadata = Metadata::default();
        Ok(Self { shared: Arc::new(Shared { options, connections, metadata }) })
    }

    /// A producer. Call it within a tokio runtime: it starts a task.
    ///
    /// # Errors
    /// `Invalid` when an option is out of its range.
    pub fn producer(&self, options: ProducerOptions) -> Result<Producer, Error> {
        Producer::start(Arc::clone(&self.shared), options)
    }

    /// A consumer, with nothing assigned yet.
    ///
    /// # Errors
    /// `Invalid` when an option is out of its range.
    pub fn consumer(&self, options: ConsumerOptions) -> Result<Consumer, Error> {
        Consumer::new(Arc::clone(&self.shared), options)
    }

    /// Topics, offsets, segments and ledgers.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin::new(Arc::clone(&self.shared))
    }
}
