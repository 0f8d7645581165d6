"""What each ingredient of the default is worth, and what more or less of it costs, on validation nodes.

`python -m benchmarks.defaults GRAPH … [--sizes] [--seeds 1] [--device cuda] [--json FILE]` trains the default
and each variant on every graph (a benchmark's name, "synthetic", or a file that holds a graph) and prints the
mean accuracy of ridge regression on validation nodes with its standard error over splits, and the seconds of
the fit. A graph with one split of few labels is judged on repeated draws instead: 20 nodes per class from
training and validation nodes together, the rest of them to judge. Test nodes are never looked at. What FILE
holds already is not trained again.

`--table FILE …` prints stored runs as one table.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.evaluator import RidgeValidation
from h3gnn.graphs.datasets import is_benchmark, load
from h3gnn.graphs.formats import read_graph_file
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from h3gnn.storage.atomic import write_atomically
from h3gnn.training.resources import pick_device
from h3gnn.tuned import preset
from reproduction.origin import made_with, origin

VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "objective: teacher": {"objective": "teacher"},
    "objective: decorrelation": {"objective": "decorrelation"},
    "objective: neighbours": {"objective": "neighbours"},
    "objective: edges": {"objective": "edges"},
    "untrained": {"epochs": 0},
    "no smoothing": {"smoothing": 0.0},
    "nothing dropped": {"feature_drop": 0.0, "edge_drop": 0.0},
    "plain targets": {"targets": "plain"},
    "no masks": {"mask_ratio": 0.0},
    "edge weights learned": {"edge_weights": "learned"},
    "edge weights computed": {"edge_weights": "computed"},
    "tokens beside": {"tokens": True},
    "the paper's": {
        **preset("paper"),
        **{"edge_weights": "learned", "schedule": "cosine", "warmup_epochs": 10, "precision": "auto"},
    },
    "random masks": {"mask": "random"},
    "mask token from N(0, 1)": {"mask_token": "normal"},
    "objective: features": {"objective": "features", "mask_ratio": 0.5},
    "powers of Ã for walks": {"smoother": "powers"},
    "edge weights learned, rate × 30": {"edge_weights": "learned", "edge_rate": 30.0},
}
FORMER: dict[str, Any] = {"n_models": 8, "epochs": 50, "learning_rate": 0.002}
SIZES: dict[str, dict[str, Any]] = {
    "default": {},
    "quick": preset("quick"),
    "8 models, 50 epochs": FORMER,
    "8 models, 50 epochs, no input blocks": {**FORMER, "input_weight": 0.0},
    "no input blocks": {"input_weight": 0.0},
    "untrained": {"epochs": 0},
    "input weight 0.2": {"input_weight": 0.2},
    "input weight 0.8": {"input_weight": 0.8},
    "1,024 dimensions": {"dimensions": 1024},
    "512 dimensions": {"dimensions": 512},
    "256 dimensions": {"dimensions": 256},
    "128 dimensions": {"dimensions": 128},
}
RIDGES = tuple(10.0 ** (exponent / 2) for exponent in range(-6, 4))
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


def score(graph: Graph, settings: dict[str, Any], device: str, seeds: int = 1) -> dict[str, Any]:
    """Return the mean validation accuracy in per cent, its standard error, and the seconds of a fit.

    Of several seeds each split has the mean, so that the error is that over splits.
    """
    assert graph.labels is not None
    where = pick_device(device)
    judge = RidgeValidation(graph.labels, *splits_of(graph), where, RIDGES, by_column=False)
    most = graph.num_nodes - 1
    if settings.get("dimensions"):
        settings = settings | {"dimensions": min(settings["dimensions"], most)}
    first = settings.get("random_state", 0)
    fitted = [
        H3GNN.from_settings({**settings, "device": device, "random_state": first + seed}).fit(graph)
        for seed in range(seeds)
    ]
    rows = [torch.from_numpy(model.embedding_).to(where) for model in fitted]
    each = 100 * torch.stack([judge.accuracies(one) for one in rows]).double().mean(dim=0)
    error = float(each.std() / len(each) ** 0.5) if len(each) > 1 else float("nan")
    seconds = sum(float(model.cost_["seconds"] or 0) for model in fitted) / seeds
    cost = {"seconds": round(seconds, 3), "smoothing": fitted[0].smoothing_}
    return {"accuracy": round(float(each.mean()), 2), "error": round(error, 2), **cost}


def named(name: str) -> Graph:
    """Return a graph by name, or from a file."""
    if name == "synthetic":
        return mixed_graph()
    return load(name) if is_benchmark(name) else read_graph_file(Path(name))


def table(runs: list[dict[str, Any]], variants: Iterable[str]) -> str:
    """Return stored runs as a Markdown table, one column per graph."""
    head = ["", *(run["graph"] for run in runs)]
    lines = [head, ["---"] * len(head)]
    for variant in variants:
        found = [run["scores"].get(variant) for run in runs]
        if any(found):
            cells = ["–" if one is None else f"{one['accuracy']:.1f} ± {one['error']:.1f}" for one in found]
            lines.append([variant, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Measure, or show what was measured."""
    parser = arguments(__doc__)
    parser.add_argument("--sizes", action="store_true", help="sizes of the default, not its ingredients")
    asked = parser.parse_args()
    measure_or_show(asked, SIZES if asked.sizes else VARIANTS, {**VARIANTS, **SIZES})


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the arguments that measuring variants takes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("graphs", nargs="*", default=["synthetic"])
    parser.add_argument("--seeds", type=int, default=1, help="train each variant so often")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--variants", nargs="*", help="only these")
    parser.add_argument("--table", nargs="+", type=Path)
    return parser


def measure_or_show(
    asked: argparse.Namespace, every: dict[str, dict[str, Any]], shown: Iterable[str] | None = None
) -> None:
    """Measure the variants that are asked for, or print a table of what was measured."""
    warnings.simplefilter("ignore")
    runs = [run for path in asked.table or () for run in json.loads(path.read_text())["runs"]]
    print(table(runs if asked.table else measure(asked, every), shown or every))


def measure(asked: argparse.Namespace, every: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Train what is asked for and not yet stored, and store each score as it comes; return all runs."""
    kept: dict[str, Any] = {"device": asked.device, "seeds": asked.seeds, **made_with(), "runs": []}
    if asked.json is not None and asked.json.exists():
        stored = json.loads(asked.json.read_text())
        if stored.get("seeds", 1) != asked.seeds:
            raise SystemExit(f"{asked.json} has {stored.get('seeds', 1)} seed(s) of each, not {asked.seeds}")
        kept["runs"] = stored["runs"]
    for name in asked.graphs:
        graph = named(name)
        run = next((run for run in kept["runs"] if run["graph"] == Path(name).stem), None)
        if run is None:
            run = {"graph": Path(name).stem, "sha256": graph.provenance.sha256, "scores": {}}
            kept["runs"].append(run)
        for variant in asked.variants or every:
            if variant not in run["scores"]:
                found = score(graph, every[variant], asked.device, asked.seeds)
                run["scores"][variant] = found | {"origin": origin()}
                print(name, variant, run["scores"][variant], flush=True)
            if asked.json is not None:
                write_atomically(asked.json, json.dumps(kept, indent=1).encode())
    return list(kept["runs"])


if __name__ == "__main__":
    main()
