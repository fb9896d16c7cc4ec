//! Tests of the library and the binary as a whole, one crate so that it links once. Each folder is a
//! tier of `tests/run`, and needs more than the one before. Tests that need more than Rust are marked
//! `ignore` with what they need, and fail where that is missing.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test that cannot go on should say so at once"
)]

mod cluster;
mod fixture;
mod host;
mod long;
mod support;
