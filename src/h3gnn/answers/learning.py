"""Learn classes or numbers of nodes from labelled ones: heads on what is known about a node, and their pool.

Columns for trees are own and link columns, means over two hops, degrees and parts of the embedding. With many
features, such as words, principal components of the features take their place. A graph without edges has no
columns of neighbours.

Every head belongs to the last of the parts that it uses: own columns, link columns, neighbours, embedding.
Pools of the heads of the first parts measure what each part contributes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.errors import check_choice
from h3gnn.evaluation.heads import (
    Basis,
    Fold,
    FoldPredictions,
    Head,
    LinearHead,
    Pool,
    Rows,
    Target,
    TreeHead,
)
from h3gnn.evaluation.propagation import PropagatedLabels, PropagationHead
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
PATH, STRUCTURE, MEANS, ALL = "path ", "structural features", "means along paths", "all own columns together"
"""Sources of features that are no columns of a table, and of components of several columns."""
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
    sources = {} if graph.plan is None else {one.name: one.column.name for one in graph.plan.features}
    if graph.provenance.structural:
        sources = dict.fromkeys(graph.feature_names, STRUCTURE)
    along = graph.path_columns
    if along is not None and along.are_features:
        titles = [
            f"{PATH}{one}"
            for one, width in zip(along.titles, along.widths, strict=True)
            for _ in range(width)
        ]
        others = [STRUCTURE] * (graph.num_features - len(titles))
        sources = dict(zip(graph.feature_names, [*titles, *others], strict=True))
    if components is not None:
        every = [*dict.fromkeys(sources.values())]
        source = every[0] if len(every) == 1 else MEANS if along is not None and along.are_features else ALL
        for at in range(components.vectors.shape[1]):
            yield Column(f"{source}, component {at + 1}", OWN, source)
    else:  # by name, since the features may be in another order than in the plan
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


Floats = npt.NDArray[np.float64]
Progress = Callable[[float], None]

HEADS = ("auto", "logistic", "boosting", "blend")
FOLDS, REPEATS, MANY_LABELS = 5, 3, 30
"""Folds, and their repetitions; one above MANY_LABELS labelled nodes."""
LARGE, LARGE_FOLDS = 5_000, 3
"""Labelled nodes above which fewer folds are enough, and how many."""
MIN_LABELLED = 4
"""Labelled nodes that a class needs, to be in the fit and in both kinds of fold."""
FEW_LABELS = 1_000
"""With more labelled nodes, boosting takes the place of a forest on own and link columns."""
DAMPING = 0.03
"""Factor of link columns, which are many, beside own columns in one of the linear models."""
SHARES = "shares of the classes"
"""Title of what calibrates the heads of rows without links, and is no head."""
NEGLIGIBLE = 1e-3
"""Weight in the pool below which a head is not fitted."""
BLOCK = 16_384
"""Nodes predicted at a time."""


@dataclass(frozen=True, eq=False)
class NodeInputs:
    """What is known about the nodes of a graph, and about those that join it.

    Attributes:
        graph: the fitted graph, or the extended one, whose first nodes are those of the fitted graph.
        embedding, columns: of the nodes of the fitted graph.
        order: the fitted nodes, in an order that follows from their embedding alone.
        more: embedding and columns of the nodes that join.
    """

    graph: GraphLike
    embedding: Embedding
    columns: NodeColumns
    order: Integers
    more: tuple[Embedding, Embedding] | None = None

    @classmethod
    def of(cls, graph: GraphLike, embedding: Embedding) -> NodeInputs:
        """Compute the columns of a graph."""
        order = embedding_order(embedding)
        return cls(graph, embedding, NodeColumns.fit(graph, embedding, order), order)

    def extended(self, graph: GraphLike, embedding: Embedding) -> NodeInputs:
        """Return the inputs with nodes that join: the extended graph, and their embedding."""
        return replace(self, graph=graph, more=(embedding, self.columns.of_new(graph, embedding)))

    def rows(self, nodes: Integers) -> Rows:
        """Return what is known about some fitted nodes."""
        return Rows(self.embedding[nodes], self.columns.values[nodes], nodes)

    def blocks(self, nodes: Integers) -> Iterator[Rows]:
        """Yield what is known about some fitted nodes, block by block."""
        for at in range(0, len(nodes), BLOCK):
            yield self.rows(nodes[at : at + BLOCK])

    def joining(self) -> Rows:
        """Return what is known about the nodes that join."""
        assert self.more is not None
        first = len(self.embedding)
        return Rows(*self.more, np.arange(first, first + len(self.more[0])))


def embedding_order(embedding: Embedding) -> Integers:
    """Return the rows sorted by a random projection, so that folds do not depend on the order of rows."""
    direction = np.random.default_rng(0).normal(size=embedding.shape[1])
    blocks = range(0, len(embedding), BLOCK)
    keys = np.concatenate([embedding[at : at + BLOCK].astype(np.float64) @ direction for at in blocks])
    return np.argsort(np.round(keys / max(float(keys.std()), 1e-30), 4), kind="stable")


@dataclass(frozen=True, eq=False)
class Candidate:
    """A head, and the position of the last of `PARTS` that it uses."""

    head: Head
    part: int


def titles_of_parts(graph: GraphLike) -> dict[str, str]:
    """Return what the parts are called: rows without own columns have structural features or path means."""
    titles = {part: part for part in PARTS}
    along = graph.path_columns
    if graph.provenance.structural:
        titles[OWN] = STRUCTURE
    elif along is not None and along.are_features:
        structural = graph.num_features > sum(along.widths)
        titles[OWN] = f"{MEANS} and {STRUCTURE}" if structural else MEANS
    elif graph.plan is None and graph.feature_names == ("constant",):
        titles[OWN] = "a constant, without own columns"
    if graph.link_columns is not None and graph.link_columns.plan.joined:
        titles[LINKS] = "joined columns"
    return titles


def candidates(inputs: NodeInputs, chosen: Integers, target: Target, head: str, seed: int) -> list[Candidate]:
    """Return the heads of a choice of `--head`."""
    check_choice("head", head, HEADS)
    columns, known = inputs.columns, inputs.columns.values[chosen]
    parts = [part for part in PARTS if columns.positions(part).size]
    words = titles_of_parts(inputs.graph)
    titles = ("logistic regression", "gradient boosting")
    linear_title = titles[0] if target.classes else "ridge regression"
    found = list[Candidate]()

    def linear(used: Integers, on: str, part: int, **options: Any) -> None:
        basis = Basis(columns.values, chosen, used, **{"standardize": True, **options}, order=inputs.order)
        found.append(Candidate(LinearHead(basis, target, f"{linear_title} on {on}", of_columns=True), part))

    def trees(used: Integers, on: str, part: int, **options: Any) -> None:
        kind = "random forest" if options.get("forest") else titles[1]
        found.append(Candidate(TreeHead(known, used, target, f"{kind} on {on}", seed=seed, **options), part))

    def embedded() -> None:
        basis = Basis(inputs.embedding, chosen, order=inputs.order)
        found.append(Candidate(LinearHead(basis, target, f"{linear_title} on the embedding"), len(PARTS) - 1))

    if head in ("logistic", "blend"):
        embedded()
    if head in ("boosting", "blend"):
        trees(columns.positions(*parts), "all columns", len(PARTS) - 1)
    if head != "auto":
        return found
    own = "own" if words[OWN] == OWN else words[OWN]
    walks = PropagationHead(walk_step(inputs.graph), inputs.graph.num_nodes, chosen, target)
    labels = PropagatedLabels(walks) if NEIGHBOURS in parts else None
    for at, part in enumerate(PARTS):
        used = columns.positions(*PARTS[: at + 1])
        if part in (OWN, LINKS) and part in parts:
            on = words[part] if part == OWN or OWN not in parts else f"{own} and {words[LINKS]}"
            linear(used, on, at)
            if len(chosen) <= FEW_LABELS:
                trees(used, on, at, forest=True)
            if len(chosen) > FEW_LABELS or (part == parts[-2] and NEIGHBOURS not in parts):
                trees(used, on, at)
        elif part == NEIGHBOURS and part in parts:
            linear(used, "columns and neighbours", at)
            linear(used, "unscaled columns and neighbours", at, standardize=False)
            trees(used, "columns, neighbours and their labels", at, labels=labels)
            found.append(Candidate(walks, at))
        elif part == EMBEDDING:
            embedded()
            trees(used, "all columns", at, labels=labels)
    if LINKS in parts and OWN in parts:
        linear(columns.positions(LINKS), words[LINKS], PARTS.index(LINKS))
        used = columns.positions(OWN, LINKS)
        factors = np.where(np.isin(used, columns.positions(OWN)), 1.0, DAMPING)
        linear(used, f"{own} and damped {words[LINKS]}", PARTS.index(LINKS), factors=factors)
    if NEIGHBOURS not in parts and target.classes:  # no edges: the shares of the classes calibrate the others
        walks.title = SHARES
        found.append(Candidate(walks, found[0].part))
    return found


def labelled_folds(target: Target, seed: int, times: Integers | None = None) -> list[Integers]:
    """Return the positions of each fold; classes, or quantiles of numbers, are spread evenly.

    With the times of the nodes, the folds are periods, unless only one class is known outside of some two.
    """
    values, rng = target.values, np.random.default_rng(seed)
    most = FOLDS if len(values) <= LARGE else LARGE_FOLDS
    if target.classes:
        counts = np.bincount(values)
        folds = max(2, min(most, int(counts[counts >= MIN_LABELLED].min(initial=most))))
    else:
        folds = max(2, min(most, len(values) // 2))
    if times is not None:
        periods = [np.sort(one) for one in np.array_split(np.argsort(times, kind="stable"), folds)]
        others = (np.delete(values, np.concatenate(two)) for two in combinations(periods, 2))
        if all(len(np.unique(one)) > 1 for one in others):
            return periods
    shuffled = rng.permutation(len(values))
    strata = values[shuffled]
    if not target.classes:  # as many strata as each fold has nodes
        strata = np.argsort(np.argsort(strata, kind="stable"), kind="stable") // folds
    shuffled = shuffled[np.argsort(strata, kind="stable")]
    return [np.sort(shuffled[at::folds]) for at in range(folds)]


class NodeModel:
    """Heads fitted to labelled nodes, and the pool of them that held-out nodes choose.

    Args:
        inputs: of the graph's nodes.
        chosen: the labelled nodes, in an order that does not depend on that of the rows.
        target: their classes or numbers.
        head: which heads are candidates, one of `HEADS`.
        seed: of the folds and the trees.
        times: of the labelled nodes, if the folds are to be periods.
        progress: receives the completed share.
    """

    def __init__(
        self,
        inputs: NodeInputs,
        chosen: Integers,
        target: Target,
        head: str = "auto",
        *,
        seed: int = 0,
        times: Integers | None = None,
        progress: Progress = lambda share: None,
    ) -> None:
        self.inputs, self.chosen, self.target, self.head, self.seed = inputs, chosen, target, head, seed
        self.candidates = candidates(inputs, chosen, target, head, seed)
        heads = [one.head for one in self.candidates]
        repeats = REPEATS if len(chosen) <= MANY_LABELS else 1
        self.repeats = [
            FoldPredictions(
                heads,
                labelled_folds(target, seed + 1000 * at, times),
                lambda share, at=at: progress((at + share) / repeats),  # type: ignore[misc]
            )
            for at in range(repeats)
        ]
        self.single = [one.single for one in self.repeats]
        self._choose()

    def _choose(self) -> None:
        """Choose the pool of the candidates by held-out predictions, and fit it to all labelled nodes."""
        held = [np.concatenate(of_head, axis=1) for of_head in zip(*self.single, strict=True)]
        nodes = np.tile(np.arange(len(self.chosen)), len(self.repeats))
        self.pool = Pool.fit(held, self.target.of(nodes))
        self.used = [at for at, weight in enumerate(self.pool.weights) if weight > NEGLIGIBLE]
        self.predict = self.refitted(None)

    def of_heads(self, heads: Sequence[int]) -> NodeModel:
        """Return the model with some of the candidates, chosen and fitted anew."""
        found = copy(self)
        found.candidates = [self.candidates[at] for at in heads]
        found.single = [[one[at] for at in heads] for one in self.single]
        found._choose()
        return found

    def __call__(self, blocks: Iterable[Rows]) -> Floats:
        """Return log-probabilities `[nodes, classes]` or numbers `[nodes, 1]`."""
        return np.concatenate([self.predict(rows) for rows in blocks])

    def extended(self, inputs: NodeInputs) -> Callable[[Rows], Floats]:
        """Return the pool for a graph that nodes have joined; their edges count in label propagation."""
        heads = [one.head for one in candidates(inputs, self.chosen, self.target, self.head, self.seed)]
        return self.refitted(None, heads)

    def refitted(
        self, train: Integers | None, heads: Sequence[Head] | None = None
    ) -> Callable[[Rows], Floats]:
        """Return the pool of heads fitted to some labelled nodes, or to all."""
        heads = [one.head for one in self.candidates] if heads is None else heads
        fitted = {at: heads[at].fit(self.pool.variants[at], train) for at in self.used}

        def predict(rows: Rows) -> Floats:
            nothing = np.zeros((len(rows), self.target.outputs))
            return self.pool([fitted[at](rows) if at in fitted else nothing for at in range(len(heads))])

        return predict

    def held_out(self) -> Floats:
        """Return predictions of the labelled nodes from heads that did not see them."""
        return self.pool(self.pool.select(self.single[0]))

    def folds(self, repeat: int, heads: Sequence[int] | None = None) -> Iterator[Fold]:
        """Yield nested predictions, for which every choice is made without the fold."""
        chosen = range(len(self.candidates)) if heads is None else heads
        return self.repeats[repeat].nested(self.target, list(chosen))

    def up_to(self, part: int) -> list[int]:
        """Return the heads that use the first parts only, up to one."""
        return [at for at, one in enumerate(self.candidates) if one.part <= part]

    def parts(self) -> list[int]:
        """Return the parts that add heads."""
        return sorted({one.part for one in self.candidates})

    def part_title(self, part: int) -> str:
        """Return the name of a part."""
        return titles_of_parts(self.inputs.graph)[PARTS[part]]

    def weights(self) -> dict[str, float]:
        """Return the weight of each fitted head, the largest first."""
        found = {
            self.candidates[at].head.describe(self.pool.variants[at]): float(self.pool.weights[at])
            for at in self.used
            if self.candidates[at].head.title != SHARES
        }
        return dict(sorted(found.items(), key=lambda one: -one[1]))
