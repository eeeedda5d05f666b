//! Health checks and metrics over HTTP.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::connections::Connections;
use super::metrics::Metrics;

/// What `/metrics` says is put together once in this time, however many ask: it
/// takes a part of a millisecond. Shorter than anything is measured by it.
const FRESH: Duration = Duration::from_millis(5);

/// What health checks ask.
pub(super) trait Health: Send + Sync {
    /// Ok when requests are served; else why not, in a line.
    fn ready(&self) -> Result<(), String>;
}

struct Context {
    health: Arc<dyn Health>,
    metrics: Metrics,
    /// What `/metrics` said last, and when.
    said: Mutex<Option<(Instant, Bytes)>>,
}

impl Context {
    fn metrics(&self) -> Bytes {
        // One at a time: it takes a hundred times what the others do.
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match &*said {
            Some((at, text)) if at.elapsed() < FRESH => text.clone(),
            _ => said.insert((Instant::now(), self.metrics.render().into())).1.clone(),
        }
    }
}

/// Serves until the token is cancelled.
///
/// # Errors
/// When the listener fails.
pub(super) async fn serve(
    listener: TcpListener,
    health: Arc<dyn Health>,
    metrics: Metrics,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        // Alive is whoever answers: a restart cures nothing that /readyz reports.
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics_text))
        .with_state(Arc::new(Context { health, metrics, said: Mutex::default() }));
    axum::serve(Connections::of(listener), router).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn ready(State(context): State<Arc<Context>>) -> Response {
    match context.health.ready() {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn metrics_text(State(context): State<Arc<Context>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], context.metrics()).into_response()
}
