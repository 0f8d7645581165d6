"""Embeddings of all nodes: layer by layer, and within a layer some nodes at a time.

Encoding a batch with all of its neighbours would visit most of a graph for every batch. Layer by layer every
node and every edge is visited once per layer. What a layer hands to the next, one `[nodes, channels]` array,
and the finished hop tokens lie where `allocate` puts them: on the encoder's device, in memory, or in files.
A graph that fits is the case in which all nodes are worked on at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor

from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.sparse import Adjacency, Pattern
from h3gnn.encoder.stack import EncoderStack
from h3gnn.encoder.support import Support, find_entries
from h3gnn.encoder.tokens import WeightedGCN

Allocate = Callable[[str, tuple[int, ...], torch.dtype], Tensor]
"""Where long arrays live: from name, shape and type to a tensor."""

FUSION_BATCH = {"cpu": 1024, "cuda": 4096}
"""So many nodes are fused at a time: on a processor, as many as its cache holds."""


class GraphRows:
    """A graph as an encoder reads it: rows of features on demand, and the support.

    Args:
        read: from node numbers to their scaled features, dense or CSR, on the device of the numbers.
        support: where messages may flow; its arrays may lie in files.
        columns: number of features.
        features: all of the features, where they are at hand on the device of the encoder.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Tensor],
        support: Support,
        columns: int,
        features: FeatureMatrix | None = None,
    ) -> None:
        self.read, self.support, self.columns, self.features = read, support, columns, features

    @classmethod
    def in_memory(cls, features: FeatureMatrix, support: Support) -> GraphRows:
        """Return a graph whose features and support lie on the device of the encoder."""
        return cls(_no_rows, support, features.shape[1], features)

    def rows(self, first: int, last: int, device: torch.device) -> FeatureMatrix:
        """Return the features of a range of nodes."""
        if self.features is not None and (first, last) == (0, self.support.nodes):
            return self.features
        return FeatureMatrix.as_stored(self.read(torch.arange(first, last)).to(device))


def gather_rows(rows: Tensor, nodes: Tensor) -> Tensor:
    """Return the rows of some nodes, on the device of the node numbers.

    What travels to a GPU is collected in pinned memory, from which it is copied while the caller goes on.
    """
    if rows.device == nodes.device:
        return rows.index_select(0, nodes)
    found = torch.empty(len(nodes), rows.shape[1], dtype=rows.dtype, pin_memory=True)
    return torch.index_select(rows, 0, nodes.cpu(), out=found).to(nodes.device, non_blocking=True)


def _no_rows(nodes: Tensor) -> Tensor:
    raise NotImplementedError("this graph is read as a whole")


