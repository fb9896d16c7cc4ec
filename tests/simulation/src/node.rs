//! The model of a node: how long its VMs run and wait, given what they want. It is checked against the
//! records of the lab, and shares no code with the agent. Pure.
//!
//! Each vCPU alternates between runnable and idle. Work that it misses is lost, so a vCPU that gets
//! less than it wants is runnable all the time. Three effects make runnable vCPUs wait:
//!
//! 1. More vCPUs are runnable than there are CPUs: these share the CPUs by weight (water filling).
//! 2. The number of runnable vCPUs varies from moment to moment: water filling is averaged over five
//!    points of a normal distribution.
//! 3. A vCPU that wakes is put on the CPU of another one although a third CPU is idle. This happens
//!    more often the busier the node is, and a heavier vCPU is hardly delayed by a lighter one.
//!
//! Waiting makes vCPUs runnable for longer, so the equations are solved by iteration.

/// A VM or another workload, and what it wants.
#[derive(Debug, Clone, Copy)]
pub struct Claimant {
    pub vcpus: f64,
    /// Share of time that each vCPU would run without contention.
    pub duty: f64,
    pub weight: f64,
    /// CPUs that its own quota allows.
    pub quota: Option<f64>,
    /// Whether its vCPUs wake at the same moments as those of all such claimants.
    pub together: bool,
}

/// CPUs that a claimant ran on, and that it waited for because of the node, on average.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Share {
    pub ran: f64,
    pub waited: f64,
}

impl Share {
    /// Share of demand that waited.
    pub fn contention(&self) -> f64 {
        let demand = self.ran + self.waited;
        if demand > 0.0 { self.waited / demand } else { 0.0 }
    }
}

/// Five points of a normal distribution and their weights (Gauss and Hermite).
const NORMAL: [(f64, f64); 5] = [
    (-2.856_970, 0.011_257_4),
    (-1.355_626, 0.222_075_9),
    (0.0, 0.533_333_3),
    (1.355_626, 0.222_075_9),
    (2.856_970, 0.011_257_4),
];
const MOST_ROUNDS: usize = 60;
const PRECISE: f64 = 1e-3;

/// How the CPUs are shared.
pub fn share(cpus: f64, claimants: &[Claimant]) -> Vec<Share> {
    let all_vcpus: f64 = claimants.iter().map(|one| one.vcpus).sum();
    let wanted: Vec<f64> = claimants.iter().map(Claimant::wanted_duty).collect();
    let mut runnable = wanted.clone();
    let mut speeds = vec![1.0; claimants.len()];
    if all_vcpus > cpus {
        for _ in 0..MOST_ROUNDS {
            speeds = Moment::new(cpus, all_vcpus, claimants, &runnable).speeds();
            let mut change: f64 = 0.0;
            for (runnable, (wanted, speed)) in runnable.iter_mut().zip(wanted.iter().zip(&speeds)) {
                let next = (wanted / speed.max(1e-9)).min(1.0);
                change = change.max((next - *runnable).abs());
                *runnable = (*runnable + next) / 2.0;
            }
            if change < PRECISE {
                break;
            }
        }
    }
    let result = claimants.iter().zip(wanted).zip(runnable.iter().zip(speeds));
    let mut shares: Vec<Share> = result
        .map(|((one, wanted), (runnable, speed))| {
            let ran = one.vcpus * (runnable * speed).min(wanted);
            let wants = (one.vcpus * runnable).min(one.quota.unwrap_or(f64::INFINITY));
            Share { ran, waited: (wants - ran).max(0.0) }
        })
        .collect();
    // What the last round left over of that precision.
    let ran: f64 = shares.iter().map(|share| share.ran).sum();
    if ran > cpus {
        for share in &mut shares {
            let less = share.ran * (1.0 - cpus / ran);
            *share = Share { ran: share.ran - less, waited: share.waited + less };
        }
    }
    shares
}

impl Claimant {
    /// The duty of each vCPU that the quota allows.
    fn wanted_duty(&self) -> f64 {
        let allowed = self.quota.map_or(1.0, |quota| quota / self.vcpus.max(1e-9));
        self.duty.clamp(0.0, 1.0).min(allowed)
    }
}

/// The node, with each vCPU runnable for a share of the time.
struct Moment<'a> {
    cpus: f64,
    all_vcpus: f64,
    claimants: &'a [Claimant],
    runnable: &'a [f64],
    /// Weight of one runnable vCPU of each claimant.
    weights: Vec<f64>,
    mean: f64,
    deviation: f64,
}

