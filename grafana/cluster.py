"""The cluster: which nodes hold their VMs back, and where raw PSI says something else."""

from grafana_foundation_sdk.builders import dashboard

from panels import (
    BLUE, CLUSTER_UID, CPUS, GREEN, HIGH, LEVELS, MEDIUM, RATIO, RED, VM_UID, YELLOW,
    Query, bars, graph, link, new_dashboard, stat, states, table, variable,
)

OWN = 'job=~"$job", cluster=~"$cluster", instance=~"$node"'
# A kubelet's series have the node in a label of its own, if at all.
KUBELET = 'job=~"$kubelet_job", cluster=~"$cluster", node=~"$node|", container!~"|POD"'

SCORE = f"psi_agent_node_score{{{OWN}}}"


def contention(resource: str) -> str:
    return f'psi_agent_node_contention_ratio{{{OWN}, resource="{resource}"}}'


def utilization(resource: str) -> str:
    return f'psi_agent_node_utilization_ratio{{{OWN}, resource="{resource}"}}'


def psi(resource: str) -> str:
    name = f"container_pressure_{resource}_waiting_seconds_total"
    return f'rate({name}{{{OWN}, id="/"}}[$__rate_interval])'


def by_node(query: str) -> str:
    return f"max by (instance) ({query})"


def top_vms(series: str) -> Query:
    top = f"sort_desc(topk(10, max by (namespace, name, instance) ({series})))"
    return Query(top, "{{namespace}}/{{name}} on {{instance}}")


def build() -> dashboard.Dashboard:
    made = new_dashboard(
        "psi-agent / cluster",
        CLUSTER_UID,
        "How much nodes hold their VMs back, beside what raw PSI says of them.",
        ("node and VM", VM_UID),
    )
    made.with_variable(
        variable(
            "node",
            "node",
            'label_values(psi_agent_build_info{job=~"$job", cluster=~"$cluster"}, instance)',
            "The label `instance` of psi-agent's job is the node's name",
            everything=True,
        )
    )
    made.with_variable(
        dashboard.TextBoxVariable("rule_psi")
        .label("rule: PSI above")
        .description("The rule that the score is compared with: CPU PSI of a node above this, and "
                     "more than 70 % of its CPU time in use")
        .default_value("0.4")
    )
    _now(made.with_row(dashboard.Row("Now")))
    _over_time(made.with_row(dashboard.Row("The score beside raw PSI")))
    _vms(made.with_row(dashboard.Row("VMs")))
    _publishes(made.with_row(dashboard.Row("What was written on the Nodes")))
    return made


def _now(made: dashboard.Dashboard) -> None:
    to_node = link("This node", VM_UID, node="__field.labels.instance")
    made.with_panel(stat(
        "Nodes by level",
        "How many nodes have a score below 10, from 10, and from 30: where levels begin by "
        "default. The level on the Node follows up to 30 s later.",
        [
            Query(f"sum({SCORE} < bool {MEDIUM})", "low"),
            Query(f"sum(({SCORE} >= bool {MEDIUM}) * ({SCORE} < bool {HIGH}))", "medium"),
            Query(f"sum({SCORE} >= bool {HIGH})", "high"),
        ],
        width=10,
    ))
    made.with_panel(stat(
        "VMs that wait",
        "Number of VMs whose CPU ready or memory contention is 5 % or more.",
        [Query(f"sum(psi_agent_node_vmis_held_back{{{OWN}}})", "VMs")],
        steps=[(None, GREEN), (1, YELLOW)],
        width=7,
    ))
    made.with_panel(stat(
        "Agents without a score",
        "Agents that are up but export no score: in their first 30 s, or because a file that the "
        "score needs cannot be read. Absent is not zero.",
        [Query(f"count(psi_agent_build_info{{{OWN}}}) - (count({SCORE}) or vector(0))", "agents")],
        steps=[(None, GREEN), (1, YELLOW)],
        width=7,
    ))
    made.with_panel(bars(
        "Nodes by score",
        "Share of what a node's VMs wanted that they had to wait for because of the node, "
        "smoothed. The largest first.",
        [Query(f"sort_desc(topk(20, {by_node(SCORE)}))", "{{instance}}")],
        steps=LEVELS, width=10, links=[to_node],
    ))
    ratios = {
        "score": SCORE,
        "CPU": contention("cpu"),
        "memory": contention("memory"),
        "I/O": contention("io"),
        "steal": f"psi_agent_node_steal_ratio{{{OWN}}}",
    }
    used = {"CPU in use": utilization("cpu"), "memory in use": utilization("memory")}
    made.with_panel(table(
        "Nodes by resource",
        "Contention by resource, CPU time that a hypervisor gave to others (steal), and "
        "utilization. I/O is not part of the score by default. An empty cell: not known.",
        {name: (by_node(query), RATIO) for name, query in {**ratios, **used}.items()},
        names={"instance": "node"}, width=14, steps=LEVELS,
        links={"node": link("This node", VM_UID, node="__value.raw")},
    ))


