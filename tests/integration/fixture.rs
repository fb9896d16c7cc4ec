//! Tests of the binary and the library on files that the tests bring along: they need nothing but Rust,
//! and wait for nothing.

mod architecture;
mod bad_api_server;
mod broken_files;
mod catalogue;
mod choices;
mod claim;
pub(crate) mod cli;
mod console;
pub(crate) mod dashboards;
mod golden;
mod http;
mod links;
mod named_tests;
mod names;
mod node_metadata;
mod own_series;
mod pictures;
mod plan;
mod pods_file;
pub(crate) mod policies;
mod reference;
mod rules;
mod run_delay;
mod sampling;
mod silent_api_server;
mod snippets;
pub(crate) mod top;
mod versions;
