"""Columns of nodes for trees: own and link columns, means over two hops, degrees, parts of the embedding.

With many features, such as words, principal components of the features take their place. A graph without
edges has no columns of neighbours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.graphs.graph import AdjacencyRows, GraphLike
from h3gnn.graphs.scaling import FeatureScaler, scipy_features

Embedding = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

MOST_FEATURES, COMPONENTS, DIRECTIONS = 256, 64, 64
"""With more features, principal components of them are used, and how many; directions of the embedding."""
ROWS = 16_384
"""Nodes read at a time, and the size of the sample from which directions are estimated."""
AT_ONCE = 32  # columns whose means over neighbours are computed at a time
PRECISION = 12  # bits of a standard deviation that are kept
OWN, LINKS, NEIGHBOURS, EMBEDDING = PARTS = ("own columns", "link columns", "neighbours", "embedding")
"""Where columns come from, in the order in which the contribution of each is measured."""
DEGREES = ("number of incoming edges", "number of outgoing edges", "number of neighbours")


@dataclass(frozen=True)
class Column:
    """A column: its name, where it comes from, and the column of the table behind it ("" for none)."""

    name: str
    part: str
    source: str = ""


@dataclass(frozen=True, eq=False)
class Directions:
    """The leading principal directions of rows."""

    mean: npt.NDArray[np.float64]
    vectors: npt.NDArray[np.float64]  # [columns, directions]

    @classmethod
    def fit(cls, rows: Any, count: int) -> Directions:
        """Fit to rows, dense or sparse; the directions have no sign that depends on rounding."""
        from sklearn.utils.extmath import randomized_svd

        mean = np.asarray(rows.mean(axis=0), dtype=np.float64).ravel()
        dense = np.asarray(
            rows.todense() if hasattr(rows, "todense") else rows, dtype=np.float32
        ) - mean.astype(np.float32)
        _, sizes, vectors = randomized_svd(dense, min(count, *dense.shape), random_state=0)
        vectors = vectors[sizes > 1e-6 * max(sizes.max(initial=0), 1e-12)].T
        return cls(mean, vectors * np.sign((vectors**3).sum(axis=0)))

    def __call__(self, rows: Any) -> Embedding:
        """Return the components of rows."""
        return np.asarray(rows @ self.vectors - self.mean @ self.vectors, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class NodeColumns:
    """The columns of a graph's nodes, `[nodes, columns]`, and how those of further nodes are computed."""

    values: Embedding
    columns: tuple[Column, ...]
    base: int  # number of columns before the means over neighbours
    scaler: FeatureScaler
    components: Directions | None  # of the features
    directions: Directions  # of the embedding
    grain: Embedding  # values are rounded to multiples of it, one for each column

    @classmethod
    def fit(cls, graph: GraphLike, embedding: Embedding, order: Integers | None = None) -> NodeColumns:
        """Compute the columns of a graph; samples are drawn in `order`, by default that of the nodes."""
        order = np.arange(graph.num_nodes) if order is None else order
        sample = np.sort(np.random.default_rng(0).permutation(order)[:ROWS])
        scaler, components = FeatureScaler("none"), None
        if graph.num_features > MOST_FEATURES:
            scaler = graph.fit_scaler("auto")
            components = Directions.fit(_read(graph, scaler)(sample), COMPONENTS)
        directions = Directions.fit(embedding[sample], DIRECTIONS)
        base = tuple(_base_columns(graph, components))
        around = (
            *(Column(f"{one.name}, mean of neighbours", NEIGHBOURS, one.source) for one in base),
            *(Column(f"{one.name}, mean over two hops", NEIGHBOURS, one.source) for one in base),
            *(Column(name, NEIGHBOURS) for name in DEGREES),
        )
        columns = (
            *base,
            *(around if graph.num_edges else ()),
            *(Column(f"direction {at + 1}", EMBEDDING) for at in range(directions.vectors.shape[1])),
        )
        nothing, grain = np.empty((0, len(columns)), dtype=np.float32), np.zeros(len(columns), np.float32)
        found = cls(nothing, columns, len(base), scaler, components, directions, grain)
        values = found.of_new(graph, embedding)
        deviation = values[sample].astype(np.float64).std(axis=0)
        grain = np.exp2(np.round(np.log2(np.where(deviation > 0, deviation, 1))) - PRECISION)
        found = replace(found, grain=grain.astype(np.float32))
        found._round(values)
        return replace(found, values=values)

    def of_new(self, graph: GraphLike, embedding: Embedding) -> Embedding:
        """Return the columns of the new nodes of an extended graph, which follow the fitted ones."""
        first, width = len(self.values), self.base
        read, links = _read(graph, self.scaler), graph.link_columns
        own = width - (0 if links is None else len(links.names))
        values = _empty((graph.num_nodes - first, len(self.columns)), in_memory=graph.in_memory)
        for start in range(0, len(values), ROWS):
            some = slice(start, min(start + ROWS, len(values)))
            rows = read(np.arange(first + some.start, first + some.stop))
            if self.components is None:
                values[some, :own] = rows.todense() if hasattr(rows, "todense") else rows
            else:
                values[some, :own] = self.components(rows)
            if links is not None:
                values[some, own:width] = links.values[first + some.start : first + some.stop]
            values[some, len(self.columns) - self.directions.vectors.shape[1] :] = self.directions(
                embedding[some]
            )
        if self.positions(NEIGHBOURS).size:
            self._fill_neighbours(graph, values)
        self._round(values)
        return values

    def _fill_neighbours(self, graph: GraphLike, values: Embedding) -> None:
        """Compute the means over neighbours and the degrees of new nodes in place."""
        known, width, first = self.values, self.base, len(self.values)
        both = graph.adjacency(undirected=True, self_loops=False)
        for hop in range(2):
            for at in range(hop * width, (hop + 1) * width, AT_ONCE):
                some = slice(at, min(at + AT_ONCE, (hop + 1) * width))
                then = slice(some.start + width, some.stop + width)
                values[:, then] = both.mean(np.concatenate([known[:, some], values[:, some]]), first)
        directed = graph.adjacency(undirected=False, self_loops=False)
        outgoing = np.bincount(directed.cols, minlength=graph.num_nodes)[first:]
        degrees = np.diff(directed.crow[first:]), outgoing, np.diff(both.crow[first:])
        values[:, 3 * width : 3 * width + len(DEGREES)] = np.log1p(np.column_stack(degrees))

    def _round(self, values: Embedding) -> None:
        """Round values in place, so that trees do not depend on the order in which numbers were added."""
        if self.grain.any():
            for start in range(0, len(values), ROWS):
                some = values[start : start + ROWS]
                some[:] = np.round(some / self.grain) * self.grain

    def positions(self, *parts: str) -> Integers:
        """Return the positions of the columns of some parts, by name, as trees draw columns by position."""
        found = (at for at, one in enumerate(self.columns) if one.part in parts)
        return np.array(sorted(found, key=lambda at: self.columns[at].name), dtype=np.int64)


