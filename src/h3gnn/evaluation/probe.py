"""Embeddings as rows, and what a classifier of them could be: a candidate for each split and setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.logistic import fit_logistic, predict_logistic
from h3gnn.evaluation.protocols import (
    VALIDATION,
    Candidates,
    Setting,
    SplitOutputs,
    concat_candidates,
    count_classes,
    held_out_labels,
    rarest_known_class,
    score,
    stack_splits,
    summarize_split,
)
from h3gnn.resources import map_in_threads, one_thread

COLUMNS = 1024
"""So many columns are standardised at a time when all that is needed are the rows' inner products."""
CONSTANT = 1e-8
"""A column whose standard deviation is no larger is constant."""
NOTHING = 1e-10
"""A direction that holds no larger a share of the largest one's squared length says nothing."""
TURNED = 4096
"""So many columns are turned into their principal directions; the time of it grows with their cube."""


def as_rows(embedding: npt.ArrayLike | Tensor | SharedEmbedding) -> Tensor:
    """Return an embedding `[nodes, D]` as a tensor, where it is if it is one already."""
    if isinstance(embedding, SharedEmbedding):
        return embedding.rows
    if isinstance(embedding, Tensor):
        return embedding.detach()
    return torch.as_tensor(np.asarray(embedding))


def standardise(embeddings: Tensor, spread: Tensor | None = None) -> Tensor:
    """Return each column with mean 0 and variance 1 over the nodes; constant columns become 0.

    With a spread that is given, such as `common_spread`, every column is divided by that.
    """
    centred = embeddings - embeddings.mean(dim=-2, keepdim=True)
    if spread is None:
        spread = centred.std(dim=-2, correction=0, keepdim=True)
    return torch.where(spread > CONSTANT, centred / spread.clamp_min(CONSTANT), 0.0)


def common_spread(embedding: Tensor) -> Tensor:
    """Return one standard deviation for all columns of an embedding.

    For features: standardised one by one, a word that stands in two pages would weigh more than one that
    stands in half of them.
    """
    return torch.var(embedding.float(), dim=0, correction=0).mean().sqrt()


def inner_products(embedding: Tensor, chosen: Tensor, spread: Tensor | None = None) -> Tensor:
    """Return the inner products of all standardised rows with the chosen ones, `[nodes, chosen]`.

    In float64, some columns at a time: an embedding of many joined models is never copied whole.

    Args:
        embedding: `[nodes, D]`.
        chosen: positions of nodes.
        spread: what to divide the columns by; by default each by its own standard deviation.
    """
    total = torch.zeros(len(embedding), len(chosen), dtype=torch.float64, device=embedding.device)
    for columns in torch.split(embedding, COLUMNS, dim=1):
        scaled = standardise(columns.double(), spread)
        total.addmm_(scaled, scaled[chosen].mT)
    return total


def projection_basis(within: Tensor) -> Tensor:
    r"""Return what turns inner products with some rows into the principal directions of those rows.

    With :math:`K = U \Lambda U^\top` of the rows' own products this is :math:`U \Lambda^{-1/2}`;
    directions in which the rows do not differ are left out.
    """
    values, vectors = torch.linalg.eigh(within)
    there = values > NOTHING * values[-1:].clamp_min(CONSTANT)
    found: Tensor = vectors[:, there] / values[there].sqrt()
    return found


def turned(products: Tensor, chosen: Tensor) -> Tensor:
    """Return all rows in the principal directions of the chosen ones, `[nodes, directions]`.

    A rotation: lengths and angles among the chosen rows stay, and of the others what lies in the span.

    Args:
        products: of all rows with the chosen ones, `[nodes, chosen]`.
        chosen: positions of nodes.
    """
    return products @ projection_basis(products[chosen])


def principal_components(rows: Tensor) -> Tensor:
    """Return rows `[nodes, D]` in their own principal directions, a rotation that parts the columns."""
    _, vectors = torch.linalg.eigh(rows.mT @ rows)
    found: Tensor = rows @ vectors
    return found


class SharedEmbedding:
    """An embedding whose principal directions are found once, for probes of several splits fitted apart.

    No label has a part in them.
    """

    def __init__(self, embedding: npt.ArrayLike | Tensor) -> None:
        self.rows = as_rows(embedding)
        self._turned: dict[bool, Tensor] = {}

    @classmethod
    def of(cls, embedding: npt.ArrayLike | Tensor | SharedEmbedding) -> SharedEmbedding:
        """Return what is shared already, or begin to share."""
        return embedding if isinstance(embedding, SharedEmbedding) else cls(embedding)

    def turned(self, by_column: bool) -> Tensor:
        """Return the standardised rows in their principal directions, if they are not too many, in float32.

        Args:
            by_column: whether each column is divided by its own standard deviation, or all by one number.
        """
        if by_column not in self._turned:
            rows = standardise(self.rows.float(), self.spread(by_column))
            self._turned[by_column] = principal_components(rows) if rows.shape[1] <= TURNED else rows
        return self._turned[by_column]

    def spread(self, by_column: bool) -> Tensor | None:
        """Return what `standardise` divides the columns by."""
        return None if by_column else common_spread(self.rows)


