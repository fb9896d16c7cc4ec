"""A collapsed row about the moves of VMs, from recording rules."""

from grafana_foundation_sdk.builders import dashboard

from panels import CPUS, GREEN, RATIO, RED, Query, graph, stat, table

WHERE = 'cluster=~"$cluster"'
RULES = "From the rules of daemonset/prometheus."


def row() -> dashboard.Row:
    made = dashboard.Row("Moves of VMs").collapsed(True)
    made.with_panel(stat(
        "Moves: do they pay",
        "1: yes. 0: fewer than half of the last day's moves helped, of at least five. Then a "
        f"descheduler that uses the score gets the same value for each node. {RULES}",
        [Query(f"min(psi_agent:moves_pay{{{WHERE}}})")],
        width=6, height=8, steps=[(None, RED), (1, GREEN)],
    ))
    made.with_panel(graph(
        "Moves: last day by verdict",
        "Number of moves in the day before. Helped or hurt: what the VMs of both nodes wait changed by at "
        f"least 0.5 CPUs. {RULES}",
        [Query(f"sum by (verdict) (psi_agent:vmi_moves:count1d{{{WHERE}}})", "{{verdict}}")],
        unit="suffix:moves", width=18, steps=180,
    ))

    def last(series: str) -> str:
        # Without the name: a table has one row for the equal labels of its queries.
        return f"max by (cluster, namespace, name, from, to) (last_over_time({series}{{{WHERE}}}[1d]))"

    newest = f"topk(15, {last('vmi_move:arrival_timestamp_seconds')})"
    same = "and on (cluster, namespace, name, from, to)"
    ratios = {
        "CPU ready before": "vmi_move:psi_agent_vmi_wait_ratio:before10m",
        "CPU ready after": "vmi_move:psi_agent_vmi_wait_ratio:after10m",
    }
    waiting = {
        "waiting before": "vmi_move:psi_agent_vmi_wait_seconds:before10m",
        "waiting after": "vmi_move:psi_agent_vmi_wait_seconds:after10m",
    }
    columns = {"arrived": (f"1000 * {newest}", "dateTimeAsIso")}
    columns |= {
        name: (f"{last(series)} {same} {newest}", RATIO) for name, series in ratios.items()
    }
    columns |= {
        name: (f"{last(series)} {same} {newest}", CPUS) for name, series in waiting.items()
    }
    made.with_panel(table(
        "Moves: the last 15",
        "Moves of the last day, newest first. CPU ready of the VM in its last ten minutes on the old "
        f"node, and from 2 to 12 minutes after it arrived. Waiting: CPUs, of all VMs of both nodes. {RULES}",
        columns, width=24,
        names={"namespace": "namespace", "name": "VM", "from": "from", "to": "to"},
    ))
    return made
