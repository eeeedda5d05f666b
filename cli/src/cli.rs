//! The command line: every command, flag and default.
//!
//! Each flag is also a key of the configuration file and an environment
//! variable (see [`crate::settings`]): this is the one list of them.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use quire_metadata::topic::PARTITIONS_MAX;

use crate::value::{ByteSize, ConfigPair, Delimiter, Position, host_and_port, record_size, whole};

/// The default address of the public gRPC door.
pub(crate) const DEFAULT_GRPC: &str = "127.0.0.1:9650";
/// The default address of health checks and metrics.
pub(crate) const DEFAULT_HTTP: &str = "127.0.0.1:9651";

/// A message broker whose storage is replicated ledgers.
#[derive(Debug, Parser)]
#[command(name = "quire", version, propagate_version = true, subcommand_required = true)]
#[command(arg_required_else_help = true, max_term_width = 100, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Every flag but those that confirm can also be set in a TOML file (--config FILE) and by an environment variable;
docs/configuration.md lists them. Exit codes are in docs/cli.md.";

/// What every command takes.
#[derive(Debug, Args)]
#[command(next_help_heading = "Common options")]
pub(crate) struct Common {
    /// Brokers to ask; any of them will do
    #[arg(long, global = true, value_name = "ADDR[,ADDR…]", value_delimiter = ',')]
    #[arg(default_value = DEFAULT_GRPC)]
    pub(crate) broker: Vec<String>,
    /// How results are written to stdout
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputFormat,
    /// How logs are written to stderr
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) log: LogFormat,
    /// Which logs: error, warn, info, debug, trace, or a list of target=level
    #[arg(long, global = true, value_name = "FILTER", default_value = "warn,quire=info")]
    pub(crate) log_level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Table,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a whole server in one process: broker, bookie, controller, metadata
    Standalone(Standalone),
    /// Create, list, describe and delete topics
    #[command(subcommand)]
    Topic(Topic),
    /// Write lines of stdin to a topic
    Produce(Produce),
    /// Write the records of a topic to stdout
    Consume(Consume),
    /// Show where the bytes of a topic are
    #[command(subcommand)]
    Segment(Segment),
    /// Inspect and mend ledgers
    #[command(subcommand)]
    Ledger(Ledger),
    /// Measure throughput, latency and the server's CPU
    #[command(subcommand)]
    Bench(Bench),
    /// Print the completion script of a shell
    Completion(Completion),
}

/// `quire standalone`
#[derive(Debug, Args)]
pub(crate) struct Standalone {
    /// Where everything is kept; made if missing
    #[arg(long, value_name = "DIR", default_value = "quire-data")]
    pub(crate) data: PathBuf,
    /// Where gRPC is served; a port of 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_GRPC)]
    pub(crate) grpc: String,
    /// Where /livez, /readyz and /metrics are served; a port of 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = DEFAULT_HTTP)]
    pub(crate) http: String,
    /// The gRPC address that clients are told, if it is not the one above
    #[arg(long, value_name = "ADDR", value_parser = host_and_port)]
    pub(crate) advertise: Option<String>,
    /// Name of the cluster; the data directory belongs to one
    #[arg(long, value_name = "NAME", default_value = "quire")]
    pub(crate) cluster: String,
    #[command(flatten)]
    pub(crate) tuning: Tuning,
}

