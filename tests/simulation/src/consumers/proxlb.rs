//! ProxLB 1.1 with `mode: psi` and `method: cpu`, and the thresholds of its documentation. It reads
//! pressure of nodes and of VMs, moves the VM with the most pressure away from a node under pressure, and
//! chooses the target itself.
//!
//! Simplified: a run moves one VM from each such node, since ProxLB does not estimate how pressure
//! changes by a move.

/// Pressure in percent: the mean of an hour, and the highest minute of the last six.
#[derive(Debug, Clone, Copy, Default)]
pub struct Pressure {
    pub some: f64,
    pub full: f64,
    pub spikes: f64,
}

struct Thresholds {
    full: f64,
    some: f64,
    spikes: f64,
}

const NODES: Thresholds = Thresholds { full: 5.0, some: 10.0, spikes: 20.0 };
const VMS: Thresholds = Thresholds { full: 10.0, some: 20.0, spikes: 30.0 };

impl Pressure {
    fn is_hot(&self, thresholds: &Thresholds) -> bool {
        (self.full >= thresholds.full && self.some >= thresholds.some)
            || self.spikes >= thresholds.spikes
    }
}

/// A node with its VMs.
#[derive(Debug, Clone, Default)]
pub struct Node {
    pub pressure: Pressure,
    pub free_memory_mib: i64,
    /// Number, memory and pressure of each.
    pub vms: Vec<(usize, i64, Pressure)>,
}

/// VMs to move with their targets, in the order of the nodes' pressure.
pub fn relocate(nodes: &mut [Node]) -> Vec<(usize, usize)> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    order.sort_by(|&a, &b| nodes[b].pressure.spikes.total_cmp(&nodes[a].pressure.spikes));
    let mut moves = Vec::new();
    for &source in &order {
        let node = &nodes[source];
        let is_hot = node.pressure.is_hot(&NODES)
            || node.vms.iter().any(|(_, _, pressure)| pressure.is_hot(&VMS));
        let suffers = node.vms.iter().max_by(|a, b| a.2.spikes.total_cmp(&b.2.spikes));
        let Some(&(vm, memory_mib, _)) = suffers.filter(|_| is_hot) else { continue };
        let fits = |&&node: &&usize| nodes[node].free_memory_mib >= memory_mib && node != source;
        let Some(&target) = order.iter().rev().find(fits) else { continue };
        if nodes[target].pressure.spikes < nodes[source].pressure.spikes {
            nodes[target].free_memory_mib -= memory_mib;
            moves.push((vm, target));
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure(some: f64, full: f64, spikes: f64) -> Pressure {
        Pressure { some, full, spikes }
    }

    #[test]
    fn hot_is_by_both_means_or_by_spikes() {
        assert!(pressure(10.0, 5.0, 0.0).is_hot(&NODES) && pressure(0.0, 0.0, 20.0).is_hot(&NODES));
        assert!(!pressure(9.0, 50.0, 19.0).is_hot(&NODES));
        assert!(!pressure(20.0, 9.0, 29.0).is_hot(&VMS));
    }

    #[test]
    fn the_vm_with_most_pressure_leaves_for_the_node_with_least() {
        let vm = |vm, spikes| (vm, 100, pressure(0.0, 0.0, spikes));
        let node = |spikes, free_memory_mib, vms| Node {
            pressure: pressure(0.0, 0.0, spikes),
            free_memory_mib,
            vms,
        };
        let mut nodes = [
            node(60.0, 0, vec![vm(1, 10.0), vm(2, 70.0)]),
            node(10.0, 500, vec![vm(3, 5.0)]),
            node(0.0, 50, vec![]),
        ];
        assert_eq!(relocate(&mut nodes), [(2, 1)]);
        nodes[0].pressure.spikes = 19.0;
        nodes[0].vms[1].2.spikes = 29.0;
        assert_eq!(relocate(&mut nodes), []);
    }
}
