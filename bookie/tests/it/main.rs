//! The bookie as its neighbours see it.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "helpers of tests are tests")]

mod power;
mod service;
mod storage;
mod support;
