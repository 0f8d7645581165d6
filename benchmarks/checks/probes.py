"""The classifiers that authors put on top of an embedding, as their papers and code describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, eq=False)
class Nodes:
    """Labels `[nodes]`, and the training, validation and test nodes of each split, bool `[nodes, splits]`."""

    labels: Tensor
    train: Tensor
    val: Tensor
    test: Tensor

    @property
    def splits(self) -> int:
        """How many."""
        return self.train.shape[1]


@dataclass(frozen=True)
class Found:
    """The accuracy of each split's classifier on its validation and its test nodes."""

    val: list[float]
    test: list[float]


def probe(rows: Tensor, nodes: Nodes, options: Mapping[str, Any], seed: int) -> Found:
    """Train the classifier that a check asks for.

    Args:
        rows: the embedding `[nodes, D]`.
        nodes: labels and splits.
        options: the check's `probe`.
        seed: of the classifier's start.
    """
    rows = _scaled(rows.float(), options.get("rows", "as they are"))
    if options["kind"] == "logistic":
        return _logistic(rows, nodes)
    return _trained(rows, nodes, options, seed)


def _scaled(rows: Tensor, how: str) -> Tensor:
    if how == "unit":
        return functional.normalize(rows, dim=1)
    if how == "standard":
        return (rows - rows.mean(dim=0)) / rows.std(dim=0).clamp_min(1e-12)
    return rows


def _trained(rows: Tensor, nodes: Nodes, options: Mapping[str, Any], seed: int) -> Found:
    """Train a linear layer, or an MLP, for each split by Adam; the step is chosen as the authors do.

    The classifiers of all splits share their initial values and form one tensor.
    """
    torch.manual_seed(seed)
    start = _layers(rows.shape[1], int(nodes.labels.max()) + 1, options)
    stacked = [one.detach().to(rows.device).expand(nodes.splits, -1, -1).clone() for one in start]
    weights = [one.requires_grad_() for one in stacked]
    adam = torch.optim.Adam(weights, lr=options["rate"], weight_decay=options.get("decay", 0.0))
    shares = [(mask / mask.sum(dim=0)).t() for mask in (nodes.train, nodes.val, nodes.test)]
    right: list[Tensor] = []
    for _ in range(options["steps"]):
        adam.zero_grad()
        own = _logits(rows, weights).log_softmax(dim=-1)[
            :, torch.arange(len(rows)), nodes.labels.clamp_min(0)
        ]
        (-(own * shares[0]).sum()).backward()  # type: ignore[no-untyped-call]
        adam.step()
        with torch.no_grad():
            hit = (_logits(rows, weights).argmax(dim=-1) == nodes.labels).float()
            right.append(torch.stack([(hit * share).sum(dim=1) for share in shares[1:]]))
    table = torch.stack(right).cpu().numpy()
    steps = [_chosen(table[:, :, split], options) for split in range(nodes.splits)]
    return Found(*([float(table[at, part, split]) for split, at in enumerate(steps)] for part in (0, 1)))


def _logits(rows: Tensor, weights: list[Tensor]) -> Tensor:
    """Return each split's scores `[splits, nodes, classes]`: weights and biases in turn, ReLUs between."""
    hidden = rows.expand(len(weights[0]), -1, -1)
    for position in range(0, len(weights), 2):
        hidden = torch.baddbmm(weights[position + 1], hidden, weights[position])
        hidden = hidden if position + 2 == len(weights) else hidden.relu()
    return hidden


def _chosen(table: npt.NDArray[np.float32], options: Mapping[str, Any]) -> int:
    """Return the step that counts, given both accuracies of each; of equal ones the first, or the last."""
    choose = options.get("choose", "validation")
    if choose == "last":
        return len(table) - 1
    right = table[:, 0 if choose == "validation" else 1]
    if options.get("ties", "first") == "last":
        return len(right) - 1 - int(right[::-1].argmax())
    return int(right.argmax())


def _layers(width: int, classes: int, options: Mapping[str, Any]) -> list[Tensor]:
    """Return the start of a classifier: of each layer the weight `[in, out]` and the bias `[1, out]`."""
    hidden = [options.get("hidden", 256)] * (options.get("layers", 2) - 1) if options["kind"] == "mlp" else []
    sizes, found = [width, *hidden, classes], list[Tensor]()
    for one, other in pairwise(sizes):
        layer = nn.Linear(one, other)
        if options["kind"] == "adam":
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        found += [layer.weight.t(), layer.bias[None]]
    return found


def _logistic(rows: Tensor, nodes: Nodes) -> Found:
    """Fit one against the rest by liblinear; C by five-fold cross-validation on training nodes."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.multiclass import OneVsRestClassifier

    values, labels = rows.cpu().numpy(), nodes.labels.cpu().numpy()
    val, test = [], []
    for split in range(nodes.splits):
        train, seen, asked = (mask[:, split].cpu().numpy() for mask in (nodes.train, nodes.val, nodes.test))
        least = int(np.unique(labels[train], return_counts=True)[1].min())
        search = GridSearchCV(
            OneVsRestClassifier(LogisticRegression(solver="liblinear")),
            {"estimator__C": [2.0**power for power in range(-10, 10, 2)]},
            cv=max(2, min(5, least)),
        )
        search.fit(values[train], labels[train])
        right = search.predict(values) == labels
        val.append(float(right[seen].mean()))
        test.append(float(right[asked].mean()))
    return Found(val, test)
