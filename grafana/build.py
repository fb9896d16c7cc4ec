"""Writes the dashboards as JSON into a folder."""

import sys
from itertools import count
from pathlib import Path

import cluster
import node_and_vm
from grafana_foundation_sdk.cog.encoder import JSONEncoder

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, made in [("cluster", cluster.build()), ("node-and-vm", node_and_vm.build())]:
        model = made.build()
        numbers = count(1)
        for panel in model.panels:
            # A collapsed row contains its panels.
            for each in [panel, *(getattr(panel, "panels", None) or [])]:
                each.id_val = next(numbers)
        text = JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(model)
        (folder / f"{name}.json").write_text(text + "\n")
