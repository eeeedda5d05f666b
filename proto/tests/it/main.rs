//! The record batch, from outside.

#![allow(clippy::unwrap_used)] // the whole program is a test

mod batches;
mod codecs;
mod flips;
mod golden;
mod support;