/// What seldom needs to be set.
#[derive(Debug, Args)]
#[command(next_help_heading = "Tuning")]
pub(crate) struct Tuning {
    /// Tasks that lead the partitions, at most 1024; 0 takes one a core
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0..=1024_u32))]
    pub(crate) shards: u32,
    /// Memory of the broker for records; past it producers wait
    #[arg(long, value_name = "BYTES", default_value = "512MiB")]
    pub(crate) memory_bytes: ByteSize,
    /// Of that, for the newest records of the partitions; half of it if not given
    #[arg(long, value_name = "BYTES")]
    pub(crate) tail_cache_bytes: Option<ByteSize>,
    /// Memory of the broker for produce requests while they arrive, and as much again for what they become once decoded; all other requests have half as much of both; one connection may hold half of each, or one request
    #[arg(long, value_name = "BYTES", default_value = "128MiB")]
    pub(crate) request_bytes: ByteSize,
    /// Memory of the broker for answers until clients have them, half of it for those with records, and for what is asked for; one connection may hold an eighth of each, a quarter of what is asked for, or one answer; past it clients wait
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(crate) answer_bytes: ByteSize,
    /// Greatest number of connections of clients, at most half of the file descriptors; more are closed at once
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = whole(1..=u32::MAX))]
    pub(crate) connections_max: u32,
    /// Memory of the broker for records read back from bookies
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub(crate) read_cache_bytes: ByteSize,
    /// A ledger with this many entries is sealed and the next begun
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = whole(1..=u64::MAX))]
    pub(crate) roll_entries: u64,
    /// A ledger without an append for this many milliseconds is sealed
    #[arg(long, value_name = "MS", default_value_t = 300_000, value_parser = whole(0..=u64::MAX))]
    pub(crate) idle_seal_ms: u64,
    /// An idempotent producer that wrote nothing for this many milliseconds, at least 5 minutes, is forgotten
    #[arg(long, value_name = "MS", default_value_t = 604_800_000, value_parser = whole(300_000..=u64::MAX))]
    pub(crate) producer_expiry_ms: u64,
    /// Size of a log file of the bookie: 1 MiB to 4 GiB
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    pub(crate) bookie_file_bytes: ByteSize,
    /// Memory of the bookie for blocks of its log
    #[arg(long, value_name = "BYTES", default_value = "128MiB")]
    pub(crate) bookie_cache_bytes: ByteSize,
    /// Memory of the bookie for what was written last
    #[arg(long, value_name = "BYTES", default_value = "16MiB")]
    pub(crate) bookie_tail_bytes: ByteSize,
    /// Disk space that is kept for sealing, deleting and reclaiming
    #[arg(long, value_name = "BYTES", default_value = "512MiB")]
    pub(crate) bookie_reserve_bytes: ByteSize,
    /// Percent of the disk in use at which the bookie takes no more records, unless the headroom is free
    #[arg(long, value_name = "PERCENT", default_value_t = 95, value_parser = whole(1..=100_u8))]
    pub(crate) bookie_high_water: u8,
    /// Percent of the disk in use below which it takes records again
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = whole(1..=100_u8))]
    pub(crate) bookie_low_water: u8,
    /// Free space with which the bookie takes records however full the disk is; with twice as much it takes them again
    #[arg(long, value_name = "BYTES", default_value = "8GiB")]
    pub(crate) bookie_headroom_bytes: ByteSize,
    /// Bytes a second at which the bookie reads its whole log to check it; 0 turns it off
    #[arg(long, value_name = "BYTES", default_value = "4MiB")]
    pub(crate) bookie_scrub_bytes: ByteSize,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Topic {
    /// Create a topic
    Create(TopicCreate),
    /// List all topics
    List,
    /// Show a topic, its configuration and its partitions
    Describe(TopicDescribe),
    /// Delete a topic and all its records
    Delete(TopicDelete),
}

#[derive(Debug, Args)]
pub(crate) struct TopicCreate {
    /// Name of the topic
    pub(crate) name: String,
    /// Number of partitions, at most 10000
    #[arg(long, value_name = "N", value_parser = whole(1..=PARTITIONS_MAX))]
    pub(crate) partitions: u32,
    /// Target number of copies; the server's default if not given
    #[arg(long, value_name = "R", value_parser = whole(1..=u32::MAX))]
    pub(crate) replicas: Option<u32>,
    /// Copies that must be durable before an acknowledgement; the majority if not given
    #[arg(long, value_name = "A", value_parser = whole(1..=u32::MAX))]
    pub(crate) ack_quorum: Option<u32>,
    /// A setting of the topic, such as segment.bytes=268435456, of segment.bytes, segment.ms, max.message.bytes, compression.type, message.timestamp.type; may be repeated
    #[arg(long = "config", value_name = "KEY=VALUE", action = ArgAction::Append)]
    pub(crate) settings: Vec<ConfigPair>,
}