class LayerwiseEncoder:
    """Encodes all nodes of a graph, some at a time.

    Args:
        encoder: in evaluation mode; its fusion block computes in full precision here.
        graph: features and support.
        edge_weights: `[models, entries]` in place of the learned ones.
        chunk: how many nodes at a time; None takes all at once.
        allocate: where arrays over all nodes live; by default beside the support.
    """

    def __init__(
        self,
        encoder: EncoderStack,
        graph: GraphRows,
        edge_weights: Tensor | None = None,
        chunk: int | None = None,
        allocate: Allocate | None = None,
    ) -> None:
        self.encoder, self.graph, self.support = encoder, graph, graph.support
        self.chunk = chunk or max(1, self.support.nodes)
        self.given = edge_weights
        self.ends: Tensor | None = None
        self.beside = self.support.pattern.crow.device
        self.allocate = allocate or (
            lambda _, shape, dtype: torch.empty(shape, dtype=dtype, device=self.beside)
        )

    @torch.no_grad()
    def tokens(self) -> Iterator[Tensor]:
        """Yield the tokens `[models, some nodes, 2 + hops, channels]`, in the nodes' order."""
        encoder = self.encoder
        to_linear, to_mlp, *to_others = encoder.input.widths
        starts = [to_linear + to_mlp + sum(to_others[:hop]) for hop in range(encoder.hops + 1)]
        if encoder.computes_edges:
            ends = slice(starts[-1], starts[-1] + to_others[-1])
            self.ends = self._over_nodes("ends", lambda first, last: self._project(first, last, ends), 2)
        heard = [self._hop(hop, slice(*starts[hop - 1 : hop + 1])) for hop in range(1, encoder.hops + 1)]
        for first, last in self._spans(self.chunk):
            near = self._project(first, last, slice(0, starts[0]))
            linear, hidden = torch.split(near, [to_linear, to_mlp], dim=-1)
            far = [token[:, first:last].to(encoder.device) for token in heard]
            yield torch.stack([linear + encoder.linear_bias, encoder.mlp(hidden), *far], dim=2)

    @torch.no_grad()
    def chunks(self, *, with_tokens: bool = False) -> Iterator[Tensor]:
        """Yield the models' embeddings `[models, some nodes, D]`, in the nodes' order, in full precision.

        Args:
            with_tokens: put the tokens, as they are before they are fused, beside the embedding.
        """
        encoder = self.encoder
        rough, encoder.fuse_in_bfloat16 = encoder.fuse_in_bfloat16, False
        try:
            for tokens in self.tokens():
                fused = torch.cat([encoder.fuse(piece) for piece in split_for_fusion(tokens)], dim=1)
                yield torch.cat([fused, tokens.flatten(2)], dim=2) if with_tokens else fused
        finally:
            encoder.fuse_in_bfloat16 = rough

    def _spans(self, chunk: int) -> Iterator[tuple[int, int]]:
        nodes = self.support.nodes
        return ((first, min(first + chunk, nodes)) for first in range(0, nodes, chunk))

    def _hop(self, hop: int, columns: slice) -> Tensor:
        """Return the token of a weighted GCN for all nodes, `[models, nodes, channels]`."""
        token = cast(WeightedGCN, self.encoder.hop_tokens[hop - 1])
        width = columns.stop - columns.start
        sent = self._over_nodes(
            f"sent-{hop}-0", lambda first, last: self._project(first, last, columns), width
        )
        for layer in range(token.layers - 1):
            before = sent

            def pass_on(first: int, last: int, layer: int = layer, before: Tensor = before) -> Tensor:
                hidden = torch.relu(self._receive(first, last, before)).to(self.encoder.device)
                return token.pass_on(layer, hidden)

            sent = self._over_nodes(f"sent-{hop}-{layer + 1}", pass_on, token.width_after(layer))
            del pass_on, before  # they hold on to what the layer before has sent
        return self._over_nodes(
            f"token-{hop}", lambda first, last: torch.relu(self._receive(first, last, sent)), sent.shape[2]
        )

    def _over_nodes(self, name: str, compute: Callable[[int, int], Tensor], width: int) -> Tensor:
        """Fill an array over all nodes, some at a time."""
        if self.chunk >= self.support.nodes:
            return compute(0, self.support.nodes).to(self.beside)
        dtype = self.encoder.linear_bias.dtype
        filled = self.allocate(name, (self.encoder.models, self.support.nodes, width), dtype)
        for first, last in self._spans(self.chunk):
            filled[:, first:last] = compute(first, last).to(filled.device)
        return filled

    def _project(self, first: int, last: int, columns: slice) -> Tensor:
        rows = self.graph.rows(first, last, self.encoder.device)
        return rows.product(self.encoder.input.weight[:, :, columns])

    def _receive(self, first: int, last: int, sent: Tensor) -> Tensor:
        """Return what a range of nodes hears, `[models, nodes, channels]`."""
        pattern = self.support.pattern
        if (first, last) == (0, self.support.nodes):
            return (
                Adjacency(pattern, self._weights(0, pattern.entries), self._gates(pattern, self.ends)) @ sent
            )
        crow = pattern.crow[first : last + 1].long()
        begin, end = int(crow[0]), int(crow[-1])
        each = torch.arange(end - begin, device=crow.device)
        block = Pattern(crow - begin, pattern.cols[begin:end].long(), self.support.nodes, each)
        ends = self.ends
        if ends is not None:  # a block numbers its receivers from 0
            ends = torch.stack([ends[..., 0], torch.roll(ends[..., 1], -first, dims=1)], dim=2)
        return Adjacency(block, self._weights(begin, end).to(sent.dtype), self._gates(block, ends)) @ sent

    def _gates(self, pattern: Pattern, ends: Tensor | None) -> Tensor | None:
        return None if ends is None else self.encoder.edges.gates(pattern, ends)

    def _weights(self, first: int, last: int) -> Tensor:
        """Return the edge weights of a range of entries, `[models, entries]`."""
        if self.given is not None:
            return self.given[:, first:last]
        entries = None
        if (first, last) != (0, self.support.entries):
            entries = torch.arange(first, last, device=self.support.pattern.crow.device)
        factor = self.support.factor if entries is None else self.support.factors(entries)
        edges = self.encoder.edges
        if edges.learns:
            return edges.to_weight(edges.logit.detach()[:, first:last].to(factor.device)) * factor
        start = self.support.start if entries is None else self.support.starts(entries)
        return (start * factor).expand(self.encoder.models, -1)


def split_for_fusion(tokens: Tensor) -> tuple[Tensor, ...]:
    """Return tokens `[models, nodes, S, channels]` in pieces of as many nodes as are fused at a time."""
    return torch.split(tokens, FUSION_BATCH[tokens.device.type], dim=1)


def embed_models(
    encoder: EncoderStack, graph: GraphRows, edge_weights: Tensor | None = None, *, with_tokens: bool = False
) -> Tensor:
    """Return the embeddings of a stack of models, `[models, nodes, D]`, in full precision.

    Args:
        encoder: on the device of the graph; its mode is put back when it is done.
        graph: features and support, at hand.
        edge_weights: `[models, entries]`; the encoder's own by default.
        with_tokens: put the tokens beside the embedding.
    """
    training = encoder.training
    encoder.eval()
    try:
        layers = LayerwiseEncoder(encoder, graph, edge_weights)
        return torch.cat(list(layers.chunks(with_tokens=with_tokens)), dim=1)
    finally:
        encoder.train(training)


def concat_models(embeddings: Tensor) -> Tensor:
    """Return the models' embeddings `[models, nodes, D]` side by side, `[nodes, models · D]`."""
    return embeddings.transpose(0, 1).flatten(1)


def transfer_edge_weights(
    encoder: EncoderStack, fitted: Support, support: Support, node_of: Tensor
) -> Tensor:
    """Return edge weights for another support: an edge that was fitted keeps its own, others start.

    Args:
        encoder: fitted on `fitted`.
        fitted: the support of the fitted graph.
        support: of the other graph.
        node_of: for each of its nodes, which fitted node that is, or -1.
    """
    fixed = (support.start * support.factor).expand(encoder.models, -1)
    if not encoder.edges.learns:
        return fixed
    position, found = find_entries(fitted.pattern, support.pattern, node_of)
    learned = encoder.edges.to_weight(encoder.edges.logit.detach().cpu())[:, position]
    return torch.where(found, learned * support.factor, fixed)
