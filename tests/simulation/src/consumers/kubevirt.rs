//! KubeVirt's live migrations: its limits, and what one costs.

/// `parallelMigrationsPerCluster` and `parallelOutboundMigrationsPerNode`, KubeVirt's defaults.
pub const PER_CLUSTER: usize = 5;
pub const OUTBOUND: usize = 2;

/// Assumed: what a migration transfers in a second, in MiB (10 Gbit/s).
const TRANSFERRED: f64 = 1024.0;
/// Assumed: memory that a busy vCPU writes in a second, in MiB. It is transferred again.
const DIRTIED: f64 = 64.0;
/// At most this part of what is transferred is written again: KubeVirt slows a VM down that writes
/// faster (auto-converge).
const MOST_DIRTIED: f64 = 0.8;
/// Assumed: until the target's pod runs and after the transfer, seconds.
const OVERHEAD_S: f64 = 15.0;
/// Assumed: CPUs that a migration uses on the source and on the target.
pub const CPUS: f64 = 1.0;

/// How long a migration takes, in seconds.
pub fn duration_s(memory_mib: u64, busy_vcpus: f64) -> u32 {
    let dirtied = (DIRTIED * busy_vcpus).min(MOST_DIRTIED * TRANSFERRED);
    (OVERHEAD_S + memory_mib as f64 / (TRANSFERRED - dirtied)).ceil() as u32
}

/// How many of the waiting migrations start, and which: the oldest first, within both limits.
/// `sources` are the nodes of those in progress.
pub fn to_start(waiting: &[(usize, usize)], sources: &[usize]) -> Vec<usize> {
    let mut sources = sources.to_vec();
    let mut started = Vec::new();
    for &(vm, source) in waiting {
        let outbound = sources.iter().filter(|other| **other == source).count();
        if sources.len() < PER_CLUSTER && outbound < OUTBOUND {
            sources.push(source);
            started.push(vm);
        }
    }
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_run_in_a_cluster_and_two_away_from_a_node() {
        let waiting = [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2), (6, 3), (7, 4)];
        assert_eq!(to_start(&waiting, &[]), [1, 2, 4, 5, 6]);
        assert_eq!(to_start(&waiting, &[0, 9, 8, 7]), [1]);
        assert_eq!(to_start(&waiting, &[0, 0, 9]), [4, 5]);
        assert_eq!(to_start(&waiting, &[5; 5]), [0; 0]);
    }

    #[test]
    fn more_memory_and_more_writes_take_longer() {
        assert_eq!(duration_s(8 * 1024, 0.0), 23);
        // 1024 MiB less 4 times 64 in a second: 8192 / 768 = 10.7.
        assert_eq!(duration_s(8 * 1024, 4.0), 26);
        // Auto-converge bounds it: 10240 / 204.8 = 50, and the first whole second after that.
        assert_eq!(duration_s(10 * 1024, 64.0), duration_s(10 * 1024, 13.0));
    }
}
