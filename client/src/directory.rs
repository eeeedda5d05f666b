use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A client remembers at most this many addresses beyond those it was given.
const LEARNT_MAX: usize = 256;

/// The addresses that any call may go to: those that the client was given and
/// those that brokers told of. One of them is in favour: it answered last.
#[derive(Debug)]
pub(crate) struct Directory {
    given: Vec<Arc<str>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    learnt: Vec<Arc<str>>,
    favourite: Arc<str>,
}

impl Directory {
    /// None when no address is given.
    pub(crate) fn new(given: &[String]) -> Option<Self> {
        let given: Vec<Arc<str>> = given.iter().map(|address| Arc::from(&**address)).collect();
        let favourite = Arc::clone(given.first()?);
        Some(Self { given, state: Mutex::new(State { learnt: Vec::new(), favourite }) })
    }

    /// The addresses that the client was given.
    pub(crate) fn given(&self) -> &[Arc<str>] {
        &self.given
    }

    /// The address in favour.
    pub(crate) fn favourite(&self) -> Arc<str> {
        Arc::clone(&self.lock().favourite)
    }

    /// Takes the brokers that there are now, as one of them tells.
    pub(crate) fn learn(&self, brokers: &[Arc<str>]) {
        let fresh = brokers.iter().filter(|address| !self.given.contains(address));
        self.lock().learnt = fresh.take(LEARNT_MAX).cloned().collect();
    }

    /// This address answered.
    pub(crate) fn favour(&self, address: &Arc<str>) {
        self.lock().favourite = Arc::clone(address);
    }

    /// This address did not answer: the next one is in favour, unless another is
    /// already.
    pub(crate) fn pass_over(&self, address: &Arc<str>) {
        let mut state = self.lock();
        if state.favourite != *address {
            return;
        }
        let all: Vec<_> = self.given.iter().chain(&state.learnt).cloned().collect();
        let next = all.iter().position(|known| known == address).map_or(0, |place| place + 1);
        if let Some(next) = all.get(next % all.len().max(1)) {
            state.favourite = Arc::clone(next);
        }
    }

    /// How many addresses there are, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.given.len() + self.lock().learnt.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_take_turns() {
        let directory = Directory::new(&["a".to_owned(), "b".to_owned()]).unwrap();
        directory.learn(&["b".into(), "c".into()]);
        assert_eq!(directory.len(), 3);
        let mut turns = Vec::new();
        for _ in 0..4 {
            let favourite = directory.favourite();
            directory.pass_over(&favourite);
            turns.push(favourite);
        }
        assert_eq!(turns.join(""), "abca");
        directory.pass_over(&"a".into());
        assert_eq!(&*directory.favourite(), "b", "only the one in favour is passed over");
        directory.learn(&[]);
        directory.favour(&"c".into());
        directory.pass_over(&"c".into());
        assert_eq!(&*directory.favourite(), "a", "one that is gone is followed by the first");
        assert!(Directory::new(&[]).is_none());
    }
}
