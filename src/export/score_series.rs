//! The score in Prometheus' text format: the node's series, then those of each VM. Unknown values
//! have no series. The pod is a label of `psi_agent_vmi_info` only, so that a live migration starts
//! no new series of the others.

use std::collections::BTreeMap;
use std::iter::once;
use std::time::{Duration, Instant};

use crate::identity::{Vm, Workload};
use crate::kernel::cgroup_dir::Resource;
use crate::relief::{Assessment, Relief};
use crate::score::{ContainerScore, NodeScore};
use crate::text_format::Number::{Float, Whole};
use crate::text_format::{FamiliesOf, Family, Lines, Number, families, write_families};
use crate::waiting::Ratio;

/// Age from which a score is stale. The agent scores every 5 s, so it was suspended in the
/// meantime.
const STALE: Duration = Duration::from_secs(60);

/// Whether a score is stale, and so not exported. After the agent was suspended, it is stale until
/// the next tick.
pub fn is_stale(score: &NodeScore, now: Instant) -> bool {
    now.saturating_duration_since(score.moment.at) >= STALE
}

/// Appends the series of the score.
pub fn write_score(chunks: &mut Vec<Vec<u8>>, assessment: &Assessment) {
    write_families(chunks, NODE, once(assessment));
    write_families(chunks, VM, vms(assessment).iter());
    let containers = assessment.score.containers.iter();
    let others = containers.filter(|container| !container.is_kubevirt_vm());
    write_families(chunks, WORKLOAD, others);
}

static NODE: &FamiliesOf<Assessment> = families! {
    "psi_agent_node_score_ratio" = |it, lines| lines.write(&[], ratio(it.score.score)),
        "Contention score of the node, 0 to 1, smoothed over 30 s: the largest contention ratio of \
         the resources in --score-resources.";
    "psi_agent_node_contention_ratio" = |it, lines| for resource in Resource::ALL {
            lines.write(&[label(resource)], ratio(*it.score.contention.of(resource)));
        },
        "Share of their demand that the node's VMs waited for because of the node, excluding their \
         own limits, 0 to 1, smoothed over 30 s.";
    "psi_agent_node_utilization_ratio" = |it, lines| {
            lines.write(&[label(Resource::Cpu)], ratio(it.score.cpu_utilization));
            lines.write(&[label(Resource::Memory)], ratio(it.score.memory_utilization));
        },
        "Share of the node's CPU time in use, smoothed over 30 s, and share of its memory that is \
         unavailable, 0 to 1.";
    "psi_agent_node_steal_ratio" = |it, lines| lines.write(&[], ratio(it.score.steal)),
        "Share of the node's demand for CPU time that its hypervisor gave to other guests (steal), \
         0 to 1, smoothed over 30 s.";
    "psi_agent_node_smt_overlap_cpus" =
        |it, lines| lines.write(&[], it.score.smt_overlap.map(Float)),
        "CPUs that are busy beside a busy one of the same core (SMT), estimated and smoothed over 30 s.";
    "psi_agent_node_scored" = |it, lines| if let Some(population) = it.score.population {
            let count = Whole(it.score.containers.len() as u64);
            lines.write(&[("population", population.into_str())], count);
        },
        "Number of VMs, containers or units that are scored, as the label population.";
    "psi_agent_node_contended" =
        |it, lines| if let Some(population) = it.score.population
            && (it.score.score.is_some() || it.score.contended > 0)
        {
            let count = Whole(it.score.contended as u64);
            lines.write(&[("population", population.into_str())], count);
        },
        "Number of scored VMs, containers or units whose CPU ready or memory contention is 5 % or \
         more.";
    "psi_agent_hidden_containers" = |it, lines| for resource in Resource::ALL {
            lines.write(&[label(resource)], Whole(*it.score.hidden.of(resource) as u64));
        },
        "Containers whose waiting is unknown: not readable, or not listed by the API server.";
    "psi_agent_node_unscored_info" = |it, lines| for resource in Resource::ALL {
            if let Some(why) = it.score.absence.of(resource) {
                lines.write(&[("reason", why.into_str()), label(resource)], Whole(1));
            }
        },
        "Reason why the node has no contention of a resource as the label reason; always 1.";
    "psi_agent_score_info" =
        |it, lines| lines.write(&[("basis", &it.score.basis.to_string())], Whole(1)),
        "Source and version of the estimator as the label basis; always 1. Scores of different \
         bases are not comparable.";
    "psi_agent_node_headroom_cpus" = |it, lines| lines.write(&[], it.headroom_cpus.map(Float)),
        "Busy vCPUs that can be added to the node before the level is medium.";
};

type VmFamily = Family<fn(&VmSeries<'_>, &mut Lines<'_>)>;

