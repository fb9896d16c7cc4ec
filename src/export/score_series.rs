//! The score in Prometheus' text format: the node's series, then those of each VM. Unknown values
//! have no series. The pod is a label of `psi_agent_vmi_info` only, so that a live migration starts
//! no new series of the others.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::{Duration, Instant};

use super::exposition::{CHUNK_BYTES, LINE_BYTES};
use super::families::Kind;
use super::series::push_label;
use crate::identity::{Vm, Workload};
use crate::kernel::cgroup_dir::Resource;
use crate::relief::Assessment;
use crate::score::{ContainerScore, NodeScore, WaitSeconds};
use crate::waiting::{CpuSource, Ratio};

/// Age from which a score is stale. The agent scores every 5 s, so it was suspended in the
/// meantime.
const STALE: Duration = Duration::from_secs(60);

/// Whether a score is stale, and so not exported. After the agent was suspended, it is stale until
/// the next tick.
pub fn is_stale(score: &NodeScore, now: Instant) -> bool {
    now.saturating_duration_since(score.moment.at) >= STALE
}

/// Text in pieces of about 64 KiB. With 500 VMs it has 0.5 MB: as a single growing text, it
/// left that much free memory in the heap.
pub type Pieces = Vec<Vec<u8>>;

/// Appends the series of the CPU source, which exists before the first score, and of the score.
pub fn write_score(text: &mut Pieces, source: CpuSource, assessment: Option<&Assessment>) {
    let help = "Source of CPU wait time as the label source, run-delay or psi; always 1.";
    gauge(text, "psi_agent_cpu_source_info", help)
        .write(&[&label("source", source.into_str())], Some(1.0));
    if let Some(assessment) = assessment {
        let vms = vms(&assessment.score);
        write_node(text, &assessment.score);
        write_vms(text, &vms);
        write_workloads(text, &assessment.score);
        write_relief(text, assessment, &vms);
    }
}

fn write_node(text: &mut Pieces, score: &NodeScore) {
    let ratio = |ratio: Option<Ratio>| ratio.map(Ratio::get);
    let help = "Contention score of the node, 0 to 1, smoothed over 30 s: the largest contention \
                ratio of the resources in --score-resources.";
    gauge(text, "psi_agent_node_score_ratio", help).write(&[], ratio(score.score));
    let help = "Share of their demand that the node's VMs waited for because of the node, excluding \
                their own limits, 0 to 1, smoothed over 30 s.";
    let mut family = gauge(text, "psi_agent_node_contention_ratio", help);
    for resource in Resource::ALL {
        family.write(&[&resource_label(resource)], ratio(*score.contention.of(resource)));
    }
    let help = "Share of the node's CPU time in use, smoothed over 30 s, and share of its memory \
                that is unavailable, 0 to 1.";
    let mut family = gauge(text, "psi_agent_node_utilization_ratio", help);
    family.write(&[&resource_label(Resource::Cpu)], ratio(score.utilization.cpu));
    family.write(&[&resource_label(Resource::Memory)], ratio(score.utilization.memory));
    let help = "Share of the node's demand for CPU time that its hypervisor gave to other guests (steal), \
                0 to 1, smoothed over 30 s.";
    gauge(text, "psi_agent_node_steal_ratio", help).write(&[], ratio(score.utilization.steal));
    if let Some(population) = score.population {
        let population = label("population", population.into_str());
        let count = |count: usize| u32::try_from(count).ok().map(f64::from);
        let help = "Number of VMs, containers or units that are scored, as the label population.";
        gauge(text, "psi_agent_node_scored", help)
            .write(&[&population], count(score.containers.len()));
        let help = "Number of scored VMs, containers or units whose CPU ready or memory contention is \
                    5 % or more.";
        gauge(text, "psi_agent_node_contended", help).write(&[&population], count(score.contended));
    }
    let help = "Reason why the node has no contention of a resource as the label reason; always 1.";
    let mut family = gauge(text, "psi_agent_node_unscored_info", help);
    for resource in Resource::ALL {
        let reason = score.absence.of(resource).map(|why| label("reason", why.into_str()));
        let value = reason.as_ref().map(|_| 1.0);
        family.write(&[&reason.unwrap_or_default(), ",", &resource_label(resource)], value);
    }
    let help = "Source and version of the estimator as the label basis; always 1. Scores of \
                different bases are not comparable.";
    let basis = label("basis", &score.basis.to_string());
    gauge(text, "psi_agent_score_info", help).write(&[&basis], Some(1.0));
}

