"""Embeddings of all nodes, layer by layer and in chunks of nodes within a layer.

Each node and edge is visited once per layer, whereas batches with all neighbours would visit most of the
graph once per batch.
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
"""Allocates a large array, in memory or in a file, from its name, shape and dtype."""


class Sharing:
    """How processes divide the work on arrays over all nodes; here one process does all of it.

    `allocate` makes arrays that all processes see, None where there is one.
    """

    rank, size = 0, 1
    allocate: Allocate | None = None

    def shard(self, count: int) -> range:
        """Return which of the chunks of nodes this process computes, consecutive ones."""
        return range(count)

    def deal(self, count: int) -> range:
        """Return which of the slices of columns this process computes."""
        return range(count)

    def chunk(self, nodes: int, usual: int) -> int:
        """Return the number of nodes in a chunk."""
        return usual

    def complete(self) -> None:
        """Wait until every process has written its share."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        return values

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows `[rows, columns]` of all processes, one after another."""
        return rows

    def end(self) -> None:
        """Leave the other processes: nothing is shared from here on."""

    def spans(self, nodes: int, chunk: int) -> list[tuple[int, int]]:
        """Return the chunks of nodes that this process computes."""
        firsts = range(0, nodes, chunk)
        return [(firsts[one], min(firsts[one] + chunk, nodes)) for one in self.shard(len(firsts))]

    def own(self, nodes: int, usual: int) -> range:
        """Return the nodes that this process computes, with the usual number of nodes in a chunk."""
        spans = self.spans(nodes, self.chunk(nodes, usual))
        return range(spans[0][0], spans[-1][1]) if spans else range(0)


FUSION_BATCH = {"cpu": 1024, "cuda": 4096}
"""Nodes per call of the fusion block; on a CPU, as many as its cache holds."""


class GraphRows:
    """The graph as the encoder reads it: feature rows on demand, and the support.

    `read` returns the scaled features of some nodes, dense or CSR; `columns` is the number of features, which
    are all in `features` if they fit on the encoder's device; `paths` are the means along paths to other node
    types, `[nodes, columns]`.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Tensor],
        support: Support,
        columns: int,
        features: FeatureMatrix | None = None,
        paths: Tensor | None = None,
    ) -> None:
        self.read, self.support, self.columns, self.features = read, support, columns, features
        self.paths = paths

    @classmethod
    def in_memory(cls, features: FeatureMatrix, support: Support, paths: Tensor | None = None) -> GraphRows:
        """Return a graph that is on the encoder's device as a whole."""
        return cls(_no_rows, support, features.shape[1], features, paths)

    def rows(self, first: int, last: int, device: torch.device) -> FeatureMatrix:
        """Return the features of a range of nodes."""
        if self.features is not None:
            return self.features.rows(first, last)
        return FeatureMatrix.as_stored(self.read(torch.arange(first, last)).to(device))


def gather_rows(rows: Tensor, nodes: Tensor) -> Tensor:
    """Return the rows of some nodes on the device of `nodes`; copies to a GPU go through pinned memory."""
    if rows.device == nodes.device:
        return rows.index_select(0, nodes)
    found = torch.empty(len(nodes), rows.shape[1], dtype=rows.dtype, pin_memory=True)
    return torch.index_select(rows, 0, nodes.cpu(), out=found).to(nodes.device, non_blocking=True)


def _no_rows(nodes: Tensor) -> Tensor:
    raise NotImplementedError("this graph is read as a whole")