static VM: &[VmFamily] = families! {
    "psi_agent_vmi_contention_ratio" = |vm, lines| for resource in Resource::ALL {
            let contention = *vm.member.contention.of(resource);
            lines.write(&[vm.namespace, vm.name, label(resource)], ratio(contention));
        },
        "Share of its demand that the VM waited for because of the node, excluding its own limits, \
         0 to 1, smoothed over 30 s.";
    "psi_agent_vmi_wait_ratio" =
        |vm, lines| lines.write(&[vm.namespace, vm.name], ratio(vm.member.cpu_ready)),
        "CPU ready of the VM: share of its busy vCPUs' time that they waited because of the node, 0 to \
         1, smoothed over 30 s.";
    "psi_agent_vmi_wait_seconds_total" = |vm, lines| for resource in Resource::ALL {
            if vm.member.measured.waits.of(resource).is_err() {
                continue;
            }
            let waited = vm.member.waited.of(resource);
            for (cause, seconds) in [("node", waited.node_s), ("own_limit", waited.own_limit_s)] {
                let labels = [vm.namespace, vm.name, ("cause", cause), label(resource)];
                lines.write(&labels, Float(seconds));
            }
        },
        "Seconds that the VM waited (CPU: its vCPUs together), by resource and by cause: contention on \
         the node, or a limit of the VM or its pod.";
    "psi_agent_vmi_iothread_wait_seconds_total" =
        |vm, lines| if vm.member.measured.iothreads_waited.is_some() {
            lines.write(&[vm.namespace, vm.name], Float(vm.member.iothreads_waited_s));
        },
        "Seconds that each I/O thread of the VM waited for a CPU, because of the node or of a limit, \
         added up.";
    "psi_agent_vmi_cpu_wait_budget_ratio" =
        |it, lines| lines.write(&[it.namespace, it.name], it.vm.cpu_wait_budget.map(Float)),
        "CPU ready that the owner of the VM accepts, by the annotation \
         psi-agent.io/cpu-wait-budget, 0 to 1.";
    "psi_agent_vmi_info" = |it, lines| {
            let (pod, uid) = (("pod", &*it.workload.pod), ("uid", &*it.vm.uid));
            lines.write(&[it.namespace, it.name, pod, uid], Whole(1));
        },
        "Pod and UID of a VM on this node as labels; always 1.";
    "psi_agent_vmi_relief_cpus" =
        |vm, lines| lines.write(&[vm.namespace, vm.name], vm.relief.map(|it| Float(it.cpus))),
        "CPUs' worth of waiting for CPUs and memory that would end if the VM left the node: its \
         own, and that of the other VMs.";
    "psi_agent_vmi_score_without_ratio" = |it, lines|
        lines.write(&[it.namespace, it.name], ratio(it.relief.map(|relief| relief.score_without))),
        "Contention score that the node would have without the VM, 0 to 1.";
};

/// Of containers or units, where these are scored, with the labels of cAdvisor that identify them.
static WORKLOAD: &FamiliesOf<ContainerScore> = families! {
    "psi_agent_workload_contention_ratio" = |it, lines| for resource in Resource::ALL {
            let workload = it.measured.workload.as_deref();
            let of = |value: fn(&Workload) -> &str| workload.map_or("", value);
            let labels = [
                ("container", of(|workload| &workload.container)),
                ("id", &it.measured.cgroup.path),
                ("namespace", of(|workload| &workload.namespace)),
                ("pod", of(|workload| &workload.pod)),
                label(resource),
            ];
            lines.write(&labels, ratio(*it.contention.of(resource)));
        },
        "Share of its demand that the scored container or unit waited for because of the node, \
         excluding its own limits, 0 to 1, smoothed over 30 s.";
};

#[derive(Clone, Copy)]
struct VmSeries<'a> {
    namespace: (&'static str, &'a str),
    name: (&'static str, &'a str),
    member: &'a ContainerScore,
    workload: &'a Workload,
    vm: &'a Vm,
    relief: Option<&'a Relief>,
}

/// The VMs by namespace and name. Of two pods of one VM, the later one counts.
fn vms(assessment: &Assessment) -> Vec<VmSeries<'_>> {
    let mut vms = BTreeMap::new();
    for member in &assessment.score.containers {
        let workload = member.measured.workload.as_deref().filter(|workload| workload.is_vm());
        let Some((workload, vm)) = workload.and_then(|all| Some((all, all.vm.as_deref()?))) else {
            continue;
        };
        let (namespace, name) = (("namespace", &*workload.namespace), ("name", &*vm.name));
        let relief = assessment.relief.get(&member.measured.cgroup.id);
        let found = VmSeries { namespace, name, member, workload, vm, relief };
        let kept = vms.entry((namespace, name)).or_insert(found);
        if kept.member.measured.cgroup.id < member.measured.cgroup.id {
            *kept = found;
        }
    }
    vms.into_values().collect()
}

fn label(resource: Resource) -> (&'static str, &'static str) {
    ("resource", resource.into_str())
}

