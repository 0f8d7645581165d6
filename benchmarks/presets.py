"""The shipped presets, from what `make reproduce` has stored of the searches for "H3GNN, tuned".

`python -m benchmarks.presets` writes `src/h3gnn/tuned/GRAPH.json` and its study in `results/studies`,
for each graph whose search is among the cells in `results/cells`. Nothing is trained.
"""

from __future__ import annotations

import json
from pathlib import Path

from h3gnn.experiments.tune import preset_of
from h3gnn.graphs.datasets import benchmarks
from h3gnn.storage.atomic import write_atomically
from reproduction.cells import Scope, lines_of
from reproduction.results import ResultStore
from reproduction.specifications import find_entry, tables

ROOT = Path(__file__).parent.parent
PRESETS, RESULTS = ROOT / "src" / "h3gnn" / "tuned", ROOT / "results"
SEARCHED = ("classification", "filtered")


def main() -> None:
    """Write the presets, and print which searches are missing."""
    store = ResultStore(RESULTS / "cells")
    known = {graph: next(iter(cells.values()))["sha256"] for graph, cells in store.groups.items()}
    title = find_entry("tuned").title
    for name in SEARCHED:
        for line in (one for one in lines_of(tables()[name], Scope()) if one.method == title):
            record = store.get(line.cells[0].key(known.get(line.graph, "")))
            if record is None:
                print(f"{line.graph}: not searched yet")
                continue
            rows = record["out"]["rows"]
            nested = next(row for row in rows if row["protocol"] == "nested" and not row.get("part"))
            about = {
                "by": "h3gnn reproduce",
                "study": f"{line.graph}, table {name}",
                "graph": f"{line.graph} ({benchmarks()[line.graph].source})",
                "sha256": record["sha256"],
            }
            tuned = preset_of(record["out"]["record"], record["out"]["chosen"], nested, about)
            preset = tuned.preset(f"{line.graph}.json")
            command = ["make", "reproduce", f"TABLE={name}"]
            _write(PRESETS / f"{line.graph}.json", preset)
            _write(RESULTS / "studies" / f"{line.graph}.json", {**preset, "command": command, **tuned.record})
            print(f"{line.graph}: {tuned.made['trials']} trials, score {tuned.made['score']:.4f}")


def _write(path: Path, content: object) -> None:
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
