//! What Prometheus would have: averages over a minute, and psi-agent's recording rules.

use std::collections::VecDeque;

/// `avg_over_time(…[10m])` of a rule that is recorded every 30 s: 20 samples, of which 10 are needed.
/// `daemonset/prometheus/rules.yaml` has the rules.
pub const RULE_S: u32 = 30;
const EXPECTED: usize = 20;
const REQUIRED: usize = 10;

#[derive(Debug, Clone, Default)]
pub struct TenMinutes(VecDeque<f64>);

impl TenMinutes {
    pub fn record(&mut self, value: f64) {
        if self.0.len() == EXPECTED {
            self.0.pop_front();
        }
        self.0.push_back(value.clamp(0.0, 1.0));
    }

    pub fn average(&self) -> Option<f64> {
        let mean = self.0.iter().sum::<f64>() / self.0.len() as f64;
        (self.0.len() >= REQUIRED).then_some(mean)
    }

    /// The last value but one: a scrape and two groups of rules are late by about as much.
    pub fn late(&self) -> Option<f64> {
        self.0.iter().nth_back(1).copied()
    }
}

/// The rules `…_neutral`: a node without a value has the average of the others plus 0.015. `None`
/// if no node has a value.
pub fn or_neutral(values: &[Option<f64>]) -> Option<Vec<f64>> {
    let known: Vec<f64> = values.iter().flatten().copied().collect();
    if known.is_empty() {
        return None;
    }
    let neutral = (known.iter().sum::<f64>() / known.len() as f64 + 0.015).min(1.0);
    Some(values.iter().map(|value| value.unwrap_or(neutral)).collect())
}

/// Load of a node: the larger of CPU load and memory load, each half utilization and half contention.
pub fn load(cpu_utilization: f64, cpu_contention: f64, memory_utilization: f64) -> f64 {
    ((cpu_utilization + cpu_contention) / 2.0).max(memory_utilization / 2.0)
}

/// A node's values by minute.
#[derive(Debug, Clone, Default)]
pub struct Minutes {
    sum: (f64, f64, f64, f64),
    /// CPU utilization and pressure, and the CPUs that all VMs wait for, by minute.
    pub utilization: Vec<f64>,
    pub pressure: Vec<f64>,
    pub waiting: Vec<f64>,
}

impl Minutes {
    pub fn add(&mut self, utilization: f64, pressure: f64, waiting: f64) {
        let (utilizations, pressures, waitings, count) = self.sum;
        self.sum =
            (utilizations + utilization, pressures + pressure, waitings + waiting, count + 1.0);
    }

    pub fn end_minute(&mut self) {
        let (utilization, pressure, waiting, count) = std::mem::take(&mut self.sum);
        self.utilization.push(utilization / count);
        self.pressure.push(pressure / count);
        self.waiting.push(waiting / count);
    }
}

/// The mean of the last minutes, of this number at most; 0 before there are any.
pub fn mean_of_last(minutes: &[f64], count: usize) -> f64 {
    let last = &minutes[minutes.len().saturating_sub(count)..];
    last.iter().sum::<f64>() / last.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_needs_half_of_its_samples_and_forgets_after_ten_minutes() {
        let mut average = TenMinutes::default();
        (0..9).for_each(|_| average.record(1.0));
        assert_eq!(average.average(), None);
        average.record(0.0);
        assert_eq!(average.late(), Some(1.0));
        assert_eq!(average.average(), Some(0.9));
        (0..20).for_each(|_| average.record(0.5));
        assert_eq!(average.average(), Some(0.5));
    }

    #[test]
    fn a_node_without_a_value_is_neither_over_nor_under() {
        assert_eq!(or_neutral(&[None, None]), None);
        let values = or_neutral(&[Some(0.1), None, Some(0.3)]).unwrap();
        assert!((values[1] - 0.215).abs() < 1e-9);
    }

    #[test]
    fn load_is_half_utilization_and_half_contention() {
        assert_eq!(load(1.0, 0.4, 0.5), 0.7);
        assert_eq!(load(0.2, 0.0, 0.8), 0.4);
    }
}