fn ratio(ratio: Option<Ratio>) -> Option<Number> {
    ratio.map(|ratio| Float(ratio.get()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
    use crate::measured_vms::{measured_vm, tick_of_vms};
    use crate::sample::{Scored, Tick};
    use crate::score::Scorer;
    use crate::waiting::{Measurement, Population};
    use std::sync::Arc;

    /// A VM that waited for 0.3 of its demand.
    fn vm(id: u64, name: &str, pod: &str) -> Measurement {
        let vm = Vm { name: name.into(), uid: "u-1".into(), ..Vm::default() };
        let workload = Workload {
            namespace: "vms".into(),
            pod: pod.into(),
            container: "compute".into(),
            vm: Some(Arc::new(vm)),
            ..Workload::default()
        };
        let path = format!("/kubepods/pod{id}/{id:064x}");
        let cgroup = Arc::new(Cgroup::new(CgroupId(id), path, None));
        let used = 0.5 / 0.3 - 0.5;
        measured_vm(cgroup, Some(Arc::new(workload)), used, 0.5)
    }

    fn tick(vms: Vec<Measurement>) -> Tick {
        tick_of_vms(clock::now(), Duration::from_secs(50), 4, vms)
    }

    fn score_of(tick: &Tick) -> NodeScore {
        Scorer::of_one_window(vec![Resource::Cpu], tick)
    }

    fn written(assessment: &Assessment) -> String {
        let mut text = Vec::new();
        write_score(&mut text, assessment);
        String::from_utf8(text.concat()).unwrap()
    }

    fn score(vms: Vec<Measurement>) -> String {
        written(&score_of(&tick(vms)).into())
    }

    #[test]
    fn a_score_from_before_a_stop_of_a_minute_is_stale() {
        let score = score_of(&tick(vec![]));
        let stale = |age| is_stale(&score, score.moment.at + Duration::from_secs(age));
        assert_eq!([0, 59, 60, 3600].map(stale), [false, false, true, true]);
    }

    #[test]
    fn unknown_values_have_no_series_and_a_reason() {
        let mut calm = tick(vec![]);
        (calm.node.pressure.memory, calm.node.reports.memory, calm.node.steal) = Default::default();
        let text = written(&score_of(&calm).into());
        for line in [
            "psi_agent_node_score_ratio 0",
            "psi_agent_node_contention_ratio{resource=\"cpu\"} 0",
            "psi_agent_node_scored{population=\"vms\"} 0",
            "psi_agent_node_contended{population=\"vms\"} 0",
            "psi_agent_node_unscored_info{reason=\"pressure_off\",resource=\"memory\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        for absent in ["steal_ratio", "contention_ratio{resource=\"memory\"", "vmi_", "NaN"] {
            assert!(!text.contains(absent), "{absent}: {text}");
        }
    }

    #[test]
    fn units_have_series_by_their_cgroup() {
        let path = "/system.slice/build.service";
        let cgroup = Arc::new(Cgroup::new(CgroupId(1), path, None));
        let unit = measured_vm(cgroup, None, 1.0, 1.0);
        let tick = tick(vec![unit]);
        let scored = tick.scored.map(|scored| Scored { population: Population::Units, ..scored });
        let tick = Tick { scored, ..tick };
        let text = written(&score_of(&tick).into());
        let line = format!(
            "psi_agent_workload_contention_ratio{{container=\"\",id=\"{path}\",namespace=\"\",pod=\"\",\
             resource=\"cpu\"}} 0.5"
        );
        assert!(text.contains(&line), "{text}");
        assert!(text.contains("psi_agent_node_contended{population=\"units\"} 1"), "{text}");
    }

    #[test]
    fn the_basis_is_the_same_as_in_the_annotation() {
        let line = "\npsi_agent_score_info{basis=\"run-delay/6\"} 1\n";
        assert!(score(Vec::new()).contains(line), "{line}");
    }

    #[test]
    fn a_vm_with_two_pods_has_one_series_under_its_own_name() {
        let text = score(vec![vm(9, "a\"b", "new"), vm(7, "a\"b", "old")]);
        let vm = r#"namespace="vms",name="a\"b""#;
        for line in [
            format!("psi_agent_vmi_contention_ratio{{{vm},resource=\"cpu\"}} 0.3"),
            format!("psi_agent_vmi_wait_ratio{{{vm}}} 0.3"),
            format!("psi_agent_vmi_wait_seconds_total{{{vm},cause=\"node\",resource=\"cpu\"}} 25"),
            format!("psi_agent_vmi_info{{{vm},pod=\"new\",uid=\"u-1\"}} 1"),
        ] {
            assert_eq!(text.lines().filter(|found| **found == *line).count(), 1, "{line}\n{text}");
        }
        assert!(!text.contains("pod=\"old\""));
    }
}
