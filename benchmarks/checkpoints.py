"""What a checkpoint costs: its size, and the seconds to write and to read it, beside those of an epoch.

    python -m benchmarks.checkpoints --nodes 1000 10000 --json

One model with learned edge weights (the preset `single`), C = 32; the graph is random with ten directed edges
per node and 64 features; the disk is the one that holds
`--folder`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from h3gnn import H3GNN, Checkpoints
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.storage.checkpoint_file import checkpoints_in
from h3gnn.storage.tensors import read_tensor_file, write_tensor_file
from reproduction.origin import made_with

EPOCHS = 5


def random_graph(nodes: int) -> Graph:
    """Return a graph with ten edges per node."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(nodes, 64, generator=generator)
    return check_graph(features, torch.randint(nodes, (2, 10 * nodes), generator=generator))


def seconds(work: Callable[[], Any]) -> float:
    """Return the best of three, so that other work on the machine does not count."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(nodes: int, folder: Path) -> dict[str, Any]:
    """Train for a few epochs, and time the checkpoint that is left."""
    graph = random_graph(nodes)
    options: dict[str, Any] = {"channels": 32, "device": "cpu"}
    setting_up = seconds(lambda: H3GNN.from_preset("single", **options, epochs=0).fit(graph))
    training = seconds(lambda: H3GNN.from_preset("single", **options, epochs=EPOCHS).fit(graph)) - setting_up
    with tempfile.TemporaryDirectory(dir=folder) as place:
        H3GNN.from_preset("single", **options, epochs=EPOCHS).fit(
            graph, checkpoints=Checkpoints(place, keep_finished=True)
        )
        (path,) = checkpoints_in(Path(place))
        tensors, description = read_tensor_file(path)
        return {
            "nodes": nodes,
            "edges": graph.num_edges,
            "epoch_s": round(training / EPOCHS, 4),
            "write_s": round(seconds(lambda: write_tensor_file(Path(place), "x", tensors, description)), 4),
            "read_s": round(seconds(lambda: _read_all(path)), 4),
            "megabytes": round(path.stat().st_size / 1e6, 2),
        }


def _read_all(path: Path) -> None:
    for tensor in read_tensor_file(path)[0].values():
        tensor.clone()  # the file is mapped: only now is it read


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = [measure(nodes, asked.folder) for nodes in asked.nodes]
    if asked.json:
        print(json.dumps({"rows": rows, "threads": torch.get_num_threads(), **made_with()}, indent=1))
        return
    for row in rows:
        print("  ".join(f"{name} {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
