"""Learn classes or numbers of nodes from labelled ones: heads on what is known about a node, and their pool.

Every head belongs to the last of the parts that it uses: own columns, link columns, neighbours, embedding.
Pools of the heads of the first parts measure what each part contributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.answers.columns import EMBEDDING, LINKS, NEIGHBOURS, OWN, PARTS, NodeColumns, walk_step
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
from h3gnn.graphs.graph import GraphLike

Embedding = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
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


def candidates(inputs: NodeInputs, chosen: Integers, target: Target, head: str, seed: int) -> list[Candidate]:
    """Return the heads of a choice of `--head`."""
    check_choice("head", head, HEADS)
    columns, known = inputs.columns, inputs.columns.values[chosen]
    parts = [part for part in PARTS if columns.positions(part).size]
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
    walks = PropagationHead(walk_step(inputs.graph), inputs.graph.num_nodes, chosen, target)
    labels = PropagatedLabels(walks) if NEIGHBOURS in parts else None
    for at, part in enumerate(PARTS):
        used = columns.positions(*PARTS[: at + 1])
        if part in (OWN, LINKS) and part in parts:
            on = part if part == OWN or OWN not in parts else "own and link columns"
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
        linear(columns.positions(LINKS), "link columns", PARTS.index(LINKS))
        used = columns.positions(OWN, LINKS)
        factors = np.where(np.isin(used, columns.positions(OWN)), 1.0, DAMPING)
        linear(used, "own and damped link columns", PARTS.index(LINKS), factors=factors)
    if NEIGHBOURS not in parts and target.classes:  # no edges: the shares of the classes calibrate the others
        walks.title = "shares of the classes"
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
        structural = PARTS[part] == OWN and self.inputs.graph.provenance.structural
        return "structural features" if structural else PARTS[part]

    def weights(self) -> dict[str, float]:
        """Return the weight of each fitted head, the largest first."""
        found = {
            self.candidates[at].head.describe(self.pool.variants[at]): float(self.pool.weights[at])
            for at in self.used
        }
        return dict(sorted(found.items(), key=lambda one: -one[1]))
