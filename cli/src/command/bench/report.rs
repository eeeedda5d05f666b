//! What a measurement says.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::output;

/// Latencies in microseconds, to three significant digits.
#[derive(Debug)]
pub(super) struct Latencies(Histogram<u64>);

/// An hour: what takes longer is counted as this.
const GREATEST_US: u64 = 3_600_000_000;

impl Latencies {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Latencies(Histogram::new_with_bounds(1, GREATEST_US, 3)?))
    }

    pub(super) fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(GREATEST_US);
        self.0.saturating_record(micros.max(1));
    }

    fn quantile_ms(&self, quantile: f64) -> f64 {
        millis(self.0.value_at_quantile(quantile))
    }
}

fn millis(micros: u64) -> f64 {
    Duration::from_micros(micros).as_secs_f64() * 1e3
}

/// The figures; their names are a contract with scripts.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    records_per_s: f64,
    /// Of a million bytes of values.
    mb_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    max_ms: f64,
    /// Absent when a server's metrics could not be read.
    server_cpu_us_per_record: Option<f64>,
}

impl Report {
    pub(super) fn new(
        records: u64,
        bytes: u64,
        elapsed: Duration,
        latencies: &Latencies,
        server_cpu: Option<Duration>,
    ) -> Self {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        Report {
            records_per_s: round(float(records) / seconds, 1),
            mb_per_s: round(float(bytes) / 1e6 / seconds, 3),
            p50_ms: round(latencies.quantile_ms(0.50), 3),
            p99_ms: round(latencies.quantile_ms(0.99), 3),
            p999_ms: round(latencies.quantile_ms(0.999), 3),
            max_ms: round(millis(latencies.0.max()), 3),
            server_cpu_us_per_record: server_cpu
                .map(|cpu| round(cpu.as_secs_f64() * 1e6 / float(records.max(1)), 3)),
        }
    }

    pub(super) fn as_table(&self) -> String {
        let cpu = self.server_cpu_us_per_record.map_or("unknown".to_owned(), |cpu| format!("{cpu:.3} µs"));
        output::pairs([
            ("records a second", format!("{:.1}", self.records_per_s)),
            ("MB a second", format!("{:.3}", self.mb_per_s)),
            ("latency p50", format!("{:.3} ms", self.p50_ms)),
            ("latency p99", format!("{:.3} ms", self.p99_ms)),
            ("latency p99.9", format!("{:.3} ms", self.p999_ms)),
            ("latency max", format!("{:.3} ms", self.max_ms)),
            ("server CPU a record", cpu),
        ])
    }
}

// Counts of a measurement are far below 2^53, where a double becomes inexact.
#[allow(clippy::cast_precision_loss)]
fn float(number: u64) -> f64 {
    number as f64
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_promised_fields_and_no_others() {
        let mut latencies = Latencies::new().unwrap();
        for ms in 1..=1000 {
            latencies.record(Duration::from_millis(ms));
        }
        let report =
            Report::new(1000, 1_024_000, Duration::from_secs(2), &latencies, Some(Duration::from_millis(5)));
        let json = serde_json::to_value(&report).unwrap();
        let mut fields: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        fields.sort();
        assert_eq!(
            fields,
            [
                "max_ms",
                "mb_per_s",
                "p50_ms",
                "p999_ms",
                "p99_ms",
                "records_per_s",
                "server_cpu_us_per_record"
            ]
        );
        assert_eq!(json["records_per_s"], 500.0);
        assert_eq!(json["mb_per_s"], 0.512);
        assert_eq!(json["server_cpu_us_per_record"], 5.0);
        for (field, expected) in [("p50_ms", 500.0), ("p99_ms", 990.0), ("max_ms", 1000.0)] {
            let found = json[field].as_f64().unwrap();
            assert!((found - expected).abs() < expected * 0.002, "{field}: {found}");
        }
    }

    #[test]
    fn latencies_beyond_the_scale_are_counted_at_its_end() {
        let mut latencies = Latencies::new().unwrap();
        latencies.record(Duration::from_secs(100_000));
        latencies.record(Duration::ZERO);
        assert!(millis(latencies.0.max()) >= 3_590_000.0);
    }
}