def _empty(shape: tuple[int, int], *, in_memory: bool) -> Embedding:
    """Return an array to fill; that of a graph on disk is in a temporary file, which vanishes with it."""
    if in_memory or not shape[0]:
        return np.empty(shape, dtype=np.float32)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype=np.float32, mode="w+", shape=shape)


def walk_step(graph: GraphLike) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Return the step of a random walk: the mean of a node's values and its neighbours'."""
    rows: AdjacencyRows = graph.adjacency(undirected=True, self_loops=True)
    return rows.mean


def _base_columns(graph: GraphLike, components: Directions | None) -> Iterator[Column]:
    """Yield the columns of the features, by name or principal components, and the link columns."""
    if components is not None:
        yield from (Column(f"component {at + 1}", OWN) for at in range(components.vectors.shape[1]))
    else:  # by name, since the features may be in another order than in the plan
        sources = {} if graph.plan is None else {one.name: one.column.name for one in graph.plan.features}
        for name in graph.feature_names or [f"feature {at + 1}" for at in range(graph.num_features)]:
            yield Column(name, OWN, sources.get(name, name))
    if graph.link_columns is not None:
        links = graph.link_columns.plan
        for name, source in zip(links.names, links.sources, strict=True):
            yield Column(name, LINKS, source)


def _read(graph: GraphLike, scaler: FeatureScaler) -> Callable[[Integers], Any]:
    """Return a function from node numbers to their features, a dense or sparse matrix."""
    rows = graph.feature_reader(scaler)

    def read(nodes: Integers) -> Any:
        found = rows(torch.from_numpy(nodes))
        return scipy_features(found) if found.layout == torch.sparse_csr else found.numpy()

    return read