/// The VMs by namespace and name. Of two pods of one VM, the later one counts.
fn vms(score: &NodeScore) -> Vec<VmSeries<'_>> {
    let mut vms = BTreeMap::<_, (&ContainerScore, &Workload, &Vm)>::new();
    for member in &score.containers {
        let workload = member.workload.as_deref().filter(|workload| workload.is_vm());
        let Some((workload, vm)) = workload.and_then(|all| Some((all, all.vm.as_deref()?))) else {
            continue;
        };
        let found = (member, workload, vm);
        let kept = vms.entry((&*workload.namespace, &*vm.name)).or_insert(found);
        if kept.0.cgroup.id < member.cgroup.id {
            *kept = found;
        }
    }
    let series = vms.into_iter().map(|((namespace, name), (member, workload, vm))| VmSeries {
        labels: format!("{},{}", label("namespace", namespace), label("name", name)),
        member,
        workload,
        vm,
    });
    series.collect()
}

struct VmSeries<'a> {
    /// Namespace and name.
    labels: String,
    member: &'a ContainerScore,
    workload: &'a Workload,
    vm: &'a Vm,
}

fn write_vms(text: &mut Pieces, vms: &[VmSeries<'_>]) {
    let resources = Resource::ALL.map(|resource| (resource, resource_label(resource)));
    let help = "Share of its demand that the VM waited for because of the node, excluding its own \
                limits, 0 to 1, smoothed over 30 s.";
    let mut family = gauge(text, "psi_agent_vmi_contention_ratio", help);
    for VmSeries { labels, member, .. } in vms {
        for (resource, label) in &resources {
            family.write(&[labels, ",", label], member.contention.of(*resource).map(Ratio::get));
        }
    }
    let help = "CPU ready of the VM: share of its busy vCPUs' time that they waited because of the node, \
                0 to 1, smoothed over 30 s.";
    let mut family = gauge(text, "psi_agent_vmi_wait_ratio", help);
    for VmSeries { labels, member, .. } in vms {
        family.write(&[labels], member.cpu_ready.map(Ratio::get));
    }
    let help = "Seconds that the VM waited, by resource and by cause: contention on the node, or a \
                limit of the VM or its pod.";
    let mut family = Family::new(text, Kind::Counter, "psi_agent_vmi_wait_seconds_total", help);
    for VmSeries { labels, member, .. } in vms {
        for (resource, label) in &resources {
            let WaitSeconds { node_s, own_limit_s } = *member.waited.of(*resource);
            family.write(&[labels, ",cause=\"node\",", label], Some(node_s));
            family.write(&[labels, ",cause=\"own_limit\",", label], Some(own_limit_s));
        }
    }
    let help = "CPU ready that the owner of the VM accepts, by the annotation \
                psi-agent.io/cpu-wait-budget, 0 to 1.";
    let mut family = gauge(text, "psi_agent_vmi_cpu_wait_budget_ratio", help);
    for VmSeries { labels, vm, .. } in vms {
        family.write(&[labels], vm.cpu_wait_budget_ratio());
    }
    let help = "Pod and UID of a VM on this node as labels; always 1.";
    let mut family = gauge(text, "psi_agent_vmi_info", help);
    for VmSeries { labels, workload, vm, .. } in vms {
        let (pod, uid) = (label("pod", &workload.pod), label("uid", &vm.uid));
        family.write(&[labels, ",", &pod, ",", &uid], Some(1.0));
    }
}

/// The contention of containers or units, where these are scored.
fn write_workloads(text: &mut Pieces, score: &NodeScore) {
    let help = "Share of its demand that the scored container or unit waited for because of the node, \
                excluding its own limits, 0 to 1, smoothed over 30 s.";
    let mut family = gauge(text, "psi_agent_workload_contention_ratio", help);
    let resources = Resource::ALL.map(|resource| (resource, resource_label(resource)));
    let containers = score.containers.iter().filter(|container| !container.is_kubevirt_vm());
    for container in containers {
        let labels = workload_labels(container);
        for (resource, label) in &resources {
            let ratio = container.contention.of(*resource).map(Ratio::get);
            family.write(&[&labels, ",", label], ratio);
        }
    }
}

/// The labels of cAdvisor that identify a container.
fn workload_labels(container: &ContainerScore) -> String {
    let (id, workload) = (&container.cgroup.path, container.workload.as_deref());
    let of = |value: fn(&Workload) -> &str| workload.map(value).unwrap_or_default();
    [
        label("container", of(|workload| &workload.container)),
        label("id", id),
        label("namespace", of(|workload| &workload.namespace)),
        label("pod", of(|workload| &workload.pod)),
    ]
    .join(",")
}

fn write_relief(text: &mut Pieces, assessment: &Assessment, vms: &[VmSeries<'_>]) {
    let help = "Busy vCPUs that can be added to the node before the level is medium.";
    gauge(text, "psi_agent_node_headroom_cpus", help).write(&[], assessment.headroom_cpus);
    let relief = |vm: &VmSeries<'_>| assessment.relief.get(&vm.member.cgroup.id);
    let help = "CPUs' worth of waiting that would end if the VM left the node: its own, and that of \
                the other VMs.";
    let mut family = gauge(text, "psi_agent_vmi_relief_cpus", help);
    for vm in vms {
        family.write(&[&vm.labels], relief(vm).map(|relief| relief.cpus));
    }
    let help = "Contention score that the node would have without the VM, 0 to 1.";
    let mut family = gauge(text, "psi_agent_vmi_score_without_ratio", help);
    for vm in vms {
        family.write(&[&vm.labels], relief(vm).map(|relief| relief.score_without.get()));
    }
}

fn resource_label(resource: Resource) -> String {
    label("resource", resource.word())
}

fn label(name: &str, value: &str) -> String {
    let mut label = String::new();
    push_label(&mut label, name, value);
    // Removes the trailing comma.
    label.pop();
    label
}

fn gauge<'a>(text: &'a mut Pieces, name: &'static str, help: &'static str) -> Family<'a> {
    Family::new(text, Kind::Gauge, name, help)
}

