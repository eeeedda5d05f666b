//! One read at a time for one place: who comes second waits for the first one's
//! answer.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};

use crate::failure::Failure;

type Reading<T> = BoxFuture<'static, Result<Arc<T>, Failure>>;

/// Reads under way. Only those that wait for one hold it: when they have all gone
/// away, so has the read, with what it held at the bookie.
#[derive(Debug)]
pub struct Flights<P: Eq + Hash + Copy, T>(Mutex<HashMap<P, WeakShared<Reading<T>>>>);

/// Somebody waits for the read at a place. Made before the read is joined, so
/// that it is dropped after it.
struct Waiting<'a, P: Eq + Hash + Copy, T> {
    flights: &'a Flights<P, T>,
    place: P,
}

impl<P: Eq + Hash + Copy, T> Drop for Waiting<'_, P, T> {
    fn drop(&mut self) {
        let mut flights = self.flights.lock();
        if flights.get(&self.place).is_some_and(|flight| flight.upgrade().is_none()) {
            flights.remove(&self.place);
        }
    }
}

impl<P: Eq + Hash + Copy, T> Default for Flights<P, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P: Eq + Hash + Copy, T> Flights<P, T> {
    /// Waits for the read at this place, which is begun unless it is under way.
    /// Cancel-safe.
    ///
    /// # Errors
    /// The read's.
    pub async fn join<F>(&self, place: P, begin: impl FnOnce() -> F) -> Result<Arc<T>, Failure>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let _waiting = Waiting { flights: self, place };
        self.flight(place, begin).await
    }

    /// How many are under way.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn flight<F>(&self, place: P, begin: impl FnOnce() -> F) -> Shared<Reading<T>>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let mut flights = self.lock();
        if let Some(flight) = flights.get(&place).and_then(WeakShared::upgrade) {
            return flight;
        }
        let read = begin();
        let flight = async move { read.await.map(Arc::new) }.boxed().shared();
        // It was not polled, so it is there.
        flights.extend(flight.downgrade().map(|flight| (place, flight)));
        flight
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<P, WeakShared<Reading<T>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
