//! What can be set on a broker.

use std::time::Duration;

/// How a broker runs. [`Options::default`] holds the numbers of the reference.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster whose keys are used: `/quire/<cluster>/`.
    pub cluster: String,
    /// This broker's id, unique in the cluster.
    pub id: String,
    /// `host:port` of the gRPC door as clients reach it.
    pub address: String,
    /// Where it stands, for placement. Empty: unknown.
    pub rack: String,
    /// Shards that the partitions are spread over; 0 takes one a core.
    pub shards: usize,
    /// Memory for produced batches, from the socket until the last replica and
    /// reader are done with them. Past it producers wait.
    pub memory_bytes: usize,
    /// Of `memory_bytes`, what the tails of the partitions may hold.
    pub tail_cache_bytes: usize,
    /// Memory for produce requests while they arrive, and as much again for what
    /// they become; other requests have half as much of both. One connection may
    /// hold half of each, or one request. Past it they are not read on.
    pub request_bytes: usize,
    /// Memory for answers until the client has taken them, half of it for those
    /// with records, and for what is asked for. One connection may hold an eighth
    /// of each, a quarter of what is asked for, or one answer. Past it clients wait.
    pub answer_bytes: usize,
    /// A client that takes next to nothing of its answers for this long, while
    /// others wait for the memory of answers, or itself does, is disconnected; once
    /// somebody has waited for others this long, for a sixth of it, until nobody has
    /// been disconnected for four times it. A request has as long to arrive. A client
    /// waits as long for memory that its own connection holds, and twice as long for
    /// that of others.
    pub client_patience: Duration,
    /// Greatest number of connections; more are closed at once.
    pub connections_max: usize,
    /// What entries read back from bookies may hold.
    pub read_cache_bytes: usize,
    /// Greatest number of messages that wait for one shard.
    pub inbox_messages: usize,
    /// How long the broker's lease lives without a keep-alive.
    pub lease: Duration,
    /// A ledger without an append for this long is sealed.
    pub idle_seal: Duration,
    /// A ledger with this many entries is rolled.
    pub roll_entries: u64,
    /// Copies of a ledger where the topic does not say.
    pub default_replicas: u32,
    /// How long a produce is tried when the request does not say.
    pub produce_timeout: Duration,
    /// Longest time a fetch may wait.
    pub fetch_wait_max: Duration,
    /// Bytes of a fetch that does not say.
    pub fetch_bytes: usize,
    /// How long a producer that wrote nothing is remembered.
    pub producer_expiry: Duration,
    /// How long a shutdown may take before open ledgers are left to recovery.
    pub shutdown: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cluster: "quire".to_owned(),
            id: "broker-1".to_owned(),
            address: "127.0.0.1:9650".to_owned(),
            rack: String::new(),
            shards: 0,
            memory_bytes: 512 << 20,
            tail_cache_bytes: 256 << 20,
            request_bytes: 128 << 20,
            answer_bytes: 256 << 20,
            client_patience: Duration::from_secs(30),
            connections_max: 4096,
            read_cache_bytes: 64 << 20,
            inbox_messages: 4096,
            lease: Duration::from_secs(5),
            idle_seal: Duration::from_secs(5 * 60),
            roll_entries: 1_000_000,
            default_replicas: 3,
            produce_timeout: Duration::from_secs(30),
            fetch_wait_max: Duration::from_secs(60),
            fetch_bytes: 4 << 20,
            producer_expiry: Duration::from_secs(7 * 24 * 3600),
            shutdown: Duration::from_secs(10),
        }
    }
}
