"""Embeddings of all nodes in bounded memory: layer by layer, and within a layer some nodes at a time.

Encoding a batch with all of its neighbours would visit most of a graph for every batch. Layer by layer every
node and every edge is visited once per layer. What a layer hands to the next, one `[nodes, channels]` array,
and the finished hop tokens lie where `allocate` puts them: in memory, or in files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.encoder.joint import JointEncoder
from h3gnn.encoder.layers import Linear
from h3gnn.encoder.rows import SupportRows
from h3gnn.encoder.tokens import WeightedGCN
from h3gnn.sparse import csr_tensor

Allocate = Callable[[str, tuple[int, ...], torch.dtype], Tensor]


class LayerwiseEncoder:
    """Encodes all nodes of a graph, some at a time.

    Args:
        encoder: in evaluation mode.
        features: from node numbers to their rows, dense or CSR.
        rows: the support.
        edge_weights: from a range of entries to their weights `[models, entries]`, on the CPU.
        chunk: how many nodes at a time.
        allocate: where arrays over all nodes live; memory by default.
    """

    def __init__(
        self,
        encoder: JointEncoder,
        features: Callable[[npt.NDArray[np.int64]], Tensor],
        rows: SupportRows,
        edge_weights: Callable[[int, int], Tensor],
        chunk: int,
        allocate: Allocate | None = None,
    ) -> None:
        self.encoder, self.features, self.rows, self.chunk = encoder, features, rows, chunk
        self.edge_weights = edge_weights
        self.allocate = allocate or (lambda _, shape, dtype: torch.empty(shape, dtype=dtype))
        self.device = encoder.linear_bias.device

    @torch.no_grad()
    def chunks(self) -> Iterator[Tensor]:
        """Yield the models' embeddings side by side, `[some nodes, models · D]`, in the nodes' order."""
        widths = self.encoder.input.widths
        starts = np.cumsum([0, *widths])
        heard = [
            self._hop(hop, slice(int(starts[hop + 1]), int(starts[hop + 2])))
            for hop in range(1, self.encoder.hops + 1)
        ]
        for nodes in self._spans():
            near = self._project(nodes, slice(0, int(starts[2])))
            linear, hidden = torch.split(near, widths[:2], dim=-1)
            far = [token[:, nodes.start : nodes.stop].to(self.device) for token in heard]
            tokens = [linear + self.encoder.linear_bias, self.encoder.mlp(hidden), *far]
            yield self.encoder.fuse(torch.stack(tokens, dim=2)).transpose(0, 1).flatten(1).cpu()

    def _spans(self) -> Iterator[range]:
        for start in range(0, self.rows.nodes, self.chunk):
            yield range(start, min(start + self.chunk, self.rows.nodes))

    def _hop(self, hop: int, columns: slice) -> Tensor:
        """Return the token of a weighted GCN for all nodes, `[models, nodes, channels]`."""
        token = cast(WeightedGCN, self.encoder.hop_tokens[hop - 1])
        sent = self._over_nodes(
            f"sent-{hop}-0", lambda nodes: self._project(nodes, columns), columns.stop - columns.start
        )
        for layer, linear in enumerate(cast(Iterable[Linear], token.linears)):
            norm = token.norms[layer] if len(token.norms) else None

            def pass_on(nodes: range, linear: Any = linear, norm: Any = norm, sent: Tensor = sent) -> Tensor:
                hidden = torch.relu(self._receive(nodes, sent)).to(self.device)
                mapped: Tensor = linear(hidden if norm is None else norm(hidden))
                return mapped

            sent = self._over_nodes(f"sent-{hop}-{layer + 1}", pass_on, linear.weight.shape[2])
            del pass_on  # it holds on to what the layer before has sent
        return self._over_nodes(
            f"token-{hop}", lambda nodes: torch.relu(self._receive(nodes, sent)), sent.shape[2]
        )

    def _over_nodes(self, name: str, compute: Callable[[range], Tensor], width: int) -> Tensor:
        """Fill an array over all nodes, some at a time."""
        dtype = self.encoder.linear_bias.dtype
        filled = self.allocate(name, (self.encoder.models, self.rows.nodes, width), dtype)
        for nodes in self._spans():
            filled[:, nodes.start : nodes.stop] = compute(nodes).to(filled.device)
        return filled

    def _project(self, nodes: range, columns: slice) -> Tensor:
        weight = self.encoder.input.weight[:, :, columns]
        rows = self.features(np.arange(nodes.start, nodes.stop)).to(self.device)
        return torch.stack([rows @ one for one in weight])

    def _receive(self, nodes: range, sent: Tensor) -> Tensor:
        """Return what a range of nodes hears, `[models, nodes, channels]`."""
        crow = np.asarray(self.rows.crow[nodes.start : nodes.stop + 1], dtype=np.int64)
        first, last = int(crow[0]), int(crow[-1])
        if first == last:
            return sent.new_zeros(sent.shape[0], len(nodes), sent.shape[2])
        pointers = torch.from_numpy(crow - first)
        cols = torch.from_numpy(np.asarray(self.rows.cols[first:last], dtype=np.int64))
        size = (len(nodes), self.rows.nodes)
        weights = self.edge_weights(first, last).to(sent.dtype)
        return torch.stack(
            [
                csr_tensor(pointers, cols, one, size) @ all_sent
                for one, all_sent in zip(weights, sent, strict=True)
            ]
        )
