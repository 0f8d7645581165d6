"""The classifiers that authors put on top of an embedding, as their papers and code describe them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


def probe(rows: Tensor, nodes: Nodes, told: Mapping[str, Any], seed: int) -> Found:
    """Train the classifier that a check asks for.

    Args:
        rows: the embedding `[nodes, D]`.
        nodes: labels and splits.
        told: the check's `probe`.
        seed: of the classifier's start.
    """
    rows = _scaled(rows.float(), told.get("rows", "as they are"))
    if told["kind"] == "logistic":
        return _logistic(rows, nodes)
    return _trained(rows, nodes, told, seed)


def _scaled(rows: Tensor, how: str) -> Tensor:
    if how == "unit":
        return functional.normalize(rows, dim=1)
    if how == "standard":
        return (rows - rows.mean(dim=0)) / rows.std(dim=0).clamp_min(1e-12)
    return rows


def _trained(rows: Tensor, nodes: Nodes, told: Mapping[str, Any], seed: int) -> Found:
    """Train a linear layer, or an MLP, for each split by Adam; the step is chosen as the authors do."""
    val, test = [], []
    classes = int(nodes.labels.max()) + 1
    for split in range(nodes.splits):
        torch.manual_seed(seed)
        net = _net(rows.shape[1], classes, told).to(rows.device)
        adam = torch.optim.Adam(net.parameters(), lr=told["rate"], weight_decay=told.get("decay", 0.0))
        train, seen, asked = (mask[:, split] for mask in (nodes.train, nodes.val, nodes.test))
        own, target = rows[train], nodes.labels[train]
        right: list[Tensor] = []
        for _ in range(told["steps"]):
            net.train()
            adam.zero_grad()
            functional.cross_entropy(net(own), target).backward()  # type: ignore[no-untyped-call]
            adam.step()
            net.eval()
            with torch.no_grad():
                hit = (net(rows).argmax(dim=1) == nodes.labels).float()
                right.append(torch.stack([hit[seen].mean(), hit[asked].mean()]))
        table = torch.stack(right).cpu().numpy()
        step = _chosen(table, told)
        val.append(float(table[step, 0]))
        test.append(float(table[step, 1]))
    return Found(val, test)


def _chosen(table: npt.NDArray[np.float32], told: Mapping[str, Any]) -> int:
    """Return the step that counts, given both accuracies of each; of equal ones the first, or the last."""
    choose = told.get("choose", "validation")
    if choose == "last":
        return len(table) - 1
    right = table[:, 0 if choose == "validation" else 1]
    if told.get("ties", "first") == "last":
        return len(right) - 1 - int(right[::-1].argmax())
    return int(right.argmax())


def _net(width: int, classes: int, told: Mapping[str, Any]) -> nn.Module:
    if told["kind"] == "adam":
        layer = nn.Linear(width, classes)
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer
    hidden, layers, sizes = told.get("hidden", 256), list[nn.Module](), width
    for _ in range(told.get("layers", 2) - 1):
        layers += [nn.Linear(sizes, hidden), nn.ReLU()]
        sizes = hidden
    return nn.Sequential(*layers, nn.Linear(sizes, classes))


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
