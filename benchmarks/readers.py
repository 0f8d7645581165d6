"""How long a million edges take from text to a checked graph: `python -m benchmarks.readers [--json]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.graphs.graph import Graph
from h3gnn.tables.read import read_graph


def write_files(folder: Path, *, nodes: int, edges: int, seed: int = 0) -> None:
    """Write the same random graph with whole-number ids, with text ids, and as Parquet, and its features."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    random = np.random.default_rng(seed)
    ends = random.integers(0, nodes, (2, edges))
    names = np.array([f"user-{number:07d}" for number in range(nodes)])
    table = pa.table({"source": ends[0], "target": ends[1]})
    pa.csv.write_csv(table, folder / "numbers.csv")
    pa.parquet.write_table(table, folder / "numbers.parquet")
    texts = pa.table({"source": names[ends[0]], "target": names[ends[1]]})
    pa.csv.write_csv(texts, folder / "texts.csv")
    columns = {f"f{column}": random.normal(size=nodes).round(4) for column in range(8)}
    pa.csv.write_csv(pa.table({"id": np.arange(nodes), **columns}), folder / "features.csv")
    pa.parquet.write_table(pa.table({"id": names, **columns}), folder / "features.parquet")


def measure(read: Callable[[], Graph], edges: int, repeats: int) -> dict[str, float]:
    """Return the best of some runs, in seconds and in edges a second."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        read()
        times.append(time.perf_counter() - start)
    return {"seconds": min(times), "edges_per_second": edges / min(times)}


def run(nodes: int, edges: int, repeats: int) -> dict[str, Any]:
    """Write the files, read each with its features, and return the times and where they were taken."""
    results: dict[str, Any] = {}
    pairs = {
        "csv, whole-number ids": ("numbers.csv", "features.csv"),
        "csv, text ids": ("texts.csv", "features.parquet"),
        "parquet, whole-number ids": ("numbers.parquet", "features.csv"),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder, nodes=nodes, edges=edges)
        for title, (edge_file, feature_file) in pairs.items():

            def read(edge_file: str = edge_file, feature_file: str = feature_file) -> Graph:
                return read_graph(folder / edge_file, features=folder / feature_file)

            results[title] = measure(read, edges, repeats)
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    return {"nodes": nodes, "edges": edges, "repeats": repeats, "machine": machine, "results": results}


def main() -> None:
    """Read the arguments and print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    measured = run(arguments.nodes, arguments.edges, arguments.repeats)
    if arguments.json:
        print(json.dumps(measured, indent=2))
        return
    print(f"{measured['edges']:,} edges, {measured['nodes']:,} nodes, best of {measured['repeats']}")
    for title, times in measured["results"].items():
        print(f"{title:28s} {times['seconds']:6.2f} s {times['edges_per_second']:14,.0f} edges/s")


if __name__ == "__main__":
    main()
