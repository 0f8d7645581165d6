"""Blocks of input features next to an embedding: each node's own, its neighbours' mean, and long walks.

A trained embedding is not guaranteed to keep what a column says about a node. These blocks do, at the cost of
a few hundred columns, and without labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows, Sharing
from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.readout import Smoother, StepMatrix
from h3gnn.encoder.support import Support, cut_around

COMPONENTS, OVERSAMPLING, ITERATIONS = 512, 32, 2
"""Principal directions of a block; further directions, and power iterations, of the randomized search."""
SAMPLE = 20_000
"""Nodes from which the directions are estimated."""
DIFFUSION = 0.9
"""Strength of the walks over which features are averaged."""
COLUMNS, CHUNK = 128, 16_384
"""Columns of a block computed at a time, and nodes whose features are read at a time."""
NEGLIGIBLE = 1e-9
"""Directions with at most this share of the largest variance are left out."""


@dataclass(frozen=True, eq=False)
class InputBlocks:
    r"""Two blocks of columns computed from the scaled features X of a graph, centred by `mean`.

    .. math:: F = X V_1 + M X V_2, \qquad D = S X V_3

    M is the mean over neighbours, S the average over walks of strength 0.9 (`Smoother`). The rows of
    :math:`[V_1; V_2]` are the principal directions of :math:`[X \mid M X]`, and those of :math:`V_3` of X;
    with few features they are unit vectors, so that nothing is lost.

    Attributes:
        mean: of the features `[features]`.
        own, around: :math:`V_1` and :math:`V_2`, `[features, columns of F]`.
        walks: :math:`V_3`, `[features, columns of D]`.
    """

    mean: Tensor
    own: Tensor
    around: Tensor
    walks: Tensor

    @property
    def widths(self) -> list[int]:
        """Numbers of columns of F and D."""
        return [self.own.shape[1], self.walks.shape[1]]

    @classmethod
    def fit(cls, rows: GraphRows, neighbours: Support, device: torch.device) -> InputBlocks:
        """Find the principal directions from a sample of nodes; `neighbours` has no self-loops."""
        draw = torch.Generator().manual_seed(0)
        nodes, columns = neighbours.nodes, rows.columns
        chosen = torch.randperm(nodes, generator=draw)[:SAMPLE].sort().values
        part, kept = cut_around(neighbours, chosen, 1)
        features = FeatureMatrix(rows.read(kept).to(device))
        at = torch.searchsorted(kept, chosen).to(device)
        sampled = _Sampled(features, StepMatrix(part, "walks", device), at)
        both = sampled.directions(2, draw)
        return cls(sampled.mean.cpu(), both[:columns], both[columns:], sampled.directions(1, draw))

    def with_columns(self, order: list[int]) -> InputBlocks:
        """Return the blocks for features in another order."""
        return InputBlocks(**{name: tensor[order] for name, tensor in vars(self).items()})

    def to(self, device: torch.device) -> InputBlocks:
        """Return the blocks on another device."""
        return InputBlocks(**{name: tensor.to(device) for name, tensor in vars(self).items()})

    def project(self, rows: GraphRows, weight: Tensor) -> Tensor:
        """Return centred features times a weight `[features, columns]`."""
        nodes = rows.support.nodes
        chunk = nodes if rows.features is not None else CHUNK
        product = torch.empty(nodes, weight.shape[1], device=weight.device)
        for first in range(0, nodes, max(1, chunk)):
            last = min(first + chunk, nodes)
            torch.sub(
                rows.rows(first, last, weight.device).product(weight[None])[0],
                self.mean @ weight,
                out=product[first:last],
            )
        return product

    def columns(
        self,
        rows: GraphRows,
        step: StepMatrix,
        smoother: Smoother,
        width: int = COLUMNS,
        sharing: Sharing | None = None,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of columns, those of F first, and their values for all nodes.

        Args:
            rows: features of the graph.
            step: its mean over neighbours, without self-loops.
            smoother: its walks of strength `DIFFUSION`.
            width: number of columns at a time.
            sharing: of several processes each yields some of the slices.
        """
        (total, walked), share = self.widths, sharing or Sharing()
        for some in _dealt(total, width, share):
            own, around = self.own[:, some], self.around[:, some]
            projected = self.project(rows, torch.cat([own, around], dim=1))
            own, around = torch.split(projected, own.shape[1], dim=1)
            yield some, own + step @ around.contiguous()
        for some in _dealt(walked, width, share):
            projected = self.project(rows, self.walks[:, some].contiguous())
            yield slice(total + some.start, total + some.stop), smoother(projected)


