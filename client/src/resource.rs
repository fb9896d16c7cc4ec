//! The three resources of PSI, and one value for each.

use serde::{Deserialize, Serialize};
use strum::{EnumString, IntoStaticStr, VariantNames};

#[derive(Debug, Clone, Copy, PartialEq, Eq, EnumString, IntoStaticStr, VariantNames)]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum Resource {
    Cpu,
    Memory,
    Io,
}

impl Resource {
    pub const ALL: [Resource; 3] = [Resource::Cpu, Resource::Memory, Resource::Io];
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerResource<T> {
    pub cpu: T,
    pub memory: T,
    pub io: T,
}

impl<T> PerResource<T> {
    /// The value of each resource.
    pub fn by(mut value: impl FnMut(Resource) -> T) -> Self {
        Self { cpu: value(Resource::Cpu), memory: value(Resource::Memory), io: value(Resource::Io) }
    }

    pub fn of(&self, resource: Resource) -> &T {
        match resource {
            Resource::Cpu => &self.cpu,
            Resource::Memory => &self.memory,
            Resource::Io => &self.io,
        }
    }

    pub fn of_mut(&mut self, resource: Resource) -> &mut T {
        match resource {
            Resource::Cpu => &mut self.cpu,
            Resource::Memory => &mut self.memory,
            Resource::Io => &mut self.io,
        }
    }

    pub fn map<U>(self, mut change: impl FnMut(T) -> U) -> PerResource<U> {
        PerResource { cpu: change(self.cpu), memory: change(self.memory), io: change(self.io) }
    }
}