class LayerwiseEncoder:
    """Encodes all nodes of a graph, `chunk` nodes at a time, by an encoder in evaluation mode.

    The fusion block runs in full precision. By default, edge weights are the encoder's own, all nodes are one
    chunk, and arrays over all nodes are allocated on the device of the support. Of several processes, which
    `sharing` describes, each computes some of the chunks.
    """

    def __init__(
        self,
        encoder: EncoderStack,
        graph: GraphRows,
        edge_weights: Tensor | None = None,
        chunk: int | None = None,
        allocate: Allocate | None = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.encoder, self.graph, self.support = encoder, graph, graph.support
        self.chunk = chunk or max(1, self.support.nodes)
        self.edge_weights, self.sharing = edge_weights, sharing or Sharing()
        self.endpoint_scores: Tensor | None = None
        self.device = device = self.support.pattern.crow.device
        self.allocate = allocate or (lambda _, shape, dtype: torch.empty(shape, dtype=dtype, device=device))

    @torch.no_grad()
    def tokens(self) -> Iterator[Tensor]:
        """Yield the tokens of consecutive chunks, `[models, chunk, tokens, channels]`."""
        encoder = self.encoder
        to_linear, to_mlp, *to_others = encoder.input.widths
        count = len(encoder.hop_tokens)
        starts = [to_linear + to_mlp + sum(to_others[:hop]) for hop in range(count + 1)]
        if encoder.computes_edges:
            self.endpoint_scores = self._projected("ends", slice(starts[-1], starts[-1] + to_others[-1]))
        hops = [self._hop(hop, slice(*starts[hop - 1 : hop + 1])) for hop in range(1, count + 1)]
        for first, last in self.sharing.spans(self.support.nodes, self.chunk):
            projected = self._project(first, last, slice(0, starts[0]))
            linear, hidden = torch.split(projected, [to_linear, to_mlp], dim=-1)
            aggregated = [token[:, first:last].to(encoder.device) for token in hops]
            means = self.graph.paths
            others = encoder.others(None if means is None else means[first:last].to(encoder.device))
            own = [linear + encoder.linear_bias, encoder.mlp(hidden)]
            yield torch.stack([*own, *aggregated, *others], dim=2)

    @torch.no_grad()
    def chunks(self, *, with_tokens: bool = False) -> Iterator[Tensor]:
        """Yield the embeddings of consecutive chunks `[models, chunk, D]`, with the tokens if requested."""
        encoder = self.encoder
        configured, encoder.fuse_in_bfloat16 = encoder.fuse_in_bfloat16, False
        try:
            for tokens in self.tokens():
                fused = torch.cat([encoder.fuse(piece) for piece in split_for_fusion(tokens)], dim=1)
                yield torch.cat([fused, tokens.flatten(2)], dim=2) if with_tokens else fused
        finally:
            encoder.fuse_in_bfloat16 = configured

    def _hop(self, hop: int, columns: slice) -> Tensor:
        """Return a hop token of all nodes, `[models, nodes, channels]`."""
        token = cast(WeightedGCN, self.encoder.hop_tokens[hop - 1])
        relations = self.encoder.relations_of(hop - 1, token.layers)
        sent = self._projected(f"sent-{hop}-0", columns)
        for layer in range(token.layers - 1):
            previous = sent

            def send(first: int, last: int, layer: int = layer, previous: Tensor = previous) -> Tensor:
                received = self._aggregate(first, last, previous, relations[token.layers - 1 - layer])
                hidden = torch.relu(received).to(self.encoder.device)
                return token.messages(layer, hidden)

            sent = self._over_nodes(f"sent-{hop}-{layer + 1}", send, token.width_after(layer))
            del send, previous  # they keep the previous layer's messages alive
        return self._over_nodes(
            f"token-{hop}",
            lambda first, last: torch.relu(self._aggregate(first, last, sent, relations[0])),
            sent.shape[2],
        )

    def _over_nodes(self, name: str, compute: Callable[[int, int], Tensor], width: int) -> Tensor:
        """Fill an array over all nodes chunk by chunk."""
        if self.chunk >= self.support.nodes:
            return compute(0, self.support.nodes).to(self.device)
        dtype = self.encoder.linear_bias.dtype
        filled = self.allocate(name, (self.encoder.models, self.support.nodes, width), dtype)
        for first, last in self.sharing.spans(self.support.nodes, self.chunk):
            filled[:, first:last] = compute(first, last).to(filled.device)
        self.sharing.complete()
        return filled

    def _projected(self, name: str, columns: slice) -> Tensor:
        """Return columns of the projected features of all nodes."""
        width = columns.stop - columns.start
        return self._over_nodes(name, lambda first, last: self._project(first, last, columns), width)

    def _project(self, first: int, last: int, columns: slice) -> Tensor:
        rows = self.graph.rows(first, last, self.encoder.device)
        return rows.product(self.encoder.input.weight[:, :, columns])

    def _aggregate(self, first: int, last: int, sent: Tensor, relation: int | None) -> Tensor:
        """Return the weighted sum of incoming messages of a range of nodes, `[models, nodes, channels]`."""
        pattern, ends = self.support.pattern, self.endpoint_scores
        if (first, last) == (0, self.support.nodes):
            weights = self._weights(0, pattern.entries, relation)
            return Adjacency(pattern, weights, self._gates(pattern, ends)) @ sent
        crow = pattern.crow[first : last + 1].long()
        begin, end = int(crow[0]), int(crow[-1])
        each = torch.arange(end - begin, device=crow.device)
        block = Pattern(crow - begin, pattern.cols[begin:end].long(), self.support.nodes, each)
        if ends is not None:  # a block numbers its rows from 0
            ends = torch.stack([ends[..., 0], torch.roll(ends[..., 1], -first, dims=1)], dim=2)
        weights = self._weights(begin, end, relation).to(sent.dtype)
        return Adjacency(block, weights, self._gates(block, ends)) @ sent

    def _gates(self, pattern: Pattern, ends: Tensor | None) -> Tensor | None:
        return None if ends is None else self.encoder.edges.gates(pattern, ends)

    def _weights(self, first: int, last: int, relation: int | None = None) -> Tensor:
        """Return the edge weights of a range of entries, `[models, entries]`."""
        if relation is not None:
            assert self.support.relations is not None
            return self._weights(first, last) * self.support.relations[relation, first:last]
        if self.edge_weights is not None:
            return self.edge_weights[:, first:last]
        entries = None
        if (first, last) != (0, self.support.entries):
            entries = torch.arange(first, last, device=self.device)
        factor = self.support.factor if entries is None else self.support.factors(entries)
        edges = self.encoder.edges
        if edges.learns:
            return edges.to_weight(edges.logit.detach()[:, first:last].to(factor.device)) * factor
        start = self.support.start if entries is None else self.support.starts(entries)
        return (start * factor).expand(self.encoder.models, -1)


def split_for_fusion(tokens: Tensor) -> tuple[Tensor, ...]:
    """Split tokens `[models, nodes, S, channels]` into batches of nodes for the fusion block."""
    return torch.split(tokens, FUSION_BATCH[tokens.device.type], dim=1)


def embed_models(
    encoder: EncoderStack, graph: GraphRows, edge_weights: Tensor | None = None, *, with_tokens: bool = False
) -> Tensor:
    """Return the embeddings `[models, nodes, D]` in full precision, see `LayerwiseEncoder`."""
    training = encoder.training
    encoder.eval()
    try:
        layers = LayerwiseEncoder(encoder, graph, edge_weights)
        return torch.cat(list(layers.chunks(with_tokens=with_tokens)), dim=1)
    finally:
        encoder.train(training)


def concat_models(embeddings: Tensor) -> Tensor:
    """Concatenate the models' embeddings, `[models, nodes, D]` to `[nodes, models · D]`."""
    return embeddings.transpose(0, 1).flatten(1)


def transfer_edge_weights(
    encoder: EncoderStack, fitted: Support, support: Support, node_of: Tensor
) -> Tensor:
    """Return edge weights for another graph: learned where the edge was fitted, initial elsewhere.

    `node_of` has the fitted node that each node of the other graph is, or -1.
    """
    fixed = (support.start * support.factor).expand(encoder.models, -1)
    if not encoder.edges.learns:
        return fixed
    position, found = find_entries(fitted.pattern, support.pattern, node_of)
    learned = encoder.edges.to_weight(encoder.edges.logit.detach().cpu())[:, position]
    return torch.where(found, learned * support.factor, fixed)
