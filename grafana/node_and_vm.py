"""One VM, its node, and the other VMs on that node."""

from grafana_foundation_sdk.builders import dashboard

from panels import (
    CLUSTER_UID, CPUS, LEVELS, RATIO, VM_UID, Query, graph, link, new_dashboard, table, variable,
)

OWN = 'job=~"$job", cluster=~"$cluster"'
NODE = f'{OWN}, instance="$node"'
# Without the node, so that the time before a migration is shown too.
VM = f'{OWN}, namespace="$namespace", name="$vm"'
FROM_KUBELET = (
    " From the kubelet's cAdvisor job; psi-agent's manifest does not export these families."
)


COMPUTE, EACH = 'container="compute"', 'container!~"|POD"'
FROM_AGENT_OF_CONTAINER = f'{OWN}, namespace="$namespace", {COMPUTE}'


def of_vm(containers: str) -> str:
    """The series of the containers in the VM's pods, joined by `psi_agent_vmi_info`."""
    pods = f"max by (cluster, namespace, pod) (psi_agent_vmi_info{{{VM}}})"
    return f"{containers} * on (cluster, namespace, pod) group_left () {pods}"


def kubelet(name: str, container: str = COMPUTE) -> str:
    where = f'job=~"$kubelet_job", cluster=~"$cluster", namespace="$namespace", {container}'
    return f"{name}{{{where}}}"


def rate(series: str) -> str:
    return f"rate({series}[$__rate_interval])"


def container_psi(resource: str, kind: str) -> str:
    name = f"container_pressure_{resource}_{kind}_seconds_total"
    return of_vm(rate(f"{name}{{{FROM_AGENT_OF_CONTAINER}}}"))


def build() -> dashboard.Dashboard:
    made = new_dashboard(
        "psi-agent / node and VM",
        VM_UID,
        "Waiting time of one VM by cause, its node, and the other VMs on that node.",
        ("cluster", CLUSTER_UID),
    )
    on_node = f'psi_agent_vmi_info{{{NODE}, namespace="$namespace"}}'
    for name, query, description in [
        ("node", f"psi_agent_build_info{{{OWN}}}, instance",
         "Node, by the label `instance` of psi-agent's job."),
        ("namespace", f"psi_agent_vmi_info{{{NODE}}}, namespace",
         "Namespaces of the VMs on this node."),
        ("vm", f"{on_node}, name", "VMs of the namespace on this node."),
    ]:
        made.with_variable(variable(name, name, f"label_values({query})", description))
    _pressure(made.with_row(dashboard.Row("VM $namespace/$vm")))
    _consumption(made.with_row(dashboard.Row("VM: usage and limits")))
    _node(made.with_row(dashboard.Row("Node $node")))
    _neighbours(made.with_row(dashboard.Row("VMs on $node")))
    return made


def _pressure(made: dashboard.Dashboard) -> None:
    made.with_panel(table(
        "Nodes and pods",
        "Nodes and pods of the VM: two of each during a live migration.",
        {"CPU contention": (
            "max by (instance, pod) (psi_agent_vmi_info"
            f"{{{VM}}} * on (cluster, instance, namespace, name) group_left () "
            f'psi_agent_vmi_contention_ratio{{{VM}, resource="cpu"}})',
            RATIO,
        )},
        names={"instance": "node", "pod": "pod"}, steps=LEVELS,
    ))
    made.with_panel(graph(
        "Contention",
        "Share of its demand that the VM waited for because of the node, smoothed over 30 s. CPU "
        "ready: share of its vCPUs' time that they waited because of the node.",
        [
            Query(f"psi_agent_vmi_contention_ratio{{{VM}}}", "{{resource}} on {{instance}}"),
            Query(f"psi_agent_vmi_wait_ratio{{{VM}}}", "CPU ready on {{instance}}"),
        ],
        steps=LEVELS,
    ))
    made.with_panel(graph(
        "Waiting time by cause",
        "Seconds waited per second. node: contention on the node, which a migration can reduce. "
        "own_limit: a limit of the VM or its pod, which only a larger limit reduces.",
        [Query(
            f"sum by (resource, cause) ({rate(f'psi_agent_vmi_wait_seconds_total{{{VM}}}')})",
            "{{resource}}: {{cause}}",
        )],
    ))
    made.with_panel(graph(
        "CPU: raw PSI of the container",
        "waiting: at least one task waited; stalled: tasks waited and none ran. Threads of the VM "
        "that wait for each other raise the first, throttling raises both.",
        [
            Query(container_psi("cpu", kind), f"{kind} on {{{{instance}}}}")
            for kind in ["waiting", "stalled"]
        ],
    ))


