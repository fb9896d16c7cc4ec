//! The score of nodes larger than a lab's: threads on 128 CPUs, slot by slot, accounted as the
//! kernel does it, and beside what its files would say what each VM really waited for.

use std::collections::BTreeMap;

use super::tests::{moment, node, ratio, vm};
use super::*;
use crate::rates::{CpuRates, Room, WaitShares};

const CPUS: usize = 128;
/// The kernel's averaging period, 2 s, in slots of 4 ms.
const PERIOD: usize = 500;
const PERIODS: usize = 3;
/// The kubelet's quota period, 100 ms, in slots too.
const QUOTA_PERIOD: usize = 25;

/// Threads that belong together.
#[derive(Clone)]
struct Group {
    threads: usize,
    /// Share of time in which each wants to run, and for how many slots at a time.
    duty: f64,
    burst: usize,
    /// CPUs on which it may run: the first, and how many.
    first: usize,
    cpus: usize,
    quota: Option<f64>,
    is_vm: bool,
}

/// One that may run everywhere, and wants to all the time.
fn group(threads: usize) -> Group {
    Group { threads, duty: 1.0, burst: 5, first: 0, cpus: CPUS, quota: None, is_vm: true }
}

struct Thread {
    group: usize,
    cpu: usize,
    phase: usize,
    ran_at: usize,
}

/// What a CPU saw of a group in one period.
#[derive(Clone, Copy, Default)]
struct Seen {
    some: usize,
    full: usize,
    wanted: usize,
}

#[derive(Clone, Copy, Default)]
struct Told {
    some: f64,
    full: f64,
    usage: usize,
    throttled: usize,
    delay: usize,
    throttled_delay: usize,
}

/// Numbers without a pattern, the same in each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// A node at work.
struct Machine<'a> {
    groups: &'a [Group],
    /// Each slot one in so many of the threads that wait goes to another CPU.
    moves: Option<usize>,
    threads: Vec<Thread>,
    /// Slots that a quota still allows in its period.
    budget: Vec<f64>,
    seen: Vec<Vec<Seen>>,
    told: Vec<Told>,
    chance: Chance,
}

impl<'a> Machine<'a> {
    fn new(groups: &'a [Group], moves: Option<usize>) -> Self {
        let mut chance = Chance(88_172_645_463_325_252);
        let threads = place(groups, &mut chance);
        Self {
            groups,
            moves,
            threads,
            budget: vec![f64::INFINITY; groups.len()],
            seen: vec![vec![Seen::default(); CPUS]; groups.len()],
            told: vec![Told::default(); groups.len()],
            chance,
        }
    }

    fn run(mut self) -> Vec<Told> {
        for slot in 0..PERIOD * PERIODS {
            if slot % QUOTA_PERIOD == 0 {
                for (budget, group) in self.budget.iter_mut().zip(self.groups) {
                    *budget = group.quota.map_or(f64::INFINITY, |cpus| cpus * QUOTA_PERIOD as f64);
                }
            }
            let wanting = self.wanting(slot);
            for (cpu, here) in wanting.iter().enumerate() {
                let running = self.running(here);
                self.note(cpu, here, running);
                if let Some(running) = running {
                    self.threads[running].ran_at = slot;
                    self.budget[self.threads[running].group] -= 1.0;
                }
                for &waiting in here.iter().filter(|&&number| running != Some(number)) {
                    self.move_on(waiting, &wanting);
                }
            }
            if (slot + 1) % PERIOD == 0 {
                for (told, seen) in self.told.iter_mut().zip(&mut self.seen) {
                    account(told, seen);
                }
            }
        }
        self.told
    }

    /// Those that want to run, by the CPU on which they are.
    fn wanting(&self, slot: usize) -> Vec<Vec<usize>> {
        let mut wanting = vec![Vec::new(); CPUS];
        for (number, thread) in self.threads.iter().enumerate() {
            let group = &self.groups[thread.group];
            let period = (group.burst as f64 / group.duty) as usize;
            if (slot + thread.phase) % period < group.burst {
                wanting[thread.cpu].push(number);
            }
        }
        wanting
    }

    /// The one that did not run for longest, of those that may.
    fn running(&self, here: &[usize]) -> Option<usize> {
        let may = here.iter().filter(|&&number| self.budget[self.threads[number].group] > 0.0);
        may.min_by_key(|&&number| self.threads[number].ran_at).copied()
    }

