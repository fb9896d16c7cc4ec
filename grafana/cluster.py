"""The cluster: nodes and VMs with contention, and where raw PSI and the score differ."""

from grafana_foundation_sdk.builders import dashboard

from panels import (
    BLUE, CLUSTER_UID, CPUS, GREEN, HIGH, LEVELS, MEDIUM, RATIO, RED, VM_UID, YELLOW,
    Query, bars, graph, link, new_dashboard, stat, states, table, variable,
)

OWN = 'job=~"$job", cluster=~"$cluster", instance=~"$node"'
# Series of the kubelet have the node, if at all, in the label `node` and not in `instance`.
KUBELET = 'job=~"$kubelet_job", cluster=~"$cluster", node=~"$node|", container!~"|POD"'

SCORE = f"psi_agent_node_score_ratio{{{OWN}}}"


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
        "Contention of VMs by node, compared with the nodes' raw PSI.",
        ("node and VM", VM_UID),
    )
    made.with_variable(
        variable(
            "node",
            "node",
            'label_values(psi_agent_build_info{job=~"$job", cluster=~"$cluster"}, instance)',
            "Node, by the label `instance` of psi-agent's job.",
            everything=True,
        )
    )
    made.with_variable(
        dashboard.TextBoxVariable("rule_psi")
        .label("rule: PSI above")
        .description("Threshold of the PSI rule that the score is compared with, 0 to 1: the "
                     "node's CPU PSI is above it and more than 70 % of its CPU time is in use.")
        .default_value("0.4")
    )
    _now(made.with_row(dashboard.Row("Now")))
    _over_time(made.with_row(dashboard.Row("Score and raw PSI")))
    _vms(made.with_row(dashboard.Row("VMs")))
    _publishes(made.with_row(dashboard.Row("Publishing on Nodes")))
    return made


def _now(made: dashboard.Dashboard) -> None:
    to_node = link("This node", VM_UID, node="__field.labels.instance")
    made.with_panel(stat(
        "Nodes by level",
        "Number of nodes with a score below 10 % (low), from 10 % (medium) and from 30 % (high), "
        "the default thresholds. The level on the Node follows up to 30 s later.",
        [
            Query(f"sum({SCORE} < bool {MEDIUM})", "low"),
            Query(f"sum(({SCORE} >= bool {MEDIUM}) * ({SCORE} < bool {HIGH}))", "medium"),
            Query(f"sum({SCORE} >= bool {HIGH})", "high"),
        ],
        width=10,
    ))
    made.with_panel(stat(
        "VMs with contention",
        "Number of VMs whose CPU ready or memory contention is 5 % or more.",
        [Query(f"sum(psi_agent_node_vmis_contended{{{OWN}}})", "VMs")],
        steps=[(None, GREEN), (1, YELLOW)],
        width=7,
    ))
    made.with_panel(stat(
        "Agents without a score",
        "Number of agents that are scraped but export no score. This is normal in the first 30 s "
        "after the start; later, a file that the score needs cannot be read.",
        [Query(f"count(psi_agent_build_info{{{OWN}}}) - (count({SCORE}) or vector(0))", "agents")],
        steps=[(None, GREEN), (1, YELLOW)],
        width=7,
    ))
    made.with_panel(bars(
        "Nodes by score",
        "Share of their demand that the node's VMs waited for because of the node, smoothed over "
        "30 s. Largest first.",
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
        "Contention by resource, steal (CPU time that the node's hypervisor gave to others) and "
        "utilization. I/O is not part of the score by default. A cell is empty if the value "
        "cannot be read.",
        {name: (by_node(query), RATIO) for name, query in {**ratios, **used}.items()},
        names={"instance": "node"}, width=14, steps=LEVELS,
        links={"node": link("This node", VM_UID, node="__value.raw")},
    ))