#[derive(Debug, Args)]
pub(crate) struct TopicDescribe {
    /// Name of the topic
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct TopicDelete {
    /// Name of the topic
    pub(crate) name: String,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// When a record counts as acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Acks {
    /// Durable on the topic's ack quorum
    All,
    /// Durable on one bookie; may be lost
    Leader,
    /// Accepted by the broker; may be lost
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

/// How records are gathered into batches.
#[derive(Debug, Args)]
pub(crate) struct Batching {
    /// When a record counts as acknowledged
    #[arg(long, value_name = "WHEN", default_value = "all")]
    pub(crate) acks: Acks,
    /// How batches are compressed
    #[arg(long, value_name = "CODEC", default_value = "none")]
    pub(crate) compression: Compression,
    /// A batch is sent when it has this many bytes
    #[arg(long, value_name = "BYTES", default_value = "256KiB")]
    pub(crate) batch_bytes: ByteSize,
    /// A batch is sent this many milliseconds after its first record
    #[arg(long, value_name = "MS", default_value_t = 5, value_parser = whole(0..=u32::MAX))]
    pub(crate) linger_ms: u32,
    /// Bytes that may wait for their acknowledgement
    #[arg(long, value_name = "BYTES", default_value = "64MiB")]
    pub(crate) buffer_bytes: ByteSize,
    /// A record that is not acknowledged after this many milliseconds has failed
    #[arg(long, value_name = "MS", default_value_t = 120_000, value_parser = whole(0..=u32::MAX))]
    pub(crate) delivery_timeout_ms: u32,
}

/// `quire produce`
#[derive(Debug, Args)]
pub(crate) struct Produce {
    /// Name of the topic
    pub(crate) name: String,
    /// The key is this field of the line, counted from 1; without it there is no key
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    pub(crate) key_field: Option<u32>,
    /// What divides a line into fields
    #[arg(long, value_name = "C", default_value = ",")]
    pub(crate) delimiter: Delimiter,
    /// Write to this partition only
    #[arg(long, value_name = "P", value_parser = whole(0..=u32::MAX))]
    pub(crate) partition: Option<u32>,
    /// Lines a second, sent when they are due whatever is still unacknowledged
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    pub(crate) rate: Option<u32>,
    /// Write `line-number partition offset` to this file for each acknowledged line
    #[arg(long, value_name = "FILE")]
    pub(crate) acked: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) batching: Batching,
}

/// `quire consume`
#[derive(Debug, Args)]
pub(crate) struct Consume {
    /// Name of the topic
    pub(crate) name: String,
    /// Read this partition only
    #[arg(long, value_name = "P", value_parser = whole(0..=u32::MAX))]
    pub(crate) partition: Option<u32>,
    /// Where to start: start, end, an offset (with --partition), @MILLISECONDS or
    /// @TIME as in @2026-01-31T12:00:00Z
    #[arg(long, value_name = "WHERE", default_value = "end")]
    pub(crate) from: Position,
    /// Stop at the end that each partition had at the start, instead of waiting for more
    #[arg(long, value_name = "end")]
    pub(crate) until: Option<Until>,
    /// Stop after this many records
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    pub(crate) max: Option<u64>,
    /// How a record is written: %t topic, %p partition, %o offset, %T timestamp in
    /// milliseconds, %k key, %v value, %h headers, %s the same as %v, %K, %V length of key and value,
    /// %% a percent sign; \n \t \r \0 \\ \xHH are interpreted
    #[arg(long, value_name = "FORMAT", default_value = "%v\\n")]
    pub(crate) format: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Until {
    End,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Segment {
    /// List the segments of a topic: their offsets, ledgers, states and sizes
    List(SegmentList),
}

#[derive(Debug, Args)]
pub(crate) struct SegmentList {
    /// Name of the topic
    pub(crate) topic: String,
    /// Of this partition only
    #[arg(long, value_name = "P", value_parser = whole(0..=u32::MAX))]
    pub(crate) partition: Option<u32>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Ledger {
    /// Show a ledger and what each of its replicas holds
    Describe(LedgerDescribe),
    /// Seal a ledger whose end cannot be proven, accepting that its tail may be lost
    Recover(LedgerRecover),
}

#[derive(Debug, Args)]
pub(crate) struct LedgerDescribe {
    /// Id of the ledger
    #[arg(value_parser = whole(0..=u64::MAX))]
    pub(crate) id: u64,
}

#[derive(Debug, Args)]
pub(crate) struct LedgerRecover {
    /// Id of the ledger
    #[arg(value_parser = whole(0..=u64::MAX))]
    pub(crate) id: u64,
    /// Accept that what no bookie can vouch for is lost; asks on a terminal, for each loss
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Write records; latency is from the moment a record was due to its acknowledgement
    Produce(BenchProduce),
    /// Read records from the start; latency is the wait for each batch
    Consume(BenchConsume),
    /// Write and read at once; latency is from the moment a record was due to its arrival
    Latency(BenchLatency),
}

/// What all measurements take.
#[derive(Debug, Args)]
pub(crate) struct BenchTopic {
    /// Name of the topic; created where it is missing
    pub(crate) name: String,
    /// Partitions of the topic where it has to be created, at most 10000
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = whole(1..=PARTITIONS_MAX))]
    pub(crate) partitions: u32,
    /// Number of records
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = whole(1..=u64::MAX))]
    pub(crate) records: u64,
    /// HTTP addresses of the servers whose CPU is counted; 127.0.0.1:9651 if not given
    #[arg(long, value_name = "ADDR[,ADDR…]", value_delimiter = ',', value_parser = host_and_port)]
    pub(crate) server_http: Option<Vec<String>>,
}