L2_GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""The L2 strengths to choose from, relative to a mean loss over the training nodes.

The strong ones are for wide embeddings: sixteen models side by side have tens of thousands of columns. The
strongest all but compare rows with the means of the classes, which is best where a class has few nodes.
"""
TOGETHER = {"cpu": 256, "cuda": 4096}
"""Splits are solved together while all their training nodes are no more than this, else one by one."""
APART = 2
"""An embedding with no more than so many columns for each training node is turned once for all splits."""
PRODUCTS = 2**28
"""So many inner products may be in memory at once, 2 GiB of them."""
LEARNING_RATES = (0.01, 0.005, 0.001)
WEIGHT_DECAYS = (0.0, 5e-4, 5e-5)
"""The paper's grid for the classifier."""
STEPS = 300
EVERY = 10
"""A candidate is taken after every so many of Adam's steps."""


@dataclass(frozen=True)
class ProbeResult:
    """Accuracy on the test nodes of each split, with the strength that its validation nodes chose."""

    test: npt.NDArray[np.float64]
    validation: npt.NDArray[np.float64]
    strength: npt.NDArray[np.float64]

    @property
    def mean(self) -> float:
        """Mean test accuracy over splits."""
        return float(self.test.mean())

    @property
    def std(self) -> float:
        """Standard deviation of the test accuracy over splits."""
        return float(self.test.std())


def linear_probe(
    embedding: npt.ArrayLike | Tensor,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    *,
    strengths: tuple[float, ...] = L2_GRID,
) -> ProbeResult:
    """Fit a linear classifier on each split's training nodes and score it on its test nodes.

    The embedding is standardised over all nodes (no label is needed for that). For each split its validation
    nodes choose the strength, see `Protocol.choose`. Test nodes only score what was chosen.

    Args:
        embedding: `[nodes, D]`.
        labels: int64 `[nodes]`; nodes with a negative label are left out.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`.
        strengths: the L2 strengths to choose from.
    """
    found = probe_candidates(embedding, labels, train_mask, val_mask, test_mask, strengths)
    choices = VALIDATION.choose({0: found})
    scores = score({0: found}, choices, held_out_labels(labels, test_mask))
    return ProbeResult(
        np.array(scores.accuracy),
        np.array(scores.validation),
        np.array([choice.setting["strength"] for choice in choices]),
    )


def probe_candidates(
    embedding: npt.ArrayLike | Tensor | SharedEmbedding,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    strengths: Sequence[float] = L2_GRID,
    classes: int | None = None,
    by_column: bool = True,
) -> Candidates:
    """Fit a classifier for each split and strength; nothing is chosen yet, and no test label is looked at.

    Args:
        embedding: `[nodes, D]`, an array or a tensor on any device; the work is done on that device. Where
            splits are asked one by one, `SharedEmbedding` keeps what they have in common.
        labels: int64 `[nodes]`; nodes with a negative label are left out.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`.
        strengths: the L2 strengths.
        classes: how many there are; by default what the training and validation nodes show.
        by_column: standardise each column; else all are centred and divided by one number, as suits features.
    """
    shared = SharedEmbedding.of(embedding)
    known = labels, train_mask, val_mask, test_mask
    labels, train, val, test = (one.to(shared.rows.device) for one in known)
    train = train & (labels >= 0)[:, None]
    classes = count_classes(labels, train, val) if classes is None else classes
    rare = rarest_known_class(labels, train, val)
    with one_thread(len(labels)):
        basis = _Basis(shared, train, by_column)

    def keep(splits: list[int]) -> list[SplitOutputs]:
        nodes, asked = (torch.nonzero(one[:, splits].any(dim=1)).flatten() for one in (train, val | test))
        rows_there = basis.rows_for(nodes)
        targets = torch.nn.functional.one_hot(labels[nodes], classes).to(rows_there.dtype)
        weights = fit_logistic(rows_there[nodes], targets, train[nodes][:, splits].t(), strengths)
        log_p = (predict_logistic(rows_there[asked], own) for own in weights)
        return [
            summarize_split(said, labels[asked], val[asked, split], test[asked, split], rare)
            for split, said in zip(splits, log_p, strict=True)
        ]

    groups = map_in_threads(keep, basis.groups, len(labels), labels.device.type)
    kept = [one for group in groups for one in group]
    return stack_splits(kept, [{"strength": value} for value in strengths], classes, rare)


def scaled_candidates(
    embedding: npt.ArrayLike | Tensor | SharedEmbedding,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    **options: Any,
) -> Candidates:
    """Fit the classifiers of `probe_candidates` twice: each column on its own scale, and all on one."""
    known = (labels, train_mask, val_mask, test_mask)
    shared = SharedEmbedding.of(embedding)
    found = {
        scale: probe_candidates(shared, *known, by_column=scale == "columns", **options)
        for scale in ("columns", "common")
    }
    return concat_candidates(found, "scale")


