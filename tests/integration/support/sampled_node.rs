//! A node of plain files, whose totals a test sets, with the ticks and scrapes of a collector.

use std::fs;
use std::ops::Deref;
use std::time::Duration;

use psi_agent::collector::Collector;
use psi_agent::identity::selection::Selection;
use psi_agent::sample::{Detail, ScrapeSample, Tick};
use psi_agent::waiting::{CpuSource, Measurement};

use super::fake_node::{EVERYTHING, FakeNode};

/// A container's cgroup: ticks read no others.
pub(crate) const VM: &str =
    "/kubepods/pod1/1111111111111111111111111111111111111111111111111111111111111111";

/// A node of plain files, whose totals the test sets.
pub(crate) struct SampledNode(FakeNode);

impl SampledNode {
    pub(crate) fn new(name: &str) -> Self {
        let node = Self(FakeNode::new(name));
        fs::create_dir_all(node.join(format!("cgroup{VM}"))).unwrap();
        for resource in ["cpu", "memory", "io"] {
            node.set(&format!("proc/pressure/{resource}"), 0);
            node.set_vm(resource, 0);
        }
        node.write("proc/vmstat", "pgscan_kswapd 0\nallocstall_normal 0\nallocstall_movable 0\n");
        node.write("proc/stat", "cpu  1 0 0 1 0 0 0 0 0 0\ncpu0 1 0 0 1 0 0 0 0 0 0\nbtime 1\n");
        node
    }

    /// Sets the total of a pressure file of the VM, microseconds.
    pub(crate) fn set_vm(&self, resource: &str, total: u64) {
        self.set(&format!("cgroup{VM}/{resource}.pressure"), total);
    }

    pub(crate) fn set(&self, file: &str, total: u64) {
        let [some, full] = ["some", "full"]
            .map(|what| format!("{what} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n"));
        self.write(file, &(some + &full));
    }

    pub(crate) fn write_vm(&self, file: &str, text: &str) {
        self.write(&format!("cgroup{VM}/{file}"), text);
    }

    pub(crate) fn collector(&self) -> Collector {
        self.collector_of(EVERYTHING)
    }

    pub(crate) fn collector_of(&self, selection: Selection) -> Collector {
        self.0.collector(selection, CpuSource::Psi, 0)
    }

    /// A tick at this time.
    pub(crate) fn tick(&self, collector: &mut Collector, seconds: f64) -> Tick {
        self.set_clock(seconds);
        collector.tick(None)
    }

    /// What a tick at this time measures of the VM.
    pub(crate) fn measure(&self, collector: &mut Collector, seconds: f64) -> Measurement {
        self.tick(collector, seconds).scored.unwrap().measurements.remove(0)
    }

    pub(crate) fn scrape(
        &self,
        collector: &mut Collector,
        seconds: f64,
        detail: Detail,
    ) -> ScrapeSample {
        self.set_clock(seconds);
        collector.scrape(detail, None)
    }

    /// Run delay of all tasks of the node.
    pub(crate) fn set_run_delay(&self, delay: Duration) {
        let nanos = delay.as_nanos();
        let text = format!("version 17\ntimestamp 1\ncpu0 0 0 0 0 0 0 0 {nanos} 0\n");
        self.write("proc/schedstat", &text);
    }
}

impl Deref for SampledNode {
    type Target = FakeNode;

    fn deref(&self) -> &FakeNode {
        &self.0
    }
}
