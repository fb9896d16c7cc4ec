"""Draws the dashboards with matplotlib from the query results that a test run saved. The pictures
in the documents so show real results of the committed panels, without a Grafana."""

import json
import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLORS = ["#5794f2", "#ff9830", "#73bf69", "#f2495c", "#b877d9", "#fade2a", "#8ab8ff", "#ffa6b0"]
NAMED = {"green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "blue": "#5794f2"}
INK, FRAME, GROUND = "#22252b", "#d5d8de", "#f4f5f5"
# The variables' values in the test.
CHOSEN = {"$namespace": "vms", "$vm": "shop", "$node": "node-a"}
UNITS = {"percentunit": "%", "none": "", "s": "s", "bytes": "MiB", "Bps": "kB/s"}
WITH_AXES = {"timeseries", "state-timeline"}
SCALES = {"percentunit": 100, "bytes": 1 / (1 << 20), "Bps": 1e-3}
BELOW = {
    "ncols": 4, "loc": "upper left", "bbox_to_anchor": (0, -0.2), "frameon": False,
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


def draw_lines(axes, panel: dict, answers: dict, start: float) -> None:
    config = panel["fieldConfig"]["defaults"]
    for number, (name, series) in enumerate(series_of(panel, answers)):
        times = [(at - start) / 60 for at, _ in series["values"]]
        values = [float(value) * SCALES.get(config["unit"], 1) for _, value in series["values"]]
        axes.plot(times, values, label=name, color=COLORS[number % len(COLORS)], linewidth=1.4)
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] < 1 and config["unit"] == "percentunit":
        axes.set_ylim(top=1)
    for step in config.get("thresholds", {}).get("steps", []):
        level = step["value"] and step["value"] * SCALES.get(config["unit"], 1)
        if level and level < axes.get_ylim()[1]:
            axes.axhline(level, color=NAMED[step["color"]], linestyle="--", linewidth=0.8)
    axes.set_ylabel(word(config["unit"]), fontsize=7)
    axes.set_xlabel("minutes", fontsize=7)
    axes.grid(color=FRAME, linewidth=0.5)
    axes.legend(**BELOW)


def draw_states(axes, panel: dict, answers: dict, start: float) -> None:
    words = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
    names = []
    for row, (name, series) in enumerate(series_of(panel, answers)):
        names.append(name)
        step = (series["values"][1][0] - series["values"][0][0]) / 60
        for at, value in series["values"]:
            color = NAMED[words[value]["color"]]
            axes.broken_barh([((at - start) / 60, step * 1.05)], (row - 0.35, 0.7), color=color)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("minutes", fontsize=7)
    for word in words.values():
        axes.plot([], [], color=NAMED[word["color"]], linewidth=6, label=word["text"])
    axes.legend(**BELOW)


def draw_bars(axes, panel: dict, answers: dict) -> None:
    config = panel["fieldConfig"]["defaults"]
    found = list(series_of(panel, answers))
    for row, (name, series) in enumerate(found):
        value = series["value"][1]
        axes.barh(row, 1, color="#e9eaec", height=0.6)
        axes.barh(
            row, float(value), height=0.6,
            color=color_of(float(value), config["thresholds"]["steps"]),
        )
        axes.text(0.01, row - 0.46, name, fontsize=7)
        axes.text(0.99, row, shown(value, config["unit"]), ha="right", va="center", fontsize=8)
    axes.set_ylim(max(len(found), 3) - 0.5, -0.7)
    axes.set_xlim(0, 1)
    axes.axis("off")


def draw_numbers(axes, panel: dict, answers: dict) -> None:
    config = panel["fieldConfig"]["defaults"]
    found = list(series_of(panel, answers))
    for place, (name, series) in enumerate(found):
        at, value = (place + 0.5) / len(found), series["value"][1]
        color = color_of(float(value), config["thresholds"]["steps"])
        axes.text(at, 0.5, shown(value, config["unit"]), color=color, fontsize=22, ha="center")
        axes.text(at, 0.2, name, fontsize=8, ha="center")
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
    units = {
        override["matcher"]["options"]: it["value"]
        for override in panel["fieldConfig"]["overrides"]
        for it in override["properties"]
        if it["id"] == "unit"
    }
    cells = [
        [shown(row[key], units[name]) if key in row and name in units else row.get(key, "")
         for key, name in columns.items()]
        for row in rows.values()
    ]
    drawn = axes.table(cells, colLabels=list(columns.values()), loc="upper left", cellLoc="left")
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(7)
    drawn.auto_set_column_width(range(len(columns)))
    drawn.scale(1, 1.4)
    for cell in drawn.get_celld().values():
        cell.set_edgecolor(FRAME)
    axes.axis("off")


def draw_panel(axes, panel: dict, answers: dict, start: float) -> None:
    axes.set_title(panel["title"], fontsize=9, loc="left", color=INK, fontweight="bold")
    axes.tick_params(labelsize=7, colors=INK)
    for spine in axes.spines.values():
        spine.set_color(FRAME)
    match panel["type"]:
        case "timeseries":
            draw_lines(axes, panel, answers, start)
        case "state-timeline":
            draw_states(axes, panel, answers, start)
        case "bargauge":
            draw_bars(axes, panel, answers)
        case "stat":
            draw_numbers(axes, panel, answers)
        case "table":
            draw_table(axes, panel, answers)


def draw(dashboard: dict, answers: dict, path: Path) -> None:
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    figure = plt.figure(figsize=(15, rows * 0.36), facecolor=GROUND)
    times = [
        series["values"][0][0]
        for panel in answers.values() for target in panel.values() for series in target
        if "values" in series
    ]
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        if panel["type"] == "row":
            where = (0.01, 1 - (at["y"] + 0.7) / rows)
            figure.text(*where, expanded(panel["title"]), fontsize=11, color=INK, fontweight="bold")
            continue
        # Space for the title above the panel, and for axis labels and the legend below graphs.
        left, below = (0.9, 2.3) if panel["type"] in WITH_AXES else (0.25, 0.2)
        bottom = rows - at["y"] - at["h"] + below
        width, height = at["w"] - left - 0.4, at["h"] - below - 1
        rectangle = ((at["x"] + left) / 24, bottom / rows, width / 24, height / rows)
        axes = figure.add_axes(rectangle, facecolor="white")
        draw_panel(axes, panel, answers[str(panel["id"])], min(times))
    figure.savefig(path, dpi=80)
    plt.close(figure)


if __name__ == "__main__":
    answered, pictures = Path(sys.argv[1]), Path(sys.argv[2])
    pictures.mkdir(exist_ok=True)
    for name in ["cluster", "node-and-vm"]:
        made = json.loads(Path(f"dashboards/{name}.json").read_text())
        answer = json.loads((answered / f"{name}.json").read_text())
        draw(made, answer, pictures / f"dashboard-{name}.png")
