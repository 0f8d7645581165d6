"""What several systems' encoders are made of: graph convolutions in a row, and linear layers in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from h3gnn.baselines.layers import Convolution, Features, SparseMatrix, only


class GraphEncoder(nn.Module):
    """Graph convolutions one after the other.

    Args:
        features: of the nodes, constant.
        widths: of the layers' outputs.
        after: what follows each layer: an activation, perhaps behind a norm, or `nn.Identity`.
    """

    def __init__(self, features: Features, widths: Sequence[int], after: Sequence[nn.Module]) -> None:
        super().__init__()
        self.features = features
        self.first = Convolution(features.shape[1], widths[0])
        self.others = nn.ModuleList(Convolution(wide, out) for wide, out in pairwise(widths))
        self.after = nn.ModuleList(after)

    def forward(self, matrix: SparseMatrix | Tensor, kept_columns: Tensor | None = None) -> Tensor:
        """Encode the features along a matrix; columns that are not kept `[features]` count as zero."""
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
