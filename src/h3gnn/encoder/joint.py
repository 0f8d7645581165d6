"""The joint structural encoder as an ordinary PyG module: `x` and `edge_index` in, embeddings out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.noise import DrawnNoise
from h3gnn.encoder.stack import EncoderStack
from h3gnn.encoder.support import Support, build_support
from h3gnn.encoder.tokens import whole_graph


class JointEncoder(nn.Module):
    r"""Joint structural node encoding (`EncoderStack` tells the equations), for your own loop and loss.

    Each edge weighs what it does in Ã; with `num_edges`, each edge of one graph has a learnable weight that
    starts there, and batches name their edges by `e_id`, as PyG's loaders do.

    Args:
        in_channels: number of features d.
        channels: width C of a token.
        num_edges: number of edges of the one graph whose edge weights are to be learned; None learns none.
        undirected: let messages flow both ways along each edge; a learned weight serves both.
        self_loops: let each node hear itself.
        options: `hops`, `hidden_channels`, `heads`, `norm`, `fusion`, `output`, `batch_norm`,
            `token_dropout`, `attention_dropout`, `mask_token`, as in `EncoderStack`.

    Shapes:
        x `[nodes, d]` (dense or CSR), edge_index `[2, edges]`, edge_weight `[edges]`, mask bool `[nodes]`;
        output `[nodes, D]`.
    """

    def __init__(
        self,
        in_channels: int,
        channels: int,
        *,
        num_edges: int | None = None,
        undirected: bool = True,
        self_loops: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        for reserved in ("models", "entries", "side_by_side", "fuse_in_bfloat16"):
            if reserved in options:
                raise TypeError(f"{reserved} is an option of a stack of models, not of one encoder")
        self.in_channels, self.undirected, self.self_loops = in_channels, undirected, self_loops
        self.stack = EncoderStack(in_channels, channels, 0, models=1, **options)
        self.edge_logit = None if num_edges is None else nn.Parameter(torch.empty(num_edges))
        self.reset_parameters()

    @property
    def out_channels(self) -> int:
        """Width D of an embedding."""
        return self.stack.out_channels

    def reset_parameters(self) -> None:
        """Start anew from torch's global generator; learned edge weights start at their entry of Ã."""
        seed = int(torch.randint(2**62, ()))
        self.stack.reset_parameters([torch.Generator().manual_seed(seed)], torch.empty(0))
        if self.edge_logit is not None:
            nn.init.zeros_(self.edge_logit)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        e_id: Tensor | None = None,
    ) -> Tensor:
        """Encode all nodes: `[nodes, D]`.

        Args:
            x: features.
            edge_index: `[2, edges]`, source above target.
            edge_weight: the data's own positive weights, which take the place of the ones in A.
            mask: the nodes whose features are replaced by the learnable mask token.
            e_id: which of `num_edges` each edge is; by default they are all there, in order.
        """
        if x.dim() != 2 or x.shape[1] != self.in_channels:
            raise ValueError(f"x must be [nodes, {self.in_channels}], not {list(x.shape)}")
        support = build_support(
            edge_index,
            x.shape[0],
            edge_weight=edge_weight,
            undirected=self.undirected,
            self_loops=self.self_loops,
        ).to(x.device, x.dtype)
        part = whole_graph(FeatureMatrix.as_stored(x), support, self.stack.hops)
        weights = self._edge_weights(support, edge_index, e_id)
        noise = DrawnNoise([_default_generator(x.device)]) if self.training else None
        tokens = self.stack.tokens(
            self.stack.project(part), part, weights, None if mask is None else mask[None], noise
        )
        return self.stack.fuse(tokens, self.stack.attention_keep(part.seeds, noise)).squeeze(0)

    def _edge_weights(self, support: Support, edge_index: Tensor, e_id: Tensor | None) -> Tensor:
        r"""Return :math:`2\,\sigma(w_e)\,\tilde A_{uv}` for the edges, :math:`\tilde A_{vv}` for the loops."""
        start = support.normalized(None)
        if self.edge_logit is None:
            return start[None]
        each = torch.arange(edge_index.shape[1], device=edge_index.device) if e_id is None else e_id
        if len(each) != edge_index.shape[1] or (e_id is None and len(each) != len(self.edge_logit)):
            raise ValueError(
                f"{edge_index.shape[1]} edges, but {len(self.edge_logit)} learned weights: "
                "give e_id, the number of each edge in the whole graph"
            )
        learned = 2 * torch.sigmoid(self.edge_logit[each])
        source, target = edge_index
        places = support.pattern.rows * support.nodes + support.pattern.cols
        factor = torch.ones_like(start)
        directions: Sequence[tuple[Tensor, Tensor]] = [(target, source)]
        if self.undirected:
            directions = [(source, target), (target, source)]
        for receiver, sender in directions:
            keys = receiver * support.nodes + sender
            at = torch.searchsorted(places, keys).clamp(max=max(0, len(places) - 1))
            here = places[at] == keys
            factor = factor.index_put((at[here],), learned[here])
        return (factor * start)[None]


def _default_generator(device: torch.device) -> torch.Generator:
    """Return the generator that `torch.manual_seed` seeds."""
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generator: torch.Generator = torch.cuda.default_generators[index]
        return generator
    return torch.default_generator
