"""How to choose the probe's strength on validation nodes: three rules, judged on validation nodes held out.

`python -m benchmarks.choosing [GRAPH …]` trains each graph's preset, hides each fifth of a split's
validation nodes in turn, lets every rule choose on the other four, and prints the accuracy on the hidden
ones. Test nodes are not looked at.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.candidates import known_classes
from h3gnn.evaluation.measures import accuracy
from h3gnn.evaluation.probe import probe_candidates
from h3gnn.evaluation.protocols import answers_of, best_within_error
from h3gnn.graphs.catalogue import benchmarks, load
from h3gnn.graphs.graph import Graph
from h3gnn.storage.origin import made_with
from h3gnn.training.resources import pick_device

FOLDS = 5
RESULTS = Path(__file__).parent / "results" / "choosing.json"


def hide_fifths(val_mask: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return for each split and fifth the validation nodes that choose and those that are hidden."""
    generator = torch.Generator().manual_seed(seed)
    seen, hidden = [], []
    for val in val_mask.t():
        nodes = torch.nonzero(val).flatten()
        shuffled = nodes[torch.randperm(len(nodes), generator=generator)]
        for fold in range(FOLDS):
            held = torch.zeros_like(val)
            held[shuffled[fold::FOLDS]] = True
            seen.append(val & ~held)
            hidden.append(held)
    return torch.stack(seen, dim=1), torch.stack(hidden, dim=1)


def compare(graph: Graph, embedding: Tensor) -> dict[str, float]:
    """Return the mean accuracy on hidden validation nodes of what each rule chose."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    seen, hidden = hide_fifths(graph.val_mask)
    train = graph.train_mask.repeat_interleave(FOLDS, dim=1)
    classes = known_classes(graph.labels, graph.train_mask, graph.val_mask)
    found = probe_candidates(embedding, graph.labels, train, seen, hidden, classes=classes)
    answers = answers_of(graph.labels, hidden)
    scores: dict[str, list[float]] = {"accuracy": [], "loss": [], "loss within one error": []}
    for split, truth in enumerate(answers):
        right, loss = found.val_accuracy[split], found.val_loss[split]
        chosen = {
            "accuracy": best_within_error(right, loss, 0),
            "loss": int(loss.argmin()),
            "loss within one error": best_within_error(right, loss, int(found.val_nodes[split])),
        }
        for rule, position in chosen.items():
            scores[rule].append(accuracy(found.predicted[split][position], truth))
    return {rule: float(np.mean(values)) for rule, values in scores.items()}


def main() -> None:
    """Print the table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=list(benchmarks()))
    parser.add_argument("--models", type=int, default=4, help="models of each graph's preset")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    device, rows = pick_device(asked.device), {}
    for name in asked.graphs:
        graph = load(name)
        model = H3GNN.from_preset(name, n_models=asked.models, device=str(device))
        rows[name] = compare(graph, torch.from_numpy(model.fit_transform(graph)).to(device))
        _tell(name, rows[name])
    mean = {rule: float(np.mean([row[rule] for row in rows.values()])) for rule in next(iter(rows.values()))}
    _tell("mean", mean)
    about = {"models": asked.models, "folds": FOLDS, "device": str(device), **made_with()}
    asked.out.write_text(json.dumps({"about": about, "rows": rows, "mean": mean}, indent=1) + "\n")


def _tell(name: str, scores: dict[str, float]) -> None:
    print(name, *(f"{rule} {100 * value:.2f}" for rule, value in scores.items()), sep="   ", flush=True)


if __name__ == "__main__":
    main()