impl<'a> Moment<'a> {
    fn new(cpus: f64, all_vcpus: f64, claimants: &'a [Claimant], runnable: &'a [f64]) -> Self {
        let both = || claimants.iter().zip(runnable);
        // A cgroup's weight is shared by its runnable vCPUs: one of them, and on average the others.
        let weights = both()
            .map(|(one, runnable)| one.weight / (1.0 + (one.vcpus - 1.0).max(0.0) * runnable));
        let apart: f64 = both()
            .filter(|(one, _)| !one.together)
            .map(|(one, runnable)| one.vcpus * runnable * (1.0 - runnable))
            .sum();
        let together: f64 = both()
            .filter(|(one, _)| one.together)
            .map(|(one, runnable)| one.vcpus * (runnable * (1.0 - runnable)).sqrt())
            .sum();
        Self {
            cpus,
            all_vcpus,
            claimants,
            runnable,
            weights: weights.collect(),
            mean: both().map(|(one, runnable)| one.vcpus * runnable).sum(),
            deviation: (apart + together * together).sqrt(),
        }
    }

    /// CPUs that each runnable vCPU gets.
    fn speeds(&self) -> Vec<f64> {
        let mut speeds = vec![0.0; self.claimants.len()];
        if self.mean <= 0.0 {
            return vec![1.0; self.claimants.len()];
        }
        let mut order: Vec<usize> = (0..self.claimants.len()).collect();
        order.sort_by(|a, b| self.weights[*b].total_cmp(&self.weights[*a]));
        let mut all = 0.0;
        for (point, probability) in NORMAL {
            let most = self.all_vcpus / self.mean;
            let factor = ((self.mean + point * self.deviation) / self.mean).clamp(0.0, most);
            let level = self.water_level(&order, factor);
            all += probability * factor;
            for (speed, weight) in speeds.iter_mut().zip(&self.weights) {
                *speed += probability * factor * (level * weight).min(1.0);
            }
        }
        // Runnable vCPUs of more and of less weight than a claimant's own: these in units of weight.
        let (mut heavier, mut lighter) = (0.0, self.weight());
        for &number in &order {
            let runnable = self.claimants[number].vcpus * self.runnable[number];
            heavier += runnable;
            lighter -= runnable * self.weights[number];
            let others = heavier + lighter.max(0.0) / self.weights[number];
            let alone = (speeds[number] / all).min(1.0);
            speeds[number] = alone / (1.0 + self.collisions(number, others));
        }
        speeds
    }

    /// CPUs for each unit of weight, so that all runnable vCPUs together get no more than there are.
    /// Those with most weight come first, and get a whole CPU each while the rest can.
    fn water_level(&self, order: &[usize], factor: f64) -> f64 {
        let runnable =
            |number: usize| self.claimants[number].vcpus * self.runnable[number] * factor;
        let mut weight = self.weight() * factor;
        let mut left = self.cpus;
        for &number in order {
            if weight <= 1e-12 {
                break;
            }
            let level = left / weight;
            if level * self.weights[number] < 1.0 {
                return level.max(0.0);
            }
            left -= runnable(number);
            weight -= runnable(number) * self.weights[number];
        }
        f64::INFINITY
    }

    /// Runnable vCPUs, in units of weight.
    fn weight(&self) -> f64 {
        let each = self.claimants.iter().zip(self.runnable).zip(&self.weights);
        each.map(|((one, runnable), weight)| one.vcpus * runnable * weight).sum()
    }

    /// How many vCPUs of others a waking vCPU finds on its CPU, on average. Of `others`, which are its
    /// own as well, lighter ones count less.
    fn collisions(&self, number: usize, others: f64) -> f64 {
        let own = self.runnable[number];
        let on_each_cpu = ((others - own) / self.cpus).clamp(0.0, 1.0);
        let busy = ((self.mean - own) / self.cpus).clamp(0.0, 1.0);
        (1.0 - own) * on_each_cpu * busy
    }
}

