//! The client against a double of the remote: a broker in this process that
//! speaks the real protocol over a real socket and errs as it is told to.

#![allow(clippy::unwrap_used, clippy::expect_used)] // the whole program is a test

mod consuming;
mod double;
mod producing;
