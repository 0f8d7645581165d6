"""Graph attention without a stack of models: heads side by side, and no message kept for backward."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.layers import SparseMatrix


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
        """Return what reaches each node, from hidden values times the weight `[nodes, out]`."""
        product = product.view(product.shape[0], *self.ends[0].shape[1:])  # [nodes, heads, channels]
        sent, heard = ((product * end).sum(dim=-1) for end in self.ends)
        return weighted_sum(product, self.shares(sent, heard, edges), edges).flatten(1) + self.bias

    def averaged(self, hidden: Tensor, edges: SparseMatrix, wanted: Tensor) -> Tensor:
        """Return what reaches some nodes through one head, from hidden values `[nodes, in]`."""
        sent, heard = (hidden @ (self.weight @ end[0, 0])[:, None] for end in self.ends)
        reached = weighted_sum(hidden[:, None], self.shares(sent, heard, edges), edges)
        return reached[:, 0].index_select(0, wanted) @ self.weight + self.bias

    def shares(self, sent: Tensor, heard: Tensor, edges: SparseMatrix) -> Tensor:
        """Return each edge's share `[edges, heads]` of what its node hears."""
        from torch_geometric.utils import softmax

        score = functional.leaky_relu(
            sent.index_select(0, edges.cols) + heard.index_select(0, edges.rows), 0.2
        )
        share: Tensor = self.drop(softmax(score, edges.rows, num_nodes=edges.shape[0]))
        return share


def weighted_sum(hidden: Tensor, shares: Tensor, edges: SparseMatrix) -> Tensor:
    """Return, for each node and head, the sum over its edges of share times the other end's values.

    One sparse product for each head, so that no message is kept for backward.

    Args:
        hidden: `[nodes, heads, channels]`.
        shares: `[edges, heads]`.
        edges: the places; their own values do not count.
    """
    heads = [
        edges.with_values(shares[:, head].contiguous()) @ hidden[:, head] for head in range(shares.shape[1])
    ]
    return torch.stack(heads, dim=1)
