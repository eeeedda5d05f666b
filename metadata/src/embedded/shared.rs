//! What the embedded stores have in common: the state behind a lock, and
//! watches that read its history. A watcher has no buffer: it remembers where it
//! is, and one that falls behind what is kept is told so.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::stream::{self, BoxStream, StreamExt};
use tokio::sync::watch;

use crate::embedded::state::State;
use crate::store::{Event, KeyValue, Page, Revision, StoreError};

/// Revisions that a watcher looks through at once, with the lock held.
const WATCH_STRIDE: usize = 256;

/// The state, and a bell that rings when it has changed.
#[derive(Debug)]
pub(super) struct Shared {
    inner: RwLock<Inner>,
    bell: watch::Sender<()>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Why the store answers nothing any more.
    stopped: Option<String>,
}

impl Shared {
    pub(super) fn new(state: State) -> Arc<Self> {
        let inner = RwLock::new(Inner { state, stopped: None });
        Arc::new(Self { inner, bell: watch::Sender::new(()) })
    }

    fn inner(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn inner_mut(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the state.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let inner = self.inner();
        match &inner.stopped {
            Some(why) => Err(StoreError::Unavailable(why.clone())),
            None => read(&inner.state),
        }
    }

    /// Changes keys, and rings.
    pub(super) fn write<T>(
        &self,
        write: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let written = self.touch(write);
        self.bell.send_replace(());
        written
    }

    /// Changes what no watcher sees.
    pub(super) fn touch<T>(
        &self,
        touch: impl FnOnce(&mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut inner = self.inner_mut();
        if let Some(why) = &inner.stopped {
            return Err(StoreError::Unavailable(why.clone()));
        }
        touch(&mut inner.state)
    }

    /// From now on everything is refused. The first reason stays.
    pub(super) fn stop(&self, why: &str) {
        self.inner_mut().stopped.get_or_insert_with(|| why.to_owned());
        self.bell.send_replace(());
    }

    pub(super) fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.read(|state| Ok(state.get(key).cloned()))
    }

    pub(super) fn range(
        &self,
        prefix: &str,
        from: &str,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.read(|state| state.range(prefix, from, limit, at))
    }

    pub(super) fn watch(
        self: &Arc<Self>,
        prefix: &str,
        from: Revision,
    ) -> Result<BoxStream<'static, Result<Vec<Event>, StoreError>>, StoreError> {
        let mut watcher = Watcher {
            shared: Arc::clone(self),
            bell: self.bell.subscribe(),
            prefix: prefix.to_owned(),
            next: from,
            ready: VecDeque::new(),
        };
        watcher.read()?;
        Ok(stream::unfold(Some(watcher), |watcher| async {
            let mut watcher = watcher?;
            let item = watcher.next().await;
            let going_on = item.is_ok().then_some(watcher);
            Some((item, going_on))
        })
        .boxed())
    }
}

struct Watcher {
    shared: Arc<Shared>,
    bell: watch::Receiver<()>,
    prefix: String,
    next: Revision,
    ready: VecDeque<Vec<Event>>,
}

impl Watcher {
    async fn next(&mut self) -> Result<Vec<Event>, StoreError> {
        loop {
            if let Some(events) = self.ready.pop_front() {
                return Ok(events);
            }
            // Listen before looking, so that no change goes unheard.
            self.bell.mark_unchanged();
            let before = self.next;
            self.read()?;
            if self.ready.is_empty() && self.next == before {
                // The sender lives in `shared`, which this watcher holds.
                let _ = self.bell.changed().await;
            }
        }
    }

    fn read(&mut self) -> Result<(), StoreError> {
        let (events, next) = self.shared.read(|state| state.events(&self.prefix, self.next, WATCH_STRIDE))?;
        self.ready.extend(events);
        self.next = next;
        Ok(())
    }
}
