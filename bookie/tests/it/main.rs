//! The bookie as its neighbours see it.

mod service;
mod support;
