"""Features times weights: X is constant, so no gradient is formed for it, and it is stored as it suits."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder.sparse import Pattern, csr_tensor, to_csr

STORAGES = ("auto", "csr", "dense")
MOST_DENSE, SPARSEST, ALIGNED = 1 << 28, 0.003, 8
"""A GPU's tensor cores multiply features of so many values with their zeros, unless almost all are zeros.

They want rows that begin at multiples of 16 bytes: further columns of zeros make them so.
"""


class FeatureMatrix:
    """The constant node features `[nodes, features]`, stored as their density asks.

    Below `sparse_below` of non-zero values the matrix and its transpose are kept as CSR, else it is dense;
    `storage` says which, and `storage="csr"` or `"dense"` decides it by hand.
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
        """Return features in the layout that they have."""
        return cls(features, "csr" if features.layout == torch.sparse_csr else "dense")

    @property
    def device(self) -> torch.device:
        """Where the features lie."""
        return self._matrix.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self._matrix.dtype

    @property
    def learned(self) -> bool:
        """Whether a caller trains the features themselves."""
        return self._matrix.requires_grad

    @cached_property
    def dense(self) -> Tensor:
        """The features as a dense tensor."""
        return self._matrix.to_dense()

    def first(self, rows: int) -> FeatureMatrix:
        """Return the first rows; itself where these are all."""
        if rows == self.shape[0]:
            return self
        if self.storage == "dense":
            return FeatureMatrix(self._matrix[:rows], "dense")
        crow = self._matrix.crow_indices()[: rows + 1]
        last = int(crow[-1])
        cols, values = self._matrix.col_indices()[:last], self._matrix.values()[:last]
        return FeatureMatrix(csr_tensor(crow, cols, values, (rows, self.shape[1])), "csr")

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

    def add_transposed_product(self, weight: Tensor, gradient: Tensor) -> None:
        """Add `Xᵀ @ gradient` to something of the weight's shape and layout, for every model."""
        models, in_channels, width = weight.shape
        if side_by_side(weight):
            wide = weight.transpose(0, 1).view(in_channels, models * width)
            self._add_transposed(wide, gradient.transpose(0, 1).reshape(-1, models * width))
        else:
            for one, its_gradient in zip(weight, gradient.contiguous(), strict=True):
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
        elif gradient.dtype != total.dtype:  # a GPU adds up rounded rows in full
            total += torch.mm(self._matrix.t(), gradient, out_dtype=total.dtype)[: len(total)]
        else:
            total.addmm_(self._matrix.t(), gradient)

    @cached_property
    def rounded(self) -> FeatureMatrix:
        """The features as tensor cores take them: in bfloat16, and with zeros unless these are too many."""
        if self.storage == "csr":
            few = len(self._matrix.values()) < SPARSEST * self.shape.numel()
            if few or self.shape.numel() > MOST_DENSE:
                return self  # the kernels multiply rounded weights with values as they are
        dense = self._matrix.to_dense().bfloat16()
        return FeatureMatrix(torch.nn.functional.pad(dense, (0, -dense.shape[1] % ALIGNED)), "dense")

    @cached_property
    def _pattern(self) -> Pattern:
        return Pattern(self._matrix.crow_indices(), self._matrix.col_indices(), self.shape[1])

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


class _ProjectRounded(torch.autograd.Function):
    """The same in bfloat16 on a GPU, for weights and a token in float32; sums and gradients are float32."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, token: Tensor, features: FeatureMatrix) -> tuple[Tensor, Tensor]:
        ctx.features = features.rounded
        ctx.save_for_backward(weight, token)
        of_token = torch.bmm(token, weight).bfloat16()
        return ctx.features.product(_rounded(weight, ctx.features.shape[1])), of_token

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        weight, token = ctx.saved_tensors
        of_product, of_token = gradients[0], gradients[1].to(weight.dtype)
        to_weight = torch.mul(token.mT, of_token, out=torch.empty_like(weight))
        ctx.features.add_transposed_product(to_weight, of_product)
        return to_weight, torch.bmm(of_token, weight.mT), None


def _rounded(weight: Tensor, rows: int) -> Tensor:
    """Return a weight `[models, in, out]` in bfloat16, with rows of zeros where features are padded."""
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
    features: FeatureMatrix, weight: Tensor, token: Tensor, *, rounded: bool = False
) -> tuple[Tensor, Tensor]:
    """Multiply features and token with the weights of every model.

    Args:
        features: `[nodes, in]`.
        weight: `[models, in, out]`.
        token: `[models, 1, in]`.
        rounded: multiply in bfloat16, on a GPU.

    Returns:
        `[models, nodes, out]` and `[models, 1, out]`.
    """
    if features.learned:
        return torch.matmul(features.dense, weight), torch.bmm(token, weight)
    how = _ProjectRounded if rounded else _Project
    product, of_token = how.apply(weight, token, features)  # type: ignore[no-untyped-call]
    return product, of_token


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
