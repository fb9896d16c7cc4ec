"""Draws the dashboards with matplotlib from the query results that a test run saved. The pictures
in the documents so show real results of the committed panels, without a Grafana."""

import json
import re
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.dates import DateFormatter, date2num

COLORS = ["#5794f2", "#ff9830", "#73bf69", "#f2495c", "#b877d9", "#fade2a", "#8ab8ff", "#ffa6b0"]
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}
INK, FRAME, GROUND = "#22252b", "#d5d8de", "#f4f5f5"
NAMED["text"] = INK
# The variables' values in the test.
CHOSEN = {"$namespace": "shop", "$vm": "db", "$node": "node-42"}
UNITS = {"percentunit": "%", "none": "", "s": "s", "bytes": "GiB", "Bps": "MB/s"}
WITH_AXES = {"timeseries", "status-history"}
SCALES = {"percentunit": 100, "bytes": 1 / (1 << 30), "Bps": 1e-6}
BELOW = {
    "ncols": 4, "loc": "upper left", "bbox_to_anchor": (0, -0.1), "frameon": False,
    "fontsize": 6.5, "borderpad": 0,
}


def expanded(text: str) -> str:
    for name, value in CHOSEN.items():
        text = text.replace(name, value)
    return text


def legend(target: dict, labels: dict) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), target["legendFormat"])


def word(unit: str) -> str:
    return unit.removeprefix("suffix: ") if unit.startswith("suffix: ") else UNITS[unit]


def shown(value: str, unit: str) -> str:
    number = float(value) * SCALES.get(unit, 1)
    digits = 1 if unit == "percentunit" else 0 if number == int(number) else 2
    return f"{number:.{digits}f} {word(unit)}".strip()


def color_of(value: float, steps: list[dict]) -> str:
    passed = [step for step in steps if step["value"] is None or value >= step["value"]]
    return NAMED[passed[-1]["color"]]


def series_of(panel: dict, answers: dict):
    for target in panel["targets"]:
        for series in answers[target["refId"]]:
            yield legend(target, series["metric"]), series


def times_of(series: dict) -> list[datetime]:
    return [datetime.fromtimestamp(at, UTC) for at, _ in series["values"]]


def overrides(panel: dict) -> dict[str, dict]:
    """The properties of each field that has its own."""
    found: dict[str, dict] = {}
    for each in panel["fieldConfig"].get("overrides", []):
        properties = {it["id"]: it["value"] for it in each["properties"]}
        found.setdefault(each["matcher"]["options"], {}).update(properties)
    return found


def draw_lines(axes, panel: dict, answers: dict, moves: list) -> None:
    config = panel["fieldConfig"]["defaults"]
    own = overrides(panel)
    stacked = config["custom"].get("stacking", {}).get("mode") == "normal"
    stack, colors, names = [], [], []
    for number, (name, series) in enumerate(series_of(panel, answers)):
        values = [float(value) * SCALES.get(config["unit"], 1) for _, value in series["values"]]
        color = own.get(name, {}).get("color", {}).get("fixedColor")
        color = NAMED.get(color, COLORS[number % len(COLORS)])
        if stacked:
            stack.append(values), colors.append(color), names.append(name)
            continue
        style = "--" if "custom.lineStyle" in own.get(name, {}) else "-"
        axes.plot(times_of(series), values, style, label=name, color=color, linewidth=1.1)
    if stacked:
        axes.stackplot(times_of(series), stack, labels=names, colors=colors, alpha=0.8)
    for each in moves:
        axes.axvline(times_of(each)[0], color="#b877d9", linestyle=":", linewidth=1.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(word(config["unit"]), fontsize=7)
    axes.grid(color=FRAME, linewidth=0.5)
    axes.legend(**BELOW)


def draw_heatmap(axes, panel: dict, answers: dict) -> None:
    found = sorted(series_of(panel, answers), key=lambda it: it[0], reverse=True)
    colors = LinearSegmentedColormap.from_list("", [NAMED["green"], "#fade2a", NAMED["red"]])
    for row, (_, series) in enumerate(found):
        times = date2num(times_of(series))
        width = times[1] - times[0]
        cells = [(at, width * 0.92) for at in times]
        filled = [colors(float(value)) for _, value in series["values"]]
        axes.broken_barh(cells, (row - 0.45, 0.9), facecolors=filled)
    axes.set_yticks(range(len(found)), [name for name, _ in found])
    axes.xaxis_date()


def draw_numbers(axes, panel: dict, answers: dict) -> None:
    config = panel["fieldConfig"]["defaults"]
    found = list(series_of(panel, answers))
    for place, (name, series) in enumerate(found):
        value = series["value"][1]
        color = color_of(float(value), config["thresholds"]["steps"])
        large = name if panel["options"]["textMode"] == "name" else shown(value, config["unit"])
        at = (place + 0.5) / len(found)
        axes.text(at, 0.45, large, color=color, fontsize=20, ha="center", va="center")
    axes.axis("off")


def draw_table(axes, panel: dict, answers: dict) -> None:
    organize = next(it for it in panel["transformations"] if it["id"] == "organize")
    columns = organize["options"]["renameByName"]
    order = organize["options"]["indexByName"]
    columns = {key: columns[key] for key in sorted(columns, key=order.get)}
    several = len(panel["targets"]) > 1
    rows: dict[tuple, dict[str, str]] = {}
    for target in panel["targets"]:
        key = f"Value #{target['refId']}" if several else "Value"
        for series in answers[target["refId"]]:
            labels = series["metric"]
            rows.setdefault(tuple(sorted(labels.items())), dict(labels))[key] = series["value"][1]
    own = overrides(panel)
    first = next(iter(own))
    key = next(key for key, name in columns.items() if name == first)
    ordered = sorted(rows.values(), key=lambda row: -float(row.get(key, -1)))
    cells = [[cell(row.get(key, ""), own.get(name, {})) for key, name in columns.items()]
             for row in ordered]
    titles = list(columns.values())
    box = (0, 1 - (len(cells) + 1) / 16.5, 1, (len(cells) + 1) / 16.5)
    drawn = axes.table(cells, colLabels=titles, bbox=box, cellLoc="left", edges="horizontal")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7.5)
    drawn.auto_set_column_width(range(len(titles)))
    levels = {"low": "green", "medium": "orange", "high": "red"}
    for (row, column), each in drawn.get_celld().items():
        each.set_edgecolor(FRAME)
        text = each.get_text().get_text()
        if row == 0:
            each.get_text().set_color("#5a5f6b")
        elif titles[column] == "level":
            each.get_text().set_color(NAMED[levels[text]])
    axes.axis("off")


