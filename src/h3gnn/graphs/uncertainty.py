"""How sure the homophily of a graph is of which only some nodes have labels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

LEVEL = 0.95
REPEATS = 400
WORK = 20_000_000
"""About so many edges are counted in all: a large graph, whose interval is narrow, is drawn less often."""

Interval = tuple[float, float]
Measure = Callable[[Tensor], float]
"""From the share of edges from class to class, `[classes, classes]`, to a number."""


def intervals(
    edge_index: Tensor, labels: Tensor, num_classes: int, adjusted: Measure, informativeness: Measure
) -> tuple[Interval, Interval] | None:
    """Return 95 % intervals of adjusted homophily and label informativeness; None without an edge.

    Nodes are drawn anew with repetition, and an edge counts as often as both of its ends were drawn: edges at
    one hub stand or fall together, and the interval knows. A few edges that happen to agree would look
    certain so; therefore the interval of adjusted homophily is never narrower than the exact one for as many
    independent pairs (Clopper and Pearson).

    Args:
        edge_index: edges between labelled nodes, each in both directions, without self-loops.
        labels: of the labelled nodes, int64 `[nodes]`.
        num_classes: how many classes there are.
        adjusted, informativeness: the measures.
    """
    edges = edge_index.shape[1]
    if edges == 0:
        return None
    kind = labels[edge_index[0]] * num_classes + labels[edge_index[1]]
    draw = torch.Generator().manual_seed(0)
    found: list[tuple[float, float]] = []
    for _ in range(max(50, min(REPEATS, WORK // edges))):
        picked = torch.randint(labels.numel(), (labels.numel(),), generator=draw)
        often = torch.bincount(picked, minlength=labels.numel()).double()
        counts = torch.bincount(kind, often[edge_index[0]] * often[edge_index[1]], num_classes**2)
        if float(counts.sum()) > 0:
            share = (counts / counts.sum()).view(num_classes, num_classes)
            found.append((adjusted(share), informativeness(share)))
    drawn = np.array(found or [(np.nan, np.nan)])
    whole = (torch.bincount(kind, minlength=num_classes**2).double() / edges).view(num_classes, num_classes)
    exact = _exact(whole, edges // 2)
    return _spread([*_middle(drawn[:, 0]), *exact]), _spread(list(_middle(drawn[:, 1])))


def _exact(share: Tensor, pairs: int) -> Interval:
    """Return the adjusted homophily at the ends of the exact interval of edge homophily."""
    from scipy.stats import beta

    same = round(float(share.trace()) * pairs)
    rest = (1 - LEVEL) / 2
    low = float(beta.ppf(rest, same, pairs - same + 1)) if same else 0.0
    high = float(beta.ppf(1 - rest, same + 1, pairs - same)) if same < pairs else 1.0
    expected = float((share.sum(1) ** 2).sum())
    return (
        ((low - expected) / (1 - expected), (high - expected) / (1 - expected)) if expected < 1 else (-1, 1)
    )


def _middle(values: np.ndarray) -> Interval:
    known = values[~np.isnan(values)]
    if not known.size:
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _spread(ends: list[float]) -> Interval:
    """Return the smallest interval with all of these in it, within what the measures can be."""
    known = [one for one in ends if not np.isnan(one)]
    return (max(-1.0, min(known)), min(1.0, max(known))) if known else (-1.0, 1.0)
