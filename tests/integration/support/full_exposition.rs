//! All metrics that the program can export beside `FAMILIES`, none of them absent.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use psi_agent::bridge::table::Standing;
use psi_agent::clock::Moment;
use psi_agent::export::score_series::write_score;
use psi_agent::health::bridge::BridgeHealth;
use psi_agent::health::{Feature, Health};
use psi_agent::identity::{Vm, Workload};
use psi_agent::kernel::cgroup_tree::{Cgroup, CgroupId};
use psi_agent::rates::{PressureRates, Ratio};
use psi_agent::relief::{Assessment, Relief};
use psi_agent::sample::CpuSource;
use psi_agent::score::{ContainerScore, NodeScore, PerResource, WaitSeconds, basis};
use psi_agent::serve::token_cache::Decision;

use super::recorded_case::start_on_case;

/// A score and the metrics of an agent, then those of all its features, then those of the bridge.
pub(crate) fn full_exposition() -> &'static [String; 3] {
    static TEXTS: OnceLock<[String; 3]> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let mut score = Vec::new();
        write_score(&mut score, CpuSource::Psi, Some(&full_assessment()));
        let served = start_on_case("pure-v2", &["--families=pressure".into()]).get("/metrics");
        let own = served.find("# HELP process_").expect("the agent's own metrics come last");
        let health = Health::new().unwrap();
        for feature in [
            Feature::Pods,
            Feature::RunDelay,
            Feature::Publishing,
            Feature::Candidate,
            Feature::TokenReviews,
            Feature::Tls,
        ] {
            health.export(feature).unwrap();
        }
        Decision::ALL.into_iter().for_each(|decision| health.reviews.decided(decision));
        let mut features = Vec::new();
        health.render(&mut features).unwrap();
        let bridge = BridgeHealth::new(&Standing::ALL.map(Standing::word)).unwrap();
        let score = String::from_utf8(score.concat()).unwrap();
        [score + &served[own..], utf8(features), utf8(bridge.render().unwrap())]
    })
}

fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// A score and predictions without absent values.
fn full_assessment() -> Assessment {
    let half = Ratio::of(0.5, 1.0);
    let each = PerResource { cpu: half, memory: half, io: half };
    let waited = WaitSeconds { node_s: 1.0, own_limit_s: 1.0 };
    let path = format!("/kubepods/pod1/{:064x}", 1);
    let vm =
        Vm { name: "vm".into(), uid: "u-1".into(), cpu_wait_budget: Some(500), ..Vm::default() };
    let container = ContainerScore {
        cgroup: Arc::new(Cgroup::new(CgroupId(1), path, None)),
        workload: Some(Arc::new(Workload {
            namespace: "vms".into(),
            pod: "virt-launcher-vm".into(),
            container: "compute".into(),
            vm: Some(Arc::new(vm)),
            ..Workload::default()
        })),
        usage: Some(1.0),
        pressure: PressureRates::default(),
        wait: PerResource::default(),
        contention: each,
        cpu_ready: half,
        waited: PerResource { cpu: waited, memory: waited, io: waited },
    };
    let relief = Relief { cpus: 1.0, score_without: half.unwrap() };
    let score = NodeScore {
        moment: Moment { at: Instant::now(), unix_ms: 0 },
        basis: basis(CpuSource::Psi),
        score: half,
        contention: each,
        latest: each,
        steal: half,
        cpu_utilization: half,
        memory_utilization: half,
        cpu_ready: half,
        waiting_vms: 1,
        containers: vec![container],
    };
    let relief = HashMap::from([(CgroupId(1), relief)]);
    Assessment { score, headroom_cpus: Some(1.0), relief }
}
