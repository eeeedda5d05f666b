//! `quire bench`
//!
//! Producing is an open loop: with a rate, a record counts from the moment it
//! was due, so that a server that stalls cannot hide the wait of the records
//! behind it; without one, from the moment it was handed to the producer,
//! waiting for memory included.
//!
//! - [`load`]: writes records and takes the time of each.
//! - [`produce`], [`consume`], [`latency`]: the three measurements.
//! - [`payload`]: values of a given entropy.
//! - [`report`]: the figures.
//! - [`server_cpu`]: what the servers spent.

mod consume;
mod latency;
mod load;
mod payload;
mod produce;
mod report;
mod server_cpu;

use std::time::Duration;

use quire_client::admin::NewTopic;
use quire_client::{Admin, Client};
use quire_proto::v1::ErrorReason;

use self::report::{Latencies, Report};
use super::connect;
use crate::cli::{Bench, BenchTopic, Common, DEFAULT_HTTP};
use crate::failure::{Exit, Failure};
use crate::{interrupt, output};

/// # Errors
/// When the measurement could not be carried to its end.
pub(crate) async fn run(command: &Bench, common: &Common) -> Result<(), Failure> {
    let interrupted = interrupt::token()?;
    let measured = interrupted.run_until_cancelled(Box::pin(measure(command, common))).await;
    let report = measured.unwrap_or_else(|| Err(Failure::interrupted()))?;
    output::emit(common.output, &report, Report::as_table)
}

async fn measure(command: &Bench, common: &Common) -> Result<Report, Failure> {
    let client = connect::client(common).await?;
    match command {
        Bench::Produce(arguments) => produce::run(arguments, &client).await,
        Bench::Consume(arguments) => consume::run(arguments, &client).await,
        Bench::Latency(arguments) => latency::run(arguments, &client).await,
    }
}

/// Creates the topic where it is missing; its number of partitions.
async fn ensure_topic(admin: &Admin, arguments: &BenchTopic) -> Result<u32, Failure> {
    match admin.describe_topic(&arguments.name).await {
        Ok((topic, _)) => return Ok(topic.partitions),
        Err(error) if error.reason() == Some(ErrorReason::UnknownTopic) => {}
        Err(error) => return Err(connect::failure(error)),
    }
    let topic =
        NewTopic { name: arguments.name.clone(), partitions: arguments.partitions, ..NewTopic::default() };
    let topic = admin.create_topic(topic).await.map_err(connect::failure)?;
    output::note(format_args!("created topic {} with {} partition(s)", topic.name, topic.partitions));
    Ok(topic.partitions)
}

/// Longer than a server answers with the same metrics: what was measured is in
/// them after this.
const METRICS_AGE: Duration = Duration::from_millis(20);

/// The servers' CPU time between two moments.
struct CpuMeter {
    addresses: Vec<String>,
    /// Named by the user, who then wants to hear that they do not answer.
    wanted: bool,
    before: Option<Duration>,
}

impl CpuMeter {
    async fn start(arguments: &BenchTopic) -> Result<Self, Failure> {
        let wanted = arguments.server_http.is_some();
        let addresses = arguments.server_http.clone().unwrap_or_else(|| vec![DEFAULT_HTTP.to_owned()]);
        let mut meter = CpuMeter { addresses, wanted, before: None };
        meter.before = meter.read().await?;
        Ok(meter)
    }

    async fn read(&self) -> Result<Option<Duration>, Failure> {
        match server_cpu::read(&self.addresses).await {
            Ok(cpu) => Ok(Some(cpu)),
            Err(error) if self.wanted => Err(Failure::new(Exit::Unavailable, error)
                .remedy("give the servers' HTTP addresses to --server-http, or leave it out")),
            Err(error) => {
                output::note(format_args!("the server's CPU is unknown: {error:#} (see --server-http)"));
                Ok(None)
            }
        }
    }

    /// Since the start; `None` when it is not known.
    async fn spent(self) -> Result<Option<Duration>, Failure> {
        let Some(before) = self.before else { return Ok(None) };
        tokio::time::sleep(METRICS_AGE).await;
        Ok(self.read().await?.map(|after| after.saturating_sub(before)))
    }
}

/// A client's consumer or producer failed.
fn failure(error: quire_client::Error) -> Failure {
    connect::failure(error)
}

/// Records in a topic.
async fn stored_records(client: &Client, name: &str, partitions: u32) -> Result<u64, Failure> {
    let admin = client.admin();
    let all: Vec<u32> = (0..partitions).collect();
    let earliest = admin.list_offsets(name, &all, quire_client::Start::Earliest).await.map_err(failure)?;
    let latest = admin.list_offsets(name, &all, quire_client::Start::Latest).await.map_err(failure)?;
    let sum = |offsets: Vec<Option<quire_client::Offset>>| -> u64 {
        offsets.into_iter().flatten().map(|offset| offset.0).sum()
    };
    Ok(sum(latest).saturating_sub(sum(earliest)))
}
