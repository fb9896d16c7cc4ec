//! OpenShift's descheduler operator, profile KubeVirtRelieveAndMigrate with its defaults: the recording
//! rules of `bindata/assets/kube-descheduler/prometheusrule.yaml`, and the soft tainter of
//! `pkg/softtainter/softtainter.go`.

use super::descheduler::Classified;
use crate::judge::Move;

/// What the rules read of a node: means over one minute, 0 to 1.
#[derive(Debug, Clone, Copy, Default)]
pub struct Inputs {
    pub cpu_utilization: f64,
    /// Of the node, `some`.
    pub cpu_pressure: f64,
    pub memory_utilization: f64,
    pub memory_pressure: f64,
}

/// CPU pressure counts only above this utilization.
const BUSY: f64 = 0.7;
const AMPLIFIED: f64 = 3.0;
const QUANTILE: f64 = 0.66;

/// `descheduler:node:linear_amplified_ideal_point_positive_distance:k3:avg1m` of each node.
pub fn ideal_point_distance(nodes: &[Inputs]) -> Vec<f64> {
    above_average(nodes).into_iter().map(amplified).collect()
}

/// `descheduler:node:actuation_priority:p66_5m` of each node, with its evictions of the last ten minutes.
/// Inputs are those of the last five minutes.
pub fn actuation_priority(minutes: &[Vec<Inputs>], evictions: &[usize]) -> Vec<f64> {
    let minutes: Vec<Vec<[f64; 4]>> = minutes.iter().map(|nodes| above_average(nodes)).collect();
    let priority = |(node, &evictions): (usize, &usize)| {
        let lasting =
            |of: usize| quantile(minutes.iter().map(|nodes| nodes[node][of]).collect(), QUANTILE);
        amplified([0, 1, 2, 3].map(lasting)) * (1.0 - 0.1 * evictions as f64).max(0.01)
    };
    evictions.iter().enumerate().map(priority).collect()
}

/// How far each node is above the average of all, by input.
fn above_average(nodes: &[Inputs]) -> Vec<[f64; 4]> {
    let rows: Vec<[f64; 4]> = nodes
        .iter()
        .map(|node| {
            let is_busy = node.cpu_utilization > BUSY;
            let cpu_pressure = if is_busy { node.cpu_pressure } else { 0.0 };
            [node.cpu_utilization, cpu_pressure, node.memory_utilization, node.memory_pressure]
        })
        .collect();
    let average = |of: usize| rows.iter().map(|row| row[of]).sum::<f64>() / rows.len() as f64;
    let averages = [0, 1, 2, 3].map(average);
    rows.iter().map(|row| [0, 1, 2, 3].map(|of| (row[of] - averages[of]).max(0.0))).collect()
}

fn amplified(above: [f64; 4]) -> f64 {
    (AMPLIFIED * above.iter().map(|one| one.powi(2)).sum::<f64>().sqrt()).min(1.0)
}

/// Between two values as Prometheus' `quantile_over_time`.
fn quantile(mut values: Vec<f64>, quantile: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = quantile * (values.len() - 1) as f64;
    let (below, above) = (values[rank.floor() as usize], values[rank.ceil() as usize]);
    below + (above - below) * rank.fract()
}

/// Soft taints of each node: none if underused, one if appropriately used, two if overused. Without an
/// underused node, appropriately used ones have none.
pub fn soft_taints(classified: &Classified, nodes: usize) -> Vec<u8> {
    let mut taints = vec![u8::from(!classified.under.is_empty()); nodes];
    classified.under.iter().for_each(|&node| taints[node] = 0);
    classified.over.iter().for_each(|&node| taints[node] = 2);
    taints
}

const COOLDOWN_S: u32 = 900;
const LONGEST_COOLDOWN_S: u32 = 6 * 3600;
/// KubeVirt keeps so many finished migrations of a VM, and the plugin counts these.
const KEPT: u32 = 5;

