"""Shared parts of both dashboards: panel types, units, thresholds, links and variables."""

from string import ascii_uppercase

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statetimeline, table as table_builder, timeseries
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

CLUSTER_UID, VM_UID = "psi-agent-cluster", "psi-agent-node-and-vm"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
RATIO, CPUS = "percentunit", "suffix: CPUs"
GREEN, YELLOW, RED, BLUE = "green", "orange", "red", "blue"

# Default thresholds of the agent's levels (`--levels`), 0 to 1.
MEDIUM, HIGH = 0.1, 0.3
LEVELS = [(None, GREEN), (MEDIUM, YELLOW), (HIGH, RED)]
PLAIN = [(None, BLUE)]


class Query:
    """A PromQL expression and the legend of its series."""

    def __init__(self, expr: str, legend: str = "") -> None:
        self.expr, self.legend = expr, legend

    def target(self, number: int) -> prometheus.Dataquery:
        query = prometheus.Dataquery().datasource(SOURCE).ref_id(ascii_uppercase[number])
        return query.expr(self.expr).legend_format(self.legend or "__auto").range()


def thresholds(steps: list[tuple[float | None, str]]) -> dashboard.ThresholdsConfig:
    made = [model.Threshold(value=value, color=color) for value, color in steps]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(made)


def link(title: str, uid: str, **variables: str) -> dashboard.DashboardLink:
    """A link that keeps the time range, data source and jobs, and sets these variables."""
    url = f"/d/{uid}?${{__url_time_range}}"
    for kept in ["datasource", "job", "kubelet_job", "cluster"]:
        url += f"&${{{kept}:queryparam}}"
    for name, value in variables.items():
        url += f"&var-{name}=${{{value}}}"
    return dashboard.DashboardLink(title).url(url)


def _common(panel, title: str, description: str, queries: list[Query], width: int, height: int):
    panel.title(title).description(description).datasource(SOURCE).span(width).height(height)
    return panel.targets([query.target(number) for number, query in enumerate(queries)])


