//! The demand on a Node, computed from slow demand.

use std::time::Duration;

use crate::cgroup_path::Place;
use crate::contract::{Candidate, Level, MOST_CANDIDATES, NodeDemand};
use crate::relief::{self, Assessment, candidates};
use crate::waiting::Population;

/// The demand of a node of a cluster, with the candidates that it has while it is contended; `None` with
/// too little history, and where units are scored.
#[allow(clippy::cast_possible_truncation, reason = "headroom is at least 0, and a cast saturates")]
pub fn demand(assessment: &Assessment, min_age: Duration) -> Option<NodeDemand> {
    let slow = assessment.slow.as_ref()?;
    if assessment.score.population? == Population::Units {
        return None;
    }
    let movable = candidates(assessment, Level::Medium, min_age).unwrap_or_default();
    Some(NodeDemand {
        headroom: slow.headroom_cpus as u32,
        vms: slow.vms,
        others: slow.others,
        waiting: slow.waiting,
        candidates: movable.iter().filter_map(candidate).take(MOST_CANDIDATES).collect(),
    })
}

fn candidate(found: &relief::Candidate<'_>) -> Option<Candidate> {
    let Place::Pod(pod) = &found.cgroup.place else { return None };
    Some(Candidate {
        uid: pod.uid.to_string(),
        demand: found.relief.demand,
        relief: found.relief.cpus,
        memory: found.workload.memory_request,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use super::*;
    use crate::clock::now;
    use crate::identity::{Vm, Workload};
    use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
    use crate::measured_vms::{measured_vm, tick_of_vms};
    use crate::relief::{Relief, SlowAssessment};
    use crate::score::{NodeScore, Resource, Scorer};
    use crate::waiting::Ratio;

    /// VMs with this relief, each with a demand of 1 CPU.
    fn assessment(reliefs: &[f64], population: Population) -> Assessment {
        let numbered = (1..).zip(reliefs);
        let vm = |(number, _): (u64, &f64)| {
            let path = format!("/kubepods/pod00000000-0000-4000-8000-{number:012}/{number:064x}");
            let workload = Workload {
                memory_request: Some(number << 30),
                vm: Some(Arc::new(Vm::default())),
                ..Workload::default()
            };
            let cgroup = Cgroup::new(CgroupId(number), path, None);
            measured_vm(Arc::new(cgroup), Some(workload.into()), 1.0, 1.0)
        };
        let vms = numbered.clone().map(vm).collect();
        let tick = tick_of_vms(now(), Duration::from_secs(5), 4, vms);
        let score = Scorer::of_one_window(vec![Resource::Cpu], &tick);
        let relief = |cpus| Relief { demand: 1.0, cpus, score_without: Ratio::ZERO };
        let relief: HashMap<_, _> =
            numbered.map(|(number, &cpus)| (CgroupId(number), relief(cpus))).collect();
        let slow =
            SlowAssessment { headroom_cpus: 2.9, vms: 1.0, others: 0.5, waiting: 0.25, relief };
        let score = NodeScore { population: Some(population), ..score };
        Assessment { slow: Some(slow), ..Assessment::from(score) }
    }

    #[test]
    fn demand_has_whole_headroom_and_the_three_vms_with_most_relief() {
        let found = assessment(&[0.2, 0.0, 0.9, 0.4, 0.3], Population::Vms);
        let demand = demand(&found, Duration::ZERO).unwrap();
        assert_eq!((demand.headroom, demand.vms, demand.others), (2, 1.0, 0.5));
        let reliefs: Vec<f64> = demand.candidates.iter().map(|found| found.relief).collect();
        assert_eq!(reliefs, [0.9, 0.4, 0.3]);
        let first = &demand.candidates[0];
        assert_eq!(first.uid, "00000000-0000-4000-8000-000000000003");
        assert_eq!(first.memory, Some(3 << 30));
    }

    #[test]
    fn candidates_fit_into_the_length_that_admission_policies_allow() {
        let found = assessment(&[123_456.78; 4], Population::Vms);
        let mut demand = demand(&found, Duration::ZERO).unwrap();
        for candidate in &mut demand.candidates {
            (candidate.demand, candidate.memory) = (123_456.78, Some(u64::MAX));
        }
        let [.., (_, written)] = demand.annotations();
        assert!(written.unwrap().len() <= 1024);
    }

    #[test]
    fn units_and_a_node_with_too_little_history_have_no_demand() {
        assert_eq!(demand(&assessment(&[0.9], Population::Units), Duration::ZERO), None);
        let recent = Assessment { slow: None, ..assessment(&[0.9], Population::Vms) };
        assert_eq!(demand(&recent, Duration::ZERO), None);
        // A cluster's node without VMs has room.
        let empty = assessment(&[], Population::Containers);
        assert_eq!(demand(&empty, Duration::ZERO).unwrap().headroom, 2);
    }
}
