//! What `/metrics` says: the counters of every part, and of the process.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use rustix::time::{ClockId, clock_gettime};

/// Bounds of histograms of seconds: from a buffered write to a stalled disk.
const SECONDS: [f64; 16] =
    [1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
/// Bounds of histograms of bytes: from one small record to the largest frame.
const BYTES: [f64; 10] = [
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// The metrics of this process.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    recorder: PrometheusHandle,
    started: SystemTime,
}

impl Metrics {
    /// Begins to record. Once a process.
    ///
    /// # Errors
    /// When something else records already.
    pub(super) fn install() -> anyhow::Result<Self> {
        let recorder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
            .set_buckets_for_metric(Matcher::Suffix("_bytes".to_owned()), &BYTES)?
            .install_recorder()
            .context("cannot record metrics")?;
        Ok(Metrics { recorder, started: SystemTime::now() })
    }

    /// Takes in what was recorded since the last time; wanted every few
    /// seconds, also when nobody asks, to keep histograms small.
    pub(super) fn upkeep(&self) {
        self.recorder.run_upkeep();
    }

    /// In Prometheus' text format.
    pub(super) fn render(&self) -> String {
        let mut text = self.recorder.render();
        self.render_process(&mut text);
        text
    }

    fn render_process(&self, text: &mut String) {
        let build = concat!("quire_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}");
        metric(text, "quire_build_info", build, "gauge", "Version of this program.", 1.0);
        let mut process = |name: &str, kind, help, value| metric(text, name, name, kind, help, value);
        let cpu = "User and system CPU time spent in seconds.";
        process("process_cpu_seconds_total", "counter", cpu, cpu_time().as_secs_f64());
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let help = "Start time of the process since the Unix epoch in seconds.";
        process("process_start_time_seconds", "gauge", help, started.as_secs_f64());
        if let Some(bytes) = resident_bytes() {
            process("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", bytes);
        }
        if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
            // One of them is the listing itself; counts are far below 2^53.
            #[allow(clippy::cast_precision_loss)]
            let open = files.count().saturating_sub(1) as f64;
            process("process_open_fds", "gauge", "Number of open file descriptors.", open);
        }
    }
}

fn metric(text: &mut String, name: &str, series: &str, kind: &str, help: &str, value: f64) {
    // A write to a string cannot fail.
    let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{series} {value}\n\n");
}

/// The CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0))
}

fn resident_bytes() -> Option<f64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u32 = statm.split_whitespace().nth(1)?.parse().ok()?;
    let page = u32::try_from(rustix::param::page_size()).ok()?;
    Some(f64::from(pages) * f64::from(page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_is_described() {
        let recorder = PrometheusBuilder::new().build_recorder().handle();
        let text = Metrics { recorder, started: SystemTime::now() }.render();
        for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} "))).expect(name);
            let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(value > 0.0, "{line}");
            assert!(text.contains(&format!("# TYPE {name} ")), "{name} has no type");
        }
        assert!(text.contains("quire_build_info{version=\""));
    }
}
