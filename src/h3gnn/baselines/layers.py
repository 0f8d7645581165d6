"""Sparse matrices of a graph, random views and neighbours, constant node features, and layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.registry import TooLargeError
from h3gnn.encoder.sparse import Pattern, propagate, row_pointers
from h3gnn.encoder.support import adjacency_entries
from h3gnn.graphs.graph import Graph

if TYPE_CHECKING:
    from h3gnn.baselines.supervised import Noise

TWO_HOP_LIMIT = 300_000_000
"""Maximum number of two-step paths for two-hop neighbourhoods."""

MANY_ENTRIES, BLOCK_COLUMNS = 16, 64
"""On a CPU, a product with this many entries per row and column takes a few columns at a time: they fit into
the cache."""

SPARSE_BELOW = 0.06
"""Features with a smaller share of non-zero values are multiplied as sparse matrices."""


class SparseMatrix:
    """A sparse matrix over a fixed `Pattern`; `matrix @ dense` propagates gradients to both factors.

    The entries are sorted by row and then column.
    """

    def __init__(self, rows: Tensor, cols: Tensor, values: Tensor, shape: tuple[int, int]) -> None:
        self.rows, self.cols, self.values, self.shape = rows, cols, values, shape
        self.pattern = Pattern(row_pointers(rows, shape[0]), cols, shape[1])

    @property
    def crow(self) -> Tensor:
        """Where each row begins, `[rows + 1]`."""
        return self.pattern.crow

    def with_values(self, values: Tensor) -> SparseMatrix:
        """Return a matrix with other values over the same pattern, which is not copied."""
        other = object.__new__(SparseMatrix)
        other.__dict__.update(self.__dict__, values=values)
        return other

    def csr(self) -> Tensor:
        return self.pattern.matrix(self.values)

    def to(self, device: torch.device) -> SparseMatrix:
        if self.values.device == device:
            return self
        rows, cols, values = (part.to(device) for part in (self.rows, self.cols, self.values))
        return SparseMatrix(rows, cols, values, self.shape)

    def transposed(self) -> SparseMatrix:
        order = self.transposed_order()
        size = (self.shape[1], self.shape[0])
        return SparseMatrix(self.cols[order], self.rows[order], self.values[order], size)

    def transposed_order(self) -> Tensor:
        """Return the position of each entry of the transpose in this matrix."""
        return torch.argsort(self.cols * self.shape[0] + self.rows)

    def __matmul__(self, dense: Tensor) -> Tensor:
        """Multiply with `[columns, …]` and return `[rows, …]`."""
        if self.values.numel() == 0:
            return dense.new_zeros(self.shape[0], *dense.shape[1:])
        flat = dense.reshape(self.shape[1], -1).contiguous()
        many = self.values.numel() >= MANY_ENTRIES * sum(self.shape)
        if flat.is_cuda or not many or flat.shape[1] <= BLOCK_COLUMNS:
            product = propagate(self.values, flat, self.pattern)
        else:
            parts = (part.contiguous() for part in torch.split(flat, BLOCK_COLUMNS, dim=1))
            product = torch.cat([propagate(self.values, part, self.pattern) for part in parts], dim=1)
        return product.view(self.shape[0], *dense.shape[1:])


def sparse_matrix(matrix: Tensor) -> SparseMatrix:
    """Return a dense or CSR tensor as a sparse matrix."""
    if matrix.layout == torch.sparse_csr:
        crow, cols, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
        rows = torch.repeat_interleave(torch.arange(matrix.shape[0], device=crow.device), crow.diff())
    else:
        rows, cols = matrix.nonzero(as_tuple=True)
        values = matrix[rows, cols]
    return SparseMatrix(rows, cols, values, (matrix.shape[0], matrix.shape[1]))


def adjacency(graph: Graph, *, self_loops: bool) -> SparseMatrix:
    """Return A, or A + I, with every edge in both directions; see `adjacency_entries`."""
    nodes = graph.num_nodes
    keys, weights = adjacency_entries(
        graph.edge_index, graph.edge_weight, nodes, undirected=True, self_loops=self_loops
    )
    return SparseMatrix(keys // nodes, keys % nodes, weights, (nodes, nodes))


def row_sums(matrix: SparseMatrix) -> Tensor:
    """Return the sum of each row."""
    sums = matrix.values.new_zeros(matrix.shape[0])
    return sums.index_add_(0, matrix.rows, matrix.values)


def symmetric(matrix: SparseMatrix, power: float = 0.5) -> SparseMatrix:
    r"""Return :math:`D^{-c} A D^{-c}` for a power c; a node without neighbours has an empty row."""
    scale = row_sums(matrix).clamp_min(1e-12) ** -power
    return matrix.with_values(matrix.values * scale[matrix.rows] * scale[matrix.cols])


def gcn_adjacency(graph: Graph, device: torch.device) -> SparseMatrix:
    r"""Return :math:`\tilde D^{-1/2}(A + I)\tilde D^{-1/2}`."""
    return symmetric(adjacency(graph, self_loops=True)).to(device)


def pairs_of(matrix: SparseMatrix) -> tuple[int, Tensor]:
    """Return the number of undirected pairs (loops included), and the pair of each entry."""
    low, high = torch.minimum(matrix.rows, matrix.cols), torch.maximum(matrix.rows, matrix.cols)
    pairs, pair_of = torch.unique(low * matrix.shape[0] + high, return_inverse=True)
    return pairs.numel(), pair_of


def edge_ends(edges: SparseMatrix, weights: Tensor | None = None) -> dict[str, SparseMatrix]:
    """Return matrices that gather the source and the target of each edge, and that sum edges into targets.

    An entry is an edge to its row. Sparse products gather and scatter deterministically.
    """
    count, nodes = edges.cols.numel(), edges.shape[0]
    number, ones = torch.arange(count), torch.ones(count)
    return {
        "source": SparseMatrix(number, edges.cols, ones, (count, nodes)),
        "target": SparseMatrix(number, edges.rows, ones, (count, nodes)),
        "sum": SparseMatrix(edges.rows, number, ones if weights is None else weights, (nodes, count)),
    }


def neighbour_mean(matrix: SparseMatrix) -> SparseMatrix:
    r"""Return :math:`D^{-1} A`: each row is the mean over a node's neighbours."""
    return matrix.with_values(matrix.values / row_sums(matrix).clamp_min(1e-12)[matrix.rows])


