//! The same scenario with a VM less, and with VMs more.

use std::collections::BTreeSet;

use super::{Load, PREDICTED, Pod, SECONDS, Scenario, listed};

/// `cpu.weight` of a cgroup that has none.
const DEFAULT_WEIGHT: u64 = 100;

/// The name of VMs that are added to a scenario.
const ADDED: &str = "added";

impl Scenario {
    /// Whether its pods run all the time, in virtual time, so that what a VM more or less changes is seen.
    pub fn is_steady(&self) -> bool {
        let runs_all_the_time = |pod: &Pod| pod.from == 0.0 && pod.to.is_none() && !pod.arriving;
        !self.real_time && !self.is_long() && self.pods.iter().all(runs_all_the_time)
    }

    /// Whether its pods may together run on all CPUs. VMs that arrive would run on the others.
    pub fn uses_all_cpus(&self) -> bool {
        let all: BTreeSet<u32> =
            self.pods.iter().flat_map(|pod| listed(pod.cpus.as_deref(), self.vcpus)).collect();
        all.is_empty() || all.len() >= self.vcpus as usize
    }

    /// The same scenario, long enough for predictions.
    pub fn long_enough_to_predict(&self) -> Self {
        Self { seconds: PREDICTED, ..self.clone() }
    }

    /// The same scenario with so many VMs more that have one vCPU and always use it, on the CPUs that most
    /// pods have, with the weight that a busy vCPU of the VMs has on average.
    pub fn with_busy_vms(&self, vms: u32) -> Self {
        let pods_on = |cpus: &Option<String>| -> u32 {
            let of_them = self.pods.iter().filter(|pod| pod.cpus == *cpus);
            of_them.map(|pod| pod.copies).sum()
        };
        let cpus = self.pods.iter().map(|pod| &pod.cpus).max_by_key(|cpus| pods_on(cpus)).cloned();
        let added = Pod::busy(ADDED, vms, self.weight_of_a_busy_vcpu(), cpus.flatten());
        let pods = self.pods.iter().cloned().chain([added]).collect();
        Self { name: self.name_with(vms), seconds: SECONDS, pods, ..self.clone() }
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "cgroup weights"
    )]
    fn weight_of_a_busy_vcpu(&self) -> u64 {
        let (mut weights, mut busy) = (0.0, 0.0);
        for pod in self.pods.iter().filter(|pod| pod.vm) {
            let wanted = f64::from(pod.load.threads) * pod.load.average_duty();
            let vcpus = wanted.min(pod.cpu_limit().unwrap_or(f64::INFINITY));
            weights += f64::from(pod.copies) * pod.weight.unwrap_or(DEFAULT_WEIGHT) as f64;
            busy += f64::from(pod.copies) * vcpus.max(1.0);
        }
        if busy > 0.0 { (weights / busy).round() as u64 } else { DEFAULT_WEIGHT }
    }

    /// The name of the scenario with so many busy VMs more.
    pub fn name_with(&self, vms: u32) -> String {
        format!("{}--with-{vms}", self.name)
    }

    /// The same scenario, long enough for predictions, and then once without one VM of each kind.
    pub fn with_and_without(&self) -> Vec<Self> {
        let mut all = self.without_each();
        all.push(self.long_enough_to_predict());
        all
    }

    /// The same scenario without one VM, once for each kind of VM.
    fn without_each(&self) -> Vec<Self> {
        let kinds = self.pods.iter().enumerate().filter(|(_, pod)| pod.vm);
        let without = kinds.map(|(at, pod)| {
            let mut left = self.clone();
            left.name = self.name_without(pod);
            left.pods = self.pods.clone();
            match left.pods.get_mut(at) {
                Some(kind) if kind.copies > 1 => kind.copies -= 1,
                _ => drop(left.pods.remove(at)),
            }
            left
        });
        without.collect()
    }

    /// The name of the scenario without one VM of this kind.
    pub fn name_without(&self, pod: &Pod) -> String {
        format!("{}--without-{}", self.name, pod.name)
    }
}

impl Pod {
    /// VMs of one vCPU each that is always busy.
    fn busy(name: &str, copies: u32, weight: u64, cpus: Option<String>) -> Self {
        Self {
            name: name.to_owned(),
            vm: true,
            copies,
            load: Load::BUSY,
            guest: None,
            short_mib: None,
            cpu_request: None,
            container_cpus: None,
            pod_cpus: None,
            container_memory: None,
            pod_memory: None,
            io_max: None,
            weight: Some(weight),
            cpus,
            busy_console: false,
            from: 0.0,
            to: None,
            arriving: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_vm_of_each_kind_is_left_out_and_the_rest_survives_writing() {
        let text = "about = \"\"\nvcpus = 2\n[[pod]]\nname = \"a\"\nthreads = 2\ncopies = 2\n\
                    [[pod]]\nname = \"b\"\n[[pod]]\nname = \"batch\"\nvm = false\n\
                    [[daemon]]\nname = \"d\"\nduty = 0.5\n";
        let all = Scenario { name: "s".to_owned(), ..toml::from_str(text).unwrap() };
        let without = all.without_each();
        let names: Vec<&str> = without.iter().map(|scenario| scenario.name.as_str()).collect();
        assert_eq!(names, ["s--without-a", "s--without-b"]);
        let pods = |scenario: &Scenario| {
            let names = scenario.pods.iter().flat_map(Pod::names);
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(pods(&without[0]), "a b batch");
        assert_eq!(pods(&without[1]), "a-0 a-1 batch");
        let read: Scenario = toml::from_str(&toml::to_string(&without[1]).unwrap()).unwrap();
        assert_eq!(pods(&read), "a-0 a-1 batch");
        assert_eq!((read.pods[0].load.threads, read.daemons[0].load.duty), (2, 0.5));
        let added = all.with_busy_vms(2);
        assert_eq!(pods(&added), "a-0 a-1 b batch added-0 added-1");
        // Of the VMs, `a` keeps two vCPUs busy, and `b` none.
        assert_eq!(added.pods.last().and_then(|pod| pod.weight), Some(60));
        assert!(all.uses_all_cpus());
        let mut pinned = all.clone();
        pinned.pods.iter_mut().for_each(|pod| pod.cpus = Some("1".to_owned()));
        assert!(!pinned.uses_all_cpus());
        assert_eq!(pinned.with_busy_vms(1).pods.last().unwrap().cpus.as_deref(), Some("1"));
    }
}
