//! `quire standalone`
//!
//! - [`server`]: what the arguments ask for; [`quire_cli::standalone`] runs it.
//! - [`listen`][]: addresses; [`descriptors`]: how many connections there may be.
//! - [`http`]: health checks, on [`connections`]; [`metrics`]: what is measured.

mod connections;
mod descriptors;
mod http;
mod listen;
mod metrics;
mod server;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::metrics::Metrics;
use self::server::Readiness;
use crate::cli::{Common, OutputFormat, Standalone};
use crate::failure::{Exit, Failure};
use crate::{interrupt, output};

/// How long the answering of requests and the handing over may take.
const STOP: Duration = Duration::from_secs(30);

/// Runs until SIGINT or SIGTERM, or until a part fails.
///
/// # Errors
/// Why it could not start, or did not go on.
pub(crate) async fn run(arguments: &Standalone, common: &Common) -> Result<(), Failure> {
    if SystemTime::now() < SystemTime::UNIX_EPOCH {
        return Err(Failure::message(Exit::CannotStart, "the clock of this machine is before 1970")
            .remedy("set it, then start again"));
    }
    let interrupted = interrupt::token()?;
    let grpc = listen::bind(&arguments.grpc, "--grpc").await?;
    let http = listen::bind(&arguments.http, "--http").await?;
    let ready = Ready::new(arguments, &grpc, &http)?;
    let stop = CancellationToken::new();
    let readiness = Arc::new(Readiness::default());
    let mut http = serve_http(http, Arc::clone(&readiness), stop.clone())?;

    let advertised = arguments.advertise.clone().unwrap_or_else(|| ready.grpc.clone());
    let server = Box::pin(server::start(arguments, advertised)).await?;
    readiness.started(&server);
    let broker = Arc::clone(&server.broker);
    let mut grpc = tokio::spawn(async move { broker.serve(grpc).await });
    let broker = Arc::clone(&server.broker);
    let said = async {
        broker.wait_ready().await;
        ready.say(common.output)?;
        std::future::pending::<Result<(), Failure>>().await
    };

    let ended = tokio::select! {
        said = said => said,
        () = interrupted.cancelled() => Ok(()),
        // Leave at once.
        failed = server.failed() => return Err(Failure::new(Exit::Storage, failed)
            .remedy("see to the disk, and whether it is full, then start again: what was acknowledged is there")),
        served = &mut grpc => Err(part_ended("gRPC", served.map(|served| served.err()))),
        served = &mut http => Err(part_ended("HTTP", served.map(|served| served.err()))),
    };
    tracing::info!("stopping");
    if tokio::time::timeout(STOP, server.stop()).await.is_err() {
        tracing::warn!("stopping took longer than {STOP:?}: what is open is recovered at the next start");
    }
    stop.cancel();
    ended
}

fn serve_http(
    listener: TcpListener,
    readiness: Arc<Readiness>,
    stop: CancellationToken,
) -> Result<tokio::task::JoinHandle<std::io::Result<()>>, Failure> {
    let metrics = Metrics::install()?;
    let upkeep = metrics.clone();
    let stopped = stop.clone();
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(5));
        while stopped.run_until_cancelled(tick.tick()).await.is_some() {
            upkeep.upkeep();
        }
    });
    Ok(tokio::spawn(http::serve(listener, readiness, metrics, stop)))
}

fn part_ended<E: std::fmt::Display>(part: &str, ended: Result<Option<E>, tokio::task::JoinError>) -> Failure {
    let why = match ended {
        Ok(None) => "it ended".to_owned(),
        Ok(Some(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    Failure::message(Exit::Failure, format_args!("{part} is no longer served: {why}"))
}

/// Where the server is.
#[derive(Debug, Serialize)]
struct Ready {
    grpc: String,
    http: String,
    data: String,
}

impl Ready {
    fn new(arguments: &Standalone, grpc: &TcpListener, http: &TcpListener) -> Result<Self, Failure> {
        let data = arguments.data.display().to_string();
        Ok(Ready { grpc: listen::address(grpc)?, http: listen::address(http)?, data })
    }

    /// In one line. A reader of stdout that is gone does not stop a server.
    fn say(&self, format: OutputFormat) -> Result<(), Failure> {
        let line = match format {
            OutputFormat::Table => {
                format!("quire is ready: gRPC {}, HTTP {}, data in {}\n", self.grpc, self.http, self.data)
            }
            OutputFormat::Json => serde_json::to_string(self).map_err(anyhow::Error::new)? + "\n",
        };
        match output::write_stdout(line.as_bytes()) {
            Err(Failure::OutputClosed) | Ok(()) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}