def two_hop_adjacency(one_hop: SparseMatrix) -> SparseMatrix:
    """Return the 0/1 adjacency of nodes at distance two; hubs may make it too large (`TooLargeError`)."""
    import numpy as np
    import scipy.sparse as sp

    degree = one_hop.crow.diff()
    paths = int((degree * degree).sum())
    if paths > TWO_HOP_LIMIT:
        raise TooLargeError(
            f"the two-hop neighbourhoods have {paths:,} paths of two steps; the limit is {TWO_HOP_LIMIT:,}",
            code="too-many-two-hop-paths",
        )
    ones = np.ones(one_hop.cols.numel(), dtype=np.float32)
    near = sp.csr_array((ones, one_hop.cols.numpy(), one_hop.crow.numpy()), shape=one_hop.shape)
    reached = near @ near
    reached.data[:] = 1
    far = sp.csr_array(reached - reached.multiply(near))
    far.setdiag(0)
    far.eliminate_zeros()
    rows, cols = (torch.from_numpy(np.asarray(index, dtype=np.int64)) for index in far.nonzero())
    sort = torch.argsort(rows * one_hop.shape[1] + cols)
    return SparseMatrix(rows[sort], cols[sort], torch.ones(rows.numel()), one_hop.shape)


class Features:
    """Constant node features `[nodes, features]`, sparse or dense by density; a deep copy shares them."""

    def __init__(self, features: Tensor, device: torch.device) -> None:
        features = features.to(device)
        self.shape = features.shape
        stored = features.values() if features.layout == torch.sparse_csr else features
        filled = int(torch.count_nonzero(stored)) / max(1, features.numel())
        self.matrix: SparseMatrix | Tensor
        self.matrix = sparse_matrix(features) if filled < SPARSE_BELOW else features.to_dense()

    def __deepcopy__(self, memo: dict[int, Any]) -> Features:
        return self

    def __matmul__(self, weight: Tensor) -> Tensor:
        """Return `X W` for weights `[features, out]`."""
        return self.matrix @ weight

    @property
    def device(self) -> torch.device:
        return self._values().device

    def dense(self) -> Tensor:
        return self.matrix if isinstance(self.matrix, Tensor) else self.matrix.csr().to_dense()

    def product(self, weight: Tensor, noise: Noise | None = None) -> Tensor:
        """Return `X W`, `[nodes, models, out]`, for weights `[in, models, out]`; noise applies dropout to X.

        Models with the same seed and rate share the dropped X and therefore one product.
        """
        if noise is None:
            return self._times(self.matrix, weight)
        values = self._values()
        coins = [torch.rand(values.shape, generator=one, device=values.device) for one in noise.generators]
        counts, seeds, rates = zip(*noise.runs(), strict=True)
        dropped = [values * ((coins[seed] >= r) / (1 - r)) for seed, r in zip(seeds, rates, strict=True)]
        parts = zip(dropped, torch.split(weight, list(counts), dim=1), strict=True)
        return torch.cat([self._times(self._with_values(one), part) for one, part in parts], dim=1)

    def dropped(self, rate: float) -> SparseMatrix | Tensor:
        """Return X after dropout from torch's global generator."""
        return self._with_values(nn.functional.dropout(self._values(), rate))

    def _values(self) -> Tensor:
        return self.matrix if isinstance(self.matrix, Tensor) else self.matrix.values

    def _with_values(self, values: Tensor) -> SparseMatrix | Tensor:
        return values if isinstance(self.matrix, Tensor) else self.matrix.with_values(values)

    @staticmethod
    def _times(matrix: SparseMatrix | Tensor, weight: Tensor) -> Tensor:
        flat = weight.reshape(weight.shape[0], -1)
        product: Tensor = matrix @ flat
        return product.view(-1, *weight.shape[1:])