    /// Counts what one CPU did in a slot.
    fn note(&mut self, cpu: usize, here: &[usize], running: Option<usize>) {
        let mut groups = BTreeMap::new();
        for &number in here {
            let group = self.threads[number].group;
            let (waits, runs) = groups.entry(group).or_insert((false, false));
            let told = &mut self.told[group];
            if running == Some(number) {
                told.usage += 1;
                *runs = true;
            } else {
                let throttled = self.budget[group] <= 0.0;
                told.delay += 1;
                told.throttled_delay += usize::from(throttled);
                told.throttled += usize::from(throttled && !*waits);
                *waits = true;
            }
        }
        for (group, (waits, runs)) in groups {
            let seen = &mut self.seen[group][cpu];
            seen.some += usize::from(waits);
            seen.full += usize::from(waits && !runs);
            seen.wanted += 1;
        }
    }

    /// To the emptier of two CPUs that it looks at. Who is throttled is out of the scheduler's sight.
    fn move_on(&mut self, number: usize, wanting: &[Vec<usize>]) {
        let group = &self.groups[self.threads[number].group];
        let throttled = self.budget[self.threads[number].group] <= 0.0;
        if !throttled && self.moves.is_some_and(|moves| self.chance.below(moves) == 0) {
            let mut to = || group.first + self.chance.below(group.cpus);
            let (one, other) = (to(), to());
            let emptier = wanting[one].len() < wanting[other].len();
            self.threads[number].cpu = if emptier { one } else { other };
        }
    }
}

fn place(groups: &[Group], chance: &mut Chance) -> Vec<Thread> {
    let mut threads = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        for _ in 0..group.threads {
            // Evenly, as a load balancer would.
            let cpu = group.first + threads.len() % group.cpus;
            threads.push(Thread { group: number, cpu, phase: chance.below(10_000), ran_at: 0 });
        }
    }
    threads
}

/// `psi_group`'s averages: each CPU's share, by how long the group wanted it.
fn account(told: &mut Told, seen: &mut [Seen]) {
    let wanted: usize = seen.iter().map(|cpu| cpu.wanted).sum();
    if wanted > 0 {
        let average = |share: fn(&Seen) -> usize| {
            let sum: usize = seen.iter().map(|cpu| share(cpu) * cpu.wanted).sum();
            sum as f64 / wanted as f64 / PERIOD as f64 / PERIODS as f64
        };
        told.some += average(|cpu| cpu.some);
        told.full += average(|cpu| cpu.full);
    }
    seen.fill(Seen::default());
}

/// For each VM: what the score makes of it, and the truth.
fn compare(groups: &[Group], moves: Option<usize>) -> Vec<(f64, f64)> {
    let told = Machine::new(groups, moves).run();
    let slots = (PERIOD * PERIODS) as f64;
    let cpus = |sum: usize| sum as f64 / slots;
    let rates = |(group, told): (&Group, &Told)| CpuRates {
        waits: WaitShares { some: ratio(told.some), full: ratio(told.full) },
        usage: Some(cpus(told.usage)),
        throttled: Some(cpus(told.throttled)),
        room: Some(Room {
            quota: group.quota,
            cpus: Some(group.cpus as f64),
            // A process has more threads than those that work.
            tasks: Some(group.threads as f64 + 4.0),
        }),
    };
    let all = || groups.iter().zip(&told);
    let members = all().filter(|(group, _)| group.is_vm).zip(1..);
    let members =
        members.map(|(one, number)| MemberRates { cpu: rates(one), ..vm(number, 0.0, 0.0, 0.0) });
    let rates = Rates {
        cpus: Some(CPUS as u64),
        run_delay: Some(told.iter().map(|told| cpus(told.delay)).sum()),
        bystanders: Some(all().filter(|(group, _)| !group.is_vm).map(rates).collect()),
        ..node(members.collect())
    };
    let score = Scorer::new(vec![Resource::Cpu]).advance(moment(), &rates);
    let truth = all().filter(|(group, _)| group.is_vm).map(|(_, told)| {
        let waited = (told.delay - told.throttled_delay) as f64;
        waited / (waited + told.usage as f64).max(1.0)
    });
    let contention =
        score.members.iter().map(|member| member.waiting.cpu.unwrap().contention.get());
    contention.zip(truth).collect()
}