/// What is written.
#[derive(Debug, Args)]
pub(crate) struct BenchLoad {
    /// Bytes of each value
    #[arg(long, value_name = "BYTES", default_value = "1KiB", value_parser = record_size)]
    pub(crate) size: ByteSize,
    /// Random bits in each byte of a value: 8 cannot be compressed, 0 is all zeros
    #[arg(long, value_name = "BITS", default_value_t = 8, value_parser = whole(0..=8_u8))]
    pub(crate) entropy: u8,
    #[command(flatten)]
    pub(crate) batching: Batching,
}

#[derive(Debug, Args)]
pub(crate) struct BenchProduce {
    #[command(flatten)]
    pub(crate) topic: BenchTopic,
    #[command(flatten)]
    pub(crate) load: BenchLoad,
    /// Records a second, sent when they are due; without it as many as the server takes
    #[arg(long, value_name = "N", value_parser = whole(1..=u32::MAX))]
    pub(crate) rate: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchConsume {
    #[command(flatten)]
    pub(crate) topic: BenchTopic,
    /// Bytes of each value that is written where the topic holds too few records
    #[arg(long, value_name = "BYTES", default_value = "1KiB", value_parser = record_size)]
    pub(crate) size: ByteSize,
}

#[derive(Debug, Args)]
pub(crate) struct BenchLatency {
    #[command(flatten)]
    pub(crate) topic: BenchTopic,
    #[command(flatten)]
    pub(crate) load: BenchLoad,
    /// Records a second, sent when they are due
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = whole(1..=u32::MAX))]
    pub(crate) rate: u32,
}

#[derive(Debug, Args)]
pub(crate) struct Completion {
    /// The shell
    pub(crate) shell: Shell,
}