class Convolution(nn.Module):
    r"""One graph convolution, :math:`\tilde A H W + b`."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(in_channels, out_channels)))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, hidden: Tensor | Features, matrix: SparseMatrix) -> Tensor:
        return matrix @ (hidden @ self.weight) + self.bias


def only(weight: Tensor, kept: Tensor | None) -> Tensor:
    """Return weights `[features, out]` with the rows of dropped feature columns set to zero."""
    return weight if kept is None else weight * kept[:, None]


def standard_columns(rows: Tensor) -> Tensor:
    """Return columns of mean 0 and unit length; a constant column becomes 0."""
    centred = rows - rows.mean(dim=0)
    return centred / centred.square().sum(dim=0).clamp_min(1e-12).sqrt()


def scaled_features(graph: Graph, device: torch.device, how: str = "auto") -> Features:
    """Return the scaled features of a graph; "sums" divides each row by its sum unless that is 0."""
    features = graph.features
    if how != "sums":
        return Features(graph.fit_scaler(how)(features), device)
    if features.layout != torch.sparse_csr:
        total = features.sum(dim=1, keepdim=True)
        return Features(torch.where(total != 0, features / total, features), device)
    matrix = sparse_matrix(features)
    total = row_sums(matrix)[matrix.rows]
    values = torch.where(total != 0, matrix.values / total, matrix.values)
    return Features(matrix.with_values(values).csr(), device)


class Attention(nn.Module):
    r"""One layer of graph attention, heads side by side.

    .. math:: \alpha_{vu} = \mathrm{softmax}_u\, \mathrm{LeakyReLU}(a^\top_{to} W h_v + a^\top_{from} W h_u)
    """

    def __init__(self, in_channels: int, out_channels: int, heads: int, drop: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_channels, out_channels))
        self.ends = nn.ParameterList(torch.empty(1, heads, out_channels // heads) for _ in ("from", "to"))
        self.bias = nn.Parameter(torch.zeros(out_channels))
        for parameter in (self.weight, *self.ends):
            nn.init.xavier_normal_(parameter, gain=math.sqrt(2))
        self.drop = nn.Dropout(drop)

    def forward(self, product: Tensor, edges: SparseMatrix) -> Tensor:
        """Return the attended values, from hidden values times the weight `[nodes, out]`."""
        product = product.view(product.shape[0], *self.ends[0].shape[1:])  # [nodes, heads, channels]
        source, target = ((product * end).sum(dim=-1) for end in self.ends)
        return weighted_sum(product, self.coefficients(source, target, edges), edges).flatten(1) + self.bias

    def averaged(self, hidden: Tensor, edges: SparseMatrix, wanted: Tensor) -> Tensor:
        """Return the attended values of some nodes with one head, from hidden values `[nodes, in]`."""
        source, target = (hidden @ (self.weight @ end[0, 0])[:, None] for end in self.ends)
        reached = weighted_sum(hidden[:, None], self.coefficients(source, target, edges), edges)
        return reached[:, 0].index_select(0, wanted) @ self.weight + self.bias

    def coefficients(self, source: Tensor, target: Tensor, edges: SparseMatrix) -> Tensor:
        """Return the attention coefficients `[edges, heads]`."""
        from torch_geometric.utils import softmax

        score = source.index_select(0, edges.cols) + target.index_select(0, edges.rows)
        share = softmax(functional.leaky_relu(score, 0.2), edges.rows, num_nodes=edges.shape[0])
        return self.drop(share)


def weighted_sum(hidden: Tensor, shares: Tensor, edges: SparseMatrix) -> Tensor:
    """Return sums of values `[nodes, heads, channels]` weighted by shares `[edges, heads]`.

    One sparse product per head, so that no message is kept for backward. The edges' own values are ignored.
    """
    heads = zip(shares.unbind(1), hidden.unbind(1), strict=True)
    return torch.stack([edges.with_values(share.contiguous()) @ head for share, head in heads], dim=1)


class GraphEncoder(nn.Module):
    """Graph convolutions of constant features; `after` has a module, such as an activation, for each."""

    def __init__(self, features: Features, widths: Sequence[int], after: Sequence[nn.Module]) -> None:
        super().__init__()
        self.features = features
        self.first = Convolution(features.shape[1], widths[0])
        self.others = nn.ModuleList(Convolution(wide, out) for wide, out in pairwise(widths))
        self.after = nn.ModuleList(after)

    def forward(self, matrix: SparseMatrix | Tensor, kept_columns: Tensor | None = None) -> Tensor:
        """Encode the features along a matrix; columns outside `kept_columns` `[features]` are zero."""
        return self.along(matrix, self.product(kept_columns))

    def product(self, kept_columns: Tensor | None = None) -> Tensor:
        """Return the features times the first layer's weights."""
        return self.features @ only(self.first.weight, kept_columns)

    def along(self, matrix: SparseMatrix | Tensor, product: Tensor) -> Tensor:
        """Encode such a product, or rows of it, along a matrix."""
        hidden: Tensor = self.after[0](matrix @ product + self.first.bias)
        for layer, after in zip(self.others, self.after[1:], strict=True):
            hidden = after(layer(hidden, matrix))
        return hidden