def graph(
    title: str,
    description: str,
    queries: list[Query],
    *,
    unit: str = RATIO,
    width: int = 12,
    steps: list[tuple[float | None, str]] | None = None,
    links: list[dashboard.DashboardLink] = (),
):
    """Lines over time; steps are drawn as dashed lines."""
    panel = _common(timeseries.Panel(), title, description, queries, width, 8)
    panel.unit(unit).min(0).fill_opacity(8).line_width(1).data_links(list(links))
    panel.show_points(common_model.VisibilityMode.NEVER)
    panel.legend(
        common.VizLegendOptions()
        .show_legend(True)
        .display_mode(common_model.LegendDisplayMode.LIST)
        .placement(common_model.LegendPlacement.BOTTOM)
    )
    panel.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))
    if steps:
        dashed = common_model.GraphThresholdsStyleMode.DASHED
        panel.thresholds(thresholds(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(dashed))
    return panel


def _instant(panel):
    for target in panel.build().targets:
        target.instant, target.range_val = True, False
    return panel


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def stat(title, description, queries, *, unit="none", width=6, steps=PLAIN, height=4):
    """Current values as numbers."""
    panel = _instant(_common(stat_builder.Panel(), title, description, queries, width, height))
    panel.unit(unit).thresholds(thresholds(steps))
    panel.reduce_options(_last()).graph_mode(common_model.BigValueGraphMode.NONE)
    return panel.text_mode(common_model.BigValueTextMode.VALUE_AND_NAME)


def bars(title, description, queries, *, unit=RATIO, width=12, steps=PLAIN, links=()):
    """Current values as bars, one for each series."""
    panel = _instant(_common(bargauge.Panel(), title, description, queries, width, 8))
    panel.unit(unit).min(0).max(1).thresholds(thresholds(steps)).data_links(list(links))
    panel.reduce_options(_last()).orientation(common_model.VizOrientation.HORIZONTAL)
    return panel.display_mode(common_model.BarGaugeDisplayMode.BASIC)


def states(title, description, queries, mapping: dict[int, tuple[str, str]], *, width=12):
    """A state timeline: one coloured band for each series. `mapping`: text and colour by value."""
    panel = _common(statetimeline.Panel(), title, description, queries, width, 8)
    words = {
        str(number): model.ValueMappingResult(text=text, color=color, index=number)
        for number, (text, color) in mapping.items()
    }
    panel.mappings([model.ValueMap(options=words)]).merge_values(True)
    steps = [(number or None, color) for number, (_, color) in mapping.items()]
    panel.thresholds(thresholds(steps))
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    return panel.show_value(common_model.VisibilityMode.NEVER)


def table(
    title: str,
    description: str,
    columns: dict[str, tuple[str, str]],
    *,
    names: dict[str, str],
    width: int = 12,
    steps=PLAIN,
    links: dict[str, dashboard.DashboardLink] | None = None,
):
    """A table with one row for each set of labels. `columns`: query and unit of each numeric
    column. `names`: labels to show, with their column titles."""
    queries = [Query(expr) for expr, _ in columns.values()]
    panel = _instant(_common(table_builder.Panel(), title, description, queries, width, 8))
    for target in panel.build().targets:
        target.format_val = PromQueryFormat.TABLE
    several = len(columns) > 1
    values = [f"Value #{ascii_uppercase[n]}" if several else "Value" for n in range(len(columns))]
    renamed = {**names, **dict(zip(values, columns))}
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: place for place, name in enumerate(renamed)},
        "renameByName": renamed,
    }
    panel.with_transformation(model.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(model.DataTransformerConfig(id_val="organize", options=organize))
    panel.thresholds(thresholds(steps))
    for name, (_, unit) in columns.items():
        cell = {"type": "color-text"}
        look = {"unit": unit, "decimals": 1 if unit == RATIO else 3, "custom.cellOptions": cell}
        panel.override_by_name(name, _properties(look))
    for name, to in (links or {}).items():
        panel.override_by_name(name, _properties({"links": [to.build()]}))
    return panel


def _properties(values: dict[str, object]) -> list[model.DynamicConfigValue]:
    return [model.DynamicConfigValue(id_val=name, value=value) for name, value in values.items()]


def variable(name: str, label: str, query: str, description: str, *, everything=False):
    """A variable whose values come from a Prometheus query."""
    made = dashboard.QueryVariable(name).label(label).description(description)
    made.datasource(SOURCE).query(query).refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
    made.sort(model.VariableSort.ALPHABETICAL_ASC)
    if everything:
        made.include_all(True).all_value(".*").multi(True)
        made.current(model.VariableOption(selected=True, text="All", value="$__all"))
    return made


def new_dashboard(title: str, uid: str, description: str, other: tuple[str, str]):
    """An empty dashboard with the shared variables and a link to the other dashboard."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags(["psi-agent"])
    made.time("now-1h", "now").refresh("30s").tooltip(model.DashboardCursorSync.CROSSHAIR)
    name, to = other
    made.link(
        dashboard.DashboardLink(name)
        .type(model.DashboardLinkType.LINK)
        .url(f"/d/{to}?${{datasource:queryparam}}&${{job:queryparam}}&${{kubelet_job:queryparam}}")
    )
    source = dashboard.DatasourceVariable("datasource").label("data source").type("prometheus")
    made.with_variable(source)
    made.with_variable(
        variable("job", "job", "label_values(psi_agent_build_info, job)", "Job of psi-agent.")
    )
    made.with_variable(
        variable(
            "kubelet_job",
            "kubelet's job",
            "label_values(container_cpu_usage_seconds_total, job)",
            "Job of the kubelet's cAdvisor metrics: usage, limits, throttling, memory.",
        )
    )
    return made.with_variable(
        variable(
            "cluster",
            "cluster",
            'label_values(psi_agent_build_info{job=~"$job"}, cluster)',
            "Label `cluster`, for a Prometheus with series of several clusters.",
            everything=True,
        )
    )
