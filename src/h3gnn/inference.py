"""Inference with a fitted encoder: embeddings of its graph, of other graphs, and of new nodes.

New nodes receive messages from fitted nodes and from one another; fitted nodes receive none from them. So the
embeddings of fitted nodes do not change, and only the subgraph around the new nodes is encoded.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.answers.extend import rows_below
from h3gnn.answers.similarity import NeighbourIndex, searches_exactly
from h3gnn.encoder import EncoderStack, FeatureMatrix, Support
from h3gnn.encoder.blocks import COLUMNS, DIFFUSION, ColumnReduction, InputBlocks
from h3gnn.encoder.encode import (
    Allocate,
    GraphRows,
    LayerwiseEncoder,
    Sharing,
    concat_models,
    embed_models,
    split_for_fusion,
    transfer_edge_weights,
)
from h3gnn.encoder.readout import ColumnScaler, Smoother
from h3gnn.encoder.sparse import csr_tensor, row_pointers
from h3gnn.encoder.support import NewEdges, attach_nodes, cut_around
from h3gnn.errors import InputError
from h3gnn.graphs.convert import find_nearest
from h3gnn.graphs.graph import Graph, GraphLike
from h3gnn.graphs.ids import match_nodes
from h3gnn.graphs.scaling import FeatureScaler, MomentSums
from h3gnn.graphs.structural import check_same_features, transfer_structural_features
from h3gnn.preprocessing import (
    PreparedGraph,
    Preprocessing,
    block_widths,
    build_smoother,
    fill_blocks,
    fitted_order,
    scale_blocks,
    standardizes_columns,
)
from h3gnn.resources import check_memory
from h3gnn.storage.tensors import StoredEmbedding
from h3gnn.tables.plan import check_as_is
from h3gnn.training.models import files_in
from h3gnn.training.resources import physical_memory

Array = npt.NDArray[np.float32]
CHUNK, SMALL_CHUNK, SMALL_COLUMNS = 16_384, 2_048, 256
"""Nodes embedded at a time where memory is limited; and, of a graph in memory, nodes and columns."""
TOLERANCE, MAX_STEPS = 1e-6, 2000
"""Relative change of a smoothing step that ends the iteration, and the largest number of steps."""


@torch.no_grad()
def smooth_attached(embedding: Tensor, known: Tensor, edges: NewEdges, strength: float) -> Tensor:
    r"""Return the smoothed embeddings of new nodes `[new, D]`, given the smoothed `known` ones.

    The walks of `Smoother` from the new nodes; a walk that reaches a known node takes its embedding:
    :math:`Z = (1 - s) H + s (P_{new} Z + P_{known} Z_{known})`.
    """
    if not strength:
        return embedding
    rows, cols, weights, receives, _ = edges.entries(undirected=True, self_loops=True)
    rows = rows - edges.known
    share = weights / receives[rows]
    old = cols < edges.known

    def matrix(chosen: Tensor, shift: int, width: int) -> Tensor:
        return csr_tensor(
            row_pointers(rows[chosen], edges.new), cols[chosen] - shift, share[chosen], (edges.new, width)
        )

    fixed = (1 - strength) * embedding + strength * (matrix(old, 0, edges.known) @ known)
    step, now = matrix(~old, edges.known, edges.new), embedding
    for _ in range(MAX_STEPS):
        before, now = now, torch.add(fixed, step @ now, alpha=strength)
        if float((now - before).abs().max()) <= TOLERANCE * float(now.abs().max().clamp_min(1e-12)):
            break
    return now


@dataclass(frozen=True)
class ChunkedEmbedding:
    """An embedding of a graph that may not fit in memory, computed in chunks."""

    encode: Callable[[Allocate | None], Iterator[Tensor]]  # yields concatenated embeddings [some nodes, D]
    nodes: int
    models_width: int  # columns of the models
    width: int  # and of the blocks
    budget: int  # bytes: half for arrays over all nodes, which are in files beyond that, half for work
    scale: Callable[[Tensor, slice], Tensor] | None  # standardizes a slice of columns
    smoother: Smoother
    fill_blocks: Callable[..., None] | None = None
    reduction: ColumnReduction | None = None
    in_memory: bool = False  # no array is in a file, and temporary ones are small
    sharing: Sharing = field(default_factory=Sharing)
    own: range = range(0)  # the nodes whose rows this process computes

    def chunks(self) -> Iterator[Array]:
        """Yield the embedding of this process's nodes in chunks."""
        if self.scale is None and not self.smoother.strength and self.fill_blocks is None:
            with self._allocator() as allocate:
                yield from (_as_array(self._reduced(piece.cpu())) for piece in self.encode(allocate))
            return
        with self.rows() as rows:
            for first in self.own[::CHUNK]:
                yield rows[first : min(first + CHUNK, self.own.stop)]

    @contextmanager
    def rows(self) -> Iterator[Array]:
        """Yield the embedding as one array, in memory or in a temporary file."""
        with self._allocator() as allocate:
            make = allocate or (lambda _, shape, dtype: torch.empty(shape, dtype=dtype))
            rows, first = make("embedding", (self.nodes, self.width), torch.float32), self.own.start
            for piece in self.encode(allocate):
                rows[first : first + len(piece), : self.models_width] = piece
                first += len(piece)
            self.sharing.complete()
            step = max(1, self.budget // 2 // (32 * self.nodes))
            step = min(step, SMALL_COLUMNS) if self.in_memory else step
            changed = self.models_width if self.scale is not None or self.smoother.strength else 0
            step = min(step, -(-self.models_width // self.sharing.size))
            for number in self.sharing.deal(-(-changed // step)):
                columns = slice(number * step, min((number + 1) * step, changed))
                part = rows[:, columns]
                part.copy_(self.smoother(part.clone() if self.scale is None else self.scale(part, columns)))
            if self.fill_blocks is not None:
                self.fill_blocks(rows[:, self.models_width :], width=min(step, COLUMNS))
            self.sharing.complete()
            if self.reduction is not None:
                reduced = make("reduced", (self.nodes, self.reduction.width), torch.float32)
                for first in self.own[::CHUNK]:
                    some = slice(first, min(first + CHUNK, self.own.stop))
                    reduced[some] = self._reduced(rows[some])
                self.sharing.complete()
                rows = reduced
            yield rows.numpy()

    def _reduced(self, rows: Tensor) -> Tensor:
        return rows if self.reduction is None else self.reduction(rows)

    @contextmanager
    def _allocator(self) -> Iterator[Allocate | None]:
        if self.sharing.allocate is not None:
            yield self.sharing.allocate
            return
        with tempfile.TemporaryDirectory(prefix="h3gnn-") as folder:
            size = 4 * self.nodes * (self.models_width + self.width)  # a layer's tokens, and the embedding
            yield files_in(Path(folder)) if not self.in_memory and size > self.budget // 2 else None


@dataclass(eq=False)
class FittedEncoder:
    """A trained encoder with the graph it was fitted on."""

    encoder: EncoderStack
    prepared: PreparedGraph
    settings: Mapping[str, Any]  # all settings of the fit, flat
    smoothing: float
    device: torch.device
    memory: int | None = None  # budget in bytes
    columns: ColumnScaler | None = None  # of the embedding, if its columns are standardized
    blocks: InputBlocks | None = None  # input features next to the embedding
    reduction: ColumnReduction | None = None  # to fewer columns
    block_lengths: list[float] | None = None  # of each block's rows, learned with the fitted embedding
    sharing: Sharing = field(default_factory=Sharing)  # of embeddings of graphs on disk
    stored: StoredEmbedding | None = None  # the fitted embedding as the model's folder has it
    index: NeighbourIndex | None = None  # of the fitted embedding, once it is needed

    @property
    def graph(self) -> GraphLike:
        """The fitted graph."""
        return self.prepared.graph

    @property
    def standardizes(self) -> bool:
        """Whether columns are standardized before smoothing; see `standardizes_columns`."""
        return standardizes_columns(self.settings)

    @property
    def models_width(self) -> int:
        """Number of columns of all models' embeddings."""
        tokens = self.encoder.num_tokens * self.settings["channels"]
        extra = tokens if self.settings["concat_tokens"] else 0
        return int(self.settings["n_models"] * (self.encoder.out_channels + extra))

    @property
    def full_width(self) -> int:
        """Number of columns of all models' embeddings and the blocks."""
        return self.models_width + sum(self.block_widths)

    @property
    def block_widths(self) -> list[int]:
        """Number of columns of each block beside the models."""
        return [] if self.blocks is None else block_widths(self.blocks, self.graph)

    @property
    def width(self) -> int:
        """Number of columns of the embedding."""
        return self.full_width if self.reduction is None else self.reduction.width

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of blocks and reduction, as a model stores them."""
        parts = {"blocks": self.blocks, "reduction": self.reduction}
        return {
            f"{name}.{field}": tensor.contiguous()
            for name, part in parts.items()
            if part is not None
            for field, tensor in vars(part).items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore blocks and reduction from `state`."""
        if "blocks.mean" in tensors:
            self.blocks = InputBlocks(**fields_of("blocks", tensors))
        if "reduction.mean" in tensors:
            self.reduction = ColumnReduction(**fields_of("reduction", tensors))

    def learned(self) -> dict[str, Any]:
        """Return what inference learns with the fitted embedding, as it is stored with that."""
        if self.columns is None:
            return {"scale": None, "block_lengths": self.block_lengths}
        mean, spread = self.columns.mean.tolist(), self.columns.spread.nan_to_num(posinf=0.0).tolist()
        return {"scale": {"mean": mean, "spread": spread}, "block_lengths": self.block_lengths}

    def take(self, stored: StoredEmbedding | None) -> None:
        """Use a stored embedding of the fitted graph, and what was learned with it."""
        self.stored, self.block_lengths = stored, stored.block_lengths if stored else None
        if stored is not None and stored.scale is not None:
            mean, spread = (torch.tensor(stored.scale[name]) for name in ("mean", "spread"))
            self.columns = ColumnScaler(mean, torch.where(spread > 0, spread, float("inf")))

    @property
    def rows(self) -> npt.NDArray[Any] | None:
        """The stored rows of the fitted embedding, memory-mapped, if there are any."""
        return None if self.stored is None else self.stored.rows

    def index_for(self, search: str, embedding: Array) -> NeighbourIndex | None:
        """Return the index of the fitted embedding, stored or built; None for an exact search."""
        indexed = bool(self.index or (self.stored and self.stored.index))
        if searches_exactly(search, len(embedding), indexed=indexed):
            return None
        if self.index is None and self.stored is not None:
            if (content := self.stored.index_content()) is not None:
                self.index = NeighbourIndex.from_bytes(content)
            self.stored = self.stored if self.index else replace(self.stored, index=None)
        self.index = self.index or NeighbourIndex.build(embedding)
        return self.index

    def fit_reduction(self, dimensions: int) -> None:
        """Learn the principal components of the fitted graph's embedding."""
        most = min(self.full_width, self.graph.num_nodes) - 1
        if dimensions > most:
            message = f"dimensions ({dimensions}) must not be above {most:,} for this embedding"
            raise InputError(message, code="too-many-dimensions")
        if self.graph.in_memory:
            self.reduction = ColumnReduction.fit(self.embed_full(), dimensions)
            return
        with self.in_chunks().rows() as rows:
            self.reduction = ColumnReduction.fit(torch.from_numpy(rows), dimensions)

    def embed_fitted(self) -> Array:
        """Return the embedding of the fitted graph `[nodes, D]` as stored, or learn its columns' scale."""
        if self.rows is not None:
            return self.rows.astype(np.float32, copy=False)
        if self._on_gpu:
            return _as_array(self._reduced(self.embed_full()))
        with self.in_chunks().rows() as rows:
            return rows

    def embed_full(self) -> Tensor:
        """Return the embedding of the fitted graph before its columns are reduced."""
        if not self._on_gpu:
            with replace(self.in_chunks(), reduction=None).rows() as found:
                return torch.from_numpy(found)
        rows = concat_models(self._embed(self._on_device(self.prepared)))
        self.columns = ColumnScaler.fit(rows) if self.standardizes else None
        rows = self.smoother(self.graph, rows.device)(self._scaled(rows))
        return self._with_blocks(rows, self.prepared, learn=True)

    def embed(self, graph: Graph) -> Array:
        """Return the embedding of another graph `[nodes, D]`; edges of the fitted graph keep weights."""
        if graph.provenance.structural:
            assert isinstance(self.graph, Graph)
            graph, same = transfer_structural_features(self.graph, graph)
        else:
            same = match_nodes(self.graph, graph)
        support = self.preprocessing.support(graph)
        weights = transfer_edge_weights(self.encoder, self.prepared.support, support, same)
        return self.embed_with(graph, support, weights)

    def embed_with(self, graph: Graph, support: Support, edge_weights: Tensor) -> Array:
        """Return the embedding of another graph with given edge weights `[models, entries]`."""
        prepared = PreparedGraph(graph, self.prepared.scaler, support)
        if self.device.type == "cpu":
            chunked = self._chunked(graph, self._on_device(prepared), edge_weights, self._fitted_scale)
            with chunked.rows() as found:
                return found
        rows = concat_models(self._embed(self._on_device(prepared), edge_weights.to(self.device)))
        rows = self.smoother(graph, self.device)(self._scaled(rows))
        return _as_array(self._reduced(self._with_blocks(rows, prepared)))

    def check_links(self, graph: GraphLike) -> None:
        """Reject another graph whose relations, paths or link columns are not those of the fit."""
        if _kinds_of_links(graph) != _kinds_of_links(self.graph):
            message = (
                "its relations or paths to other node types are not those with which the model was fitted"
            )
            remedy = "read its tables together with the fitted ones, and use type_view(…, fitted=…)"
            raise InputError(f"{message}: {remedy}", code="relations-differ")
        fitted, links = self.graph.link_columns, graph.link_columns
        if fitted is None or self.blocks is None or (links is not None and links.plan == fitted.plan):
            return
        message = "the graph has no link columns" if links is None else "its link columns are of another plan"
        raise InputError(
            f"{message}, and the model was fitted with some: read its tables of edges with "
            "link_columns=model.graph_.link_columns.plan (`h3gnn embed` does)",
            code="plan-differs",
        )

    def nearest_edges(self, rows: Tensor) -> NewEdges:
        """Return edges from the nearest fitted rows of a table to new, scaled rows."""
        fitted = self.prepared.scaler(self.graph.features).to_dense()
        nearest = torch.from_numpy(find_nearest(fitted, rows, self.settings["n_neighbors"]))
        return NewEdges.to_nearest(nearest, self.graph.num_nodes)

    def embed_new(self, rows: Tensor, edges: NewEdges, known: Array, links: Array | None = None) -> Array:
        """Return embeddings of new nodes with scaled features `rows`; `known` are the fitted embeddings.

        `links` holds the link columns of all nodes, if the fitted graph has any.
        """
        fitted = torch.from_numpy(known) if self.reduction is None else self.embed_full().cpu()
        undirected, self_loops = self.settings["undirected"], self.settings["self_loops"]
        support = attach_nodes(self.prepared.support, edges, undirected=undirected, self_loops=self_loops)
        new = torch.arange(edges.known, edges.known + edges.new)
        graph, weights, kept = self._part(support, new, rows)
        encoded = concat_models(self._embed(graph, weights))[torch.searchsorted(kept, new)].cpu()
        of_models = fitted[:, : self.models_width]
        smoothed = smooth_attached(self._scaled(encoded), of_models, edges, self.smoothing)
        return _as_array(self._reduced(self._with_new_blocks(smoothed, rows, edges, fitted, links)))

    def attention(self, nodes: npt.NDArray[np.int64] | None = None) -> Array:
        """Return attention between tokens `[models, nodes, tokens, tokens]`, averaged over heads."""
        encoder = self.encoder.to(self.device).eval()
        if nodes is None:
            parts = LayerwiseEncoder(encoder, self._on_device(self.prepared)).tokens()
        else:
            wanted = torch.as_tensor(nodes)
            graph, edge_weights, kept = self._part(self.prepared.support, wanted)
            tokens = list(LayerwiseEncoder(encoder, graph, edge_weights).tokens())
            parts = iter([torch.cat(tokens, dim=1)[:, torch.searchsorted(kept, wanted)]])

        def mean_over_heads(tokens: Tensor) -> Tensor:
            weights = encoder.attention(tokens)
            if weights is None:
                raise InputError('fusion="mlp" has no attention', code="no-attention")
            return weights.mean(dim=4).cpu()

        with torch.no_grad():
            pieces = [mean_over_heads(piece) for tokens in parts for piece in split_for_fusion(tokens)]
            return _as_array(torch.cat(pieces, dim=1))

    def in_chunks(self, graph: GraphLike | None = None) -> ChunkedEmbedding:
        """Return the embedding of the fitted graph, or of another one on disk, computed in chunks."""
        if graph is not None and graph.provenance.sha256 != self.graph.provenance.sha256:
            self._fitted_columns()  # all processes compute it, also those that get no columns later
            return self._chunked(graph, *self._prepare_other(graph), self._fitted_scale)
        bounded = self.memory is not None or self.settings["batch_size"] is not None
        whole = self.graph.in_memory and self.device.type == "cpu" and not bounded
        rows = self._on_device(self.prepared) if whole else self.prepared.rows()
        return self._chunked(self.graph, rows, None, self._own_scale(), own=True)

    def _chunked(
        self,
        graph: GraphLike,
        rows: GraphRows,
        weights: Tensor | None,
        scale: Callable[[Tensor, slice], Tensor],
        *,
        own: bool = False,
    ) -> ChunkedEmbedding:
        """Return the embedding of a graph, computed in chunks; `own` learns the lengths of its blocks."""
        chunk = SMALL_CHUNK if rows.features is not None else CHUNK
        chunk = min(chunk, SMALL_CHUNK) if graph.in_memory else chunk
        sharing, nodes = self.sharing, self.sharing.own(graph.num_nodes, chunk)
        chunk = sharing.chunk(graph.num_nodes, chunk)

        def encode(allocate: Allocate | None) -> Iterator[Tensor]:
            encoder = self.encoder.to(self.device).eval()
            layers = LayerwiseEncoder(encoder, rows, weights, chunk, sharing.allocate or allocate, sharing)
            yield from map(concat_models, layers.chunks(with_tokens=self.settings["concat_tokens"]))

        fill = partial(self._fill_blocks, graph=graph, rows=rows, learn=own, nodes=nodes)
        return ChunkedEmbedding(
            encode,
            graph.num_nodes,
            self.models_width,
            self.full_width,
            physical_memory() // 2 if self.memory is None else self.memory,
            scale if self.standardizes else None,
            self.smoother(graph, torch.device("cpu")),
            None if self.blocks is None else fill,
            self.reduction,
            graph.in_memory,
            sharing,
            nodes,
        )

    @property
    def _on_gpu(self) -> bool:
        """Whether the embedding of the fitted graph is computed as a whole on a GPU."""
        whole = self.memory is None and self.settings["batch_size"] is None
        return whole and self.graph.in_memory and self.device.type != "cpu"

    def smoother(self, graph: GraphLike, device: torch.device | None = None) -> Smoother:
        """Return the smoothing of embeddings of a graph."""
        return build_smoother(graph, self.settings["smoother"], self.smoothing, device)

    def forget_sharing(self) -> None:
        """Embed in this process alone from here on; of the scale of columns it may know a part only."""
        if self.sharing.size > 1:
            self.sharing, self.columns = Sharing(), None

    @property
    def preprocessing(self) -> Preprocessing:
        """How graphs are prepared for the encoder."""
        return Preprocessing.of(self.settings)

    def _reduced(self, rows: Tensor) -> Tensor:
        return rows if self.reduction is None else self.reduction(rows)

    def _with_blocks(self, rows: Tensor, prepared: PreparedGraph, *, learn: bool = False) -> Tensor:
        """Append the blocks of a graph in memory to the models' embeddings."""
        if self.blocks is None:
            return rows
        full = rows.new_empty(len(rows), self.full_width)
        full[:, : self.models_width] = rows
        on_device = self._on_device(prepared) if rows.device == self.device else prepared.rows()
        self._fill_blocks(full[:, self.models_width :], graph=prepared.graph, rows=on_device, learn=learn)
        return full

    def _fill_blocks(
        self,
        filled: Tensor,
        *,
        graph: GraphLike,
        rows: GraphRows,
        learn: bool = False,
        nodes: range | None = None,
        width: int = COLUMNS,
    ) -> None:
        """Compute the blocks of a graph; with `learn` also their scale. This process scales its own nodes."""
        assert self.blocks is not None
        lengths = fill_blocks(filled, self.blocks, graph, rows, width, self.sharing)
        self.block_lengths = lengths if learn else self.block_lengths
        size = self.settings["input_weight"] * self.models_width**0.5
        filled = filled if nodes is None else filled[nodes.start : nodes.stop]
        scale_blocks(filled, self.block_widths, self._block_lengths(), size)

    def _block_lengths(self) -> list[float]:
        """Return the lengths of the fitted graph's blocks, computed on first use for a graph on disk."""
        if self.block_lengths is None:
            with self.in_chunks().rows():
                pass
            assert self.block_lengths is not None
        return self.block_lengths

    def _with_new_blocks(
        self, embedding: Tensor, rows: Tensor, edges: NewEdges, fitted: Tensor, links: Array | None
    ) -> Tensor:
        """Append the blocks of new nodes, with scaled features `rows`, to their embedding."""
        if self.blocks is None:
            return embedding
        blocks, known = self.blocks, edges.known
        rows = rows.to_dense() - blocks.mean
        receivers, senders, weights, receives, _ = edges.entries(undirected=True, self_loops=False)
        near, position = torch.unique(senders, return_inverse=True)
        read = self.graph.feature_reader(FeatureScaler("none"))
        features = self.prepared.scaler(read(near[near < known])).to_dense() - blocks.mean
        features = torch.cat([features, rows[near[near >= known] - known]])
        receivers = receivers - known
        share = (weights / receives[receivers])[:, None]

        def mean_around(values: Tensor) -> Tensor:
            return torch.zeros(edges.new, values.shape[1]).index_add_(0, receivers, share * values[position])

        parts = [rows @ blocks.own + mean_around(features @ blocks.around), rows @ blocks.walks]
        if links is not None and len(self.block_widths) > len(parts):
            parts += [torch.from_numpy(links[known:]), mean_around(torch.from_numpy(links)[near])]
        new = torch.cat(parts, dim=1)
        size = self.settings["input_weight"] * self.models_width**0.5
        scale_blocks(new, self.block_widths, self._block_lengths(), size)
        of_features, walked, *of_links = torch.split(new, self.block_widths, dim=1)
        first = self.models_width + blocks.widths[0]
        known_walks = fitted[:, first : first + blocks.widths[1]]
        walked = smooth_attached(walked, known_walks, edges, DIFFUSION)
        return torch.cat([embedding, of_features, walked, *of_links], dim=1)

    def _on_device(self, prepared: PreparedGraph) -> GraphRows:
        return prepared.on_device(self.settings["feature_storage"], self.device)

    def _embed(self, graph: GraphRows, edge_weights: Tensor | None = None) -> Tensor:
        """Return the models' embeddings without read-out `[models, nodes, D]`."""
        encoder = self.encoder.to(self.device)
        return embed_models(encoder, graph, edge_weights, with_tokens=self.settings["concat_tokens"])

    def _prepare_other(self, graph: GraphLike) -> tuple[GraphRows, Tensor | None]:
        """Return another graph on disk, and its edge weights if they are learned."""
        check_same_features(self.graph, graph)
        self.check_links(graph)
        check_as_is(self.graph.plan)
        support = self.preprocessing.support(graph)
        rows = PreparedGraph(graph, self.prepared.scaler, support).rows(fitted_order(self.graph, graph))
        if not self.encoder.edges.learns:
            return rows, None
        size = 8 * (self.settings["n_models"] + 4) * support.entries
        check_memory(size, f"learned weights of {support.entries:,} edges")
        same = match_nodes(self.graph, graph)
        return rows, transfer_edge_weights(self.encoder, self.prepared.support, support, same)

    def _scaled(self, rows: Tensor) -> Tensor:
        columns = self._fitted_columns()
        return rows if columns is None else columns(rows)

    def _fitted_columns(self) -> ColumnScaler | None:
        """Return the scale of the fitted embedding's columns, computed on first use for a graph on disk."""
        if self.columns is None and self.standardizes:
            sums = MomentSums(self.models_width)
            for piece in self.in_chunks().encode(None):
                sums.add(piece.cpu())
            total, share = self.graph.num_nodes, self.sharing
            mean = share.sum(sums.mean * (sums.rows / total))
            squares = share.sum(sums.squares + sums.rows * (sums.mean - mean).square())
            self.columns = ColumnScaler.from_moments(mean, squares / total)
        return self.columns

    def _own_scale(self) -> Callable[[Tensor, slice], Tensor]:
        """Return the standardization of columns by their own mean and variance, which are learned."""
        width = self.models_width
        learned = ColumnScaler(torch.zeros(width), torch.ones(width))

        def scale(rows: Tensor, columns: slice) -> Tensor:
            fitted = ColumnScaler.fit(rows)
            learned.mean[columns], learned.spread[columns] = fitted.mean, fitted.spread
            if columns.stop == width:
                self.columns = learned
            return fitted(rows)

        return scale

    def _fitted_scale(self, rows: Tensor, columns: slice) -> Tensor:
        fitted = self._fitted_columns()
        assert fitted is not None
        return ColumnScaler(fitted.mean[columns], fitted.spread[columns])(rows)

    def _part(
        self, support: Support, nodes: Tensor, new: Tensor | None = None
    ) -> tuple[GraphRows, Tensor, Tensor]:
        """Return the subgraph around some nodes, its edge weights, and the positions of its nodes."""
        known = self.graph.num_nodes
        part, kept = cut_around(support, nodes, self.settings["hops"])
        same = torch.where(kept < known, kept, -1)
        weights = transfer_edge_weights(self.encoder, self.prepared.support, part, same)
        read = self.graph.feature_reader(FeatureScaler("none"))
        features = self.prepared.scaler(read(kept[kept < known]))
        if new is not None:
            features = rows_below(features, new)
        matrix = FeatureMatrix(features.to(self.device), storage=self.settings["feature_storage"])
        paths = self.prepared.paths(torch.device("cpu"))
        paths = None if paths is None else paths[kept].to(self.device)
        return GraphRows.in_memory(matrix, part.to(self.device), paths), weights.to(self.device), kept


def _kinds_of_links(graph: GraphLike) -> tuple[Any, ...]:
    paths = graph.path_columns
    return graph.relation_names, None if paths is None else (paths.titles, paths.widths)


def fields_of(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names start with a part and a point, without these."""
    prefix = f"{part}."
    return {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}


def _as_array(embedding: Tensor) -> Array:
    return np.asarray(embedding.contiguous().cpu().numpy(), dtype=np.float32)
