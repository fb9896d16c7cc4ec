//! The descheduler 0.36: LowNodeUtilization with thresholds relative to the average, and its limits.
//! As in `nodeutilization.go`, `lownodeutilization.go` and `evictions.go`.

use crate::random::Random;

/// How a policy limits evictions.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Seconds between runs.
    pub interval_s: u32,
    /// `maxNoOfPodsToEvictPerNode`, and LowNodeUtilization's `evictionLimits.node`.
    pub per_node: usize,
    /// `maxNoOfPodsToEvictTotal`.
    pub total: usize,
    /// `minPodAge`. A VM that moved has a new pod.
    pub least_age_s: u32,
    /// Percentage points below and above the average.
    pub deviation: (f64, f64),
}

/// Nodes by number.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Classified {
    pub under: Vec<usize>,
    /// The most used first.
    pub over: Vec<usize>,
}

impl Classified {
    /// Each Node has a value for each resource, in percent.
    pub fn new(usage: &[Vec<f64>], (low, high): (f64, f64)) -> Self {
        let nodes = usage.len();
        let resources = usage.first().map_or(0, Vec::len);
        let averages: Vec<f64> = (0..resources)
            .map(|resource| usage.iter().map(|node| node[resource]).sum::<f64>() / nodes as f64)
            .collect();
        let exceeds = |node: usize, by: f64| -> Vec<bool> {
            let limit = |average: f64| (average + by).clamp(0.0, 100.0);
            usage[node]
                .iter()
                .zip(&averages)
                .map(|(value, &average)| *value > limit(average))
                .collect()
        };
        let (mut under, mut over) = (Vec::new(), Vec::new());
        for node in 0..nodes {
            if !exceeds(node, -low).contains(&true) {
                under.push(node);
            } else if exceeds(node, high).contains(&true) {
                over.push(node);
            }
        }
        let sum = |node: &usize| usage[*node].iter().sum::<f64>();
        over.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
        Self { under, over }
    }
}

/// A value of a query, 0 to 1, in percent: the descheduler truncates it.
pub fn percent(value: f64) -> f64 {
    (value * 100.0).trunc()
}

/// A pod that could be evicted.
#[derive(Debug, Clone, Copy)]
pub struct Pod {
    pub vm: usize,
    pub age_s: u32,
    /// Whether it passes DefaultEvictor: its label selector and `nodeFit`.
    pub is_evictable: bool,
    /// Evicted before, and still on its node.
    pub in_flight: bool,
}

impl Policy {
    /// The VMs that a run evicts. `has_free_target` is whether at least one underused Node has no taint,
    /// since the plugin skips pods that tolerate the taints of none of them. Pods have equal priority
    /// and QoS class, so their order is arbitrary: here random.
    pub fn evict(
        &self,
        classified: &Classified,
        nodes: usize,
        has_free_target: bool,
        mut pods_of: impl FnMut(usize) -> Vec<Pod>,
        random: &mut Random,
    ) -> Vec<usize> {
        let Classified { under, over } = classified;
        if under.is_empty() || over.is_empty() || under.len() == nodes || !has_free_target {
            return Vec::new();
        }
        let mut evicted = Vec::new();
        // With EvictionsInBackground, evictions in flight use up the limits.
        let mut total: usize =
            (0..nodes).map(|node| pods_of(node).iter().filter(|pod| pod.in_flight).count()).sum();
        for &node in over {
            let mut pods = pods_of(node);
            let mut here = pods.iter().filter(|pod| pod.in_flight).count();
            random.shuffle(&mut pods);
            for pod in pods {
                if here >= self.per_node || total >= self.total {
                    break;
                }
                if pod.is_evictable && !pod.in_flight && pod.age_s >= self.least_age_s {
                    evicted.push(pod.vm);
                    here += 1;
                    total += 1;
                }
            }
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(values: &[f64], deviation: (f64, f64)) -> (Vec<usize>, Vec<usize>) {
        let usage: Vec<Vec<f64>> = values.iter().map(|value| vec![percent(*value)]).collect();
        let Classified { under, over } = Classified::new(&usage, deviation);
        (under, over)
    }

    #[test]
    fn nodes_are_classified_relative_to_the_average() {
        // 5, 10 and 60 have the average 25: up to 25 is under, above 35 is over.
        assert_eq!(classified(&[0.05, 0.10, 0.60], (0.0, 10.0)), (vec![0, 1], vec![2]));
        // As observed of the real program: 90, 10 and 45 with the average 48.33.
        assert_eq!(classified(&[0.9, 0.1, 0.45], (10.0, 10.0)), (vec![1], vec![0]));
        assert_eq!(classified(&[0.55, 0.45, 0.45], (10.0, 10.0)), (vec![], vec![]));
        // A value at a threshold is not above it.
        assert_eq!(classified(&[0.2, 0.4], (0.0, 10.0)), (vec![0], vec![]));
        // Values are truncated, not rounded: 0.29 is 28 in binary.
        assert_eq!(percent(0.29), 28.0);
    }

    #[test]
    fn with_several_resources_all_must_be_under_and_one_over() {
        let usage = [vec![10.0, 60.0], vec![10.0, 10.0], vec![40.0, 10.0]];
        let Classified { under, over } = Classified::new(&usage, (0.0, 10.0));
        assert_eq!((under, over), (vec![1], vec![0, 2]));
    }

    const POLICY: Policy =
        Policy { interval_s: 600, per_node: 1, total: 2, least_age_s: 900, deviation: (0.0, 10.0) };

    fn pod(vm: usize) -> Pod {
        Pod { vm, age_s: 900, is_evictable: true, in_flight: false }
    }

    fn evict(over: &[usize], under: &[usize], pods: &dyn Fn(usize) -> Vec<Pod>) -> Vec<usize> {
        let classified = Classified { under: under.to_vec(), over: over.to_vec() };
        POLICY.evict(&classified, 6, true, pods, &mut Random::new(1, 1))
    }

    #[test]
    fn limits_hold_for_each_node_and_in_total() {
        let pods = |node: usize| vec![pod(node * 10), pod(node * 10 + 1)];
        let evicted = evict(&[1, 2, 3], &[4], &pods);
        assert_eq!(evicted.iter().map(|vm| vm / 10).collect::<Vec<_>>(), [1, 2]);
        // One in flight on node 1 leaves room for one elsewhere.
        let waiting = |node: usize| match node {
            1 => vec![Pod { in_flight: true, ..pod(10) }, pod(11)],
            _ => pods(node),
        };
        let evicted = evict(&[1, 2, 3], &[4], &waiting);
        assert_eq!(evicted.iter().map(|vm| vm / 10).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn nothing_is_evicted_without_a_source_a_target_or_an_old_enough_pod() {
        let pods = |node: usize| vec![pod(node)];
        assert_eq!(evict(&[], &[4], &pods), [0; 0]);
        assert_eq!(evict(&[1], &[], &pods), [0; 0]);
        assert_eq!(evict(&[1], &[4], &pods), [1]);
        assert_eq!(evict(&[1], &[4], &|node| vec![Pod { age_s: 899, ..pod(node) }]), [0; 0]);
        assert_eq!(
            evict(&[1], &[4], &|node| vec![Pod { is_evictable: false, ..pod(node) }]),
            [0; 0]
        );
        let classified = Classified { under: vec![4], over: vec![1] };
        let tainted = POLICY.evict(&classified, 6, false, pods, &mut Random::new(1, 1));
        assert_eq!(tainted, [0; 0]);
    }
}
