"""The panels of one VM, and the annotations of its migrations."""

from grafana_foundation_sdk.builders import dashboard

from panels import CPUS, LEVELS, POINTS, RATIO, SOURCE, Query, graph, points, stat, text

OWN = 'job=~"$job", cluster=~"$cluster"'
NODE = f'{OWN}, node="$node"'
# Without the node, so that the time before a migration is shown too.
VM = f'{OWN}, namespace="$namespace", name="$vm"'
FROM_EITHER = " From psi-agent, or from the kubelet's cAdvisor job if psi-agent does not export it."
FROM_KUBELET = (
    " From the kubelet's cAdvisor job; psi-agent's manifest does not export these families."
)


COMPUTE, EACH = 'container="compute"', 'container!~"|POD"'
EITHER = f'job=~"$job|$kubelet_job", cluster=~"$cluster", namespace="$namespace", {COMPUTE}'


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
    return single(rate(f"{name}{{{EITHER}}}"))


class Moves:
    """Marks where a known VM gets a new pod. Grafana reads more fields than the SDK's class has."""

    def build(self) -> dict[str, object]:
        vm = f"psi_agent_vmi_info{{{VM}}}"
        moved = (
            f"count by (node, pod) ({vm}) "
            f"unless on (node, pod) last_over_time({vm}[5m] offset 2m) "
            f"and on () group(last_over_time({vm}[5m] offset 2m))"
        )
        return {
            "name": "migrations", "datasource": SOURCE, "enable": True, "iconColor": "purple",
            "expr": moved, "step": "60s", "titleFormat": "VM moved to {{node}}",
            "textFormat": "new pod {{pod}}: a live migration or a restart",
        }


def summary(made: dashboard.Dashboard) -> None:
    waited = f"sum by (cause) ({rate(f'psi_agent_vmi_wait_seconds_total{{{VM}}}')})"
    made.with_panel(stat(
        "CPU contention",
        "Share of its CPU demand that the VM waits for because of the node, 0 to 100.",
        [Query(points(f'max(psi_agent_vmi_contention_ratio{{{VM}, resource="cpu"}})'))],
        unit=POINTS, width=4, steps=LEVELS,
    ))
    made.with_panel(stat(
        "CPU ready",
        "Share of its busy vCPUs' time that the VM waits because of the node.",
        [Query(f"max(psi_agent_vmi_wait_ratio{{{VM}}})")],
        unit=RATIO, width=4,
    ))
    made.with_panel(stat(
        "Memory contention",
        "Share of its demand that the VM waits for memory because of the node, 0 to 100.",
        [Query(points(f'max(psi_agent_vmi_contention_ratio{{{VM}, resource="memory"}})'))],
        unit=POINTS, width=5, steps=LEVELS,
    ))
    made.with_panel(text(
        "Cause",
        "The larger cause of the VM's waiting time, all resources together. node: contention, which "
        "a migration can reduce. own_limit: only a larger limit helps. none: it hardly waits. Empty if unknown.",
        [Query(
            f"topk(1, {waited} > 0.01) "
            f'or on () label_replace(0 * sum({waited}), "cause", "none", "", "")',
            "{{cause}}",
        )],
    ))
    made.with_panel(text(
        "Node",
        "Node of the VM: two during a live migration.",
        [Query(f"max by (node) (psi_agent_vmi_info{{{VM}}})", "{{node}}")],
        width=5,
    ))


def single(expression: str) -> str:
    """One series for the VM. In a live migration it has two pods, of which one does nothing."""
    return f"max({of_vm(expression)})"


def pressure(made: dashboard.Dashboard) -> None:
    def waited(resource: str) -> str:
        return rate(f"psi_agent_vmi_wait_seconds_total{{{VM}, {resource}}}")

    cpu, others = waited('resource="cpu"'), waited('resource!="cpu"')
    made.with_panel(graph(
        "Contention",
        "Share of its demand that the VM waited for because of the node, 0 to 100, smoothed over 30 s. "
        "CPU ready: share of its busy vCPUs' time that they waited because of the node, in percent.",
        [
            Query(points(f"max by (resource) (psi_agent_vmi_contention_ratio{{{VM}}})"), "{{resource}}"),
            Query(points(f"max(psi_agent_vmi_wait_ratio{{{VM}}})"), "CPU ready"),
        ],
        unit=POINTS, width=6,
    ))
    made.with_panel(graph(
        "CPU wait by cause",
        "CPUs that the VM waited for. node: contention on the node, which a migration can reduce. "
        "own_limit: a limit of the VM or its pod, which only a larger limit reduces.",
        [Query(f"sum by (cause) ({cpu})", "{{cause}}")],
        unit=CPUS, width=6,
    ))
    made.with_panel(graph(
        "Memory and I/O wait by cause",
        "Share of time that the VM waited for memory or I/O, by cause.",
        [Query(
            f"sum by (resource, cause) ({others})",
            "{{resource}}: {{cause}}",
        )],
        width=6,
    ))
    made.with_panel(graph(
        "CPU: raw PSI of the container",
        "waiting: at least one task waited; stalled: tasks waited and none ran. Threads of the VM "
        "that wait for each other raise the first, throttling raises both." + FROM_EITHER,
        [Query(container_psi("cpu", kind), kind) for kind in ["waiting", "stalled"]],
        width=6,
    ))


def consumption(made: dashboard.Dashboard) -> None:
    quota, period = kubelet("container_spec_cpu_quota"), kubelet("container_spec_cpu_period")
    throttled = rate(kubelet("container_cpu_cfs_throttled_seconds_total", EACH))
    made.with_panel(graph(
        "CPU: usage and limit",
        "CPU usage of the VM's container, and its limit if it has one." + FROM_KUBELET,
        [
            Query(single(rate(kubelet("container_cpu_usage_seconds_total"))), "used"),
            Query(single(f"({quota} / {period})"), "limit"),
        ],
        unit=CPUS,
    ))
    made.with_panel(graph(
        "CPU: throttled by own limits",
        "CPU time per second for which each container of the pod was throttled, in CPUs. compute "
        "is the VM. guest-console-log has a limit of 0.015 CPU and is often throttled."
        + FROM_KUBELET,
        [Query(f"max by (container) ({of_vm(throttled)})", "{{container}}")],
        unit=CPUS,
    ))
    made.with_panel(graph(
        "Memory: working set and limit",
        "Memory usage of the VM's container without inactive page cache, and its limit if it has "
        "one." + FROM_KUBELET,
        [
            Query(single(kubelet("container_memory_working_set_bytes")), "working set"),
            Query(single(f"({kubelet('container_spec_memory_limit_bytes')} > 0)"), "limit"),
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
        "Share of time in which at least one task of the container waited, whatever the cause."
        + FROM_EITHER,
        [Query(container_psi(resource, "waiting"), resource) for resource in ["memory", "io"]],
        width=24,
    ))
