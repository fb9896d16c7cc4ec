//! Tests of the real binary, one crate so that it links once. Those that need a writable cgroup2
//! tree, Prometheus, cAdvisor or a virtual machine are marked `ignore` with what they need;
//! `tests/run` runs them all, and there they fail where something is missing.
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

mod architecture;
mod bad_api_server;
mod bridge;
mod cadvisor;
mod cardinality;
mod catalogue;
mod choices;
mod cli;
mod closed_doors;
mod combinations;
mod cost;
mod dashboards;
mod default_scheduler;
mod descheduler;
mod golden;
mod http;
mod idling;
mod image;
mod in_cluster;
mod kubevirt;
mod lab;
mod lab_scenarios;
mod manifests;
mod names;
mod node_metadata;
mod nodes_and_reap;
mod openshift_descheduler;
mod operator;
mod page;
mod plan;
mod pods_file;
mod prometheus;
mod publishing;
mod real_cgroups;
mod real_node;
mod rules;
mod run_delay;
mod sampling;
mod second_scheduler;
mod snippets;
mod support;
mod tls;
mod top;
mod whole_cluster;
mod whole_loop;
