"""The cluster: nodes and VMs with contention, and where raw PSI and the score differ."""

from grafana_foundation_sdk.builders import dashboard

import agents
import moves
from panels import (
    BLUE, CLUSTER_UID, CPUS, GREEN, POINTS, RATIO, RED, VM_UID, WARN,
    Query, graph, heatmap, legend_height, level, link, new_dashboard, points, stat, table, table_height,
    threshold_lines, variable,
)

OWN = 'job=~"$job", cluster=~"$cluster", node=~"$node"'
KUBELET = 'job=~"$kubelet_job", cluster=~"$cluster", node=~"$node|", container!~"|POD"'
VM_LABELS = "cluster, node, namespace, name"


def by_node(query: str) -> str:
    """One series for each node, also while a node has two agents during an update."""
    return f"max by (cluster, node) ({query})"


def by_vm(query: str) -> str:
    return f"max by ({VM_LABELS}) ({query})"


def contention(resource: str) -> str:
    return by_node(f'psi_agent_node_contention_ratio{{{OWN}, resource="{resource}"}}')


def utilization(resource: str) -> str:
    return by_node(f'psi_agent_node_utilization_ratio{{{OWN}, resource="{resource}"}}')


def vm_contention(resource: str) -> str:
    return f'psi_agent_vmi_contention_ratio{{{OWN}, resource="{resource}"}}'


SCORE = f"psi_agent_node_score_ratio{{{OWN}}}"
NODE_SCORE = by_node(SCORE)
NODE_LEVEL = level(NODE_SCORE, OWN)
# The agent's, or the kubelet's where the agent does not export them.
ROOT = 'job=~"$job|$kubelet_job", cluster=~"$cluster", node=~"$node", id="/"'
CPU_PSI = by_node(f"rate(container_pressure_cpu_waiting_seconds_total{{{ROOT}}}[$__rate_interval])")
FROM_EITHER = " Raw PSI is from psi-agent, or from the kubelet's cAdvisor job if psi-agent does not export it."


def worst_nodes(number: int) -> str:
    """The nodes with the highest score at the end of the time range. Over time, topk of the score itself
    would return more series than `number`."""
    return f"topk({number}, {by_node(f'{SCORE} @ end()')})"


def worst_nodes_first(number: int) -> Query:
    """The scores of the worst nodes. Prometheus sorts series by their labels, and a status history has them in
    that order: the label `_rank` is smaller for a higher score, and its name is before `cluster` in the alphabet."""
    rank = f'count_values by (cluster, node) ("_rank", 9999 - round(1000 * {worst_nodes(number)}))'
    return Query(f"{points(NODE_SCORE)} * on (cluster, node) group_left (_rank) {rank}", "{{node}}")


def worst_vms(series: str, scaled: str) -> Query:
    """`scaled` is made of the series, which select the VMs that are worst at the end of the time range."""
    top = f"topk(10, max by (cluster, namespace, name) ({series} @ end()))"
    return Query(f"{scaled} and on (cluster, namespace, name) {top}", "{{namespace}}/{{name}}")


