//! The cluster: where VMs are, and what they get.

use std::collections::BTreeSet;

use anyhow::Context;

use crate::agent::Pod;
use crate::consumers::kubevirt;
use crate::consumers::scheduler::{Allocation, Bridged, Candidate, select};
use crate::judge::Move;
use crate::node::{Claimant, Share, share};
use crate::random::Random;
use crate::trace::Trace;
use migrations::Migration;

mod migrations;

/// KubeVirt requests a tenth of a CPU for each vCPU, and this much memory beside the VM's own.
const MILLI_PER_VCPU: i64 = 100;
const OVERHEAD_MIB: u64 = 250;

/// What a node has.
#[derive(Debug, Clone, Copy, Default)]
pub struct Size {
    pub cpus: u32,
    pub memory_mib: u64,
}

/// The nodes of a cluster.
#[derive(Debug, Clone)]
pub struct Shape {
    pub nodes: Vec<Size>,
    /// Share of VMs beside which a container is throttled all the time.
    pub throttled: f64,
}

pub struct Vm {
    pub vcpus: f64,
    pub memory_mib: u64,
    /// Whether it exists: the other fields are those of its last node otherwise.
    pub exists: bool,
    pub node: usize,
    /// `None` if it is there from the start: older than any policy asks for.
    pub arrived_s: Option<u32>,
    pub pod: Pod,
    /// Share of its vCPUs' time that it wants now.
    pub duty: f64,
    pub share: Share,
    pub is_throttled_beside: bool,
}

#[derive(Default, Clone)]
pub struct Node {
    pub size: Size,
    pub vms: BTreeSet<usize>,
    pub requested: Allocation,
    /// Untolerated soft taints.
    pub soft_taints: u8,
    /// The weights of preferences of all VMs that this Node meets.
    pub preferred: u8,
    /// What psi-agent's bridge knows of it; `None` without the bridge.
    pub bridged: Option<Bridged>,
    /// Whether demand or VMs changed since its CPUs were shared.
    pub is_changed: bool,
    /// CPUs in use by VMs and migrations, and what all of them wait for.
    pub ran: f64,
    pub waited: f64,
}

pub struct Cluster {
    pub vms: Vec<Vm>,
    pub nodes: Vec<Node>,
    in_progress: Vec<Migration>,
    /// VMs that were evicted, with a target if the descheduler chose one, and since when they wait.
    waiting: Vec<(usize, Option<usize>, u32)>,
    pub moves: Vec<Move>,
    pods: u64,
}

impl Vm {
    pub fn request(&self) -> Allocation {
        Allocation {
            cpu_milli: self.vcpus as i64 * MILLI_PER_VCPU,
            memory_mib: (self.memory_mib + OVERHEAD_MIB) as i64,
        }
    }

    pub fn age_s(&self, now_s: u32) -> u32 {
        self.arrived_s.map_or(u32::MAX, |at| now_s.saturating_sub(at))
    }

    /// `cpu.weight` follows the CPU request.
    pub fn weight(&self) -> f64 {
        self.vcpus
    }
}

impl Shape {
    /// CPUs of all nodes.
    pub fn cpus(&self) -> f64 {
        self.nodes.iter().map(|node| f64::from(node.cpus)).sum()
    }
}

impl Node {
    pub fn cpus(&self) -> f64 {
        f64::from(self.size.cpus)
    }

    pub fn capacity(&self) -> Allocation {
        Allocation {
            cpu_milli: i64::from(self.size.cpus) * 1000,
            memory_mib: self.size.memory_mib as i64,
        }
    }

    /// This Node as kube-scheduler sees it.
    fn candidate(&self, node: usize) -> Candidate {
        Candidate {
            node,
            capacity: self.capacity(),
            requested: self.requested,
            soft_taints: i64::from(self.soft_taints),
            preferred: i64::from(self.preferred),
            bridged: self.bridged,
        }
    }
}

impl Cluster {
    /// Places the VMs that exist from the start by kube-scheduler, in random order.
    pub fn new(trace: &Trace, shape: &Shape, random: &mut Random) -> anyhow::Result<Self> {
        let vm = |(number, vm): (usize, &crate::trace::Vm)| Vm {
            vcpus: f64::from(vm.vcpus),
            memory_mib: vm.memory_mib,
            exists: false,
            node: 0,
            arrived_s: None,
            pod: Pod::new(number as u64, vm.memory_mib, None),
            duty: 0.0,
            share: Share::default(),
            is_throttled_beside: false,
        };
        let vms: Vec<Vm> = trace.vms.iter().enumerate().map(vm).collect();
        let is_first = |vm: &usize| trace.vms[*vm].shares.first().copied().flatten().is_some();
        let mut order: Vec<usize> = (0..vms.len()).filter(is_first).collect();
        random.shuffle(&mut order);
        let node = |&size: &Size| Node { size, ..Node::default() };
        let mut cluster = Self {
            pods: vms.len() as u64,
            vms,
            nodes: shape.nodes.iter().map(node).collect(),
            in_progress: Vec::new(),
            waiting: Vec::new(),
            moves: Vec::new(),
        };
        for vm in order {
            cluster.start(vm, random)?;
            cluster.vms[vm].is_throttled_beside = random.share() < shape.throttled;
        }
        for vm in cluster.vms.iter_mut().filter(|vm| !vm.exists) {
            vm.is_throttled_beside = random.share() < shape.throttled;
        }
        Ok(cluster)
    }

