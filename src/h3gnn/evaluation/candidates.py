"""Embeddings as rows, and what a classifier of them could be: a candidate for each split and setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.measures import rarest_class

COLUMNS = 1024
"""So many columns are standardised at a time when all that is needed are the rows' inner products."""
CONSTANT = 1e-8
"""A column whose standard deviation is no larger is constant."""
NOTHING = 1e-10
"""A direction that holds no larger a share of the largest one's squared length says nothing."""
TURNED = 4096
"""So many columns are turned into their principal directions; the time of it grows with their cube."""
SHARPNESS = tuple(2 ** (step / 2) for step in range(-8, 25))
"""Inverse temperatures to choose from, 1/16 to 4096: strong penalties leave small differences."""

Setting = Mapping[str, float | str]


def as_rows(embedding: npt.ArrayLike | Tensor | SharedRows) -> Tensor:
    """Return an embedding `[nodes, D]` as a tensor, where it is if it is one already."""
    if isinstance(embedding, SharedRows):
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


def span_of(within: Tensor) -> Tensor:
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
    return products @ span_of(products[chosen])


def principal_rows(rows: Tensor) -> Tensor:
    """Return rows `[nodes, D]` in their own principal directions, a rotation that parts the columns."""
    _, vectors = torch.linalg.eigh(rows.mT @ rows)
    found: Tensor = rows @ vectors
    return found


class SharedRows:
    """An embedding whose principal directions are found once, for probes of several splits fitted apart.

    No label has a part in them.
    """

    def __init__(self, embedding: npt.ArrayLike | Tensor) -> None:
        self.rows = as_rows(embedding)
        self._turned: dict[bool, Tensor] = {}

    @classmethod
    def of(cls, embedding: npt.ArrayLike | Tensor | SharedRows) -> SharedRows:
        """Return what is shared already, or begin to share."""
        return embedding if isinstance(embedding, SharedRows) else cls(embedding)

    def turned(self, by_column: bool) -> Tensor:
        """Return the standardised rows in their principal directions, if they are not too many, in float32.

        Args:
            by_column: whether each column is divided by its own standard deviation, or all by one number.
        """
        if by_column not in self._turned:
            rows = standardise(self.rows.float(), self.spread(by_column))
            self._turned[by_column] = principal_rows(rows) if rows.shape[1] <= TURNED else rows
        return self._turned[by_column]

    def spread(self, by_column: bool) -> Tensor | None:
        """Return what `standardise` divides the columns by."""
        return None if by_column else common_spread(self.rows)


@dataclass(frozen=True)
class Candidates:
    """Classifiers of one embedding, for each split one per setting.

    Whoever chooses among them sees how they do on validation nodes. What they say about test nodes is kept
    so that the one chosen can be scored later; the test nodes' labels are not here.

    Attributes:
        settings: what the candidates of a split differ in, such as `{"strength": 0.1}`.
        val_accuracy: on each split's validation nodes, `[splits, settings]`.
        val_loss: mean cross-entropy there, each at the temperature that suits it best (`tempered_loss`),
            `[splits, settings]`.
        val_nodes: how many labelled validation nodes each split has, `[splits]`.
        predicted: of each split, the class that each setting gives each test node, `[settings, nodes]`.
        odds: of each split, log p / (1 − p) of the rare class at the test nodes, `[settings, nodes]`. One
            number for each node: all classes' would be as many times as large, and no measure asks for them.
        classes: how many there are.
        rare: the class that the odds are for, the one with the fewest training and validation nodes.
    """

    settings: tuple[Setting, ...]
    val_accuracy: npt.NDArray[np.float64]
    val_loss: npt.NDArray[np.float64]
    val_nodes: npt.NDArray[np.int64]
    predicted: tuple[npt.NDArray[np.int16], ...]
    odds: tuple[npt.NDArray[np.float32], ...]
    classes: int
    rare: int = 1

    @property
    def splits(self) -> int:
        """How many splits there are."""
        return len(self.predicted)


class KeptSplit(NamedTuple):
    """Of one split: validation accuracy and loss `[settings]`, number of nodes, test predictions, odds."""

    accuracy: Tensor
    loss: Tensor
    nodes: int
    predicted: Tensor
    odds: Tensor


