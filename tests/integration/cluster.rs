//! Tests with a real control plane and other programs that are built from Go, and of the shipped
//! binary. `tests/run --cluster` builds what they need.

mod api_faults;
mod authentication;
mod bridge;
mod cadvisor;
mod candidate;
mod chart;
mod chart_values;
mod combinations;
mod dashboards;
mod dashboards_at_scale;
mod default_scheduler;
pub(crate) mod descheduler;
mod documentation;
mod evicted_candidate;
mod hostile_pods;
mod idling;
mod image;
mod in_cluster;
mod kubevirt;
mod kustomizations;
mod lab;
mod lab_scenarios;
pub(crate) mod manifests;
mod newer_prometheus;
mod nodes_and_reap;
mod openshift_descheduler;
mod operator;
mod page;
mod publishing;
mod real_node;
mod release;
mod restrictions;
mod second_scheduler;
mod upgrade;
mod whole_cluster;
mod whole_loop;
