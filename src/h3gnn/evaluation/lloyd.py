"""k-means on the device where the embedding lies, all starts at once."""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 300
"""Lloyd's algorithm ends after so many steps, if it has not come to rest."""


def lloyd_clusters(rows: Tensor, clusters: int, starts: int, seed: int) -> Tensor:
    r"""Return the cluster of each row, int64 `[nodes]`: the best of several starts by the k-means loss.

    Lloyd's algorithm from k-means++ starts (Arthur and Vassilvitskii, 2007). Squared distances come from
    inner products, :math:`|x - c|^2 = |x|^2 - 2 x^\top c + |c|^2`, of all starts in one product.

    Args:
        rows: float32 `[nodes, D]`, on any device.
        clusters: how many.
        starts: how many runs.
        seed: of the starts.
    """
    rows = rows - rows.mean(dim=0)
    squares = rows.square().sum(dim=1)
    generator = torch.Generator(rows.device).manual_seed(seed)
    centres = _plus_plus(rows, squares, clusters, starts, generator)  # [starts, clusters, D]
    found = _nearest(rows, squares, centres)[0]
    for _ in range(STEPS):
        centres = _means(rows, found, centres)
        again, _ = _nearest(rows, squares, centres)
        if torch.equal(again, found):
            break
        found = again
    loss = _nearest(rows, squares, centres)[1].sum(dim=1)
    return found[int(loss.argmin())]


def _plus_plus(
    rows: Tensor, squares: Tensor, clusters: int, starts: int, generator: torch.Generator
) -> Tensor:
    """Draw each next centre with a probability in proportion to the squared distance to those drawn."""
    weight = torch.ones(starts, len(rows), device=rows.device)
    nearest = torch.full_like(weight, torch.inf)
    centres = []
    for _ in range(clusters):
        drawn = torch.multinomial(weight, 1, generator=generator).flatten()
        centre = rows[drawn]  # [starts, D]
        centres.append(centre)
        apart = squares - 2 * centre @ rows.mT + squares[drawn][:, None]
        nearest = torch.minimum(nearest, apart.clamp_min(0))
        weight = nearest + torch.finfo(torch.float32).tiny  # rows may all be the same
    return torch.stack(centres, dim=1)


def _nearest(rows: Tensor, squares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's nearest centre and its squared distance, both `[starts, nodes]`."""
    starts, clusters, width = centres.shape
    products = (rows @ centres.view(-1, width).mT).view(-1, starts, clusters)
    apart = squares[:, None, None] - 2 * products + centres.square().sum(dim=2)
    distance, found = apart.min(dim=2)
    return found.mT, distance.mT


def _means(rows: Tensor, found: Tensor, centres: Tensor) -> Tensor:
    """Return the mean of each cluster; an empty one keeps its centre."""
    starts, clusters, width = centres.shape
    members = torch.nn.functional.one_hot(found, clusters).to(rows.dtype).mT.reshape(starts * clusters, -1)
    counts = members.sum(dim=1).view(starts, clusters, 1)
    sums = (members @ rows).view(starts, clusters, width)
    return torch.where(counts > 0, sums / counts.clamp_min(1), centres)
