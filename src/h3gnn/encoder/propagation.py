"""The sparse products: messages along weighted edges, and features times weights."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from h3gnn.sparse import csr_tensor, row_pointers, to_csr, transpose_csr

DENSE_NODES = {"cpu": 0, "cuda": 256}
"""Graphs with at most so many nodes are multiplied as dense matrices: fewer launches on a GPU."""


class Pattern:
    """The places of a square sparse matrix, with the order in which its transpose reads them.

    Entries are sorted by row, then column. `stack(models)` repeats the pattern along a block diagonal, so
    that one product serves many models that share the graph but not the edge weights.
    """

    def __init__(self, rows: Tensor, cols: Tensor, nodes: int) -> None:
        by_column = torch.argsort(cols * nodes + rows)
        self.nodes = nodes
        self.rows, self.cols = rows, cols
        self.crow = row_pointers(rows, nodes)
        self.transposed_crow = row_pointers(cols[by_column], nodes)
        self.transposed_cols = rows[by_column]
        self.transposed_order = by_column
        self._stacked: dict[int, Pattern] = {1: self}

    @property
    def entries(self) -> int:
        """Number of places."""
        return self.cols.shape[0]

    def stack(self, models: int) -> Pattern:
        """Return this pattern repeated `models` times along the diagonal; built once, then kept."""
        if models not in self._stacked:
            offset = torch.arange(models, device=self.rows.device)[:, None] * self.nodes
            rows, cols = (self.rows + offset).flatten(), (self.cols + offset).flatten()
            self._stacked[models] = Pattern(rows, cols, models * self.nodes)
        return self._stacked[models]

    def to(self, device: torch.device) -> Pattern:
        """Return the pattern on another device."""
        return (
            self
            if self.rows.device == device
            else Pattern(self.rows.to(device), self.cols.to(device), self.nodes)
        )

    def matrix(self, values: Tensor) -> Tensor:
        """Return the CSR matrix with these values."""
        return csr_tensor(self.crow, self.cols, values, (self.nodes, self.nodes))

    def transposed_matrix(self, values: Tensor) -> Tensor:
        """Return its transpose."""
        size = (self.nodes, self.nodes)
        return csr_tensor(self.transposed_crow, self.transposed_cols, values[self.transposed_order], size)


class Places(Protocol):
    """The places of a sparse matrix: with values, they are the matrix."""

    def matrix(self, values: Tensor) -> Tensor:
        """Return the CSR matrix with these values."""

    def transposed_matrix(self, values: Tensor) -> Tensor:
        """Return its transpose."""


class _Propagate(torch.autograd.Function):
    """`A @ H` for sparse A: gradients `Aᵀ @ G` for H and, at A's places only, `G @ Hᵀ` for its values."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, messages: Tensor, places: Places) -> Tensor:
        ctx.save_for_backward(values, messages)
        ctx.places = places
        return places.matrix(values) @ messages

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, messages = ctx.saved_tensors
        places: Places = ctx.places
        gradient = gradients[0].contiguous()
        to_values = to_messages = None
        if ctx.needs_input_grad[0]:
            empty = places.matrix(torch.zeros_like(values))
            to_values = torch.sparse.sampled_addmm(empty, gradient, messages.t(), beta=0.0).values()
        if ctx.needs_input_grad[1]:
            to_messages = places.transposed_matrix(values) @ gradient
        return to_values, to_messages, None


def propagate(values: Tensor, messages: Tensor, places: Places) -> Tensor:
    """Return `A @ H` for the sparse A with these values `[entries]` at its places."""
    received: Tensor = _Propagate.apply(values, messages, places)  # type: ignore[no-untyped-call]
    return received


class Adjacency:
    """The weighted adjacency of each model; `adjacency @ messages` sums what reaches each node.

    Small graphs are stored dense where that is faster (`DENSE_NODES`).

    Args:
        pattern: where the weights stand; row = receiving node, column = sending node.
        values: edge weights `[models, entries]`.
    """

    def __init__(self, pattern: Pattern, values: Tensor) -> None:
        self.models = values.shape[0]
        self.pattern, self.values = pattern.stack(self.models), values.flatten()
        self.dense: Tensor | None = None
        if pattern.nodes <= DENSE_NODES[values.device.type]:
            empty = values.new_zeros(self.models, pattern.nodes * pattern.nodes)
            filled = empty.index_copy(1, pattern.rows * pattern.nodes + pattern.cols, values)
            self.dense = filled.view(self.models, pattern.nodes, pattern.nodes)

    def __matmul__(self, messages: Tensor) -> Tensor:
        if self.dense is not None:
            return torch.bmm(self.dense, messages)
        models, nodes, channels = messages.shape
        if self.pattern.entries == 0:
            return torch.zeros_like(messages)
        flat = messages.reshape(models * nodes, channels).contiguous()
        return propagate(self.values, flat, self.pattern).view(models, nodes, channels)


