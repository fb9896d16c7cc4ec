//! The score as Prometheus' text format: the node's series, then each VM's. A value that cannot be
//! told has no series. No VM's name is in a `container_*` series, and no pod's in these but info.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::families::Kind;
use super::series::escape_into;
use crate::identity::{Vm, Workload};
use crate::kernel::cgroup_dir::Resource;
use crate::rates::Ratio;
use crate::score::{ContainerScore, NodeScore, Waited};

/// Appends all series of a score.
pub fn write_score(text: &mut String, score: &NodeScore) {
    let ratio = |ratio: Option<Ratio>| ratio.map(Ratio::get);
    let mut gauge = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_node_score",
        "How much the node's shortage holds its VMs back, 0 to 1, smoothed: the larger of the \
         contentions that count.",
    );
    gauge.write(&[], ratio(score.score));
    let mut gauge = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_node_contention_ratio",
        "Share of what the node's VMs wanted that they had to wait for because of the node, \
         smoothed.",
    );
    for resource in Resource::ALL {
        gauge.write(&[&resource_label(resource)], ratio(*score.contention.of(resource)));
    }
    let mut gauge = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_node_utilization_ratio",
        "Share of the node's CPU time in use, smoothed, and of its memory not to be had.",
    );
    gauge.write(&[&resource_label(Resource::Cpu)], ratio(score.cpu_utilization));
    gauge.write(&[&resource_label(Resource::Memory)], ratio(score.memory_utilization));
    let mut gauge = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_node_steal_ratio",
        "Share of the CPU time wanted from the hypervisor below that it gave to others, smoothed.",
    );
    gauge.write(&[], ratio(score.steal));
    let mut gauge = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_node_vmis_held_back",
        "VMs that wait for a tenth or more of what they want because of the node.",
    );
    gauge.write(&[], u32::try_from(score.waiting_vms).ok().map(f64::from));
    let mut info = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_score_info",
        "Always 1: what this agent's values are worked out from. Different bases do not compare.",
    );
    info.write(&[&label("basis", &score.basis.to_string())], Some(1.0));
    write_vms(text, &vms(score));
}

/// The VMs by namespace and name. Of one that has two pods here the later one counts.
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
    /// Its namespace and name.
    labels: String,
    member: &'a ContainerScore,
    workload: &'a Workload,
    vm: &'a Vm,
}

fn write_vms(text: &mut String, vms: &[VmSeries<'_>]) {
    let mut gauge = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_vmi_contention_ratio",
        "Share of what the VM wanted that it had to wait for because of the node, smoothed.",
    );
    let resources = Resource::ALL.map(|resource| (resource, resource_label(resource)));
    for VmSeries { labels, member, .. } in vms {
        for (resource, label) in &resources {
            let ratio = member.contention.of(*resource).map(Ratio::get);
            gauge.write(&[labels, ",", label], ratio);
        }
    }
    let mut gauge = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_vmi_wait_ratio",
        "Share of time in which the VM waited for each CPU of the node that it wanted, smoothed: \
         its CPU ready.",
    );
    for VmSeries { labels, member, .. } in vms {
        gauge.write(&[labels], member.cpu_ready.map(Ratio::get));
    }
    let mut counter = Family::new(
        text,
        Kind::Counter,
        "psi_agent_vmi_wait_seconds_total",
        "Time in which the VM waited, by what for and by who was the cause: the node's shortage, \
         or a limit of its own.",
    );
    for VmSeries { labels, member, .. } in vms {
        for (resource, label) in &resources {
            let Waited { node_s, own_limit_s } = *member.waited.of(*resource);
            counter.write(&[labels, ",cause=\"node\",", label], Some(node_s));
            counter.write(&[labels, ",cause=\"own_limit\",", label], Some(own_limit_s));
        }
    }
    let mut info = Family::new(
        text,
        Kind::Gauge,
        "psi_agent_vmi_info",
        "Always 1: the pod in which a VM of this node runs, and the VM's uid.",
    );
    for VmSeries { labels, workload, vm, .. } in vms {
        let (pod, uid) = (label("pod", &workload.pod), label("uid", &vm.uid));
        info.write(&[labels, ",", &pod, ",", &uid], Some(1.0));
    }
}

fn resource_label(resource: Resource) -> String {
    label("resource", resource.word())
}

fn label(name: &str, value: &str) -> String {
    let mut label = format!("{name}=\"");
    escape_into(&mut label, value);
    label.push('"');
    label
}

/// A family that is being written. Without series it has no header either.
struct Family<'a> {
    text: &'a mut String,
    kind: Kind,
    name: &'static str,
    help: &'static str,
    header_due: bool,
}

