"""Writes the dashboards as JSON into a folder."""

import sys
from pathlib import Path

import cluster
import node_and_vm
from grafana_foundation_sdk.cog.encoder import JSONEncoder

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, made in [("cluster", cluster.build()), ("node-and-vm", node_and_vm.build())]:
        model = made.build()
        for number, panel in enumerate(model.panels, 1):
            panel.id_val = number
        text = JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(model)
        (folder / f"{name}.json").write_text(text + "\n")
