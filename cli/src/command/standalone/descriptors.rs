//! File descriptors: connections and the bookie's files share one limit.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many as the system lets this process have, and tells how many.
pub(super) fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit { current: limit.maximum, ..limit };
    let limit = setrlimit(Resource::Nofile, all).map_or(limit, |()| all);
    limit.current.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
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
        let raised = raise();
        let maximum = getrlimit(Resource::Nofile).maximum;
        assert_eq!(Some(raised as u64), maximum.or(Some(usize::MAX as u64)));
    }

    #[test]
    fn connections_leave_half_of_them() {
        assert_eq!(connections(4096, 1024), 512);
        assert_eq!(connections(4096, usize::MAX), 4096);
    }
}
