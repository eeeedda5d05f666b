//! File descriptors: connections and the bookie's files share one limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many as the system lets this process have, and tells how many.
pub(super) fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit { current: limit.maximum, ..limit };
    // What cannot be raised stays as it is.
    _ = setrlimit(Resource::Nofile, all);
    getrlimit(Resource::Nofile)
        .current
        .map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// Connections that there may be with so many descriptors, if `asked` are: half of
/// them are for files.
pub(super) fn connections(asked: usize, descriptors: usize) -> usize {
    let most = descriptors / 2;
    if asked > most {
        tracing::warn!(
            connections_max = most,
            "there are {descriptors} file descriptors (ulimit -n), of which connections take at most half"
        );
    }
    asked.min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_there_may_be_are_taken() {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(500), ..limit }).unwrap();
        assert!(raise() > 500);
        assert_eq!(getrlimit(Resource::Nofile).current, limit.maximum);
    }

    #[test]
    fn connections_leave_half_of_them() {
        assert_eq!(connections(4096, 1024), 512);
        assert_eq!(connections(4096, usize::MAX), 4096);
    }
}
