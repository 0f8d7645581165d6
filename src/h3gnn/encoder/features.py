"""Products of the constant feature matrix X with weights, dense or sparse, without a gradient for X."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder.sparse import Pattern, csr_tensor, to_csr

STORAGES = ("auto", "csr", "dense")
MAX_DENSE, MIN_DENSITY, ALIGNMENT = 1 << 28, 0.003, 8
"""On a GPU, sparse features with at most this many values and at least this density are multiplied densely.

Tensor cores need rows that start at multiples of 16 bytes: columns of zeros pad them to `ALIGNMENT`.
"""


class FeatureMatrix:
    """The constant node features `[nodes, features]`, dense or CSR.

    With `storage="auto"` the matrix and its transpose are kept as CSR where the density is below
    `sparse_below`.
    """

    def __init__(self, features: Tensor, storage: str = "auto", sparse_below: float = 0.06) -> None:
        if storage not in STORAGES:
            raise ValueError(f"storage must be 'auto', 'csr' or 'dense', not {storage!r}")
        self.shape = features.shape
        if storage == "auto":
            storage = "csr" if density(features) < sparse_below else "dense"
        self.storage = storage
        self._matrix = features.to_dense() if storage == "dense" else to_csr(features)
        self._spare: Tensor | None = None

    @classmethod
    def as_stored(cls, features: Tensor) -> FeatureMatrix:
        """Keep the layout that the features have."""
        return cls(features, "csr" if features.layout == torch.sparse_csr else "dense")

    @property
    def device(self) -> torch.device:
        """Device of the values."""
        return self._matrix.device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values."""
        return self._matrix.dtype

    @property
    def requires_grad(self) -> bool:
        """Whether a caller trains the features themselves."""
        return self._matrix.requires_grad

    @cached_property
    def dense(self) -> Tensor:
        """The features as a dense tensor."""
        return self._matrix.to_dense()

    def rows(self, first: int, last: int) -> FeatureMatrix:
        """Return a range of rows."""
        if (first, last) == (0, self.shape[0]):
            return self
        if self.storage == "dense":
            return FeatureMatrix(self._matrix[first:last], "dense")
        crow = self._matrix.crow_indices()[first : last + 1]
        begin, end = int(crow[0]), int(crow[-1])
        cols, values = self._matrix.col_indices()[begin:end], self._matrix.values()[begin:end]
        return FeatureMatrix(csr_tensor(crow - begin, cols, values, (last - first, self.shape[1])), "csr")

    def product(self, weight: Tensor) -> Tensor:
        """Return `X @ weight` for every model, `[models, in, out]` to `[models, nodes, out]`."""
        models, in_channels, width = weight.shape
        if side_by_side(weight):
            wide = self._times(weight.transpose(0, 1).view(in_channels, models * width))
            return wide.view(-1, models, width).transpose(0, 1)
        if models == 1:
            return self._times(weight[0]).unsqueeze(0)
        product = weight.new_empty(models, self.shape[0], width)
        for one, its_weight in zip(product, weight, strict=True):
            if self.storage == "dense":
                torch.mm(self._matrix, its_weight, out=one)
            else:
                one.copy_(self._times(its_weight))
        return product

    def add_transposed_product(self, total: Tensor, gradient: Tensor) -> None:
        """Add `Xᵀ @ gradient` to a total `[models, in, out]` in place, for every model."""
        models, in_channels, width = total.shape
        if side_by_side(total):
            wide = total.transpose(0, 1).view(in_channels, models * width)
            self._add_transposed(wide, gradient.transpose(0, 1).reshape(-1, models * width))
        else:
            for one, its_gradient in zip(total, gradient.contiguous(), strict=True):
                self._add_transposed(one, its_gradient)

    def _times(self, weight: Tensor) -> Tensor:
        """Return `X @ weight` for `[in, out]`."""
        if self.storage == "dense":
            return self._matrix @ weight
        return self._pattern.product(self._matrix.values(), weight.contiguous())

    def _add_transposed(self, total: Tensor, gradient: Tensor) -> None:
        """Add `Xᵀ @ gradient` to a total `[in, out]`."""
        if self.storage == "csr":
            total += self._pattern.transposed_product(self._matrix.values(), gradient)
        elif gradient.dtype != total.dtype and gradient.is_cuda:  # summed in float32
            total += torch.mm(self._matrix.t(), gradient, out_dtype=total.dtype)[: len(total)]
        elif gradient.dtype != total.dtype:
            total += torch.mm(self._matrix.t(), gradient)
        else:
            total.addmm_(self._matrix.t(), gradient)

    @cached_property
    def bfloat16(self) -> FeatureMatrix:
        """The features in bfloat16; for tensor cores dense and padded, unless too large or too sparse."""
        if not self._matrix.is_cuda:
            return FeatureMatrix.as_stored(self._matrix.bfloat16())
        if self.storage == "csr":
            sparse = len(self._matrix.values()) < MIN_DENSITY * self.shape.numel()
            if sparse or self.shape.numel() > MAX_DENSE:
                return self  # the kernels multiply float32 values with bfloat16 weights
        dense = self._matrix.to_dense().bfloat16()
        return FeatureMatrix(torch.nn.functional.pad(dense, (0, -dense.shape[1] % ALIGNMENT)), "dense")

    @cached_property
    def _pattern(self) -> Pattern:
        return Pattern(self._matrix.crow_indices(), self._matrix.col_indices(), self.shape[1])

    def recycle(self, gradient: Tensor | None) -> None:
        """Reuse the memory of a gradient for the next one: page faults cost more than the product."""
        self._spare = None if gradient is None or gradient.is_cuda else gradient

    def gradient_memory(self, weight: Tensor) -> Tensor:
        """Return memory for the gradient of a weight; recycled memory is used once."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.shape == weight.shape and spare.dtype == weight.dtype:
            return spare
        return torch.empty_like(weight)


class _Project(torch.autograd.Function):
    """`X W` and `t W` for constant features X and a mask token t; in bfloat16, gradients are float32."""

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, token: Tensor, features: FeatureMatrix, bfloat16: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.features = features.bfloat16 if bfloat16 else features
        ctx.save_for_backward(weight, token)
        of_token = torch.bmm(token, weight)
        if bfloat16:
            return ctx.features.product(_as_bfloat16(weight, ctx.features.shape[1])), of_token.bfloat16()
        return features.product(weight), of_token

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        weight, token = ctx.saved_tensors
        of_product, of_token = gradients[0], gradients[1].to(weight.dtype)
        to_weight = torch.mul(token.mT, of_token, out=ctx.features.gradient_memory(weight))
        ctx.features.add_transposed_product(to_weight, of_product)
        return to_weight, torch.bmm(of_token, weight.mT), None, None


def _as_bfloat16(weight: Tensor, rows: int) -> Tensor:
    """Return a weight `[models, in, out]` in bfloat16, padded with zeros to `rows` inputs."""
    models, in_channels, width = weight.shape
    if rows == in_channels:
        return weight.bfloat16()
    shape = (rows, models, width) if side_by_side(weight) else (models, rows, width)
    padded = torch.empty(shape, dtype=torch.bfloat16, device=weight.device)
    padded = padded.transpose(0, 1) if side_by_side(weight) else padded
    padded[:, :in_channels] = weight
    padded[:, in_channels:] = 0
    return padded


def project(
    features: FeatureMatrix, weight: Tensor, token: Tensor, *, bfloat16: bool = False
) -> tuple[Tensor, Tensor]:
    """Multiply features `[nodes, in]` and token `[models, 1, in]` with the weights `[models, in, out]`."""
    if features.requires_grad:
        return torch.matmul(features.dense, weight), torch.bmm(token, weight)
    product, of_token = _Project.apply(weight, token, features, bfloat16)  # type: ignore[no-untyped-call]
    return product, of_token


def density(features: Tensor) -> float:
    """Return the share of non-zero values."""
    filled = features.values() if features.layout == torch.sparse_csr else features
    return int(torch.count_nonzero(filled)) / max(1, features.numel())


def side_by_side(weight: Tensor) -> bool:
    """Whether the models' weights `[models, in, out]` are adjacent in memory, row by row.

    One wide product then serves all models, which suits a GPU; a CPU's cache prefers one model at a time.
    """
    return weight.shape[0] > 1 and weight.transpose(0, 1).is_contiguous()