class _Basis:
    """Standardised rows, in few columns where that is possible, and the splits that are solved together.

    An L2-regularised classifier lies in the span of its training rows, so that where an embedding has far
    more columns than a split has training nodes, turning the rows into that span loses nothing. Such rows are
    float64: where a split lacks a class, its intercept has no least value, and what the solver leaves of it
    should not hang on rounding. Only many nodes on a CPU are float32, which is a quarter faster there.
    """

    def __init__(self, shared: SharedEmbedding, train: Tensor, by_column: bool) -> None:
        self.union = torch.nonzero(train.any(dim=1)).flatten()
        nodes, columns = shared.rows.shape
        kind, every = shared.rows.device.type, list(range(train.shape[1]))
        largest = int(train.sum(dim=0).amax()) if train.numel() else 0
        apart = len(self.union) > max(largest, TOGETHER.get(kind, 256))
        wide = columns > (APART * largest if apart else len(self.union))
        self.groups = [[split] for split in every] if apart else [every]
        self.precision = torch.float32 if apart and kind == "cpu" else torch.float64
        self.rows = self.products = None
        if wide and nodes * len(self.union) <= PRODUCTS:
            self.products = inner_products(shared.rows, self.union, shared.spread(by_column))
        else:
            self.rows = shared.turned(by_column)

    def rows_for(self, nodes: Tensor) -> Tensor:
        """Return rows of all nodes that say all to classifiers trained on some, `[nodes, columns]`."""
        if self.products is None:
            assert self.rows is not None
            return self.rows
        return turned(self.products[:, torch.searchsorted(self.union, nodes)], nodes).to(self.precision)


def gradient_candidates(
    embedding: npt.ArrayLike | Tensor | SharedEmbedding,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    *,
    learning_rates: tuple[float, ...] = LEARNING_RATES,
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS,
    steps: int = STEPS,
    every: int = EVERY,
    classes: int | None = None,
) -> Candidates:
    """Train a linear layer for each split, learning rate and weight decay; each step may be chosen.

    The layers start at 0, so nothing here is left to chance. The other arguments are as in
    `probe_candidates`.
    """
    rows = standardise(as_rows(embedding).float())
    labels, train, val, test = (one.to(rows.device) for one in (labels, train_mask, val_mask, test_mask))
    train = train & (labels >= 0)[:, None]
    classes = count_classes(labels, train, val) if classes is None else classes
    rare = rarest_known_class(labels, train, val)
    grid = list(product(learning_rates, weight_decays))
    asked = [torch.nonzero((val | test)[:, split]).flatten() for split in range(train.shape[1])]
    taken: list[list[Tensor]] = [[] for _ in asked]  # of each split, log-probabilities of its asked nodes
    settings: list[Setting] = []
    layers = _Layers(rows, labels, train, grid, classes)
    looked_at = [step for step in range(1, steps + 1) if step % every == 0 or step == steps]
    with one_thread(len(labels)):
        for before, step in pairwise([0, *looked_at]):
            layers.walk(step - before)
            settings += [{"learning_rate": rate, "weight_decay": decay, "step": step} for rate, decay in grid]
            for split, nodes in enumerate(asked):
                taken[split].append(layers.log_probabilities(split, nodes))
    kept = [
        summarize_split(torch.cat(taken[split]), labels[nodes], val[nodes, split], test[nodes, split], rare)
        for split, nodes in enumerate(asked)
    ]
    return stack_splits(kept, settings, classes, rare)


class _Layers:
    """One linear layer for each split and setting, trained together by Adam.

    The losses are summed over layers; Adam scales each weight on its own, so a layer moves as it would alone.
    """

    def __init__(
        self, rows: Tensor, labels: Tensor, train: Tensor, grid: list[tuple[float, float]], classes: int
    ) -> None:
        nodes = torch.nonzero(train.any(dim=1)).flatten()
        self.rows = torch.nn.functional.pad(rows, (0, 1), value=1.0)  # a column for the bias
        self.training, self.targets = self.rows[nodes], torch.nn.functional.one_hot(labels[nodes], classes)
        self.share = (train[nodes] / train.sum(dim=0).clamp_min(1)).t().float()  # [splits, training nodes]
        self.weights = [rows.new_zeros(train.shape[1], rows.shape[1] + 1, classes) for _ in grid]
        groups = [
            {"params": [weight.requires_grad_()], "lr": rate, "weight_decay": decay}
            for (rate, decay), weight in zip(grid, self.weights, strict=True)
        ]
        self.adam = torch.optim.Adam(groups)

    @torch.no_grad()
    def walk(self, steps: int) -> None:
        """Move every layer so many times."""
        for _ in range(steps):
            for weight in self.weights:
                found = torch.einsum("nd,sdk->snk", self.training, weight).softmax(dim=-1)
                slope = (found - self.targets) * self.share[:, :, None]
                weight.grad = torch.einsum("nd,snk->sdk", self.training, slope)
            self.adam.step()

    @torch.no_grad()
    def log_probabilities(self, split: int, nodes: Tensor) -> Tensor:
        """Return what every setting says of some nodes, `[settings, nodes, classes]`."""
        weights = torch.stack([weight[split] for weight in self.weights])
        return (self.rows[nodes] @ weights).log_softmax(dim=-1)
