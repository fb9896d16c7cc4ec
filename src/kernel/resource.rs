//! One value for each of the three resources of PSI.

use serde::Serialize;

use super::cgroup_dir::Resource;

/// A value for each resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PerResource<T> {
    /// CPU time.
    pub cpu: T,
    /// Memory.
    pub memory: T,
    /// Block I/O.
    pub io: T,
}

impl<T> PerResource<T> {
    /// The value of one resource.
    pub fn of(&self, resource: Resource) -> &T {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
            Resource::Io => &self.io,
        }
    }

    /// The same, to be changed.
    pub fn of_mut(&mut self, resource: Resource) -> &mut T {
        match resource {
            Resource::Cpu => &mut self.cpu,
            Resource::Memory => &mut self.memory,
            Resource::Io => &mut self.io,
        }
    }

    /// The same with each value changed.
    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> PerResource<U> {
        PerResource { cpu: change(self.cpu), memory: change(self.memory), io: change(self.io) }
    }
}