def _over_time(made: dashboard.Dashboard) -> None:
    to_node = link("This node", VM_UID, node="__field.labels.instance")
    made.with_panel(graph(
        "Score",
        "The larger of CPU and memory contention, smoothed over 30 s. Dashed lines: default "
        "thresholds of the levels medium and high.",
        [Query(by_node(SCORE), "{{instance}}")],
        steps=LEVELS, links=[to_node],
    ))
    made.with_panel(states(
        "Levels",
        "low: score below 10 %; medium: from 10 %; high: from 30 %. The level on the Node has a "
        "dwell time of 30 s and hysteresis, so it changes less often than shown here.",
        [Query(by_node(f"({SCORE} >= bool {MEDIUM}) + ({SCORE} >= bool {HIGH})"), "{{instance}}")],
        {0: ("low", GREEN), 1: ("medium", YELLOW), 2: ("high", RED)},
    ))
    for resource, word in [("cpu", "CPU"), ("memory", "Memory")]:
        made.with_panel(graph(
            f"{word}: contention and raw PSI",
            "Raw PSI also counts tasks that wait because of their own limit or for other threads "
            "of the same VM. Moving VMs to another node does not reduce that part, which is the "
            "difference between the two lines. For CPU it is mostly throttling.",
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
        "PSI rule and score",
        "PSI rule: CPU PSI of the node is above `rule: PSI above` and more than 70 % of its CPU "
        "time is in use. Score: CPU contention is 10 % or more. Rule only: tasks wait, but VMs do "
        "not wait because of the node. Score only: VMs wait on a node that the rule misses.",
        [Query(by_node(f"{rule} + {same} {score}"), "{{instance}}")],
        {
            0: ("neither", GREEN), 1: ("rule only", BLUE),
            2: ("score only", YELLOW), 3: ("both", RED),
        },
    ))
    throttled = f"container_cpu_cfs_throttled_seconds_total{{{KUBELET}}}"
    made.with_panel(table(
        "Throttled containers",
        "CPU time per second for which a container was throttled by its own limit, in CPUs: the "
        "usual reason where only the PSI rule matches. From the kubelet's cAdvisor job; "
        "psi-agent's manifest does not export these families. The column node is empty unless "
        "that job has a label `node`.",
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
        "Share of its CPU demand that a VM waited for because of the node, smoothed over 30 s.",
        [top_vms(f'psi_agent_vmi_contention_ratio{{{OWN}, resource="cpu"}}')],
        steps=LEVELS, width=8, links=[to_vm],
    ))
    made.with_panel(bars(
        "VMs by CPU ready",
        "Share of its vCPUs' time that a VM waited because of the node, smoothed over 30 s. Unlike "
        "contention it does not depend on the VM's demand.",
        [top_vms(f"psi_agent_vmi_wait_ratio{{{OWN}}}")],
        steps=LEVELS, width=8, links=[to_vm],
    ))
    made.with_panel(graph(
        "VMs with contention, by node",
        "Number of VMs of each node whose CPU ready or memory contention is 5 % or more.",
        [Query(by_node(f"psi_agent_node_vmis_contended{{{OWN}}}"), "{{instance}}")],
        unit="suffix: VMs", width=8,
    ))


def _publishes(made: dashboard.Dashboard) -> None:
    made.with_panel(graph(
        "Publishes per hour, by result",
        "12 for each node when nothing changes, and at most 60 more for changes. Results other "
        "than written and dry_run are errors.",
        [Query(
            f"sum by (result) (increase(psi_agent_publishes_total{{{OWN}}}[1h])) > 0",
            "{{result}}",
        )],
        unit="suffix: publishes",
    ))
    made.with_panel(graph(
        "Age of the last publish",
        "Agents renew their values every 5 min, and readers ignore values that are too old. An "
        "agent that has not published anything (dry run) has no line.",
        [Query(
            by_node(f"time() - (psi_agent_last_publish_timestamp_seconds{{{OWN}}} > 0)"),
            "{{instance}}",
        )],
        unit="s", steps=[(None, GREEN), (600, RED)],
    ))
