//! Tests on this host: its cgroups, its programs, its clock. `tests/run` installs what they need.

mod any_host;
mod cardinality;
mod connections;
mod documentation;
mod faults;
mod hostile_clients;
pub(crate) mod lab;
mod once_and_check;
mod pods_file;
mod prometheus;
mod real_cgroups;
mod run_delay;
mod sampler;
mod tls;
mod top;
mod without_api_server;
