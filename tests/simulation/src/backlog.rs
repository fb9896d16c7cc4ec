//! A second definition of lost work, beside that of each minute: what a VM can do until four minutes after
//! the end of its minute, on the CPUs that are idle on its node by then, is not lost.

use std::collections::VecDeque;

/// Minutes in which work can be caught up.
const MINUTES: usize = 5;

/// Work that one VM has not done yet, CPU seconds by minute, the oldest first.
#[derive(Debug, Clone)]
pub struct Backlog(VecDeque<f64>);

impl Default for Backlog {
    fn default() -> Self {
        Self(VecDeque::from([0.0; MINUTES]))
    }
}

impl Backlog {
    fn sum(&self) -> f64 {
        self.0.iter().sum()
    }

    pub fn add(&mut self, missed: f64) {
        if let Some(newest) = self.0.back_mut() {
            *newest += missed;
        }
    }

    /// Ends a minute, and returns the work that is too old now.
    pub fn end_minute(&mut self) -> f64 {
        self.0.push_back(0.0);
        self.0.pop_front().unwrap_or_default()
    }

    fn catch_up(&mut self, mut work: f64) {
        for minute in &mut self.0 {
            let done = work.min(*minute);
            *minute -= done;
            work -= done;
        }
    }
}

/// Gives the idle CPU seconds of a node to VMs, in proportion to what each can still do: at most its
/// backlog, and at most `spare`, what its vCPUs leave.
pub fn share_idle(idle: f64, vms: &mut [(&mut Backlog, f64)]) {
    let wanted = |backlog: &Backlog, spare: f64| backlog.sum().min(spare.max(0.0));
    let all: f64 = vms.iter().map(|(backlog, spare)| wanted(backlog, *spare)).sum();
    if all <= 0.0 {
        return;
    }
    let part = (idle / all).clamp(0.0, 1.0);
    for (backlog, spare) in vms {
        backlog.catch_up(part * wanted(backlog, *spare));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cpus_are_shared_and_old_work_is_lost() {
        let (mut one, mut two) = (Backlog::default(), Backlog::default());
        one.add(6.0);
        two.add(20.0);
        // The second one's vCPUs leave 12: 9 idle CPU seconds are half of what both can do.
        share_idle(9.0, &mut [(&mut one, 60.0), (&mut two, 12.0)]);
        assert_eq!((one.sum(), two.sum()), (3.0, 14.0));
        share_idle(-1.0, &mut [(&mut one, 60.0)]);
        assert_eq!(one.sum(), 3.0);
        let lost: Vec<f64> = (0..6).map(|_| one.end_minute()).collect();
        assert_eq!(lost, [0.0, 0.0, 0.0, 0.0, 3.0, 0.0]);
    }

    #[test]
    fn the_oldest_work_is_done_first() {
        let mut one = Backlog::default();
        one.add(2.0);
        one.end_minute();
        one.add(5.0);
        share_idle(3.0, &mut [(&mut one, 60.0)]);
        assert_eq!((0..5).map(|_| one.end_minute()).collect::<Vec<_>>(), [0.0, 0.0, 0.0, 0.0, 4.0]);
    }
}