/// The node's own CPU pressure, `some`: the share of time in which something waits on a CPU. The kernel
/// takes the mean over CPUs, weighted by the time in which they are not idle. `throttled` is the number of
/// containers that always want more than their quota: each is runnable on one CPU all the time, and that
/// CPU counts as waiting.
pub fn some(cpus: f64, ran: f64, waited: f64, throttled: f64) -> f64 {
    let others = (1.0 - 1.0 / cpus).powf(throttled);
    let [waiting, not_idle] = [waited, ran].map(|time| (time / cpus).min(1.0));
    let all = 1.0 - others + others * not_idle;
    if all > 0.0 { (1.0 - others + others * not_idle * waiting) / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(vcpus: f64, duty: f64, weight: f64) -> Claimant {
        Claimant { vcpus, duty, weight, quota: None, together: false }
    }

    #[test]
    fn vcpus_that_always_want_to_run_share_by_weight() {
        let shares = share(4.0, &[vm(4.0, 1.0, 100.0), vm(4.0, 1.0, 300.0)]);
        assert!((shares[0].ran - 1.0).abs() < 1e-3 && (shares[1].ran - 3.0).abs() < 1e-3);
        assert!((shares[0].waited - 3.0).abs() < 1e-3 && (shares[1].waited - 1.0).abs() < 1e-3);
        // Nothing is left over: the light one gets what the heavy one cannot use.
        let shares = share(4.0, &[vm(4.0, 1.0, 100.0), vm(1.0, 1.0, 900.0)]);
        assert!((shares[0].ran - 3.0).abs() < 1e-3 && (shares[1].ran - 1.0).abs() < 1e-3);
    }

    #[test]
    fn as_many_vcpus_as_cpus_wait_for_nothing() {
        let shares = share(4.0, &[vm(2.0, 1.0, 1.0), vm(2.0, 0.3, 1.0)]);
        assert_eq!(shares, [Share { ran: 2.0, waited: 0.0 }, Share { ran: 0.6, waited: 0.0 }]);
        assert_eq!(share(4.0, &[]), []);
        assert_eq!(share(1.0, &[vm(4.0, 0.0, 1.0)]), [Share::default()]);
    }

    #[test]
    fn what_a_quota_forbids_is_not_waited_for() {
        let limited = Claimant { quota: Some(1.0), ..vm(4.0, 1.0, 1.0) };
        let shares = share(4.0, &[limited, vm(4.0, 0.2, 1.0)]);
        assert!((shares[0].ran - 1.0).abs() < 0.05 && shares[0].waited < 0.05, "{shares:?}");
    }

    #[test]
    fn cpu_time_given_is_never_more_than_there_is() {
        let mut random = crate::random::Random::new(1, 1);
        for _ in 0..2_000 {
            let cpus = random.between(1.0, 33.0).floor();
            let claimants: Vec<Claimant> = (0..random.below(30))
                .map(|_| Claimant {
                    vcpus: random.between(1.0, 17.0).floor(),
                    duty: random.share(),
                    weight: random.between(1.0, 1000.0),
                    quota: (random.share() < 0.2).then(|| random.between(0.1, 8.0)),
                    together: random.share() < 0.1,
                })
                .collect();
            let shares = share(cpus, &claimants);
            let ran: f64 = shares.iter().map(|share| share.ran).sum();
            assert!(ran <= cpus * (1.0 + 1e-9), "{ran} of {cpus}");
            for (one, share) in claimants.iter().zip(shares) {
                assert!(share.ran >= 0.0 && share.waited >= 0.0);
                assert!(share.ran + share.waited <= one.vcpus * (1.0 + 1e-9));
                assert!(share.ran <= one.vcpus * one.duty + 1e-9);
                assert!(share.ran <= one.quota.unwrap_or(f64::INFINITY) + 1e-9);
            }
        }
    }

    #[test]
    fn a_throttled_container_is_pressure_of_an_idle_node_and_less_of_a_busy_one() {
        assert_eq!(some(4.0, 2.0, 0.0, 0.0), 0.0);
        assert!((some(4.0, 0.0, 0.0, 1.0) - 1.0).abs() < 1e-9);
        assert!((some(4.0, 4.0, 0.0, 1.0) - 0.25).abs() < 1e-9);
        // Six vCPUs on four CPUs: on two of these one waits.
        assert!((some(4.0, 4.0, 2.0, 0.0) - 0.5).abs() < 1e-9);
        // A CPU that is idle for half of the time waits for no larger part of all time.
        assert!((some(4.0, 2.0, 1.0, 0.0) - 0.25).abs() < 1e-9);
    }
}