class _Project(torch.autograd.Function):
    """`X W` and `t W` for constant features X and a token t: no gradient is formed for X.

    The product with the features is added to the token's share of W's gradient as it goes.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, token: Tensor, features: FeatureMatrix) -> tuple[Tensor, Tensor]:
        ctx.features = features
        ctx.save_for_backward(weight, token)
        return features.product(weight), torch.bmm(token, weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, token = ctx.saved_tensors
        of_product, of_token = gradients
        to_weight = torch.mul(token.mT, of_token, out=ctx.features.gradient_memory(weight))
        ctx.features.add_transposed_product(to_weight, of_product)
        return to_weight, torch.bmm(of_token, weight.mT), None


def project(features: FeatureMatrix, weight: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply features and token with the weights of every model.

    Args:
        features: `[nodes, in]`.
        weight: `[models, in, out]`.
        token: `[models, 1, in]`.

    Returns:
        `[models, nodes, out]` and `[models, 1, out]`.
    """
    product, of_token = _Project.apply(weight, token, features)  # type: ignore[no-untyped-call]
    return product, of_token


class FeatureMatrix:
    """The constant node features `[nodes, features]`, stored as their density asks.

    Below `sparse_below` of non-zero values the matrix and its transpose are kept as CSR, else it is dense;
    `storage` says which, and `storage="csr"` or `"dense"` decides it by hand.
    """

    def __init__(self, features: Tensor, storage: str = "auto", sparse_below: float = 0.06) -> None:
        if storage not in ("auto", "csr", "dense"):
            raise ValueError(f"storage must be 'auto', 'csr' or 'dense', not {storage!r}")
        self.shape = features.shape
        if storage == "auto":
            storage = "csr" if density(features) < sparse_below else "dense"
        self.storage = storage
        self._matrix = features.to_dense() if storage == "dense" else to_csr(features)
        self._spare: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the features lie."""
        return self._matrix.device

    def dense(self) -> Tensor:
        """Return the features as a dense tensor."""
        return self._matrix.to_dense()

    def product(self, weight: Tensor) -> Tensor:
        """Return `X @ weight` for every model, `[models, in, out]` to `[models, nodes, out]`."""
        models, in_channels, width = weight.shape
        if side_by_side(weight):
            wide = self._matrix @ weight.transpose(0, 1).view(in_channels, models * width)
            return wide.view(-1, models, width).transpose(0, 1)
        product = weight.new_zeros(models, self.shape[0], width)
        for one, its_weight in zip(product, weight, strict=True):
            one.addmm_(self._matrix, its_weight, beta=0)
        return product

    def add_transposed_product(self, weight: Tensor, gradient: Tensor) -> None:
        """Add `Xᵀ @ gradient` to something of the weight's shape and layout, for every model."""
        models, in_channels, width = weight.shape
        if side_by_side(weight):
            wide = weight.transpose(0, 1).view(in_channels, models * width)
            wide.addmm_(self._transposed, gradient.transpose(0, 1).reshape(-1, models * width))
        else:
            for one, its_gradient in zip(weight, gradient.contiguous(), strict=True):
                one.addmm_(self._transposed, its_gradient)

    def recycle(self, gradient: Tensor | None) -> None:
        """Take a weight's gradient that nobody needs any more; the next one is written into its memory.

        A processor gets so much fresh memory page by page, which takes longer than to fill it.
        """
        self._spare = None if gradient is None or gradient.is_cuda else gradient

    def gradient_memory(self, weight: Tensor) -> Tensor:
        """Return memory for the gradient of a weight; recycled memory is handed out once."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.shape == weight.shape and spare.dtype == weight.dtype:
            return spare
        return torch.empty_like(weight)

    @cached_property
    def _transposed(self) -> Tensor:
        """The transpose, made where a gradient asks for it: an encoder that only looks needs none."""
        return self._matrix.t() if self.storage == "dense" else transpose_csr(self._matrix)


def density(features: Tensor) -> float:
    """Return the share of non-zero values."""
    filled = features.values() if features.layout == torch.sparse_csr else features
    return int(torch.count_nonzero(filled)) / max(1, features.numel())


def side_by_side(weight: Tensor) -> bool:
    """Tell whether the models' weights `[models, in, out]` lie side by side in memory.

    Then one wide product serves all models, which keeps a GPU busy. A processor's cache would rather have
    one model after another.
    """
    return weight.shape[0] > 1 and weight.transpose(0, 1).is_contiguous()
