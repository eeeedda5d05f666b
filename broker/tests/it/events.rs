//! What the broker writes to its log.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The events of one module from now on, whichever thread they are of. One test
/// of the process has them.
#[derive(Clone, Debug)]
pub(crate) struct Events {
    target: &'static str,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Events {
    pub(crate) fn of(target: &'static str) -> Self {
        let events = Self { target, lines: Arc::default() };
        tracing::subscriber::set_global_default(events.clone()).unwrap();
        events
    }

    /// Each as its fields, `name=value`.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target() == self.target
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| line += &format!("{field}={value:?} "));
        self.lines.lock().unwrap().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