def linear_layers(*widths: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    """Return linear layers from each width to the next, with an activation between them."""
    first, *others = (nn.Linear(wide, out) for wide, out in pairwise(widths))
    return nn.Sequential(first, *(part for layer in others for part in (activation(), layer)))


class View(NamedTuple):
    """The GCN adjacency of a graph with dropped edges, and which feature columns are kept, `[features]`."""

    matrix: SparseMatrix
    kept_columns: Tensor


class EdgePairs:
    """Samples edges of a symmetric matrix; both directions of an edge are kept or dropped."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.count, self.pair_of = pairs_of(matrix)

    def kept(self, drop: float) -> Tensor:
        """Sample bool `[entries]`, False with probability `drop`."""
        coins = torch.rand(self.count, device=self.pair_of.device) >= drop
        return coins[self.pair_of]


class Views:
    """Samples views with dropped feature columns and edges; degrees are recomputed."""

    def __init__(self, graph: Graph, device: torch.device) -> None:
        loops = adjacency(graph, self_loops=True).to(device)
        self.loops, self.pairs = loops, EdgePairs(loops)
        self.is_loop = loops.rows == loops.cols
        self.columns, self.device = graph.num_features, device

    def full(self) -> SparseMatrix:
        return symmetric(self.loops)

    def draw(self, feature_drop: float, edge_drop: float) -> View:
        columns = torch.rand(self.columns, device=self.device) >= feature_drop
        kept = self.pairs.kept(edge_drop) | self.is_loop
        return View(symmetric(self.loops.with_values(self.loops.values * kept)), columns)


class Neighbours:
    """Samples neighbours: the entries of a matrix, on its device."""

    def __init__(self, matrix: SparseMatrix) -> None:
        self.rows, self.cols = matrix.rows, matrix.cols
        self.first = matrix.crow[:-1]
        self.degree = matrix.crow.diff()

    def draw(self, count: int) -> Tensor:
        """Sample neighbours `[nodes, count]`, without replacement if possible; a lone node is its own."""
        nodes, edges = self.degree.numel(), self.cols.numel()
        device = self.degree.device
        number, degree = torch.arange(count, device=device), self.degree[:, None]
        itself = torch.arange(nodes, device=device)[:, None]
        if not edges:
            return itself.expand(-1, count)
        order = torch.rand(edges, device=device).argsort()
        order = order[self.rows[order].argsort(stable=True)]  # each node's neighbours among themselves
        again = self._any(degree.expand(-1, count))
        where = self.first[:, None] + torch.where(number < degree, number, again)
        drawn = self.cols[order[where.clamp_max(edges - 1)]]
        return torch.where(degree > 0, drawn, itself)

    def edge(self, nodes: Tensor) -> Tensor:
        """Sample the index of an edge of each of these nodes; each must have one."""
        return self.first[nodes] + self._any(self.degree[nodes])

    @staticmethod
    def _any(degree: Tensor) -> Tensor:
        """Sample an integer below each degree; 0 for degree 0."""
        drawn = (torch.rand(degree.shape, device=degree.device) * degree).long()
        return torch.minimum(drawn, (degree - 1).clamp_min(0))
