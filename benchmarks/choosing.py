"""How to choose the probe's strength: several rules, judged on validation nodes held out.

`python -m benchmarks.choosing [GRAPH …] [--seeds 2]` trains the default of H3GNN, hides each fifth of a
split's validation nodes in turn, lets every rule choose by the training nodes and the other four fifths, and
prints the accuracy on the hidden ones. A graph with one split is split again: its training and validation
nodes are redistributed six times. Test nodes are not used.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.probe import L2_GRID, fit_logistic, inner_products, predict_logistic, project_onto
from h3gnn.evaluation.protocols import count_classes, one_standard_error_rule, tempered_loss
from h3gnn.experiments.search import resplit
from h3gnn.graphs.datasets import benchmarks, load
from h3gnn.graphs.graph import Graph
from h3gnn.training.resources import pick_device
from reproduction.origin import made_with

FOLDS, DRAWS, SPLITS_OF_ONE = 5, 10, 6
RESULTS = Path(__file__).parent / "results" / "choosing.json"
Floats = npt.NDArray[np.float64]


class Probes:
    """Classifiers of one embedding with every strength, for training nodes that are given."""

    def __init__(self, embedding: Tensor, own: Tensor, labels: Tensor, classes: int) -> None:
        nodes = torch.nonzero(own).flatten()
        self.rows = project_onto(inner_products(embedding, nodes), nodes)
        self.labels, self.classes = labels, classes

    def predict(self, train: Tensor, asked: list[Tensor]) -> list[Tensor]:
        """Return log-probabilities `[strengths, asked, classes]` for each column of training nodes."""
        nodes = torch.nonzero(train.any(dim=1)).flatten()
        targets = torch.nn.functional.one_hot(self.labels[nodes], self.classes).to(self.rows.dtype)
        weights = fit_logistic(self.rows[nodes], targets, train[nodes].t(), L2_GRID)
        return [predict_logistic(self.rows[one], own) for one, own in zip(asked, weights, strict=True)]

    def judged(self, log_p: Tensor, nodes: Tensor) -> tuple[Floats, Floats, Floats]:
        """Return accuracy, plain and tempered loss of each strength, `[strengths]`."""
        answers = self.labels[nodes]
        own = log_p.gather(-1, answers.expand(len(log_p), -1)[..., None]).squeeze(-1)
        right = (log_p.argmax(dim=-1) == answers).double().mean(dim=1)
        found = (right, -own.mean(dim=1), tempered_loss(log_p, answers))
        return tuple(one.cpu().numpy() for one in found)  # type: ignore[return-value]


def compare(graph: Graph, embedding: Tensor) -> dict[str, float]:
    """Return the mean accuracy on hidden validation nodes of what each rule chose."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    train, val = graph.train_mask, graph.val_mask
    if graph.num_splits == 1:
        own = torch.where((train | val)[:, 0], graph.labels, -1)
        train, val = resplit(own, train[:, 0], val[:, 0], SPLITS_OF_ONE, 0)
    labels, classes = graph.labels.to(embedding.device), count_classes(graph.labels, train, val)
    generator, scores = torch.Generator().manual_seed(0), list[dict[str, float]]()
    for split in range(train.shape[1]):
        first, second = (mask[:, split].to(embedding.device) for mask in (train, val))
        probes = Probes(embedding, first | second, labels, classes)
        nodes = torch.nonzero(second).flatten().cpu()
        nodes = nodes[torch.randperm(len(nodes), generator=generator)].to(embedding.device)
        (log_p,) = probes.predict(first[:, None], [nodes])
        for fold in range(FOLDS):
            hidden = torch.arange(len(nodes), device=nodes.device) % FOLDS == fold
            seen = torch.zeros_like(second)
            seen[nodes[~hidden]] = True
            chosen = _choices(probes, first, seen, log_p[:, ~hidden], nodes[~hidden], split * FOLDS + fold)
            right = probes.judged(log_p[:, hidden], nodes[hidden])[0]
            scores.append({rule: float(right[position]) for rule, position in chosen.items()})
    return {rule: float(np.mean([one[rule] for one in scores])) for rule in scores[0]}


def _choices(
    probes: Probes, train: Tensor, seen: Tensor, log_p: Tensor, nodes: Tensor, seed: int
) -> dict[str, int]:
    """Return what each rule takes, by the training nodes and the validation nodes that are seen."""
    right, loss, tempered = probes.judged(log_p, nodes)
    many, own = len(nodes), torch.where(train | seen, probes.labels, -1).cpu()
    drawn = resplit(own, train.cpu(), seen.cpu(), DRAWS, seed)
    drawn_train, drawn_val = (mask.to(train.device) for mask in drawn)
    asked = [torch.nonzero(one).flatten() for one in drawn_val.t()]
    predicted = probes.predict(drawn_train, asked)
    means = np.mean([probes.judged(p, one) for p, one in zip(predicted, asked, strict=True)], axis=0)
    return {
        "accuracy": one_standard_error_rule(right, loss, 0),
        "loss within one error": one_standard_error_rule(right, loss, many),
        "tempered": one_standard_error_rule(right, tempered, many),
        "tempered, dealt anew": one_standard_error_rule(means[0], means[2], many),
    }


def main() -> None:
    """Print the table and write it down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=list(benchmarks()))
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each graph")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    device, rows = pick_device(asked.device), {}
    for name in asked.graphs:
        graph, found = load(name), list[dict[str, float]]()
        for seed in range(asked.seeds):
            model = H3GNN(random_state=seed, device=str(device))
            found.append(compare(graph, torch.from_numpy(model.fit_transform(graph)).to(device)))
        rows[name] = _mean(found)
        _tell(name, rows[name])
    mean = _mean(list(rows.values()))
    _tell("mean", mean)
    about: dict[str, Any] = {"seeds": asked.seeds, "folds": FOLDS, "draws": DRAWS, "device": str(device)}
    result = {"about": {**about, **made_with()}, "rows": rows, "mean": mean}
    asked.out.write_text(json.dumps(result, indent=1) + "\n")


def _mean(several: list[dict[str, float]]) -> dict[str, float]:
    return {rule: float(np.mean([one[rule] for one in several])) for rule in several[0]}


def _tell(name: str, scores: dict[str, float]) -> None:
    print(name, *(f"{rule} {100 * value:.2f}" for rule, value in scores.items()), sep="   ", flush=True)


if __name__ == "__main__":
    main()
