//! Generated demand. Shapes are assumptions, and are listed in docs/benefit.md.

use std::f64::consts::TAU;
use std::ops::Range;

use crate::random::Random;
use crate::trace::{Trace, Vm};

/// How the demand of VMs changes over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Population {
    /// Each VM wants the same all day.
    Steady,
    /// A wave over the day, with its peak within an hour of the same time for all VMs.
    Diurnal,
    /// Each VM is busy for about 20 minutes, then idle for about 80.
    Bursty,
    /// Groups of ten VMs are busy at the same time, for about 30 minutes in three hours.
    Correlated,
    /// A quarter of the VMs of each kind.
    Mixed,
}

/// vCPUs and their share of VMs.
const SIZES: [(u32, f64); 5] = [(1, 0.2), (2, 0.35), (4, 0.25), (8, 0.15), (16, 0.05)];
const DAY: f64 = 1440.0;
const GROUP: usize = 10;

impl Population {
    /// With a mean lifetime, another VM takes the place of each that ends.
    pub fn generate(self, vms: usize, minutes: usize, lifetime_h: Option<f64>, seed: u64) -> Trace {
        let groups = vms.div_ceil(GROUP);
        let bursts: Vec<Vec<f64>> = (0..groups)
            .map(|group| {
                bursts(minutes, 30.0, 150.0, &mut Random::new(seed, 1 << 32 | group as u64))
            })
            .collect();
        let places = (0..vms).flat_map(|place| {
            let mut random = Random::new(seed, 2 << 32 | place as u64);
            let lifetimes = lifetimes(lifetime_h, minutes, &mut random);
            // The first VMs are the same with any lifetime.
            lifetimes
                .into_iter()
                .enumerate()
                .map(move |(turn, lifetime)| (place + turn * vms, lifetime))
        });
        let vms = places.map(|(number, lifetime)| {
            let mut random = Random::new(seed, number as u64);
            let (vcpus, memory_mib) = vcpus_and_memory_mib(&mut random);
            let kind = if self == Self::Mixed {
                [Self::Steady, Self::Diurnal, Self::Bursty, Self::Correlated][random.below(4)]
            } else {
                self
            };
            let shares = kind.shares(minutes, &bursts[number % vms / GROUP], &mut random);
            let exists = |(minute, share)| lifetime.contains(&minute).then_some(share);
            let shares = shares.into_iter().enumerate().map(exists).collect();
            let name = format!("vm-{number:05}");
            Vm { name, vcpus, memory_mib, shares }
        });
        Trace { vms: vms.collect(), minutes }
    }

    fn shares(self, minutes: usize, group: &[f64], random: &mut Random) -> Vec<f32> {
        // Many VMs want little and few want much.
        let mean = 0.05 + 0.75 * random.share().powi(3);
        let phase = random.between(-60.0, 60.0);
        let busy = random.between(0.6, 1.0);
        let own_bursts = bursts(minutes, 20.0, 80.0, random);
        let mut noise = 0.0;
        let shares = (0..minutes).map(|minute| {
            noise = 0.8 * noise + 0.1 * random.between(-1.0, 1.0);
            let base = match self {
                Self::Steady | Self::Mixed => mean,
                // The peak is at 14 o'clock.
                Self::Diurnal => {
                    let hour = (minute as f64 + phase - 840.0) / DAY;
                    mean * (1.0 + 0.8 * (TAU * hour).cos())
                }
                Self::Bursty => 0.03 + busy * own_bursts[minute],
                Self::Correlated => 0.03 + busy * group[minute],
            };
            // Thousandths keep the files small.
            (((base * (1.0 + noise)).clamp(0.005, 1.0) * 1000.0).round() / 1000.0) as f32
        });
        shares.collect()
    }
}

/// The size of a VM.
pub fn vcpus_and_memory_mib(random: &mut Random) -> (u32, u64) {
    let vcpus = vcpus(random);
    (vcpus, u64::from(vcpus) * [2, 4, 8][random.below(3)] * 1024)
}

fn vcpus(random: &mut Random) -> u32 {
    let mut left = random.share();
    for (vcpus, share) in SIZES {
        if left < share {
            return vcpus;
        }
        left -= share;
    }
    2
}

/// Minutes in which VMs exist one after another. Lifetimes are exponentially distributed with this mean.
fn lifetimes(mean_h: Option<f64>, minutes: usize, random: &mut Random) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let mut from = 0;
    while from < minutes {
        let lasts = |mean_h| exponential(mean_h * 60.0, random).ceil() as usize;
        let until = (from + mean_h.map_or(minutes, lasts).max(1)).min(minutes);
        all.push(from..until);
        from = until;
    }
    all
}

fn exponential(mean: f64, random: &mut Random) -> f64 {
    -(1.0 - random.share()).ln() * mean
}

/// 1 while busy and 0 while idle, by minute. Times are exponentially distributed with these means.
fn bursts(minutes: usize, busy: f64, idle: f64, random: &mut Random) -> Vec<f64> {
    let mut is_busy = random.share() < busy / (busy + idle);
    let mut values = Vec::with_capacity(minutes);
    while values.len() < minutes {
        let mean = if is_busy { busy } else { idle };
        let lasts = exponential(mean, random).ceil() as usize;
        let until = (values.len() + lasts).min(minutes);
        values.resize(until, f64::from(u8::from(is_busy)));
        is_busy = !is_busy;
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(trace: &Trace) -> f64 {
        trace.demand_hours() / (trace.most_vcpus() * trace.minutes as f64 / 60.0)
    }

    #[test]
    fn the_same_seed_gives_the_same_demand() {
        let all = |seed| Population::Mixed.generate(40, 200, None, seed);
        assert_eq!(all(1), all(1));
        assert_ne!(all(1), all(2));
    }

    #[test]
    fn each_population_wants_about_a_fifth_of_its_vcpus() {
        for kind in [
            Population::Steady,
            Population::Diurnal,
            Population::Bursty,
            Population::Correlated,
            Population::Mixed,
        ] {
            let mean = mean(&kind.generate(600, 1440, None, 3));
            assert!((0.14..0.30).contains(&mean), "{kind:?}: {mean}");
        }
    }

    #[test]
    fn correlated_vms_are_busy_at_the_same_time() {
        let trace = Population::Correlated.generate(10, 1440, None, 5);
        let busy: Vec<usize> = (0..1440)
            .map(|minute| trace.vms.iter().filter(|vm| vm.shares[minute] > Some(0.3)).count())
            .collect();
        assert!(busy.iter().all(|busy| [0, 10].contains(busy)), "{busy:?}");
    }

    #[test]
    fn where_a_vm_ends_another_one_begins() {
        let all = Population::Mixed.generate(40, 1440, None, 3);
        let trace = Population::Mixed.generate(40, 1440, Some(6.0), 3);
        assert!(trace.vms.len() > 100, "{}", trace.vms.len());
        assert!((trace.vm_days() - 40.0).abs() < 1e-9);
        let first = trace.vms.iter().find(|vm| vm.name == "vm-00000").unwrap();
        assert_eq!(first.shares[0], all.vms[0].shares[0]);
    }
}
