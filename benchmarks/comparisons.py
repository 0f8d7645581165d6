"""What `h3gnn compare` found on several graphs, as one table.

`python -m benchmarks.comparisons FILE … [--json FILE]` reads what `h3gnn compare GRAPH --out FILE` wrote, and
prints the test accuracy of every method, with a star where it is best and the p-value of the paired test
against H3GNN where that is below 0.05. `--json` keeps the figures with graph, hash, settings, seeds and
versions; `--table FILE` prints them again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from h3gnn.experiments.methods import METHODS
from h3gnn.storage.atomic import write_atomically

SIGNIFICANT = 0.05


def collected(path: Path) -> dict[str, Any]:
    """Return the figures of one comparison."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    if not stored["comparison"]:
        raise SystemExit(f"{path}: the comparison did not end; give `h3gnn compare` the methods that it has")
    tests = {row["name"]: row["against_reference"] for row in stored["comparison"]["rows"]}
    rows = {}
    for name, kept in stored["methods"].items():
        found = kept["result"]
        rows[name] = {
            "test": round(100 * found["probe"]["test_mean"], 2),
            "spread": round(100 * found["probe"]["test_std"], 2),
            "validation": round(100 * found["probe"]["validation_mean"], 2),
            "difference": round(100 * tests[name]["difference"], 2),
            "p": tests[name]["p_value"],
            "seeds": found["seeds"],
            "seconds": found["seconds"],
            "origin": found.get("origin"),
        }
    ours = stored["methods"]["h3gnn"]["result"]
    about = {name: ours[name] for name in ("sha256", "protocol", "params", "versions", "device")}
    return {"graph": path.stem, **about, "rows": rows}


def table(graphs: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table, one column per graph."""
    lines = [["", *(one["graph"] for one in graphs)], ["---"] * (1 + len(graphs))]
    for name in METHODS:
        if any(name in one["rows"] for one in graphs):
            lines.append([METHODS[name].title, *(_cell(one["rows"], name) for one in graphs)])
    ours = [f"{one['rows']['h3gnn']['validation']:.1f}" for one in graphs]
    lines.append(["H3GNN, on validation nodes", *ours])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(rows: dict[str, Any], name: str) -> str:
    if name not in rows:
        return "–"
    row = rows[name]
    star = " ★" if row["test"] == max(one["test"] for one in rows.values()) else ""
    text = "" if row["p"] >= SIGNIFICANT else f" (p {row['p']:.3f})" if row["p"] >= 0.001 else " (p < 0.001)"
    return f"{row['test']:.1f} ± {row['spread']:.1f}{text}{star}"


def main() -> None:
    """Collect, or print what was collected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.table is not None:
        graphs = json.loads(asked.table.read_text(encoding="utf-8"))["graphs"]
    else:
        graphs = [collected(path) for path in asked.files]
    if asked.json is not None:
        write_atomically(asked.json, (json.dumps({"graphs": graphs}, indent=1) + "\n").encode())
    print(table(graphs))


if __name__ == "__main__":
    main()
