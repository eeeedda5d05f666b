//! Many seeds of the simulator.
//!
//! `QUIRE_SIM_SEEDS` says how many (default 1,000), `QUIRE_SIM_FROM` which is
//! the first.

#[cfg(feature = "planted-faults")]
mod planted;
mod seeds;

/// A number from the environment.
fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
        Err(_) => default,
    }
}
