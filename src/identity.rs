//! The pods of this node, and the pod and container of a cgroup: a [`Workload`] with the labels of
//! its series, or `None` while the pod is unknown.

pub mod matching;
pub mod pod_index;
pub mod selection;
mod workload;

pub use workload::{Vm, Workload};
