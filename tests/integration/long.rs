//! Tests that take long or want the machine to themselves: `tests/run --all`.

mod benefit;
mod cost;
mod limits;
mod many_cgroups;
mod pod_lists;
mod release;
mod scale;
mod soak;
mod upgrade;