def keep_split(log_p: Tensor, labels: Tensor, val: Tensor, test: Tensor, rare: int = 1) -> KeptSplit:
    """Return what is kept of one split.

    Args:
        log_p: class log-probabilities `[settings, nodes, classes]`.
        labels: int64 `[nodes]`, negative where unknown.
        val, test: bool `[nodes]`; of the validation nodes, only labelled ones count.
        rare: the class whose odds are kept.
    """
    seen = torch.nonzero(val & (labels >= 0)).flatten()
    answers = labels[seen]
    at_val = log_p[:, seen]
    right = (at_val.argmax(dim=-1) == answers).double()
    at_test = log_p[:, torch.nonzero(test).flatten()]
    predicted = at_test.argmax(dim=-1).to(torch.int16)
    accuracy, loss = right.sum(dim=1) / max(1, len(seen)), tempered_loss(at_val, answers)
    return KeptSplit(accuracy, loss, len(seen), predicted, log_odds(at_test, rare))


def tempered_loss(log_p: Tensor, answers: Tensor) -> Tensor:
    r"""Return the mean cross-entropy of each setting at the temperature that suits it best, `[settings]`.

    .. math:: \min_\beta -\frac1n \sum_v \log \mathrm{Softmax}(\beta \log p(v))_{y_v}

    A strong penalty leaves every probability near its class's share, and the plain cross-entropy large,
    however well the classes are told apart: here a classifier is not judged by how sure it dares to be.

    Args:
        log_p: class log-probabilities `[settings, nodes, classes]`.
        answers: the nodes' classes.
    """
    given, nodes = log_p.double(), max(1, len(answers))
    own = given.gather(-1, answers.expand(len(given), -1)[..., None]).squeeze(-1)
    losses = [((beta * given).logsumexp(dim=-1) - beta * own).sum(dim=1) / nodes for beta in SHARPNESS]
    return torch.stack(losses).amin(dim=0)


def log_odds(log_p: Tensor, chosen: int) -> Tensor:
    """Return log p / (1 − p) of one class from log-probabilities `[..., classes]`, as float32."""
    others = [one for one in range(log_p.shape[-1]) if one != chosen]
    return (log_p[..., chosen] - log_p[..., others].logsumexp(dim=-1)).float()


def join_splits(
    kept: Sequence[KeptSplit], settings: Sequence[Setting], classes: int, rare: int = 1
) -> Candidates:
    """Join what was kept of each split."""
    return Candidates(
        tuple(settings),
        torch.stack([one.accuracy for one in kept]).cpu().numpy(),
        torch.stack([one.loss for one in kept]).cpu().numpy(),
        np.array([one.nodes for one in kept]),
        tuple(one.predicted.cpu().numpy() for one in kept),
        tuple(one.odds.cpu().numpy() for one in kept),
        classes,
        rare,
    )


def beside(several: Mapping[str, Candidates], name: str) -> Candidates:
    """Return candidates of several kinds as one; `name` says in the settings of which kind each is."""
    every = list(several.values())
    splits = range(every[0].splits)
    return Candidates(
        tuple({**setting, name: kind} for kind, one in several.items() for setting in one.settings),
        np.concatenate([one.val_accuracy for one in every], axis=1),
        np.concatenate([one.val_loss for one in every], axis=1),
        every[0].val_nodes,
        tuple(np.concatenate([one.predicted[split] for one in every]) for split in splits),
        tuple(np.concatenate([one.odds[split] for one in every]) for split in splits),
        every[0].classes,
        every[0].rare,
    )


def candidates_from_scores(
    log_p: Tensor, labels: Tensor, val_mask: Tensor, test_mask: Tensor, rare: int = 1
) -> Candidates:
    """Return the candidates of classifiers that were fitted elsewhere, one for each split.

    Args:
        log_p: class log-probabilities `[splits, nodes, classes]`, a supervised network's for instance.
        labels: int64 `[nodes]`, negative where unknown.
        val_mask, test_mask: bool `[nodes, splits]`.
        rare: the class whose odds are kept.
    """
    labels, val, test = (one.to(log_p.device) for one in (labels, val_mask, test_mask))
    kept = [keep_split(one[None], labels, val[:, i], test[:, i], rare) for i, one in enumerate(log_p)]
    return join_splits(kept, [{}], log_p.shape[-1], rare)


def known_classes(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return how many classes the training and validation nodes show; test labels are not looked at."""
    seen = labels[(train | val).any(dim=1)]
    return max(2, int(seen.max()) + 1 if len(seen) else 0)


def known_rarest(labels: Tensor, train: Tensor, val: Tensor) -> int:
    """Return the class that the fewest training and validation nodes have; test labels are not looked at."""
    return rarest_class(labels[(train | val).any(dim=1)].cpu().numpy())
