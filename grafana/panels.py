"""Shared parts of both dashboards: panel types, units, thresholds, links and variables."""

from string import ascii_uppercase

from grafana_foundation_sdk.builders import common, dashboard, prometheus
from grafana_foundation_sdk.builders import stat as stat_builder
from grafana_foundation_sdk.builders import statushistory, table as table_builder, timeseries
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

CLUSTER_UID, VM_UID = "psi-agent-cluster", "psi-agent-node-and-vm"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
RATIO, CPUS = "percentunit", "suffix:CPUs"
# Of a table.
ROWS = 15
POINTS = "none"  # Scores and contention of `points`, with the colours of the levels.
GREEN, YELLOW, RED, BLUE = "green", "orange", "red", "blue"

PLAIN = [(None, BLUE)]
WARN = [(None, GREEN), (1, YELLOW)]
LEVELS = [(None, GREEN), (10, YELLOW), (30, RED)]  # By the default thresholds.
LEVEL_WORDS = {0: ("low", GREEN), 1: ("medium", YELLOW), 2: ("high", RED)}


class Query:
    """A PromQL expression and the legend of its series."""

    def __init__(self, expr: str, legend: str = "") -> None:
        self.expr, self.legend = expr, legend

    def target(self, number: int) -> prometheus.Dataquery:
        query = prometheus.Dataquery().datasource(SOURCE).ref_id(ascii_uppercase[number])
        return query.expr(self.expr).legend_format(self.legend or "__auto").range()


def points(expr: str) -> str:
    """Scores and contention are 0 to 1 in metrics, and 0 to 100 for people."""
    return f"100 * {expr}"


def threshold_lines(where: str) -> Query:
    """The agents' thresholds of the levels; `graph` draws these series as dashed lines."""
    thresholds = f"max by (level) (psi_agent_level_threshold{{{where}}})"
    return Query(points(thresholds), "threshold {{level}}")


def level(score: str, where: str) -> str:
    """0 low, 1 medium, 2 high: `score`, by cluster and node, against the agent's thresholds."""
    def reached(name: str) -> str:
        series = f'psi_agent_level_threshold{{{where}, level="{name}"}}'
        return f"({score} >= bool max by (cluster, node) ({series}))"
    return f'({reached("medium")} + {reached("high")})'


def _threshold_model(steps: list[tuple[float | None, str]]) -> model.ThresholdsConfig:
    return thresholds(steps).build()


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
    links: list[dashboard.DashboardLink] = (),
    stacked: bool = False,
    worst_first: bool = False,
    steps: int | None = None,
    height: int = 8,
):
    """Lines over time. `steps` limits the steps of queries that read series of all VMs. `worst_first`:
    the legend has the last values, sorted, and a series has the colour of its name, also on another node."""
    panel = _common(timeseries.Panel(), title, description, queries, width, height)
    panel.unit(unit).min(0).fill_opacity(60 if stacked else 0).line_width(1)
    panel.data_links(list(links)).show_points(common_model.VisibilityMode.NEVER)
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL))
    if steps:
        panel.max_data_points(steps)
    # Colours by name can be too similar to tell a few series apart, as `memory` and `io`.
    modes = model.FieldColorModeId
    mode = modes.PALETTE_CLASSIC_BY_NAME if worst_first else modes.PALETTE_CLASSIC
    panel.color_scheme(dashboard.FieldColor().mode(mode))
    legend = common.VizLegendOptions().show_legend(True)
    if worst_first:
        legend.display_mode(common_model.LegendDisplayMode.TABLE).calcs(["lastNotNull"])
        legend.placement(common_model.LegendPlacement.RIGHT).sort_by("Last *").sort_desc(True)
    else:
        legend.display_mode(common_model.LegendDisplayMode.LIST)
        legend.placement(common_model.LegendPlacement.BOTTOM)
    panel.legend(legend)
    panel.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.MULTI))
    dashed = {"fill": "dash", "dash": [10, 10]}
    for name, color in [("medium", YELLOW), ("high", RED)]:
        panel.override_by_name(f"threshold {name}", _properties({
            "custom.lineStyle": dashed, "custom.fillOpacity": 0,
            "color": {"mode": "fixed", "fixedColor": color},
        }))
    for name, color in LEVEL_WORDS.values():
        panel.override_by_name(
            name, _properties({"color": {"mode": "fixed", "fixedColor": color}})
        )
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
    if steps is LEVELS:
        panel.decimals(0)
    panel.reduce_options(_last()).graph_mode(common_model.BigValueGraphMode.NONE)
    # The name of a series without a legend would be its whole expression.
    return panel.text_mode(common_model.BigValueTextMode.VALUE)