@dataclass(frozen=True, eq=False)
class _Sampled:
    """Features of some nodes, `at`, and of their neighbours: products with [X | MX], centred."""

    features: FeatureMatrix
    step: StepMatrix
    at: Tensor

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the sampled nodes' features."""
        total = torch.zeros(1, self.features.shape[1], 1, device=self.at.device)
        share = torch.zeros(self.features.shape[0], 1, device=self.at.device)
        share[self.at] = 1 / len(self.at)
        self.features.add_transposed_product(total, share[None])
        return total[0, :, 0]

    def directions(self, parts: int, draw: torch.Generator) -> Tensor:
        """Return the principal directions of X (`parts` 1) or [X | MX] (2), `[parts · features, columns]`."""
        columns = parts * self.features.shape[1]
        if columns <= COMPONENTS:
            return torch.eye(columns)
        start = torch.randn(columns, COMPONENTS + OVERSAMPLING, generator=draw).to(self.at.device)
        found = principal_directions(
            partial(self._product, parts=parts), partial(self._transposed, parts=parts), start, COMPONENTS
        )
        return found.float().cpu()

    def _product(self, weight: Tensor, parts: int) -> Tensor:
        own, *around = [self._times(one) for one in weight.chunk(parts)]
        return own[self.at] + sum((self.step @ one)[self.at] for one in around)

    def _times(self, weight: Tensor) -> Tensor:
        return self.features.product(weight.contiguous()[None])[0] - self.mean @ weight

    def _transposed(self, rows: Tensor, parts: int) -> Tensor:
        spread = rows.new_zeros(self.features.shape[0], rows.shape[1]).index_copy_(0, self.at, rows)
        received = [spread] if parts == 1 else [spread, self.step.transposed(spread)]
        return torch.cat([self._back(one) for one in received])

    def _back(self, rows: Tensor) -> Tensor:
        total = rows.new_zeros(1, self.features.shape[1], rows.shape[1])
        self.features.add_transposed_product(total, rows[None])
        return total[0] - self.mean[:, None] * rows.sum(dim=0)


def principal_directions(
    product: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor], start: Tensor, count: int
) -> Tensor:
    """Return principal directions of a centred matrix A, `[columns, count]` or fewer, by subspace iteration.

    Args:
        product, transposed: multiply with A and with its transpose.
        start: random directions `[columns, more than count]` (Halko, Martinsson and Tropp, 2011).
        count: number of directions; those with negligible variance are left out.
    """
    basis = torch.linalg.qr(product(start))[0]
    for _ in range(ITERATIONS - 1):
        basis = torch.linalg.qr(product(torch.linalg.qr(transposed(basis))[0]))[0]
    within = transposed(basis).double()
    values, vectors = torch.linalg.eigh(within.mT @ within)
    largest = values.argsort(descending=True)[:count]
    largest = largest[values[largest] > NEGLIGIBLE * values.max()]
    directions: Tensor = within @ vectors[:, largest] / values[largest].sqrt()
    return directions * directions.pow(3).sum(dim=0).sign()  # else the sign would depend on rounding


@dataclass(frozen=True, eq=False)
class ColumnReduction:
    """The principal components of an embedding: `(rows - mean) @ directions`."""

    mean: Tensor  # [D]
    directions: Tensor  # [D, fewer]

    @classmethod
    def fit(cls, embedding: Tensor, dimensions: int) -> ColumnReduction:
        """Find the directions from a sample of the rows of an embedding `[nodes, D]`."""
        draw = torch.Generator().manual_seed(0)
        rows = embedding[torch.randperm(len(embedding), generator=draw)[:SAMPLE].sort().values]
        mean = rows.mean(dim=0)
        centred = rows - mean
        start = torch.randn(rows.shape[1], dimensions + OVERSAMPLING, generator=draw).to(rows)
        found = principal_directions(lambda w: centred @ w, lambda r: centred.mT @ r, start, dimensions)
        return cls(mean.cpu(), found.float().cpu())

    @property
    def width(self) -> int:
        """Number of columns after the reduction."""
        return self.directions.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the components of some rows."""
        return (rows - self.mean.to(rows.device)) @ self.directions.to(rows.device)


def _dealt(total: int, width: int, sharing: Sharing) -> Iterator[slice]:
    """Return the slices of columns that this process computes."""
    width = max(1, min(width, -(-total // sharing.size)))
    for number in sharing.deal(-(-total // width)):
        yield slice(number * width, min((number + 1) * width, total))
