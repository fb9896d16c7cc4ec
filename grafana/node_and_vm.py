"""One VM, its node, and its neighbours there."""

from grafana_foundation_sdk.builders import dashboard

from panels import (
    CLUSTER_UID, CPUS, LEVELS, RATIO, VM_UID, Query, graph, link, new_dashboard, table, variable,
)

OWN = 'job=~"$job", cluster=~"$cluster"'
NODE = f'{OWN}, instance="$node"'
# Not by node: what the VM went through before a migration shows too.
VM = f'{OWN}, namespace="$namespace", name="$vm"'
FROM_KUBELET = (
    " From the kubelet's cAdvisor job; psi-agent's manifest leaves these families to it."
)


COMPUTE, EACH = 'container="compute"', 'container!~"|POD"'
FROM_AGENT_OF_CONTAINER = f'{OWN}, namespace="$namespace", {COMPUTE}'


def of_vm(containers: str) -> str:
    """Of these containers those in the VM's pods: the info series says which pods they are."""
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
        "What one VM waits for and why, its node, and its neighbours there.",
        ("cluster", CLUSTER_UID),
    )
    on_node = f'psi_agent_vmi_info{{{NODE}, namespace="$namespace"}}'
    for name, query, description in [
        ("node", f"psi_agent_build_info{{{OWN}}}, instance",
         "The label `instance` of psi-agent's job is the node's name"),
        ("namespace", f"psi_agent_vmi_info{{{NODE}}}, namespace",
         "Namespaces of the VMs on this node"),
        ("vm", f"{on_node}, name", "VMs of the namespace on this node"),
    ]:
        made.with_variable(variable(name, name, f"label_values({query})", description))
    _pressure(made.with_row(dashboard.Row("The VM: $namespace/$vm")))
    _consumption(made.with_row(dashboard.Row("The VM: what it uses and may use")))
    _node(made.with_row(dashboard.Row("Its node: $node")))
    _neighbours(made.with_row(dashboard.Row("Its neighbours on $node")))
    return made


def _pressure(made: dashboard.Dashboard) -> None:
    made.with_panel(table(
        "Where it runs",
        "The VM's nodes and pods: two while it migrates.",
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
        "Share of what the VM wanted that it had to wait for because of its node, smoothed over "
        "30 s; and its CPU ready, the share of its vCPUs' time that they waited because of the node.",
        [
            Query(f"psi_agent_vmi_contention_ratio{{{VM}}}", "{{resource}} on {{instance}}"),
            Query(f"psi_agent_vmi_wait_ratio{{{VM}}}", "CPU ready on {{instance}}"),
        ],
        steps=LEVELS,
    ))
    made.with_panel(graph(
        "Waiting, by cause",
        "Seconds waited in each second. node: another node might mend it. own_limit: only a "
        "larger limit of its own would.",
        [Query(
            f"sum by (resource, cause) ({rate(f'psi_agent_vmi_wait_seconds_total{{{VM}}}')})",
            "{{resource}}: {{cause}}",
        )],
    ))
    made.with_panel(graph(
        "CPU: raw PSI of its container",
        "waiting: at least one task waited; stalled: tasks waited and none ran. A VM's own "
        "threads that wait for each other raise the first, throttling raises both.",
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
        "CPUs that the VM's container used, and its own limit where it has one." + FROM_KUBELET,
        [
            Query(of_vm(rate(kubelet("container_cpu_usage_seconds_total"))), "used"),
            Query(of_vm(f"({quota} / {period})"), "limit"),
        ],
        unit=CPUS,
    ))
    made.with_panel(graph(
        "CPU: throttled by their own limits",
        "CPUs that limits took from each container of the pod. guest-console-log is limited to a "
        "hundredth of a CPU and often throttled; compute is the VM." + FROM_KUBELET,
        [Query(f"sum by (container) ({of_vm(throttled)})", "{{container}}")],
        unit=CPUS,
    ))
    made.with_panel(graph(
        "Memory: working set and limit",
        "Memory of the VM's container that cannot be reclaimed at once, and its limit if it has "
        "one." + FROM_KUBELET,
        [
            Query(of_vm(kubelet("container_memory_working_set_bytes")), "working set"),
            Query(of_vm(f"({kubelet('container_spec_memory_limit_bytes')} > 0)"), "limit"),
        ],
        unit="bytes",
    ))
    made.with_panel(graph(
        "I/O",
        "Bytes that the VM's container read and wrote, all devices together. Disks on the network "
        "are often not among them." + FROM_KUBELET,
        [
            Query(f"sum({of_vm(rate(kubelet(f'container_fs_{kind}_bytes_total')))})", kind)
            for kind in ["reads", "writes"]
        ],
        unit="Bps",
    ))
    made.with_panel(graph(
        "Memory and I/O: raw PSI of its container",
        "waiting: at least one task of the container waited, for whatever reason.",
        [
            Query(container_psi(resource, "waiting"), f"{resource} on {{{{instance}}}}")
            for resource in ["memory", "io"]
        ],
        width=24,
    ))


def _node(made: dashboard.Dashboard) -> None:
    made.with_panel(graph(
        "Score and contention",
        "Contention of the node's VMs, 0 to 1: the score, and the resources that it is made of.",
        [
            Query(f"psi_agent_node_score{{{NODE}}}", "score"),
            Query(f"psi_agent_node_contention_ratio{{{NODE}}}", "{{resource}}"),
        ],
        width=8, steps=LEVELS,
    ))
    made.with_panel(graph(
        "Raw PSI",
        "The node's own pressure: share of time that at least one task waited, for any reason "
        "including its own limit.",
        [
            Query(rate(f'container_pressure_{word}_waiting_seconds_total{{{NODE}, id="/"}}'), word)
            for word in ["cpu", "memory", "io"]
        ],
        width=8,
    ))
    made.with_panel(graph(
        "In use",
        "Share of the node's CPU time in use, of its memory not to be had, and of the CPU time "
        "wanted from a hypervisor below that went to others.",
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
        "Each VM's contention by resource and its CPU ready. Where all wait, the node is short; "
        "where one waits alone, look at its limits and threads.",
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
        "Waiting for the node's CPUs",
        "Seconds that each VM of the node waited for its CPUs in each second, own limits left out.",
        [Query(of_each(rate(waited)), "{{namespace}}/{{name}}")],
    ))
    names = f"max by (cluster, namespace, pod, name) (psi_agent_vmi_info{{{NODE}}})"
    usage = f'job=~"$kubelet_job", cluster=~"$cluster", {COMPUTE}'
    usage = rate(f"container_cpu_usage_seconds_total{{{usage}}}")
    used = f"{usage} * on (cluster, namespace, pod) group_left (name) {names}"
    made.with_panel(graph(
        "CPU that each uses",
        "CPUs that the VMs of the node used. The largest users are what the others wait for."
        + FROM_KUBELET,
        [Query(f"sum by (namespace, name) ({used})", "{{namespace}}/{{name}}")],
        unit=CPUS, width=24,
    ))
