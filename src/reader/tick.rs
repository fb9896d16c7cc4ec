//! What the readers of one tick share.

use std::collections::HashMap;
use std::time::Instant;

use super::attention::Look;
use super::cgroup::CgroupReader;
use super::cpu_use::{Container, CpuUseReader};
use super::is_fresh;
use super::threads::ThreadReader;
use crate::cgroup_path::{Place, PodUid};
use crate::kernel::cgroup_tree::{CgroupId, CgroupNode};
use crate::sample::{CpuUse, NodeSample, PressureReading, ThreadTimes};

/// One tick.
pub(super) struct Tick<'a> {
    pub(super) reader: &'a mut CgroupReader,
    pub(super) cpu_use: &'a mut CpuUseReader,
    /// With the run delay as source.
    pub(super) threads: Option<&'a mut ThreadReader>,
    /// The cgroups of pods.
    pub(super) pods: &'a HashMap<&'a PodUid, &'a CgroupNode>,
    pub(super) node: &'a NodeSample,
    pub(super) look: Look,
    pub(super) now: Instant,
    /// When the tick before was.
    pub(super) last: Option<Instant>,
    /// Paths that were found gone.
    pub(super) gone: &'a mut Vec<Box<str>>,
}

impl<'a> Tick<'a> {
    /// The cgroup of a container's pod.
    pub(super) fn pod_of(&self, container: &CgroupNode) -> Option<&'a CgroupNode> {
        match &container.cgroup.place {
            Place::Pod(place) => self.pods.get(&place.uid).copied(),
            Place::Root | Place::Host | Place::MountUnit => None,
        }
    }

    /// How long a container's threads ran and waited.
    pub(super) fn read_threads(&mut self, id: CgroupId) -> Option<Vec<ThreadTimes>> {
        self.threads.as_mut()?.read(id, &mut self.reader.buffer)
    }

    /// Whether a reading was made for the tick before this one.
    pub(super) fn follows(&self, reading: &PressureReading) -> bool {
        self.last.is_some_and(|last| is_fresh(reading.at, last))
    }

    /// What a container used, read now, given its total of stalling.
    pub(super) fn read_cpu_use(&mut self, own: &CgroupNode, stalled_us: Option<u64>) -> CpuUse {
        let container = Container { own, pod: self.pod_of(own) };
        self.cpu_use.read(self.reader, container, stalled_us, self.look, self.now)
    }
}