def _over_time(made: dashboard.Dashboard) -> None:
    to_node = link("This node", VM_UID, node="__field.labels.instance")
    made.with_panel(graph(
        "Score",
        "The larger of CPU and memory contention, smoothed over 30 s. Dashed: where medium and "
        "high begin by default.",
        [Query(by_node(SCORE), "{{instance}}")],
        steps=LEVELS, links=[to_node],
    ))
    made.with_panel(states(
        "Levels",
        "low below 10, medium, high from 30. On the Node a level is entered after 30 s and left "
        "after 30 s well below, so it changes less often than here.",
        [Query(by_node(f"({SCORE} >= bool {MEDIUM}) + ({SCORE} >= bool {HIGH})"), "{{instance}}")],
        {0: ("low", GREEN), 1: ("medium", YELLOW), 2: ("high", RED)},
    ))
    for resource, word in [("cpu", "CPU"), ("memory", "Memory")]:
        made.with_panel(graph(
            f"{word}: contention beside raw PSI",
            "Raw PSI counts all waiting tasks, including those that wait for their own limit or for "
            "threads of the same pod. The difference between the two lines of a node would be the "
            "same on another node. For CPU it is mostly throttling.",
            [
                Query(by_node(contention(resource)), "{{instance}} contention"),
                Query(by_node(psi(resource)), "{{instance}} raw PSI"),
            ],
            links=[to_node],
        ))
    same = "on (cluster, instance)"
    rule = f'({psi("cpu")} > bool $rule_psi) * {same} ({utilization("cpu")} > bool 0.7)'
    score = f'2 * ({contention("cpu")} >= bool {MEDIUM})'
    made.with_panel(states(
        "The rule and the score",
        "The rule: CPU PSI of the node above the value at the top, and more than 70 % of its CPU "
        "time in use. The score: from 10. Rule alone: tasks wait, but no VM waits because of the "
        "node. Score alone: VMs wait on a node that the rule takes for calm.",
        [Query(by_node(f"{rule} + {same} {score}"), "{{instance}}")],
        {
            0: ("both calm", GREEN), 1: ("rule alone", BLUE),
            2: ("score alone", YELLOW), 3: ("both short", RED),
        },
    ))
    throttled = f"container_cpu_cfs_throttled_seconds_total{{{KUBELET}}}"
    made.with_panel(table(
        "Containers that are throttled",
        "Causes of a rule that stands alone: CPUs that containers lost to their own limits. "
        "From the kubelet's cAdvisor job; psi-agent's manifest leaves these families to it. The "
        "node is there if that job has a label `node`.",
        {"CPUs throttled": (
            "topk(15, sum by (node, namespace, pod, container) "
            f"(rate({throttled}[$__rate_interval])) > 0.001)",
            CPUS,
        )},
        names={"node": "node", "namespace": "namespace", "pod": "pod", "container": "container"},
        links={"node": link("This node", VM_UID, node="__value.raw")},
    ))


def _vms(made: dashboard.Dashboard) -> None:
    to_vm = link(
        "This VM", VM_UID, node="__field.labels.instance",
        namespace="__field.labels.namespace", vm="__field.labels.name",
    )
    made.with_panel(bars(
        "VMs by CPU contention",
        "Share of the CPU time that a VM wanted that it had to wait for because of its node.",
        [top_vms(f'psi_agent_vmi_contention_ratio{{{OWN}, resource="cpu"}}')],
        steps=LEVELS, width=8, links=[to_vm],
    ))
    made.with_panel(bars(
        "VMs by CPU ready",
        "Share of its vCPUs' time that a VM waited because of its node, whatever its demand, smoothed "
        "over 30 s.",
        [top_vms(f"psi_agent_vmi_wait_ratio{{{OWN}}}")],
        steps=LEVELS, width=8, links=[to_vm],
    ))
    made.with_panel(graph(
        "VMs that wait, by node",
        "Number of VMs of each node whose CPU ready or memory contention is 5 % or more.",
        [Query(by_node(f"psi_agent_node_vmis_held_back{{{OWN}}}"), "{{instance}}")],
        unit="suffix: VMs", width=8,
    ))


def _publishes(made: dashboard.Dashboard) -> None:
    made.with_panel(graph(
        "Publishes in an hour, by result",
        "12 for each node when nothing changes, never more than 60 besides. Anything but written "
        "and dry_run is an error of this kind.",
        [Query(
            f"sum by (result) (increase(psi_agent_publishes_total{{{OWN}}}[1h])) > 0",
            "{{result}}",
        )],
        unit="suffix: publishes",
    ))
    made.with_panel(graph(
        "Age of the last publish",
        "Everything is written again every 5 min: readers take older values for those of an agent "
        "that is gone. An agent that wrote none (a dry run) has no line.",
        [Query(
            by_node(f"time() - (psi_agent_last_publish_timestamp_seconds{{{OWN}}} > 0)"),
            "{{instance}}",
        )],
        unit="s", steps=[(None, GREEN), (600, RED)],
    ))
