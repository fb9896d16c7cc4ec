"""One VM, its node, and the other VMs on that node."""

from grafana_foundation_sdk.builders import dashboard

import vm
from panels import (
    CLUSTER_UID, CPUS, POINTS, RATIO, VM_UID, Query, graph, legend_height, link, new_dashboard, points, table,
    threshold_lines, variable,
)
from vm import COMPUTE, FROM_EITHER, FROM_KUBELET, NODE, OWN, rate


def build() -> dashboard.Dashboard:
    made = new_dashboard(
        "psi-agent / node and VM",
        VM_UID,
        "Waiting time of one VM by cause, its node, and the other VMs on that node.",
        ("cluster", CLUSTER_UID),
    )
    on_node = f'psi_agent_vmi_info{{{NODE}, namespace="$namespace"}}'
    for name, query, description in [
        ("node", f"psi_agent_build_info{{{OWN}}}, node",
         "Node, by the label `node` of psi-agent's job."),
        ("namespace", f"psi_agent_vmi_info{{{NODE}}}, namespace",
         "Namespaces of the VMs on this node."),
        ("vm", f"{on_node}, name", "VMs of the namespace on this node."),
    ]:
        made.with_variable(variable(name, name, f"label_values({query})", description))
    made.annotation(vm.Moves())
    vm.summary(made.with_row(dashboard.Row("VM $namespace/$vm")))
    vm.pressure(made)
    vm.consumption(made.with_row(dashboard.Row("VM: usage and limits")))
    _node(made.with_row(dashboard.Row("Node $node")))
    _neighbours(made.with_row(dashboard.Row("VMs on $node")))
    return made


def _node(made: dashboard.Dashboard) -> None:
    root = 'job=~"$job|$kubelet_job", cluster=~"$cluster", node="$node", id="/"'
    made.with_panel(graph(
        "Score and contention",
        "Score of the node, and the contention that it is computed from, 0 to 100. Dashed lines: "
        "the agent's thresholds of the levels.",
        [
            Query(points(f"max(psi_agent_node_score_ratio{{{NODE}}})"), "score"),
            Query(
                points(f"max by (resource) (psi_agent_node_contention_ratio{{{NODE}}})"), "{{resource}}",
            ),
            threshold_lines(NODE),
        ],
        unit=POINTS, width=8,
    ))
    made.with_panel(graph(
        "Raw PSI",
        "Share of time in which at least one task on the node waited, whatever the cause, own "
        "limits included." + FROM_EITHER,
        [
            Query(f"max({rate(f'container_pressure_{word}_waiting_seconds_total{{{root}}}')})", word)
            for word in ["cpu", "memory", "io"]
        ],
        width=8,
    ))
    made.with_panel(graph(
        "Utilization",
        "Share of the node's CPU time in use, share of its memory that is unavailable, and steal: "
        "share of the CPU time wanted by the node that its hypervisor gave to others.",
        [
            Query(f"max by (resource) (psi_agent_node_utilization_ratio{{{NODE}}})", "{{resource}}"),
            Query(f"max(psi_agent_node_steal_ratio{{{NODE}}})", "steal"),
        ],
        width=8,
    ))


def _neighbours(made: dashboard.Dashboard) -> None:
    def of_each(series: str) -> str:
        return f"max by (namespace, name) ({series})"

    def contention(resource: str) -> str:
        return of_each(f'psi_agent_vmi_contention_ratio{{{NODE}, resource="{resource}"}}')

    worst = f"topk(15, {contention('cpu')})"
    others = {
        "CPU ready": (of_each(f"psi_agent_vmi_wait_ratio{{{NODE}}}"), RATIO),
        "memory contention": (points(contention("memory")), POINTS),
        "I/O contention": (points(contention("io")), POINTS),
    }
    made.with_panel(table(
        "Worst 15 VMs of this node now",
        "The VMs with the highest CPU contention now, 0 to 100. If all VMs wait, the node is overloaded. "
        "If one VM waits alone, check its limits and threads.",
        {
            "CPU contention": (points(worst), POINTS),
            **{name: (f"{query} and on (namespace, name) {worst}", unit)
               for name, (query, unit) in others.items()},
        },
        names={"namespace": "namespace", "name": "VM"}, width=16,
        links={"VM": link(
            "This VM", VM_UID, node="node",
            namespace="__data.fields.namespace", vm="__value.raw",
        )},
    ))
    names = f"max by (cluster, namespace, pod, name) (psi_agent_vmi_info{{{NODE}}})"
    usage = f'job=~"$kubelet_job", cluster=~"$cluster", {COMPUTE}'
    usage = rate(f"container_cpu_usage_seconds_total{{{usage}}}")
    used = f"sum by (namespace, name) ({usage} * on (cluster, namespace, pod) group_left (name) {names})"
    made.with_panel(table(
        "CPU usage: largest 15 VMs",
        "CPU usage of VMs on the node now. Other workloads on the node use CPU too." + FROM_KUBELET,
        {"CPUs": (f"topk(15, {used})", CPUS)},
        names={"namespace": "namespace", "name": "VM"}, width=8,
    ))
    waited = f'psi_agent_vmi_wait_seconds_total{{{NODE}, resource="cpu", cause="node"}}'
    now = of_each(f"rate({waited}[$__rate_interval] @ end())")
    made.with_panel(graph(
        "CPU wait because of the node: 10 VMs that are worst now",
        "CPUs that each VM waited for because of the node, excluding own limits. The 10 VMs that wait most "
        "at the end of the time range.",
        [Query(
            f"{of_each(rate(waited))} and on (namespace, name) topk(10, {now})",
            "{{namespace}}/{{name}}",
        )],
        unit=CPUS, width=24, worst_first=True, height=legend_height(10),
    ))
