//! What a rebalancer sees of the cluster, and what it moves.

use super::Simulation;
use crate::arm::{Arm, PROXLB_INTERVAL_S, Signal};
use crate::consumers::descheduler::{Classified, Pod, percent};
use crate::consumers::planner::INTERVAL_S as PLANNER_INTERVAL_S;
use crate::consumers::{openshift, proxlb};
use crate::judge;
use crate::series::{Minutes, RULE_S, TenMinutes, mean_of_last, or_neutral};

/// Delay of a value that a query returns: half its window, and for the agent's half of the smoothing.
const AGE_OF_RATE_S: f64 = 30.0;
const AGE_OF_QUANTILE_S: f64 = 30.0 + 150.0 + RULE_S as f64 / 2.0;
const AGE_OF_RULE_S: f64 = 300.0 + 30.0 + RULE_S as f64 / 2.0;
/// Without an average: [`TenMinutes::late`] and half of the smoothing.
const AGE_OF_CURRENT_S: f64 = RULE_S as f64 + 30.0;

impl Simulation<'_> {
    pub(super) fn rebalance(&mut self, now_s: u32) {
        if self.arm == Arm::Proxlb && now_s.is_multiple_of(PROXLB_INTERVAL_S) {
            return self.run_proxlb(now_s);
        }
        if self.arm == Arm::Planner {
            if now_s.is_multiple_of(PLANNER_INTERVAL_S) {
                self.planner.run(&mut self.cluster, &self.agents, now_s);
            }
            return;
        }
        if self.arm.signal() == Signal::None
            || !now_s.is_multiple_of(self.policy.interval_s)
            || self.arm.has_brake() && judge::brake_holds(&self.cluster.moves, &self.minutes, now_s)
        {
            return;
        }
        let Some(usage) = self.usage(now_s) else { return };
        let policy = self.policy;
        let classified = Classified::new(&usage, policy.deviation);
        if self.arm.has_soft_tainter() {
            self.taint(&classified, now_s);
        }
        let nodes = &self.cluster.nodes;
        let has_free_target = classified.under.iter().any(|&node| nodes[node].soft_taints == 0);
        let mut random = self.random.clone();
        let pods = |node: usize| self.pods(node, now_s);
        let evicted = policy.evict(&classified, nodes.len(), has_free_target, pods, &mut random);
        self.random = random;
        evicted.into_iter().for_each(|vm| self.cluster.evict(vm, None, now_s));
    }

    /// What the descheduler compares, in percent; `None` where its query has no value.
    fn usage(&mut self, now_s: u32) -> Option<Vec<Vec<f64>>> {
        let nodes = 0..self.cluster.nodes.len();
        let minute = |of: fn(&Minutes) -> &Vec<f64>| -> Vec<f64> {
            self.minutes.iter().map(|node| of(node).last().copied().unwrap_or(0.0)).collect()
        };
        let (values, age) = match self.arm.signal() {
            Signal::None | Signal::Demand => return None,
            Signal::Requests => {
                let requested = |node: usize| {
                    let node = &self.cluster.nodes[node];
                    let (requested, capacity) = (node.requested, node.capacity());
                    let share = |of: i64, all: i64| of as f64 * 100.0 / all as f64;
                    vec![
                        share(requested.cpu_milli, capacity.cpu_milli),
                        share(requested.memory_mib, capacity.memory_mib),
                    ]
                };
                return Some(nodes.map(requested).collect());
            }
            Signal::Usage => (minute(|node| &node.utilization), AGE_OF_RATE_S),
            Signal::NodePsi => {
                let mean = |node: &Minutes| mean_of_last(&node.pressure, 10);
                (self.minutes.iter().map(mean).collect(), AGE_OF_RULE_S)
            }
            Signal::IdealPoint => {
                (openshift::ideal_point_distance(&self.minute_before(0)?), AGE_OF_RATE_S)
            }
            Signal::ActuationPriority => {
                let minutes: Vec<_> = (0..5).map_while(|ago| self.minute_before(ago)).collect();
                if minutes.is_empty() {
                    return None;
                }
                let evictions: Vec<usize> =
                    nodes.map(|node| self.cluster.evictions(node, 600, now_s)).collect();
                (openshift::actuation_priority(&minutes, &evictions), AGE_OF_QUANTILE_S)
            }
            Signal::CurrentScore => {
                let late: Vec<Option<f64>> = self.rules.iter().map(TenMinutes::late).collect();
                (or_neutral(&late)?, AGE_OF_CURRENT_S)
            }
            Signal::Score | Signal::Load => {
                let averages: Vec<Option<f64>> =
                    self.rules.iter().map(TenMinutes::average).collect();
                (or_neutral(&averages)?, AGE_OF_RULE_S)
            }
        };
        self.used(age);
        Some(values.into_iter().map(|value| vec![percent(value)]).collect())
    }

    /// What OpenShift's rules read, so many minutes ago; `None` before the first one.
    fn minute_before(&self, ago: usize) -> Option<Vec<openshift::Inputs>> {
        let at = |values: &[f64]| values.iter().rev().nth(ago).copied();
        let inputs = |(node, minutes): (usize, &Minutes)| {
            Some(openshift::Inputs {
                cpu_utilization: at(&minutes.utilization)?,
                cpu_pressure: at(&minutes.pressure)?,
                memory_utilization: self.memory_utilization(node),
                memory_pressure: 0.0,
            })
        };
        self.minutes.iter().enumerate().map(inputs).collect()
    }

    pub(super) fn used(&mut self, age_s: f64) {
        self.ages = (self.ages.0 + age_s, self.ages.1 + 1.0);
    }

    fn taint(&mut self, classified: &Classified, now_s: u32) {
        let taints = openshift::soft_taints(classified, self.cluster.nodes.len());
        for (node, taints) in self.cluster.nodes.iter_mut().zip(taints) {
            // Each taint is a write of its own.
            self.writes[now_s as usize - 1] += u16::from(node.soft_taints.abs_diff(taints));
            node.soft_taints = taints;
        }
    }

    fn pods(&self, node: usize, now_s: u32) -> Vec<Pod> {
        let marked = self.agents.get(node).and_then(|agent| agent.marked).map(|marked| marked.0);
        let pod = |&vm: &usize| {
            let in_flight = self.cluster.is_in_flight(vm);
            let is_named = !self.arm.names_a_vm() || marked == Some(vm);
            let age_s = self.cluster.vms[vm].age_s(now_s);
            let cools_down = self.arm == Arm::OpenshiftCooldown
                && openshift::cools_down(&self.cluster.moves, vm, now_s);
            let is_evictable =
                is_named && !in_flight && !cools_down && self.cluster.fits_elsewhere(vm);
            Pod { vm, age_s, is_evictable, in_flight }
        };
        self.cluster.nodes[node].vms.iter().map(pod).collect()
    }

    fn run_proxlb(&mut self, now_s: u32) {
        // `some` by minute, and the share of it that is `full`.
        let pressure = |minutes: &[f64], full: f64| {
            let some = mean_of_last(minutes, 60) * 100.0;
            let recent = &minutes[minutes.len().saturating_sub(6)..];
            let spikes = recent.iter().copied().fold(0.0, f64::max) * 100.0;
            proxlb::Pressure { some, full: full * some, spikes }
        };
        let node = |number: usize| {
            let state = &self.cluster.nodes[number];
            let vm = |&vm: &usize| {
                let ready: Vec<f64> = self.ready[vm].iter().copied().map(f64::from).collect();
                // The kernel takes the mean over CPUs. On that of a vCPU, nothing else of its VM runs.
                let pressure = pressure(&ready, 1.0);
                (vm, self.cluster.vms[vm].request().memory_mib, pressure)
            };
            proxlb::Node {
                // A node has no full pressure of CPU.
                pressure: pressure(&self.minutes[number].pressure, 0.0),
                free_memory_mib: state.capacity().memory_mib - state.requested.memory_mib,
                vms: state.vms.iter().map(vm).collect(),
            }
        };
        let mut nodes: Vec<proxlb::Node> = (0..self.cluster.nodes.len()).map(node).collect();
        for (vm, target) in proxlb::relocate(&mut nodes) {
            self.cluster.evict(vm, Some(target), now_s);
        }
        self.used(1800.0);
    }
}
