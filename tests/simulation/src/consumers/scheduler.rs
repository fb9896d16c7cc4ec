//! kube-scheduler 1.36 with its default profile, as far as it decides here: resource fit with
//! LeastAllocated (weight 1), TaintToleration for soft taints (weight 3), and NodeAffinity for preferences
//! (weight 2). Arithmetic is in whole numbers, as in `noderesources/least_allocated.go`,
//! `tainttoleration/taint_toleration.go` and `nodeaffinity/node_affinity.go`.

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
}

const HIGHEST: i64 = 100;
const TAINT_WEIGHT: i64 = 3;
const AFFINITY_WEIGHT: i64 = 2;

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
    let score = |candidate: &Candidate| {
        let taints = match most_taints {
            0 => HIGHEST,
            most => HIGHEST - HIGHEST * candidate.soft_taints / most,
        };
        let affinity = match most_preferred {
            0 => 0,
            most => HIGHEST * candidate.preferred / most,
        };
        candidate.least_allocated(pod) + TAINT_WEIGHT * taints + AFFINITY_WEIGHT * affinity
    };
    let best = fitting.iter().map(score).max()?;
    let best: Vec<&Candidate> = fitting.iter().filter(|one| score(one) == best).collect();
    Some(best[random.below(best.len())].node)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Allocation = Allocation { cpu_milli: 4000, memory_mib: 10_000 };

    fn candidate(node: usize, cpu_milli: i64, memory_mib: i64, soft_taints: i64) -> Candidate {
        let requested = Allocation { cpu_milli, memory_mib };
        Candidate { node, capacity: CAPACITY, requested, soft_taints, preferred: 0 }
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
    fn a_pod_that_fits_nowhere_stays_pending() {
        let pod = Allocation { cpu_milli: 100, memory_mib: 200 };
        assert_eq!(selected(&[candidate(0, 0, 9900, 0), candidate(1, 3950, 0, 0)], pod), None);
    }
}