    fn start(&mut self, vm: usize, random: &mut Random) -> anyhow::Result<()> {
        let node = self.schedule(vm, None, random);
        let node = node.with_context(|| {
            format!("VM {vm} of the trace fits on no node: use more nodes or memory")
        })?;
        self.reserve(node, self.vms[vm].request(), 1);
        self.nodes[node].vms.insert(vm);
        let started = &mut self.vms[vm];
        (started.exists, started.node) = (true, node);
        Ok(())
    }

    fn end(&mut self, vm: usize) {
        self.waiting.retain(|waiting| waiting.0 != vm);
        let targets = self.in_progress.extract_if(.., |migration| migration.vm == vm);
        let targets: Vec<usize> = targets.map(|migration| migration.target).collect();
        for node in targets.into_iter().chain([self.vms[vm].node]) {
            self.reserve(node, self.vms[vm].request(), -1);
        }
        let ended = &mut self.vms[vm];
        self.nodes[ended.node].vms.remove(&vm);
        (ended.exists, ended.duty, ended.share) = (false, 0.0, Share::default());
    }

    /// KubeVirt never places a migration's target on the VM's own node.
    fn schedule(&self, vm: usize, except: Option<usize>, random: &mut Random) -> Option<usize> {
        let candidates = self.nodes.iter().enumerate().filter(|(node, _)| Some(*node) != except);
        let candidates = candidates.map(|(node, state)| state.candidate(node));
        select(self.vms[vm].request(), candidates, random)
    }

    /// Whether the VM's requests fit on another node: the descheduler's `nodeFit`.
    pub fn fits_elsewhere(&self, vm: usize) -> bool {
        !self.targets(vm).is_empty()
    }

    fn reserve(&mut self, node: usize, request: Allocation, sign: i64) {
        let requested = &mut self.nodes[node].requested;
        requested.cpu_milli += sign * request.cpu_milli;
        requested.memory_mib += sign * request.memory_mib;
    }

    /// Sets what each VM wants from now on, as a share of its vCPUs' time. VMs without a share end, and others
    /// start.
    pub fn set_demand(
        &mut self,
        shares: impl Iterator<Item = Option<f32>>,
        now_s: u32,
        random: &mut Random,
    ) -> anyhow::Result<()> {
        let shares: Vec<Option<f32>> = shares.collect();
        for (vm, _) in shares.iter().enumerate().filter(|(_, share)| share.is_none()) {
            if self.vms[vm].exists {
                self.end(vm);
            }
        }
        for (vm, share) in shares.into_iter().enumerate() {
            let Some(share) = share else { continue };
            if !self.vms[vm].exists {
                self.start(vm, random)?;
                self.pods += 1;
                let started = &mut self.vms[vm];
                started.arrived_s = Some(now_s);
                started.pod = Pod::new(self.pods, started.memory_mib, Some(now_s));
            }
            self.vms[vm].duty = f64::from(share);
        }
        self.nodes.iter_mut().for_each(|node| node.is_changed = true);
        Ok(())
    }

    /// Shares the CPUs of each changed node among its VMs and migrations.
    pub fn share_cpus(&mut self) {
        for number in 0..self.nodes.len() {
            if !std::mem::take(&mut self.nodes[number].is_changed) {
                continue;
            }
            let vms: Vec<usize> = self.nodes[number].vms.iter().copied().collect();
            let shares = self.shares(number, &vms);
            let node = &mut self.nodes[number];
            node.ran = shares.iter().map(|share| share.ran).sum();
            node.waited = shares.iter().map(|share| share.waited).sum();
            for (vm, share) in vms.into_iter().zip(shares) {
                self.vms[vm].share = share;
            }
        }
    }

    /// What these VMs get on a node, and after them its migrations.
    fn shares(&self, node: usize, vms: &[usize]) -> Vec<Share> {
        let mut claimants: Vec<Claimant> = vms.iter().map(|&vm| claimant(&self.vms[vm])).collect();
        let migrations = self
            .in_progress
            .iter()
            .filter(|migration| migration.target == node || self.vms[migration.vm].node == node);
        // A migration's thread has the weight of a vCPU.
        claimants.extend(migrations.map(|_| Claimant {
            vcpus: kubevirt::CPUS,
            duty: 1.0,
            weight: 1.0,
            quota: None,
            together: false,
        }));
        share(self.nodes[node].cpus(), &claimants)
    }

    /// Nodes on which the VM's requests fit, besides its own.
    pub fn targets(&self, vm: usize) -> Vec<usize> {
        let request = self.vms[vm].request();
        let fits = |(node, state): (usize, &Node)| {
            (node != self.vms[vm].node && state.candidate(node).fits(request)).then_some(node)
        };
        self.nodes.iter().enumerate().filter_map(fits).collect()
    }

    /// Containers of a node that are throttled all the time.
    pub fn throttled(&self, node: usize) -> f64 {
        let vms = self.nodes[node].vms.iter();
        vms.filter(|vm| self.vms[**vm].is_throttled_beside).count() as f64
    }
}

fn claimant(vm: &Vm) -> Claimant {
    Claimant { vcpus: vm.vcpus, duty: vm.duty, weight: vm.weight(), quota: None, together: false }
}