def _consumption(made: dashboard.Dashboard) -> None:
    quota, period = kubelet("container_spec_cpu_quota"), kubelet("container_spec_cpu_period")
    throttled = rate(kubelet("container_cpu_cfs_throttled_seconds_total", EACH))
    made.with_panel(graph(
        "CPU: usage and limit",
        "CPU usage of the VM's container, and its limit if it has one." + FROM_KUBELET,
        [
            Query(of_vm(rate(kubelet("container_cpu_usage_seconds_total"))), "used"),
            Query(of_vm(f"({quota} / {period})"), "limit"),
        ],
        unit=CPUS,
    ))
    made.with_panel(graph(
        "CPU: throttled by own limits",
        "CPU time per second for which each container of the pod was throttled, in CPUs. compute "
        "is the VM. guest-console-log has a limit of 0.015 CPU and is often throttled."
        + FROM_KUBELET,
        [Query(f"sum by (container) ({of_vm(throttled)})", "{{container}}")],
        unit=CPUS,
    ))
    made.with_panel(graph(
        "Memory: working set and limit",
        "Memory usage of the VM's container without inactive page cache, and its limit if it has "
        "one." + FROM_KUBELET,
        [
            Query(of_vm(kubelet("container_memory_working_set_bytes")), "working set"),
            Query(of_vm(f"({kubelet('container_spec_memory_limit_bytes')} > 0)"), "limit"),
        ],
        unit="bytes",
    ))
    made.with_panel(graph(
        "I/O",
        "Bytes per second that the VM's container read and wrote, summed over devices. Network "
        "disks are often not included." + FROM_KUBELET,
        [
            Query(f"sum({of_vm(rate(kubelet(f'container_fs_{kind}_bytes_total')))})", kind)
            for kind in ["reads", "writes"]
        ],
        unit="Bps",
    ))
    made.with_panel(graph(
        "Memory and I/O: raw PSI of the container",
        "Share of time in which at least one task of the container waited, whatever the cause.",
        [
            Query(container_psi(resource, "waiting"), f"{resource} on {{{{instance}}}}")
            for resource in ["memory", "io"]
        ],
        width=24,
    ))


def _node(made: dashboard.Dashboard) -> None:
    made.with_panel(graph(
        "Score and contention",
        "Score of the node, and the contention ratios that it is computed from.",
        [
            Query(f"psi_agent_node_score_ratio{{{NODE}}}", "score"),
            Query(f"psi_agent_node_contention_ratio{{{NODE}}}", "{{resource}}"),
        ],
        width=8, steps=LEVELS,
    ))
    made.with_panel(graph(
        "Raw PSI",
        "Share of time in which at least one task on the node waited, whatever the cause, own "
        "limits included.",
        [
            Query(rate(f'container_pressure_{word}_waiting_seconds_total{{{NODE}, id="/"}}'), word)
            for word in ["cpu", "memory", "io"]
        ],
        width=8,
    ))
    made.with_panel(graph(
        "Utilization",
        "Share of the node's CPU time in use, share of its memory that is unavailable, and steal: "
        "share of the CPU time wanted by the node that its hypervisor gave to others.",
        [
            Query(f"psi_agent_node_utilization_ratio{{{NODE}}}", "{{resource}}"),
            Query(f"psi_agent_node_steal_ratio{{{NODE}}}", "steal"),
        ],
        width=8,
    ))


def _neighbours(made: dashboard.Dashboard) -> None:
    def of_each(series: str) -> str:
        return f"max by (namespace, name) ({series})"

    def contention(resource: str) -> str:
        series = f'psi_agent_vmi_contention_ratio{{{NODE}, resource="{resource}"}}'
        return of_each(series)

    waited = f'psi_agent_vmi_wait_seconds_total{{{NODE}, resource="cpu", cause="node"}}'

    made.with_panel(table(
        "VMs of this node",
        "Contention of each VM by resource, and its CPU ready. If all VMs wait, the node is "
        "overloaded. If one VM waits alone, check its limits and threads.",
        {
            "CPU": (contention("cpu"), RATIO),
            "memory": (contention("memory"), RATIO),
            "I/O": (contention("io"), RATIO),
            "CPU ready": (of_each(f"psi_agent_vmi_wait_ratio{{{NODE}}}"), RATIO),
        },
        names={"namespace": "namespace", "name": "VM"}, steps=LEVELS,
        links={"VM": link(
            "This VM", VM_UID, node="node",
            namespace="__data.fields.namespace", vm="__value.raw",
        )},
    ))
    made.with_panel(graph(
        "CPU wait because of the node, by VM",
        "Seconds per second that each VM waited for CPU because of the node, excluding own limits.",
        [Query(of_each(rate(waited)), "{{namespace}}/{{name}}")],
    ))
    names = f"max by (cluster, namespace, pod, name) (psi_agent_vmi_info{{{NODE}}})"
    usage = f'job=~"$kubelet_job", cluster=~"$cluster", {COMPUTE}'
    usage = rate(f"container_cpu_usage_seconds_total{{{usage}}}")
    used = f"{usage} * on (cluster, namespace, pod) group_left (name) {names}"
    made.with_panel(graph(
        "CPU usage by VM",
        "CPU usage of the VMs on the node. Other workloads on the node use CPU too." + FROM_KUBELET,
        [Query(f"sum by (namespace, name) ({used})", "{{namespace}}/{{name}}")],
        unit=CPUS, width=24,
    ))