/// Writer of a family. A family without series has no header.
struct Family<'a> {
    text: &'a mut Pieces,
    kind: Kind,
    name: &'static str,
    help: &'static str,
    needs_header: bool,
}

impl<'a> Family<'a> {
    fn new(text: &'a mut Pieces, kind: Kind, name: &'static str, help: &'static str) -> Self {
        Self { text, kind, name, help, needs_header: true }
    }

    /// Writes a series with these labels, if its value is a finite number.
    fn write(&mut self, labels: &[&str], value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        let Self { name, help, .. } = *self;
        if self.text.last().is_none_or(|piece| piece.len() >= CHUNK_BYTES) {
            self.text.push(Vec::with_capacity(CHUNK_BYTES + LINE_BYTES));
        }
        let Some(text) = self.text.last_mut() else { return };
        // Writing to a Vec cannot fail.
        if std::mem::take(&mut self.needs_header) {
            let kind = self.kind.word();
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        text.extend_from_slice(name.as_bytes());
        if !labels.is_empty() {
            text.push(b'{');
            labels.iter().for_each(|part| text.extend_from_slice(part.as_bytes()));
            text.push(b'}');
        }
        let _ = writeln!(text, " {}", (value * 1e6).round() / 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
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
        Measurement::of_vm(cgroup, Some(Arc::new(workload)), used, 0.5)
    }

    fn tick(vms: Vec<Measurement>) -> Tick {
        Tick::of_vms(clock::now(), Duration::from_secs(50), 4, vms)
    }

    fn score_of(tick: &Tick) -> NodeScore {
        Scorer::of_one_window(vec![Resource::Cpu], tick)
    }

    fn written(source: CpuSource, assessment: Option<&Assessment>) -> String {
        let mut text = Pieces::new();
        write_score(&mut text, source, assessment);
        String::from_utf8(text.concat()).unwrap()
    }

    fn score(vms: Vec<Measurement>) -> String {
        written(CpuSource::RunDelay, Some(&score_of(&tick(vms)).into()))
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
        let text = written(CpuSource::RunDelay, Some(&score_of(&calm).into()));
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
        let unit = Measurement::of_vm(cgroup, None, 1.0, 1.0);
        let scored =
            Scored { population: Population::Units, measurements: vec![unit], hidden_threads: 0 };
        let tick = Tick { scored: Some(scored), ..tick(vec![]) };
        let text = written(CpuSource::RunDelay, Some(&score_of(&tick).into()));
        let line = format!(
            "psi_agent_workload_contention_ratio{{container=\"\",id=\"{path}\",namespace=\"\",pod=\"\",\
             resource=\"cpu\"}} 0.5"
        );
        assert!(text.contains(&line), "{text}");
        assert!(text.contains("psi_agent_node_contended{population=\"units\"} 1"), "{text}");
    }

    #[test]
    fn the_source_of_cpu_wait_is_exported_before_the_first_score() {
        let text = written(CpuSource::Psi, None);
        assert_eq!(text.lines().last(), Some("psi_agent_cpu_source_info{source=\"psi\"} 1"));
        let line = "\npsi_agent_cpu_source_info{source=\"run-delay\"} 1\n";
        assert!(score(Vec::new()).contains(line), "{line}");
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
            format!("psi_agent_vmi_wait_seconds_total{{{vm},cause=\"node\",resource=\"cpu\"}} 15"),
            format!("psi_agent_vmi_info{{{vm},pod=\"new\",uid=\"u-1\"}} 1"),
        ] {
            assert_eq!(text.lines().filter(|found| **found == *line).count(), 1, "{line}\n{text}");
        }
        assert!(!text.contains("pod=\"old\""));
    }
}
