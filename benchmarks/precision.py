"""What bfloat16 in training changes: validation accuracy of the same seeds in both precisions.

`python -m benchmarks.precision [GRAPH …] [--seeds N] [--device cuda] [--out FILE]` fits the default. Ridge
regression on the embedding is judged on validation nodes (see `benchmarks.defaults`), and the difference is
paired over seeds. Test nodes are not looked at. What FILE holds of other graphs stays, if device and versions
are the same.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.defaults import named, score
from h3gnn.graphs.graph import Graph
from h3gnn.training.resources import pick_device
from reproduction.files import read_json, write_json
from reproduction.origin import made_with, origin

RESULTS = Path(__file__).parent / "results" / "precision.json"
Compare = Callable[[str, int, torch.device], dict[str, Any]]
GRAPHS = ("synthetic", "texas", "wisconsin", "cora", "citeseer")


def accuracies(graph: Graph, precision: str, seeds: int, device: torch.device) -> npt.NDArray[np.float64]:
    """Return the validation accuracy of each seed in per cent, mean over splits, `[seeds]`."""
    settings = [{"precision": precision, "random_state": seed} for seed in range(seeds)]
    return np.array([score(graph, one, str(device))["accuracy"] for one in settings])


def compare(name: str, seeds: int, device: torch.device) -> dict[str, Any]:
    """Compare both precisions on one graph."""
    graph = named(name)
    single, half = (accuracies(graph, one, seeds, device) for one in ("float32", "bfloat16"))
    difference = half - single
    return {
        "graph": name,
        "sha256": graph.provenance.sha256,
        "seeds": seeds,
        "float32": round(float(single.mean()), 2),
        "bfloat16": round(float(half.mean()), 2),
        "difference": round(float(difference.mean()), 2),
        "standard_error": round(float(difference.std(ddof=1) / seeds**0.5), 2),
    }


def keep_rows(words: str, compare: Compare, graphs: Collection[str], seeds: int, results: Path) -> None:
    """Read the arguments, compare two ways on each graph, print the rows and keep them.

    Args:
        words: the text of `--help`.
        compare: from a graph's name, a number of seeds and a device to a row.
        graphs, seeds, results: the defaults of the arguments.
    """
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("graphs", nargs="*", default=list(graphs))
    parser.add_argument("--seeds", type=int, default=seeds)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=results)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    device = pick_device(asked.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    about = {"device": name, "versions": made_with()["versions"]}
    stored = read_json(asked.out) if asked.out.exists() else {}
    same = all(stored.get(key) == value for key, value in about.items())
    again = {Path(one).stem for one in asked.graphs}
    rows = [row for row in stored.get("rows", []) if same and row["graph"] not in again]
    for graph in asked.graphs:
        rows.append({**compare(graph, asked.seeds, device), "origin": origin()})
        print(rows[-1], flush=True)
        write_json(asked.out, {**about, "rows": rows})


if __name__ == "__main__":
    keep_rows(__doc__ or "", compare, GRAPHS, 8, RESULTS)
