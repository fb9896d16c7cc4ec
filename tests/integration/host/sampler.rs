//! The thread that ticks, in real time.

use std::time::Duration;

use psi_agent::collector::{Collector, Groups, Handles, Selection};
use psi_agent::kernel::cgroup_dir::CgroupRoot;
use psi_agent::kernel::proc_root::ProcRoot;
use psi_agent::sample::{CpuSource, Detail};
use psi_agent::sampler::Sampler;

use crate::support::fake_node::FakeNode;

#[test]
#[ignore = "takes 4 s"]
fn scrapes_do_not_shorten_the_window_of_a_tick() {
    let node = FakeNode::with_pressure("windows");
    let tick = Duration::from_millis(1200);
    let mut sampler =
        Sampler::start(collector(&node), tokio::sync::watch::channel(None).1, tick).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        sampler.next_tick().await.unwrap();
        let asking = sampler.clone();
        let asked = tokio::spawn(async move {
            loop {
                asking.scrape(Detail::Exported).await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        for _ in 0..3 {
            let ticked = sampler.next_tick().await.unwrap();
            let window = ticked.rates.as_ref().unwrap().node.window;
            assert!(window >= tick - Duration::from_millis(100), "{window:?}");
        }
        asked.abort();
    });
}

fn collector(node: &FakeNode) -> Collector {
    let proc = ProcRoot::open(&node.0.join("proc")).unwrap();
    let root = CgroupRoot::open(&node.0.join("cgroup")).unwrap();
    let everything =
        Selection { everything: true, root: true, pods: true, containers: true, vms_only: false };
    let (groups, handles) = (Groups::default(), Handles::default());
    Collector::new(proc, root, everything, groups, CpuSource::Psi, handles)
}
