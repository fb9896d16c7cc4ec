//! Schedulers, deschedulers and KubeVirt's migrations, by the arithmetic of their sources.

pub mod descheduler;
pub mod kubevirt;
pub mod openshift;
pub mod planner;
pub mod proxlb;
pub mod scheduler;
