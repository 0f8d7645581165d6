"""What two nodes have in common, in words that a person understands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import MomentSums
from h3gnn.graphs.structural import simple_adjacency
from h3gnn.tables.plan import ColumnPlan

Row = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

REASONS = 5
"""At most so many shared features and neighbours are named."""
NO_SPREAD = 1e-6
"""A column that varies by less than this share of its mean, or of what columns usually do, says nothing."""
PARTS = {"text": " ~", "sentences": " ~", "list": " #", "date": ", "}
"""By encoder, what follows a column's name in numbers that mean nothing to a person one by one."""
ENDS = {"number": ("low", "high"), "boolean": ("no", "yes"), "date": ("early", "late")}
"""By kind, how a person calls both ends of a column that was scaled."""
SEEN = 2_000
"""With so many nodes the likeness of two texts is compared to tell whether it is unusual."""


class Reasons:
    """What two nodes of a graph have in common.

    Args:
        graph: of the nodes.
        names: of the columns of features.
    """

    def __init__(self, graph: Graph, names: Sequence[str] | None) -> None:
        self.graph, self.names = graph, names
        _, self.adjacency = simple_adjacency(graph.edge_index, graph.num_nodes)
        sums = MomentSums(graph.num_features)
        sums.add(graph.features)
        moments = sums.moments()
        self.mean, variance = np.array(moments.mean), np.array(moments.variance)
        spread = np.sqrt(variance)
        least = NO_SPREAD * np.maximum(np.abs(self.mean), np.median(spread) if spread.size else 0)
        self.spread = np.where(spread > np.maximum(least, 1e-12), spread, np.inf)
        bag = not moments.negative and moments.filled <= 0.5 * (moments.rows * len(moments.mean))
        # a mark of 0 and 1, alone among measurements or not, is shared where both nodes have it
        marks = np.isclose(variance, self.mean * (1 - self.mean), rtol=1e-3, atol=0) & (self.mean > 0)
        self.counted = marks | (moments.zeros_and_ones or bag)
        self.columns = _columns(graph, names)
        self.blocks: dict[str, list[int]] = {}  # by column of text or of hashed lists, the numbers it became
        self.gaps: dict[
            int, list[int]
        ] = {}  # by the mark of a missing value, the numbers that stand in for it
        self._sampled: dict[str, Row] = {}
        for at, name in enumerate(names if names is not None else ()):
            column = self.columns.get(name)
            if column is not None and name == f"{column.name} is missing":
                made = column.learned.names
                self.gaps[at] = [at - made.index(name) + one for one in range(len(made)) if made[one] != name]
            elif column is not None and name.startswith(
                f"{column.name}{PARTS.get(column.encoder, ' never')}"
            ):
                self.spread[at] = np.inf  # says nothing to a person by itself
                if column.encoder != "date":
                    self.blocks.setdefault(column.name, []).append(at)

    def _heard(self, node: int) -> Whole:
        start, end = self.adjacency.indptr[node : node + 2]
        heard: Whole = self.adjacency.indices[start:end].astype(np.int64)
        return heard

    def linked(self, a: int, b: int) -> bool:
        """Tell whether an edge joins two nodes."""
        return bool(np.isin(b, self._heard(a)))

    def neighbours(self, a: int, b: int) -> Whole:
        """Return the neighbours of both, those with the fewest neighbours first: they tell most."""
        both = np.intersect1d(self._heard(a), self._heard(b))
        return both[np.argsort(np.diff(self.adjacency.indptr)[both], kind="stable")]

    def features(self, a: int, b: int) -> list[str]:
        """Return the features that set both nodes apart from the rest in the same way, strongest first.

        Of counts, marks and bags of words, only what both nodes have; of measurements, both above or both
        below the mean. A column of text is one feature: how alike the two texts are, if more than texts
        usually are.
        """
        left, right = (self._row(one) for one in (a, b))
        together = ((left - self.mean) / self.spread) * ((right - self.mean) / self.spread)
        together = np.where(self.counted & ((left == 0) | (right == 0)), 0, together)
        for mark, filled in self.gaps.items():
            if left[mark] or right[mark]:
                together[filled] = 0  # what was put into a gap is nothing that the node has
        best = np.argsort(-together, kind="stable")[:REASONS]
        found = [
            (float(together[one]), self._named(int(one), left, right)) for one in best if together[one] > 0
        ]
        for name, columns in self.blocks.items():
            alike, unusual = self._alike(name, left[columns], right[columns])
            if unusual > 0:
                found.append((unusual, f"{name} ({alike:.0%} alike)"))
        found.sort(key=lambda one: -one[0])
        return [words for _, words in found[:REASONS]]

    def _alike(self, name: str, left: Row, right: Row) -> tuple[float, float]:
        """Return the cosine of two texts, and how far above the usual it is for both, as a product."""
        left, right = (one / max(float(np.linalg.norm(one)), 1e-12) for one in (left, right))
        alike, unusual = float(left @ right), 1.0
        for one in (left, right):
            usual = self._sample(name) @ one
            above = (alike - usual.mean()) / max(float(usual.std()), 1e-12)
            unusual *= max(float(above), 0.0) if one.any() else 0.0
        return alike, unusual

    def _sample(self, name: str) -> Row:
        if name not in self._sampled:
            nodes = np.unique(np.linspace(0, self.graph.num_nodes - 1, SEEN).astype(np.int64))
            rows = np.array([self._row(int(one))[self.blocks[name]] for one in nodes])
            self._sampled[name] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return self._sampled[name]

    def _row(self, node: int) -> Row:
        stored = self.graph.features
        if stored.layout != torch.sparse_csr:
            return stored[node].double().numpy()
        start, end = stored.crow_indices()[node : node + 2].tolist()
        row = np.zeros(self.graph.num_features)
        row[stored.col_indices()[start:end].numpy()] = stored.values()[start:end].numpy()
        return row

    def _named(self, column: int, left: Row, right: Row) -> str:
        name = f"feature {column}" if self.names is None else str(self.names[column])
        a, b = left[column], right[column]
        if a == b == 1:
            return name
        if name in self.columns and self.columns[name].kind in ENDS:
            return f"{name} (both {ENDS[self.columns[name].kind][int(a > self.mean[column])]})"
        return f"{name} ({a:.3g}, {b:.3g})"


def _columns(graph: Graph, names: Sequence[str] | None) -> dict[str, ColumnPlan]:
    """Return, by the name of each number that an encoder made, the column that it was made of."""
    plan = graph.plan
    if plan is None or names is None or tuple(names) != plan.names:
        return {}
    return {name: one for one in plan.columns if one.encoder != "plain" for name in one.learned.names}