def cell(value: str, own: dict) -> str:
    if "unit" not in own or not value:
        return value
    words = own.get("mappings", [{}])[0].get("options", {})
    return words[value]["text"] if value in words else shown(value, own["unit"])


def draw_panel(axes, panel: dict, answers: dict, moves: list) -> None:
    axes.set_title(panel["title"], fontsize=9, loc="left", color=INK, fontweight="bold")
    axes.tick_params(labelsize=7, colors=INK)
    for spine in axes.spines.values():
        spine.set_color(FRAME)
    match panel["type"]:
        case "timeseries":
            draw_lines(axes, panel, answers, moves)
        case "status-history":
            draw_heatmap(axes, panel, answers)
        case "stat":
            draw_numbers(axes, panel, answers)
        case "table":
            draw_table(axes, panel, answers)
    if panel["type"] in WITH_AXES:
        axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))


def closed_up(dashboard: dict) -> None:
    """Moves panels up by the height of the collapsed rows above, as Grafana does."""
    hidden = 0
    for panel in dashboard["panels"]:
        panel["gridPos"]["y"] -= hidden
        if panel.get("collapsed"):
            inside = [each["gridPos"] for each in panel["panels"]]
            hidden += max(at["y"] + at["h"] for at in inside) - min(at["y"] for at in inside)


def draw(dashboard: dict, answers: dict, path: Path) -> None:
    closed_up(dashboard)
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = plt.figure(figsize=(15, rows * 0.36), facecolor=GROUND)
    moves = answers.get("annotations", {}).get("A", [])
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        if panel["type"] == "row":
            where = (0.01, 1 - (at["y"] + 0.7) / rows)
            title = ("▸ " if panel.get("collapsed") else "▾ ") + expanded(panel["title"])
            figure.text(*where, title, fontsize=11, color=INK, fontweight="bold")
            continue
        # Space for the title above the panel, and for axis labels and the legend below graphs.
        left, below = (0.9, 2) if panel["type"] in WITH_AXES else (0.25, 0.2)
        bottom = rows - at["y"] - at["h"] + below
        width, height = at["w"] - left - 0.4, at["h"] - below - 1
        rectangle = ((at["x"] + left) / 24, bottom / rows, width / 24, height / rows)
        axes = figure.add_axes(rectangle, facecolor="white")
        draw_panel(axes, panel, answers[str(panel["id"])], moves)
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    answered, pictures = Path(sys.argv[1]), Path(sys.argv[2])
    pictures.mkdir(exist_ok=True)
    for name in ["cluster", "node-and-vm"]:
        made = json.loads(Path(f"dashboards/{name}.json").read_text())
        answer = json.loads((answered / f"{name}.json").read_text())
        draw(made, answer, pictures / f"dashboard-{name}.png")
    shutil.copy(answered / "dashboards.txt", pictures)
