"""How seconds and memory grow with a graph: `python -m benchmarks.growth [--largest NODES]`.

Random graphs of 10³, 10⁴, … nodes with ten links each, `COLUMNS` numeric columns and a class of at most
`LABELED` nodes are written as Parquet. Then every command runs as a user would run it, each in a process of
its own: `prepare`, `fit` of the preset `quick` in mini-batches with an embedding of `DIMENSIONS` columns,
`embed` (which writes the embedding that `fit` has stored), `predict`, `similar` and, of graphs that fit into
memory (up to `IN_MEMORY` nodes, read from the tables), `report`. A row has the seconds of the command, those
of an epoch (the difference between a fit with some epochs and one without, per epoch), and the peak of the
process's own memory, without the pages of mapped files. A step whose time, by the growth of its last two
sizes, would exceed `--limit` is left out, with the time that was expected.

An exponent is the slope of log seconds (or log memory) over log nodes, of the last three sizes measured; the
start of a process, which is most of a short command, is subtracted from its seconds and memory.

Results: benchmarks/results/growth.json, and docs/images/growth.svg as a figure.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cpu import machine
from benchmarks.scale import watched

RESULTS = Path(__file__).parent / "results" / "growth.json"
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "growth.svg"
COLUMNS, LABELED, LINKS, DIMENSIONS = 16, 2000, 10, 256
IN_MEMORY = 10**5
STEPS = {
    "prepare": "`prepare`",
    "start": "`fit --epochs 0`",
    "fit": "`fit`",
    "epoch": "an epoch",
    "embed": "`embed`",
    "predict": "`predict`",
    "similar": "`similar`",
    "report": "`report`",
}
"""The steps, and their headings."""
ALLOWED = 1.1
"""The largest exponent without an explanation in the documentation."""
FITTED = 3
"""Sizes, the largest ones, that an exponent is fitted to."""


def write_tables(folder: Path, nodes: int, seed: int = 0) -> None:
    """Write edges, features and labels: nodes link within their class, and columns are noisy classes."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    random = np.random.default_rng(seed)
    classes = random.integers(0, 4, nodes)
    order = np.argsort(classes, kind="stable")
    kinds = pa.schema([("source", pa.int64()), ("target", pa.int64())])
    with pq.ParquetWriter(folder / "edges.parquet", kinds) as file:
        for start in range(0, nodes * LINKS, 1 << 20):
            begin = random.integers(0, nodes, min(1 << 20, nodes * LINKS - start))
            away = random.integers(1, max(2, nodes // 4), len(begin))
            file.write_table(pa.table([order[begin], order[(begin + away) % nodes]], schema=kinds))
    names = [f"f{column}" for column in range(COLUMNS)]
    kinds = pa.schema([("id", pa.int64()), *((name, pa.float32()) for name in names)])
    with pq.ParquetWriter(folder / "features.parquet", kinds) as file:
        for start in range(0, nodes, 1 << 18):
            ids = np.arange(start, min(start + (1 << 18), nodes))
            rows = random.standard_normal((COLUMNS, len(ids)), dtype=np.float32)
            rows[0] += classes[ids]
            file.write_table(pa.table([ids, *rows], schema=kinds))
    chosen = np.sort(random.choice(nodes, min(LABELED, nodes // 2), replace=False))
    labels = pd.DataFrame({"id": chosen, "class": np.array(list("abcd"))[classes[chosen]]})
    labels.to_parquet(folder / "labels.parquet")


def commands(folder: Path, epochs: int) -> dict[str, list[str]]:
    """Return the arguments of each command, in their order."""
    tables = [f"--{name}={folder / name}.parquet" for name in ("edges", "features", "labels")]
    graph, run = str(folder / "graph"), str(folder / "run")
    how = ["--preset", "quick", "--batch-size", "1024", "--fan-out", "10,5"]
    how += ["--set", f"dimensions={DIMENSIONS}", "--device", "cpu"]
    return {
        "prepare": ["prepare", *tables, "--out", graph],
        "start": ["fit", graph, "--out", f"{run}-0", "--epochs", "0", *how],
        "fit": ["fit", graph, "--out", run, "--epochs", str(epochs), *how],
        "embed": ["embed", run, "--out", str(folder / "embedding.parquet")],
        "predict": ["predict", run, "--out", str(folder / "predictions.csv")],
        "similar": ["similar", run, "1", "--k", "10"],
    }


def report_commands(folder: Path) -> dict[str, list[str]]:
    """Return a fit in memory, which is not counted, and its report."""
    tables = [f"--{name}={folder / name}.parquet" for name in ("edges", "features", "labels")]
    run = str(folder / "run-in-memory")
    return {
        "fit in memory": ["fit", *tables, "--out", run, "--preset", "quick", "--epochs", "1"],
        "report": ["report", run, "--out", str(folder / "report.html")],
    }


def epochs_of(nodes: int) -> int:
    """Return the number of epochs that are measured, so that short ones are not lost in the noise."""
    return max(1, min(20, 10**6 // nodes))


def measure(nodes: int, expected: dict[str, float], limit: float) -> dict[str, Any]:
    """Return the figures of one size; steps expected to take longer than the limit are left out."""
    row: dict[str, Any] = {"nodes": nodes, "links": nodes * LINKS, "epochs": epochs_of(nodes)}
    with tempfile.TemporaryDirectory(prefix="h3gnn-growth-") as name:
        folder = Path(name)
        write_tables(folder, nodes)
        every = commands(folder, row["epochs"])
        every |= report_commands(folder) if nodes <= IN_MEMORY else {}
        for step, arguments in every.items():
            if expected.get(step, 0.0) > limit:
                row[step] = {"left out": f"{expected[step]:,.0f} s expected"}
            else:
                row[step] = watched([sys.executable, "-m", "h3gnn", *arguments], folder)
            print(json.dumps({"nodes": nodes, step: row[step]}), file=sys.stderr, flush=True)
            shutil.rmtree(folder / "run-0", ignore_errors=True)
    if "peak_mb" in row["fit"] and "peak_mb" in row["start"]:
        seconds = (row["fit"]["seconds"] - row["start"]["seconds"]) / row["epochs"]
        row["epoch"] = {"seconds": round(max(0.0, seconds), 3)}
    return row


def figures(rows: list[dict[str, Any]], step: str, what: str) -> list[tuple[int, float]]:
    """Return the nodes and a figure of each size at which a step was measured."""
    found = [(row["nodes"], row.get(step, {})) for row in rows]
    return [(nodes, one[what]) for nodes, one in found if what in one and "error" not in one]


def exponent(rows: list[dict[str, Any]], step: str, what: str, start: float) -> float | None:
    """Return the slope of the logarithms over the largest sizes, beyond what the start of a process takes."""
    points = [(n, value - start) for n, value in figures(rows, step, what) if value - start > 0.1 * start]
    if len(points) < 2:
        return None
    nodes, values = np.log(points[-FITTED:]).T
    return float(np.polyfit(nodes, values, 1)[0])


def expectations(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the seconds to expect of each step at ten times the nodes."""
    expected = {}
    for step in STEPS:
        points = figures(rows, step, "seconds")
        if points:
            grown = points[-1][1] / max(points[-2][1], 0.1) if len(points) > 1 else 1.0
            expected[step] = points[-1][1] * max(grown, 1.0)
    if "epoch" in expected:
        expected["fit"] = expected["start"] + epochs_of(10 * rows[-1]["nodes"]) * expected["epoch"]
    return expected


def table(stored: dict[str, Any]) -> str:
    """Return the results as Markdown: seconds and own memory by size, and exponents."""
    rows = stored["rows"]
    heads = ["nodes", *STEPS.values()]
    lines = [heads, ["---"] * len(heads)]
    for row in rows:
        lines.append([f"{row['nodes']:,}", *(_cell(row.get(step, {})) for step in STEPS)])
    for what, words in (("seconds", "exponent of seconds"), ("own_mb", "of memory")):
        found = [stored["exponents"][step].get(what) for step in STEPS]
        lines.append([words, *("–" if one is None else f"{one:.2f}" for one in found)])
    where = "{processor}, {threads} threads, torch {torch}.".format(**stored["machine"])
    where = " ".join([where, *([stored["note"]] if "note" in stored else [])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{where}"


PLANNED, MACHINES = (10**9, 10**10), 8
"""Links of the graphs of the capacity plan, and machines among which it divides the work."""
FILES: dict[str, Callable[[int, int], int]] = {
    "edges as given (4 B per link, 8 B per node)": lambda nodes, links: 4 * links + 8 * nodes,
    "edges in both directions, for training": lambda nodes, links: 8 * links + 8 * nodes,
    f"features ({COLUMNS} columns, float32)": lambda nodes, links: 4 * COLUMNS * nodes,
    f"embedding ({DIMENSIONS} columns, float32)": lambda nodes, links: 4 * DIMENSIONS * nodes,
}
"""Bytes of the files of a graph on disk; docs/format.md."""
DIVIDED = {
    "prepare": "one process; ranges of nodes by DuckDB or Spark write the same files (docs/format.md)",
    "epoch": "by nodes, features and embeddings by owner; each machine maps all edges",
    "start": "the embedding by nodes, in a folder that all machines share",
    "predict": "columns by the first machine, predictions by nodes",
}


def plan(stored: dict[str, Any]) -> str:
    """Return a capacity plan as Markdown: everything in it is computed, from sizes and measured growth."""
    heads = ["", *(f"{links:,} links (computed)" for links in PLANNED), "divided"]
    lines = [heads, ["---"] * len(heads)]
    for name, size in FILES.items():
        lines.append([name, *(f"{size(links // LINKS, links) / 1e9:,.0f} GB" for links in PLANNED), ""])
    for step, how in DIVIDED.items():
        points = figures(stored["rows"], step, "seconds")
        if not points:
            continue
        nodes, seconds = points[-1]
        slope = max(1.0, stored["exponents"][step]["seconds"] or 1.0)
        hours = [seconds * (links // LINKS / nodes) ** slope / 3600 for links in PLANNED]
        cells = [f"{one:,.1f} h; {one / MACHINES:,.1f} h at best on {MACHINES}" for one in hours]
        lines.append([f"{STEPS[step]}, from {seconds:,.0f} s at {nodes:,} nodes", *cells, how])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(one: dict[str, Any]) -> str:
    if "error" in one:
        return "refused"
    if "seconds" not in one:
        return str(one.get("left out", "–"))
    memory = f"; {one['own_mb'] / 1000:.1f} GB" if "own_mb" in one else ""
    return f"{one['seconds']:.3g} s{memory}"


def draw(stored: dict[str, Any], path: Path) -> None:
    """Draw seconds and memory over nodes, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, what, words in zip(
        figure.subplots(1, 2), ("seconds", "own_mb"), ("seconds", "memory of the process, MB"), strict=True
    ):
        for step in STEPS:
            if points := figures(stored["rows"], step, what):
                axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=step)
        axes.set(xscale="log", yscale="log", xlabel="nodes, ten links each", ylabel=words)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure all sizes, and store after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--smallest", type=int, default=1000)
    parser.add_argument("--largest", type=int, default=10**7)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a command, at most")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--figure", type=Path, default=FIGURE)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(asked.out.read_text())["rows"] if asked.out.exists() else []
    rows = [row for row in rows if row["nodes"] < asked.smallest]
    with tempfile.TemporaryDirectory() as folder:
        start = watched([sys.executable, "-c", "from h3gnn import H3GNN"], Path(folder))
    nodes = asked.smallest
    while nodes <= asked.largest:
        rows.append(measure(nodes, expectations(rows), asked.limit))
        starts = {"seconds": start["seconds"], "own_mb": start["own_mb"]}
        exponents = {
            step: {
                what: exponent(rows, step, what, 0.0 if step == "epoch" else starts[what]) for what in starts
            }
            for step in STEPS
        }
        stored = {"machine": machine(), "start": start, "rows": rows, "exponents": exponents}
        asked.out.write_text(json.dumps(stored, indent=1) + "\n")
        draw(stored, asked.figure)
        nodes *= 10
    print(table(json.loads(asked.out.read_text())))


if __name__ == "__main__":
    main()
