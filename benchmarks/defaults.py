"""What each ingredient of the default is worth, on validation nodes: taken out or exchanged, one at a time.

`python -m benchmarks.defaults GRAPH … [--device cuda] [--json FILE]` trains the default and each variant once
on every graph (a benchmark's name, "synthetic", or a file that holds a graph) and prints the mean accuracy of
ridge regression on validation nodes with its standard error over splits. A graph with one split of few
labels is judged on repeated draws instead: 20 nodes per class from training and validation nodes together,
the rest of them to judge. Test nodes are never looked at. `--table FILE …` prints stored runs as one table.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.criteria import RidgeValidation
from h3gnn.graphs.catalogue import is_benchmark, load
from h3gnn.graphs.formats import read_graph_file
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.settings import preset
from h3gnn.storage.files import versions, write_atomically

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "objective: teacher": {"objective": "teacher"},
    "objective: decorrelation": {"objective": "decorrelation"},
    "objective: neighbours": {"objective": "neighbours"},
    "objective: edges": {"objective": "edges"},
    "objective: features": {"objective": "features", "mask_ratio": 0.5},
    "plain targets": {"targets": "plain"},
    "nothing dropped": {"feature_drop": 0.0, "edge_drop": 0.0},
    "no masks": {"mask_ratio": 0.0},
    "random masks": {"mask": "random"},
    "edge weights learned": {"edge_weights": "learned"},
    "edge weights learned, rate × 30": {"edge_weights": "learned", "edge_rate": 30.0},
    "edge weights computed": {"edge_weights": "computed"},
    "no smoothing": {"smoothing": 0.0},
    "powers of Ã for walks": {"smoother": "powers"},
    "tokens beside": {"tokens": True},
    "1,024 nodes in each step": {"nodes_per_step": 1024},
    "four models": {"n_models": 4},
    "width 64": {"channels": 64},
    "100 epochs": {"epochs": 100, "learning_rate": 0.001},
    "untrained": {"epochs": 0},
    "the paper's": preset("paper"),
}
DRAWS, PER_CLASS = 20, 20


def splits_of(graph: Graph) -> tuple[Tensor, Tensor]:
    """Return training and validation masks `[nodes, splits]`: the graph's own, or draws where it has one."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    train, val = (mask.reshape(len(mask), -1) for mask in (graph.train_mask, graph.val_mask))
    if train.shape[1] > 1:
        return train, val
    pool, generator = torch.nonzero((train | val)[:, 0]).flatten(), torch.Generator().manual_seed(0)
    drawn = torch.zeros(2, len(train), DRAWS, dtype=torch.bool)
    for draw in range(DRAWS):
        order = pool[torch.randperm(len(pool), generator=generator)]
        for label in range(graph.num_classes):
            of_class = order[graph.labels[order] == label]
            drawn[0, of_class[:PER_CLASS], draw] = True
            drawn[1, of_class[PER_CLASS:], draw] = True
    return drawn[0], drawn[1]


def score(graph: Graph, settings: dict[str, Any], device: str) -> dict[str, Any]:
    """Return the mean validation accuracy in per cent, its standard error, and the seconds of the fit."""
    assert graph.labels is not None
    model = H3GNN(**{**settings, "device": device}).fit(graph)
    where = torch.device("cuda" if device == "cuda" else "cpu")
    judge = RidgeValidation(graph.labels, *splits_of(graph), where)
    each = 100 * judge.accuracies(torch.from_numpy(model.embedding_).to(where)[None])[0].double()
    error = float(each.std() / len(each) ** 0.5) if len(each) > 1 else float("nan")
    cost = {"seconds": model.cost_["seconds"], "smoothing": model.smoothing_}
    return {"accuracy": round(float(each.mean()), 2), "error": round(error, 2), **cost}


def named(name: str) -> Graph:
    """Return a graph by name, or from a file."""
    if name == "synthetic":
        return mixed_graph()
    return load(name) if is_benchmark(name) else read_graph_file(Path(name))


def table(runs: list[dict[str, Any]]) -> str:
    """Return stored runs as a Markdown table, one column per graph."""
    head = ["", *(run["graph"] for run in runs)]
    lines = [head, ["---"] * len(head)]
    for variant in VARIANTS:
        found = [run["scores"].get(variant) for run in runs]
        told = ["–" if one is None else f"{one['accuracy']:.1f} ± {one['error']:.1f}" for one in found]
        lines.append([variant, *told])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=["synthetic"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--table", nargs="+", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.table:
        print(table([run for path in asked.table for run in json.loads(path.read_text())["runs"]]))
        return
    runs: list[dict[str, Any]] = []
    for name in asked.graphs:
        graph = named(name)
        run: dict[str, Any] = {"graph": Path(name).stem, "sha256": graph.provenance.sha256, "scores": {}}
        runs.append(run)
        for variant in asked.variants:
            run["scores"][variant] = score(graph, VARIANTS[variant], asked.device)
            print(name, variant, run["scores"][variant], flush=True)
            if asked.json is not None:
                kept = {"device": asked.device, "versions": versions(), "runs": runs}
                write_atomically(asked.json, json.dumps(kept, indent=1).encode())
    print(table(runs))


if __name__ == "__main__":
    main()