impl<'a> Family<'a> {
    fn new(text: &'a mut String, kind: Kind, name: &'static str, help: &'static str) -> Self {
        Self { text, kind, name, help, header_due: true }
    }

    /// A series with these labels, if it has a value that is a number.
    fn write(&mut self, labels: &[&str], value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite()) else { return };
        let Self { name, help, .. } = *self;
        // Writing to a String cannot fail.
        if std::mem::take(&mut self.header_due) {
            let kind = self.kind.word();
            let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        }
        self.text.push_str(name);
        if !labels.is_empty() {
            self.text.push('{');
            labels.iter().for_each(|part| self.text.push_str(part));
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {}", (value * 1e6).round() / 1e6);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup_path::Place;
    use crate::clock::Moment;
    use crate::contract::Basis;
    use crate::kernel::cgroup_tree::{Cgroup, CgroupId};
    use crate::rates::PressureRates;
    use crate::score::PerResource;
    use std::sync::Arc;
    use std::time::Instant;

    fn member(id: u64, vm: &str, pod: &str) -> ContainerScore {
        let path = format!("/kubepods/pod{id}/{id:064x}");
        let vm = Vm { name: vm.into(), uid: "u-1".into(), awaits_handover: false };
        ContainerScore {
            cgroup: Arc::new(Cgroup {
                id: CgroupId(id),
                place: Place::of_path(&path),
                path: path.into(),
                made_at_s: None,
            }),
            workload: Some(Arc::new(Workload {
                namespace: "vms".into(),
                pod: pod.into(),
                container: "compute".into(),
                name: "".into(),
                image: "".into(),
                cpu_request: None,
                vm: Some(Arc::new(vm)),
            })),
            usage: Some(1.0),
            pressure: PressureRates::default(),
            wait: PerResource::default(),
            contention: PerResource { cpu: Ratio::of(0.1 + 0.2, 1.0), ..PerResource::default() },
            cpu_ready: Ratio::of(0.25, 1.0),
            waited: PerResource {
                cpu: Waited { node_s: 12.5, own_limit_s: 0.0 },
                ..PerResource::default()
            },
        }
    }

    #[allow(clippy::disallowed_methods, reason = "any moment will do")]
    fn score(members: Vec<ContainerScore>) -> String {
        let mut text = String::new();
        let score = NodeScore {
            moment: Moment { at: Instant::now(), unix_ms: 0 },
            basis: Basis::RunDelay(2),
            score: Ratio::of(0.3, 1.0),
            contention: PerResource { cpu: Ratio::of(0.3, 1.0), ..PerResource::default() },
            latest: PerResource::default(),
            steal: None,
            cpu_utilization: Ratio::of(0.5, 1.0),
            memory_utilization: None,
            waiting_vms: members.len(),
            cpu_ready: None,
            containers: members,
        };
        write_score(&mut text, &score);
        text
    }

    #[test]
    fn what_cannot_be_told_has_no_series() {
        let text = score(Vec::new());
        assert!(text.contains("\npsi_agent_node_score 0.3\n"), "{text}");
        assert!(text.contains("\npsi_agent_node_contention_ratio{resource=\"cpu\"} 0.3\n"));
        assert!(text.contains("\npsi_agent_node_vmis_held_back 0\n"));
        for absent in ["steal", "resource=\"memory\"", "vmi_", "NaN"] {
            assert!(!text.contains(&format!("{absent}_ratio ")) && !text.contains("NaN"));
            assert!(absent == "steal" || !text.contains(absent), "{absent}: {text}");
        }
    }

    #[test]
    fn the_basis_is_told_as_on_the_node() {
        let line = "\npsi_agent_score_info{basis=\"run-delay/2\"} 1\n";
        assert!(score(Vec::new()).contains(line), "{line}");
    }

    #[test]
    fn a_vm_has_its_own_names_and_one_series_even_with_two_pods() {
        let text = score(vec![member(9, "a\"b", "new"), member(7, "a\"b", "old")]);
        let vm = r#"namespace="vms",name="a\"b""#;
        for line in [
            format!("psi_agent_vmi_contention_ratio{{{vm},resource=\"cpu\"}} 0.3"),
            format!("psi_agent_vmi_wait_ratio{{{vm}}} 0.25"),
            format!(
                "psi_agent_vmi_wait_seconds_total{{{vm},cause=\"node\",resource=\"cpu\"}} 12.5"
            ),
            format!("psi_agent_vmi_info{{{vm},pod=\"new\",uid=\"u-1\"}} 1"),
        ] {
            assert_eq!(text.lines().filter(|found| **found == *line).count(), 1, "{line}\n{text}");
        }
        assert!(!text.contains("pod=\"old\""));
    }
}