def text(title, description, queries, *, width=6, height=4):
    """Names of series as large text, for values that are labels."""
    panel = stat(title, description, queries, width=width, height=height)
    return panel.text_mode(common_model.BigValueTextMode.NAME)


def heatmap(title, description, queries, *, width=24, links=()):
    """One row of cells for each series, 0 to 100, in the colours of the levels, which the legend explains."""
    panel = _common(statushistory.Panel(), title, description, queries, width, 11)
    panel.unit(POINTS).min(0).max(100).decimals(0).data_links(list(links)).max_data_points(90)
    panel.color_scheme(dashboard.FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    panel.thresholds(thresholds(LEVELS))
    panel.show_value(common_model.VisibilityMode.NEVER).row_height(0.95).col_width(1)
    legend = common.VizLegendOptions().show_legend(True)
    legend.display_mode(common_model.LegendDisplayMode.LIST)
    return panel.legend(legend.placement(common_model.LegendPlacement.BOTTOM))


def legend_height(rows: int) -> int:
    # Rows and the header have 24 px, the title and borders 58, and a unit of height 38.
    return -(-(24 * (rows + 1) + 58) // 38)


def table_height(rows: int = ROWS) -> int:
    # Rows and the header have 36 px, the title and borders 48, and a unit of height 38.
    return -(-(36 * (rows + 1) + 48) // 38)


def table(
    title: str,
    description: str,
    columns: dict[str, tuple[str, str]],
    *,
    names: dict[str, str],
    rows: int = ROWS,
    width: int = 12,
    links: dict[str, dashboard.DashboardLink] | None = None,
):
    """A table with one row for each set of labels. `columns`: query and unit of each numeric
    column. `names`: labels to show, with their column titles. It is as high as `rows` rows."""
    queries = [Query(expr) for expr, _ in columns.values()]
    panel = _common(table_builder.Panel(), title, description, queries, width, table_height(rows))
    panel = _instant(panel)
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
    panel.thresholds(thresholds([(None, "text")]))
    panel.with_transformation(_sorted_by(next(iter(columns))))
    for name, (expr, unit) in columns.items():
        look = {"unit": unit, "decimals": {RATIO: 1, "none": 0}.get(unit, 2)}
        # The column is at least as wide as its title, and as a time.
        look |= {"custom.minWidth": max(150 if unit == "dateTimeAsIso" else 66, 23 + 15 * len(name) // 2)}
        if expr.startswith("100 * "):
            look |= {"thresholds": _threshold_model(LEVELS), "custom.cellOptions": {"type": "color-text"}}
        if name == "level":
            look |= {"mappings": [_words(LEVEL_WORDS)], "custom.cellOptions": {"type": "color-text"}}
        panel.override_by_name(name, _properties(look))
    for name in names.values():
        is_linked = name in (links or {})
        look = {"custom.minWidth": {"VM": 110, "node": 86 if is_linked else 72}.get(name, 95)}
        if is_linked:
            look |= {"links": [links[name].build()]}
        panel.override_by_name(name, _properties(look))
    return panel


def _sorted_by(column: str) -> model.DataTransformerConfig:
    by = {"sort": [{"field": column, "desc": True}]}
    return model.DataTransformerConfig(id_val="sortBy", options=by)


def _words(mapping: dict[int, tuple[str, str]]) -> model.ValueMap:
    return model.ValueMap(options={
        str(number): model.ValueMappingResult(text=text, color=color, index=number)
        for number, (text, color) in mapping.items()
    })


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
    made.time("now-6h", "now").refresh("30s").tooltip(model.DashboardCursorSync.CROSSHAIR)
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
