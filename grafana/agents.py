"""A collapsed row about the agents, the bridge and reap."""

from grafana_foundation_sdk.builders import dashboard

from panels import CPUS, Query, graph, stat, table

BRIDGE = 'cluster=~"$cluster"'


def row(own: str) -> dashboard.Row:
    made = dashboard.Row("Agents, bridge and reap").collapsed(True)
    for title, label, series, description in [
        ("Versions", "version", "psi_agent_build_info",
         "Number of agents by version. Several versions are normal during an update."),
        ("Bases", "basis", "psi_agent_score_info",
         "Number of agents by basis: source and version of the estimator. Scores of different "
         "bases are not comparable."),
    ]:
        made.with_panel(table(
            title, description,
            {"agents": (f"topk(15, count by ({label}) ({series}{{{own}}}))", "none")},
            names={label: label}, rows=5,
        ))
    made.with_panel(graph(
        "Publishes per second, by result",
        "Attempts to publish the score on Nodes. Results other than written and dry_run are errors.",
        [Query(
            f"sum by (result) (rate(psi_agent_publishes_total{{{own}}}[$__rate_interval])) > 0",
            "{{result}}",
        )],
        unit="suffix:/s",
    ))
    age = f"time() - max by (cluster, node) (psi_agent_last_publish_timestamp_seconds{{{own}}} > 0)"
    made.with_panel(table(
        "Oldest published values",
        "Age of the score on the 10 Nodes where it is oldest. Agents renew it every heartbeat "
        "interval, 5 min by default. Agents that do not publish are not included.",
        {"age": (f"topk(10, {age})", "s")}, names={"node": "node"}, rows=10,
    ))
    made.with_panel(graph(
        "Read errors per second, by kind",
        "Failures to read kernel files. `vanished` (the cgroup ended) and `unsupported` (PSI is "
        "off) are normal.",
        [Query(
            f"sum by (kind) (rate(psi_agent_read_errors_total{{{own}}}[$__rate_interval]))",
            "{{kind}}",
        )],
        unit="suffix:/s",
    ))
    cpu = f"rate(process_cpu_seconds_total{{{own}}}[$__rate_interval])"
    made.with_panel(graph(
        "CPU usage of agents",
        "Largest and mean CPU usage of one agent.",
        [Query(f"max({cpu})", "largest"), Query(f"avg({cpu})", "mean")],
        unit=CPUS,
    ))
    memory = f"process_resident_memory_bytes{{{own}}}"
    made.with_panel(graph(
        "Memory of agents",
        "Largest and mean resident memory of one agent.",
        [Query(f"max({memory})", "largest"), Query(f"avg({memory})", "mean")],
        unit="bytes",
    ))
    made.with_panel(stat(
        "Time since reap succeeded",
        "Time since the CronJob psi-agent-reap last succeeded. Needs kube-state-metrics.",
        [Query(
            "max(time() - max by (cluster) (kube_cronjob_status_last_successful_time"
            f'{{{BRIDGE}, cronjob=~"(.+-)?psi-agent-reap(-.+)?"}}))',
        )],
        unit="s", width=12, height=8,
    ))
    made.with_panel(graph(
        "Bridge: Nodes by state of their value",
        "known: the value is used. A Node in any other state gets the average. No data without a "
        "bridge.",
        [Query(
            f"sum by (standing) (max by (cluster, standing) (psi_agent_bridge_nodes{{{BRIDGE}}}))",
            "{{standing}}",
        )],
        unit="suffix:nodes",
    ))
    return made.with_panel(graph(
        "Bridge: requests per second, by result",
        "Requests of deschedulers and schedulers to the bridge. No data without a bridge.",
        [Query(
            "sum by (form, result) "
            f"(rate(psi_agent_bridge_requests_total{{{BRIDGE}}}[$__rate_interval]))",
            "{{form}}: {{result}}",
        )],
        unit="suffix:/s",
    ))