/// Whether the plugin KubevirtMigrationAware protects a VM: for 15 minutes after a migration, or for as
/// long as the migration took, doubled for each earlier one, and for at most six hours.
pub fn cools_down(moves: &[Move], vm: usize, now_s: u32) -> bool {
    let mut own = moves.iter().rev().filter(|one| one.vm == vm);
    let Some(last) = own.next() else { return false };
    let earlier = own.take(KEPT as usize - 1).count() as u32;
    let first = COOLDOWN_S.max(last.ended_s - last.started_s);
    now_s < last.ended_s + (first << earlier).min(LONGEST_COOLDOWN_S)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Effect;

    #[test]
    fn a_cooldown_doubles_with_each_move_up_to_six_hours() {
        let at = |ended_s| Move {
            vm: 1,
            source: 0,
            target: 1,
            started_s: ended_s - 60,
            ended_s,
            effect: Effect::default(),
        };
        let moves = [at(1000), at(2000), Move { vm: 2, ..at(2500) }, at(3000)];
        assert!(cools_down(&moves[..1], 1, 1899) && !cools_down(&moves[..1], 1, 1900));
        assert!(cools_down(&moves, 1, 6599) && !cools_down(&moves, 1, 6600));
        assert!(!cools_down(&moves, 3, 0));
        let many: Vec<Move> = (1..20).map(|number| at(number * 1000)).collect();
        assert!(cools_down(&many, 1, 19_000 + 14_399) && !cools_down(&many, 1, 19_000 + 14_400));
    }

    fn inputs(cpu: f64, pressure: f64, memory: f64) -> Inputs {
        Inputs {
            cpu_utilization: cpu,
            cpu_pressure: pressure,
            memory_utilization: memory,
            memory_pressure: 0.0,
        }
    }

    #[test]
    fn distance_is_of_what_is_above_the_average_three_times() {
        // Averages: CPU 0.5, memory 0.4. The first is 0.1 and 0.1 above: 3 * sqrt(0.02) = 0.4243.
        let values = ideal_point_distance(&[inputs(0.6, 0.9, 0.5), inputs(0.4, 0.0, 0.3)]);
        assert!((values[0] - 0.424_264).abs() < 1e-6 && values[1] == 0.0, "{values:?}");
        // CPU pressure counts above 70 %: 0.4 and 0.2 above the averages, clamped.
        let values = ideal_point_distance(&[inputs(0.8, 0.8, 0.4), inputs(0.4, 0.8, 0.4)]);
        assert_eq!(values, [1.0, 0.0]);
    }

    #[test]
    fn a_single_minute_and_a_node_with_evictions_have_less_priority() {
        assert!((quantile(vec![0.4, 0.0, 0.1, 0.3, 0.2], 0.66) - 0.264).abs() < 1e-9);
        let (high, low) = (inputs(0.6, 0.0, 0.4), inputs(0.4, 0.0, 0.4));
        let (hot, calm) = (vec![high, low], vec![low, low]);
        let all_hot = actuation_priority(&[hot.clone(), hot.clone()], &[0, 0]);
        assert!((all_hot[0] - 0.3).abs() < 1e-9 && all_hot[1] == 0.0, "{all_hot:?}");
        let once = actuation_priority(&[hot.clone(), calm.clone(), calm.clone(), calm], &[0, 0]);
        assert!(once[0] < 1e-9, "{once:?}");
        let evicted = actuation_priority(std::slice::from_ref(&hot), &[3, 0]);
        assert!((evicted[0] - 0.21).abs() < 1e-9, "{evicted:?}");
        assert!((actuation_priority(&[hot], &[30, 0])[0] - 0.003).abs() < 1e-9);
    }

    #[test]
    fn taints_follow_the_class_of_a_node() {
        let classified = Classified { under: vec![0], over: vec![2] };
        assert_eq!(soft_taints(&classified, 3), [0, 1, 2]);
        let no_under = Classified { under: vec![], over: vec![2] };
        assert_eq!(soft_taints(&no_under, 3), [0, 0, 2]);
    }
}
