//! Tests of the binary and the library on files that the tests bring along: they need nothing but Rust,
//! and wait for no interval of the real clock.

mod any_host;
mod architecture;
mod bad_api_server;
mod broken_files;
pub(crate) mod chart_files;
pub(crate) mod check;
mod cli;
pub(crate) mod dashboards;
mod demand;
mod demo;
mod documents;
mod failed_reads;
mod golden;
mod http;
mod levels;
mod no_false_calm;
mod node_metadata;
mod own_series;
mod plan;
mod pod_list;
mod pods_file;
pub(crate) mod policies;
mod recordings;
mod restart;
mod rules;
mod run_delay;
mod sampling;
mod silent_api_server;
pub(crate) mod top;
