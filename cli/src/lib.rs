//! The parts of quire wired together, for the program and for the tests that
//! run what it runs.

pub mod standalone;
