//! kube-scheduler 1.36 with its default profile, as far as it decides here: resource fit with
//! LeastAllocated (weight 1), TaintToleration for soft taints (weight 3), and NodeAffinity for preferences
//! (weight 2), and psi-agent's bridge as an extender (weight 3). Arithmetic is in whole numbers, as in
//! `noderesources/least_allocated.go`, `tainttoleration/taint_toleration.go`, `nodeaffinity/node_affinity.go` and
//! `schedule_one.go`.

use psi_agent::bridge::prioritize;

use crate::random::Random;

/// What a Node offers, and what pods on it request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Allocation {
    pub cpu_milli: i64,
    pub memory_mib: i64,
}

/// A Node as the scheduler sees it.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    pub node: usize,
    pub capacity: Allocation,
    pub requested: Allocation,
    /// `PreferNoSchedule` taints that the pod does not tolerate.
    pub soft_taints: i64,
    /// The weights of the pod's preferences that the Node meets.
    pub preferred: i64,
    /// `None` without the bridge.
    pub bridged: Option<Bridged>,
}

/// What the bridge knows of a Node.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Bridged {
    /// From 0 to 1.
    pub slow_score: Option<f64>,
    /// The class of its headroom.
    pub headroom: Option<u32>,
}

const HIGHEST: i64 = 100;
const TAINT_WEIGHT: i64 = 3;
const AFFINITY_WEIGHT: i64 = 2;
const EXTENDER_WEIGHT: i64 = 3;
/// The highest score of an extender.
const EXTENDER_HIGHEST: i64 = 10;

impl Candidate {
    pub fn fits(&self, pod: Allocation) -> bool {
        self.requested.cpu_milli + pod.cpu_milli <= self.capacity.cpu_milli
            && self.requested.memory_mib + pod.memory_mib <= self.capacity.memory_mib
    }

    /// 0 to 100: the mean of both resources' free share with the pod.
    fn least_allocated(&self, pod: Allocation) -> i64 {
        let free = |requested: i64, capacity: i64| {
            if capacity == 0 || requested > capacity {
                0
            } else {
                (capacity - requested) * HIGHEST / capacity
            }
        };
        let cpu = free(self.requested.cpu_milli + pod.cpu_milli, self.capacity.cpu_milli);
        let memory = free(self.requested.memory_mib + pod.memory_mib, self.capacity.memory_mib);
        (cpu + memory) / 2
    }
}

/// The extender's score of each Node.
fn extender(pod: Allocation, nodes: &[Candidate]) -> Vec<i64> {
    let bridged = || nodes.iter().filter_map(|node| node.bridged);
    let known: Vec<f64> = bridged().filter_map(|one| one.slow_score).collect();
    if known.is_empty() {
        return vec![0; nodes.len()];
    }
    let neutral = known.iter().sum::<f64>() / known.len() as f64;
    let has_headroom = bridged().any(|one| one.headroom.is_some());
    let vcpus = (pod.cpu_milli as u32).div_ceil(1000).max(1);
    let score = |node: &Candidate| {
        let Bridged { slow_score, headroom } = node.bridged.unwrap_or_default();
        let points = 100.0 * slow_score.unwrap_or(neutral);
        prioritize::score(points, headroom, has_headroom, vcpus).into()
    };
    nodes.iter().map(score).collect()
}