def build() -> dashboard.Dashboard:
    made = new_dashboard(
        "psi-agent / cluster",
        CLUSTER_UID,
        "Nodes and VMs with contention, worst first, compared with raw PSI.",
        ("node and VM", VM_UID),
    )
    made.with_variable(
        variable(
            "node",
            "node",
            'label_values(psi_agent_build_info{job=~"$job", cluster=~"$cluster"}, node)',
            "Node, by the label `node` of psi-agent's job.",
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
    _nodes(made.with_row(dashboard.Row("Nodes")))
    _capacity(made.with_row(dashboard.Row("Capacity")))
    _vms(made.with_row(dashboard.Row("VMs")))
    made.with_row(_raw_psi(dashboard.Row("Score and raw PSI").collapsed(True)))
    made.with_row(moves.row())
    return made.with_row(agents.row(OWN))


def _now(made: dashboard.Dashboard) -> None:
    up = by_node(f"up{{{OWN}}}")
    published = by_node(f"last_over_time(psi_agent_last_publish_timestamp_seconds{{{OWN}}}[1d]) > 0")
    heartbeat = by_node(f"last_over_time(psi_agent_heartbeat_interval_seconds{{{OWN}}}[1d])")
    silent = by_node(f"{up} == 1 unless on (cluster, node) psi_agent_heartbeat_interval_seconds{{{OWN}}}")
    numbers = [
        ("Nodes", "Number of nodes with an agent, also one that does not respond.",
         f"count({up})", [(None, BLUE)]),
        ("High", "Number of nodes whose score is at or above the agent's threshold of the level "
         "high. The level on the Node has a dwell time and changes less often.",
         f"count({NODE_LEVEL} == 2) or 0 * count({NODE_LEVEL})", [(None, GREEN), (1, RED)]),
        ("Medium", "Number of nodes whose score is between the agent's thresholds of the levels "
         "medium and high.",
         f"count({NODE_LEVEL} == 1) or 0 * count({NODE_LEVEL})", WARN),
        ("Contended", "Number of scored VMs, containers or units whose CPU ready or memory contention "
         "is 5 % or more.",
         f"sum({by_node(f'psi_agent_node_contended{{{OWN}}}')})", WARN),
        ("Agents down", "Number of agents that Prometheus could not scrape.",
         f"count({up} == 0) or 0 * count({up})", [(None, GREEN), (1, RED)]),
        ("Without a score", "Number of agents that respond but have no score. This is normal in "
         "the first 30 s. Later, psi_agent_node_unscored_info has the reason.",
         f"count(({up} == 1) unless on (cluster, node) {NODE_SCORE}) or 0 * count({up})", WARN),
        ("Stale values", "Number of Nodes whose published score is older than two heartbeat "
         "intervals, also of an agent that does not respond. Empty where agents do not publish.",
         f"count(time() - {published} > 2 * {heartbeat} and on (cluster, node) {up} unless on (cluster, node) {silent}) "
         f"or 0 * count({heartbeat})",
         WARN),
    ]
    for (title, description, query, steps), width in zip(numbers, [3, 3, 3, 3, 4, 4, 4]):
        made.with_panel(stat(title, description, [Query(query)], width=width, steps=steps))


def _nodes(made: dashboard.Dashboard) -> None:
    to_node = link("This node", VM_UID, node="__field.labels.node")
    worst = f"topk(15, {NODE_SCORE})"
    columns = {"score": (points(worst), POINTS), "level": (NODE_LEVEL, "none")}
    for name in ["CPU", "memory", "I/O"]:
        resource = name.lower().replace("/", "")
        columns[f"{name} contention"] = (points(contention(resource)), POINTS)
    ratios = {
        "steal": by_node(f"psi_agent_node_steal_ratio{{{OWN}}}"),
        "raw CPU PSI": CPU_PSI,
        "CPU in use": utilization("cpu"),
        "memory in use": utilization("memory"),
    }
    columns |= {name: (query, RATIO) for name, query in ratios.items()}
    columns["contended"] = (by_node(f"psi_agent_node_contended{{{OWN}}}"), "none")
    for name, (query, unit) in list(columns.items())[1:]:
        columns[name] = (f"{query} and on (cluster, node) {worst}", unit)
    made.with_panel(heatmap(
        "Score over time: 15 nodes that are worst now",
        "Score, 0 to 100, of the 15 nodes with the highest score at the end of the time range, highest first. "
        "The colours are those of the levels by their default thresholds, 10 and 30.",
        [worst_nodes_first(15)],
        links=[to_node],
    ))
    made.with_panel(table(
        "Worst 15 nodes now",
        "The 15 nodes with the highest score now. Score and contention: 0 to 100. Level: by the agent's own "
        "thresholds. Steal: CPU time that the node's hypervisor gave to others. By default I/O is not part "
        "of the score. A cell is empty if the value cannot be read." + FROM_EITHER,
        columns, names={"node": "node"}, width=24,
        links={"node": link("This node", VM_UID, node="__value.raw")},
    ))
    made.with_panel(graph(
        "Score: 10 nodes that are worst now",
        "Score, 0 to 100, of the 10 nodes with the highest score at the end of the time range: the larger of "
        "CPU and memory contention, smoothed over 30 s. Dashed lines: the agents' thresholds of the levels.",
        [
            Query(f"{points(NODE_SCORE)} and on (cluster, node) {worst_nodes(10)}", "{{node}}"),
            threshold_lines(OWN),
        ],
        unit=POINTS, links=[to_node], worst_first=True, height=legend_height(12),
    ))
    made.with_panel(graph(
        "Nodes by level",
        "Number of nodes whose score is below, between and above the agents' thresholds. The level "
        "on the Node has a dwell time and changes less often.",
        [
            Query(f"count({NODE_LEVEL} == {number}) or 0 * count({NODE_LEVEL})", word)
            for number, word in [(2, "high"), (1, "medium"), (0, "low")]
        ],
        unit="suffix:nodes", stacked=True, steps=180, height=legend_height(12),
    ))


def _capacity(made: dashboard.Dashboard) -> None:
    all_nodes = by_node(f"psi_agent_node_headroom_cpus{{{OWN}}}")
    # Nodes that can get VMs: those that run VMs, or all if no metric shows which these are.
    for_vms = "on (cluster, node) node:kube_node_labels:group"
    headroom = (
        f"(({all_nodes} and {for_vms} or {all_nodes} unless on (cluster) node:kube_node_labels:group)"
        " unless on (cluster, node) kube_node_spec_unschedulable == 1)"
    )
    what = "Headroom: busy vCPUs that can be added to a schedulable node before its level is medium."
    for title, description, query, unit, steps in [
        ("Headroom", f"{what} The sum of all of them.", f"sum({headroom})", CPUS, [(None, BLUE)]),
        ("Largest headroom of a node", f"{what} A VM with more busy vCPUs fits on no node.",
         f"max({headroom})", CPUS, [(None, BLUE)]),
        ("Nodes without headroom", "Number of nodes to which not even one busy vCPU can be added.",
         f"count({headroom} < 1) or 0 * count({headroom})", "none", WARN),
    ]:
        made.with_panel(stat(title, description, [Query(query)], unit=unit, width=8, steps=steps))
    made.with_panel(table(
        "Headroom: 15 nodes with the most now", what,
        {
            "headroom": (f"topk(15, {headroom})", CPUS),
            "CPU in use": (f"{utilization('cpu')} and on (cluster, node) topk(15, {headroom})", RATIO),
        },
        names={"node": "node"}, links={"node": link("This node", VM_UID, node="__value.raw")},
    ))
    made.with_panel(graph(
        "Headroom over time", f"{what} The sum of all nodes, and the largest of a node.",
        [Query(f"sum({headroom})", "all nodes"), Query(f"max({headroom})", "largest of a node")],
        unit=CPUS, height=table_height(),
    ))


def _vms(made: dashboard.Dashboard) -> None:
    cpu, wait = vm_contention("cpu"), f"psi_agent_vmi_wait_ratio{{{OWN}}}"
    worst = f"topk(15, {by_vm(cpu)})"
    made.with_panel(table(
        "Worst 15 VMs by CPU contention now",
        "The 15 VMs with the highest CPU contention now. Contention: share of its CPU demand that "
        "a VM waited for because of the node, 0 to 100. CPU ready: the same wait as a share of its "
        "busy vCPUs' time.",
        {
            "CPU contention": (points(worst), POINTS),
            "CPU ready": (f"{by_vm(wait)} and on ({VM_LABELS}) {worst}", RATIO),
            "memory contention": (
                f"{points(by_vm(vm_contention('memory')))} and on ({VM_LABELS}) {worst}", POINTS,
            ),
        },
        names={"namespace": "namespace", "name": "VM", "node": "node"}, width=14,
        links={"VM": link(
            "This VM", VM_UID, node="__data.fields.node",
            namespace="__data.fields.namespace", vm="__value.raw",
        )},
    ))
    worst = f"topk(15, {by_vm(vm_contention('memory'))})"
    made.with_panel(table(
        "Worst 15 VMs by memory contention now",
        "The 15 VMs with the highest memory contention now: share of its demand that a VM waited for "
        "because of the node, 0 to 100.",
        {"memory contention": (points(worst), POINTS)},
        names={"namespace": "namespace", "name": "VM", "node": "node"}, width=10,
    ))
    to_vm = link(
        "This VM", VM_UID, node="__field.labels.node",
        namespace="__field.labels.namespace", vm="__field.labels.name",
    )
    for title, description, query, unit in [
        ("CPU contention: 10 VMs that are worst now", "The 10 VMs with the highest CPU contention at the end "
         "of the time range, as a share of their CPU demand, 0 to 100.",
         worst_vms(cpu, points(by_vm(cpu))), POINTS),
        ("CPU ready: 10 VMs that are worst now", "The 10 VMs with the highest CPU ready at the end of the "
         "time range, as a share of their busy vCPUs' time.",
         worst_vms(wait, by_vm(wait)), RATIO),
    ]:
        made.with_panel(graph(
            title, description, [query], unit=unit, links=[to_vm], steps=120, worst_first=True,
            height=legend_height(10),
        ))


def _raw_psi(made: dashboard.Row) -> dashboard.Row:
    cpu, used = contention("cpu"), utilization("cpu")
    worst = f"topk(10, {CPU_PSI} - {cpu})"
    made.with_panel(table(
        "Raw CPU PSI higher than contention: 10 nodes",
        "The 10 nodes with the largest difference now. Raw PSI also counts tasks that wait because "
        "of their own limit, mostly throttling. Moving VMs away does not reduce that part." + FROM_EITHER,
        {
            "difference": (worst, RATIO),
            "raw CPU PSI": (f"{CPU_PSI} and {worst}", RATIO),
            "CPU contention": (f"{points(cpu)} and {worst}", POINTS),
            "CPU in use": (f"{used} and {worst}", RATIO),
        },
        names={"node": "node"}, rows=10,
        links={"node": link("This node", VM_UID, node="__value.raw")},
    ))
    throttled = f"container_cpu_cfs_throttled_seconds_total{{{KUBELET}}}"
    made.with_panel(table(
        "Most throttled containers",
        "CPU time per second for which a container was throttled by its own limit, in CPUs: the "
        "usual reason for high raw PSI without contention. From the kubelet's cAdvisor job. "
        "psi-agent's manifest does not export this family.",
        {"CPUs throttled": (
            "topk(10, sum by (node, namespace, pod, container) "
            f"(rate({throttled}[$__rate_interval])) > 0.001)",
            CPUS,
        )},
        names={"node": "node", "namespace": "namespace", "pod": "pod", "container": "container"},
        rows=10,
        links={"node": link("This node", VM_UID, node="__value.raw")},
    ))
    rule = f"(({CPU_PSI} > bool $rule_psi) * ({used} > bool 0.7))"
    score = f"({level(cpu, OWN)} >= bool 1)"
    cases = [("rule only", 1, 0), ("score only", 0, 1), ("both", 1, 1)]
    return made.with_panel(graph(
        "Nodes by PSI rule and score",
        "PSI rule: CPU PSI of the node is above `rule: PSI above` and more than 70 % of its CPU "
        "time is in use. Score: CPU contention is at or above the threshold of medium. Rule only: "
        "tasks wait, but not because of the node. Score only: VMs wait and the rule misses it." + FROM_EITHER,
        [
            Query(f"count(({rule} == {one}) and ({score} == {two})) or 0 * count({rule})", name)
            for name, one, two in cases
        ],
        unit="suffix:nodes", width=24, steps=180,
    ))