fn assert_close(what: &str, pairs: &[(f64, f64)], within: f64) {
    let far = pairs.iter().find(|(score, truth)| (score - truth).abs() > within);
    assert_eq!(far, None, "{what}: of (score, truth) {pairs:.3?}");
}

#[test]
fn vms_of_sixteen_that_wait_for_half_on_every_cpu() {
    let vms = vec![group(16); 16];
    for moves in [None, Some(500), Some(50), Some(5)] {
        let pairs = compare(&vms, moves);
        assert!(pairs.iter().all(|(_, truth)| (truth - 0.5).abs() < 0.15), "{pairs:?}");
        assert_close(&format!("one in {moves:?} moves"), &pairs, 0.1);
    }
}

#[test]
fn a_busy_vcpu_that_hardly_waits() {
    let daemon = Group { duty: 0.02, burst: 1, first: 3, cpus: 1, is_vm: false, ..group(1) };
    let pairs = compare(&[Group { first: 3, cpus: 1, ..group(1) }, daemon], None);
    assert!((0.01..0.03).contains(&pairs[0].1), "{pairs:?}");
    assert_close("beside a daemon", &pairs, 0.02);
}

#[test]
fn light_vms_of_many_vcpus() {
    let vms = vec![Group { duty: 0.1, ..group(16) }; 60];
    for moves in [None, Some(50), Some(5)] {
        assert_close(&format!("one in {moves:?} moves"), &compare(&vms, moves), 0.15);
    }
}

#[test]
fn large_and_small_vms_side_by_side() {
    let vms = [vec![group(32); 6], vec![group(2); 32]].concat();
    for moves in [None, Some(100), Some(10)] {
        let pairs = compare(&vms, moves);
        assert_close(&format!("one in {moves:?} moves"), &pairs[..6], 0.08);
        // Two threads have their luck, but not all of them the same.
        let error = pairs.iter().map(|(score, truth)| (score - truth).abs()).sum::<f64>();
        assert!(error / (pairs.len() as f64) < 0.1, "{pairs:.3?}");
    }
}

#[test]
fn a_vm_that_its_own_limit_holds_back_beside_others() {
    let throttled = Group { quota: Some(2.0), ..group(16) };
    let calm = vec![Group { duty: 0.5, ..group(2) }; 20];
    let pairs = compare(&[vec![throttled.clone()], calm].concat(), Some(50));
    // It gets what it may have, however its threads wait for each other.
    assert!(pairs[0].0 < 0.05, "{pairs:?}");
    assert_close("with calm ones", &pairs[1..], 0.06);
    let contended = vec![group(16); 12];
    let pairs = compare(&[vec![throttled], contended].concat(), Some(50));
    assert_close("with contended ones", &pairs[1..], 0.1);
    // Hundreds of threads that wait for each other, for their limit, and hardly for the node.
    let batch = Group { quota: Some(8.0), is_vm: false, ..group(300) };
    let light = vec![Group { duty: 0.4, ..group(4) }; 20];
    assert_close("beside a batch", &compare(&[vec![batch], light].concat(), Some(50)), 0.15);
}

#[test]
fn vms_out_of_the_way_of_a_pod_with_hundreds_of_threads() {
    let batch = Group { cpus: 64, is_vm: false, ..group(300) };
    let vm = Group { first: 64, cpus: 64, duty: 0.7, ..group(4) };
    let vms = vec![vm; 14];
    let pairs = compare(&[vec![batch], vms].concat(), Some(50));
    assert!(pairs.iter().all(|(_, truth)| *truth < 0.15), "{pairs:?}");
    assert_close("apart", &pairs, 0.1);
}

#[test]
fn vms_among_the_threads_of_a_pod_with_hundreds_of_them() {
    let batch = Group { is_vm: false, ..group(300) };
    let pairs = compare(&[vec![batch], vec![group(16); 4]].concat(), Some(50));
    assert!(pairs.iter().all(|(_, truth)| *truth > 0.5), "{pairs:?}");
    assert_close("together", &pairs, 0.15);
}

#[test]
fn contended_vms_among_many_pods() {
    let pods = vec![Group { duty: 0.5, is_vm: false, ..group(4) }; 20];
    for moves in [None, Some(50), Some(5)] {
        let pairs = compare(&[pods.clone(), vec![group(16); 10]].concat(), moves);
        assert_close(&format!("one in {moves:?} moves"), &pairs, 0.1);
    }
}
