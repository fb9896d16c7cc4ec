//! All metrics that the program can export beside `FAMILIES`, none of them absent.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use psi_agent::bridge::table::STANDINGS;
use psi_agent::client::cluster::Decision;
use psi_agent::client::plan::planner::Round;
use psi_agent::clock::Moment;
use psi_agent::export::score_series::write_score;
use psi_agent::identity::matching::Matching;
use psi_agent::identity::{Vm, Workload};
use psi_agent::kernel::cgroup_tree::{Cgroup, CgroupId};
use psi_agent::own_metrics::OwnMetrics;
use psi_agent::own_metrics::bridge::BridgeMetrics;
use psi_agent::own_metrics::planner::PlannerMetrics;
use psi_agent::relief::{Assessment, Relief};
use psi_agent::score::{Resource, Scorer};
use psi_agent::waiting::series::PressureShares;
use psi_agent::waiting::{Measurement, Ratio};
use strum::VariantArray;

use super::measured_vms::{measured_vm, tick_of_vms};
use super::recorded_case::start_on_case;

/// A score and the metrics of an agent, then those of all its features, then those of the bridge and of the planner.
pub(crate) fn full_exposition() -> &'static [String; 4] {
    static TEXTS: OnceLock<[String; 4]> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let (mut score, assessment) = (Vec::new(), full_assessment());
        write_score(&mut score, &assessment);
        let served = start_on_case("pure-v2", &["--families=pressure".into()]).get("/metrics");
        let own = served.find("# HELP process_").expect("the agent's own metrics come last");
        let metrics = OwnMetrics::default();
        metrics.certificate_read(Ok::<_, &str>(false));
        metrics.set_publishing("on", Duration::ZERO, true);
        let mut tick = tick_of_vms(moment(), Duration::ZERO, 4, Vec::new());
        tick.report.matching = Some(Matching::default());
        metrics.observe_tick(&tick);
        Decision::VARIANTS.iter().for_each(|&decision| metrics.token_reviewed(Ok(decision)));
        let mut features = Vec::new();
        metrics.write(&mut features);
        let bridge =
            BridgeMetrics::default().render(STANDINGS.map(|standing| (standing, 0)).into());
        let planner = PlannerMetrics::default();
        planner.ended(Ok(Round::Planned(None)));
        let [score, features] = [score, features].map(|chunks| utf8(chunks.concat()));
        [score + &served[own..], features, utf8(bridge), utf8(planner.render())]
    })
}

fn utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn moment() -> Moment {
    Moment { at: Instant::now(), unix_ms: 0 }
}

/// A score and predictions of a VM and of a unit. Of the resources, only I/O is absent.
fn full_assessment() -> Assessment {
    let path = format!("/kubepods/pod1/{:064x}", 1);
    let vm =
        Vm { name: "vm".into(), uid: "u-1".into(), cpu_wait_budget: Some(0.05), ..Vm::default() };
    let workload = Workload {
        namespace: "vms".into(),
        pod: "virt-launcher-vm".into(),
        container: "compute".into(),
        vm: Some(Arc::new(vm)),
        ..Workload::default()
    };
    let cgroup = |id, path: String| Arc::new(Cgroup::new(CgroupId(id), path, None));
    let vm = measured_vm(cgroup(1, path), Some(Arc::new(workload)), 1.0, 1.0);
    let vm = Measurement { iothreads_waited: Some(0.5), ..vm };
    let unit = measured_vm(cgroup(2, "/system.slice/a.service".into()), None, 1.0, 1.0);
    let mut tick = tick_of_vms(moment(), Duration::from_secs(5), 4, vec![vm, unit]);
    let half = Ratio::of(0.5, 1.0);
    (tick.node.memory_utilization, tick.node.pressure.io) = (half, PressureShares::default());
    (tick.node.reports.io, tick.node.smt_overlap) = (false, Some(1.0));
    let counted = vec![Resource::Cpu, Resource::Memory];
    let score = Scorer::of_one_window(counted, &tick);
    let relief = Relief { demand: 1.0, cpus: 1.0, score_without: Ratio::ZERO };
    let relief = HashMap::from([(CgroupId(1), relief)]);
    Assessment { score, headroom_cpus: Some(1.0), relief, slow: None }
}
