//! The CPU time of servers, read from their metrics.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const METRIC: &str = "process_cpu_seconds_total";
const TIMEOUT: Duration = Duration::from_secs(5);
/// No server's metrics are as long as this.
const GREATEST_ANSWER: u64 = 64 << 20;

/// The CPU seconds that the servers at these HTTP addresses have used, summed.
///
/// # Errors
/// When one of them cannot be asked or does not say.
pub(crate) async fn read(addresses: &[String]) -> anyhow::Result<Duration> {
    let mut sum = Duration::ZERO;
    for address in addresses {
        let metrics = tokio::time::timeout(TIMEOUT, get_metrics(address))
            .await
            .with_context(|| format!("{address} did not answer within {TIMEOUT:?}"))?
            .with_context(|| format!("cannot read the metrics of {address}"))?;
        sum += parse(&metrics).with_context(|| format!("the metrics of {address}"))?;
    }
    Ok(sum)
}

/// HTTP/1.0, so that the answer ends where the connection does.
async fn get_metrics(address: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(GREATEST_ANSWER).read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer is not HTTP")?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    ensure!(status == "200", "the answer is {status}");
    Ok(body.to_owned())
}

fn parse(metrics: &str) -> anyhow::Result<Duration> {
    for line in metrics.lines() {
        if let Some(value) = line.strip_prefix(METRIC).filter(|rest| rest.starts_with(' ')) {
            let seconds: f64 = value.trim().parse().context("the CPU time is no number")?;
            return Duration::try_from_secs_f64(seconds).context("the CPU time is out of range");
        }
    }
    bail!("there is no {METRIC}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metric_is_found_among_others() {
        let text = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total_x 9\n\
                    process_cpu_seconds_total 12.5\nother 3\n";
        assert_eq!(parse(text).unwrap(), Duration::from_millis(12_500));
        assert!(parse("other 3\n").is_err());
        assert!(parse("process_cpu_seconds_total NaN\n").is_err());
    }
}