/// The Node for a pod; `None` where it fits nowhere. Of equally good ones a random one, as in the
/// scheduler.
pub fn select(
    pod: Allocation,
    candidates: impl Iterator<Item = Candidate>,
    random: &mut Random,
) -> Option<usize> {
    let fitting: Vec<Candidate> = candidates.filter(|candidate| candidate.fits(pod)).collect();
    let most_taints = fitting.iter().map(|candidate| candidate.soft_taints).max()?;
    let most_preferred = fitting.iter().map(|candidate| candidate.preferred).max()?;
    let extended = extender(pod, &fitting);
    let score = |(candidate, extended): (&Candidate, i64)| {
        let taints = match most_taints {
            0 => HIGHEST,
            most => HIGHEST - HIGHEST * candidate.soft_taints / most,
        };
        let affinity = match most_preferred {
            0 => 0,
            most => HIGHEST * candidate.preferred / most,
        };
        candidate.least_allocated(pod)
            + TAINT_WEIGHT * taints
            + AFFINITY_WEIGHT * affinity
            + EXTENDER_WEIGHT * extended * HIGHEST / EXTENDER_HIGHEST
    };
    let scores: Vec<i64> = fitting.iter().zip(extended).map(score).collect();
    let best = scores.iter().max()?;
    let best: Vec<&Candidate> =
        fitting.iter().zip(&scores).filter(|(_, score)| *score == best).map(|one| one.0).collect();
    Some(best[random.below(best.len())].node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Allocation = Allocation { cpu_milli: 4000, memory_mib: 10_000 };

    fn candidate(node: usize, cpu_milli: i64, memory_mib: i64, soft_taints: i64) -> Candidate {
        let requested = Allocation { cpu_milli, memory_mib };
        let capacity = CAPACITY;
        Candidate { node, capacity, requested, soft_taints, preferred: 0, bridged: None }
    }

    fn selected(candidates: &[Candidate], pod: Allocation) -> Option<usize> {
        select(pod, candidates.iter().copied(), &mut Random::new(1, 1))
    }

    #[test]
    fn least_allocated_is_the_mean_of_free_shares_in_whole_numbers() {
        // The case of least_allocated_test.go: (4000 - 3000) * 100 / 4000 = 25 and
        // (10000 - 5000) * 100 / 10000 = 50, of which the mean is 37.
        let pod = Allocation { cpu_milli: 3000, memory_mib: 5000 };
        assert_eq!(candidate(0, 0, 0, 0).least_allocated(pod), 37);
        let larger = Candidate {
            capacity: Allocation { cpu_milli: 6000, memory_mib: 10_000 },
            ..candidate(1, 0, 0, 0)
        };
        assert_eq!(larger.least_allocated(pod), 50);
        assert_eq!(selected(&[candidate(0, 0, 0, 0), larger], pod), Some(1));
    }

    #[test]
    fn each_soft_taint_weighs_more_than_any_free_resource() {
        let pod = Allocation { cpu_milli: 100, memory_mib: 100 };
        // Counts 0, 1 and 2 are 100, 50 and 0 points, times 3.
        let full = candidate(0, 3900, 9900, 0);
        assert_eq!(selected(&[full, candidate(1, 0, 0, 1)], pod), Some(0));
        assert_eq!(selected(&[candidate(1, 0, 0, 2), candidate(2, 3900, 9900, 1)], pod), Some(2));
        // Taints on all Nodes in the same number change nothing.
        assert_eq!(selected(&[candidate(1, 0, 0, 1), candidate(2, 3900, 9900, 1)], pod), Some(1));
    }

    #[test]
    fn a_preference_weighs_more_than_free_resources_and_less_than_a_taint() {
        let pod = Allocation { cpu_milli: 100, memory_mib: 100 };
        let prefers = |preferred, of| Candidate { preferred, ..of };
        let full = prefers(100, candidate(0, 3900, 9900, 0));
        assert_eq!(selected(&[full, prefers(50, candidate(1, 0, 0, 0))], pod), Some(0));
        let tainted = prefers(100, candidate(2, 0, 0, 1));
        assert_eq!(selected(&[tainted, candidate(1, 0, 0, 0)], pod), Some(1));
    }

    #[test]
    fn the_bridge_prefers_nodes_with_enough_headroom_and_among_them_the_calm() {
        let pod = Allocation { cpu_milli: 1600, memory_mib: 100 };
        let node = |node, slow_score, headroom| {
            let bridged = Some(Bridged { slow_score, headroom });
            Candidate { bridged, ..candidate(node, 0, 0, 0) }
        };
        let scores = |nodes: &[Candidate]| extender(pod, nodes);
        let nodes = [
            node(0, Some(0.5), Some(2)),
            node(1, Some(0.0), Some(64)),
            node(2, Some(0.0), Some(1)),
            node(3, Some(0.5), None),
            node(4, None, Some(2)),
        ];
        assert_eq!(scores(&nodes), [8, 10, 4, 3, 9]);
        assert_eq!(selected(&nodes, pod), Some(1));
        // Without headroom anywhere, contention alone counts; without scores, nothing does.
        assert_eq!(scores(&[node(0, Some(0.5), None), node(1, Some(0.0), None)]), [5, 10]);
        assert_eq!(scores(&[node(0, None, Some(2)), candidate(1, 0, 0, 0)]), [0, 0]);
        // A Node that is full by requests has at most 100 points less.
        let full = Candidate { bridged: nodes[1].bridged, ..candidate(5, 2300, 9800, 0) };
        assert_eq!(selected(&[nodes[2], full], pod), Some(5));
    }

    #[test]
    fn a_pod_that_fits_nowhere_stays_pending() {
        let pod = Allocation { cpu_milli: 100, memory_mib: 200 };
        assert_eq!(selected(&[candidate(0, 0, 9900, 0), candidate(1, 3950, 0, 0)], pod), None);
    }
}
