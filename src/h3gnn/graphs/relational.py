"""Graphs with several types of nodes and relations between them, such as the tables of a database.

A path of relations starts at a type; the features at its end, averaged along it, describe the nodes of that
type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from h3gnn.errors import GraphError, shortened
from h3gnn.graphs.ids import find_ids
from h3gnn.graphs.provenance import Repair

if TYPE_CHECKING:
    from h3gnn.tables.plan import TablePlan

Integers = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]

Floats = npt.NDArray[np.float32]

MOST_HOPS, MOST_PATHS = 4, 16
"""Default length and number of paths."""
WIDE, COLUMNS = 256, 64
"""Columns of a type's features before they are averaged, and principal components of each path's means."""
IDENTITY = 4096
"""A type without columns and up to this many nodes is described by the identity of its nodes."""
NEGLIGIBLE = 1e-6
"""Share of the largest variance below which a component is left out."""
UNKNOWN_TIME = np.iinfo(np.int64).min
"""Time of a row without one: it existed at any time."""


@dataclass(frozen=True, eq=False)
class NodeTable:
    """The nodes of one type: the rows of a table, or the distinct values of a column.

    Attributes:
        name: of the type.
        ids: int64 or object (str) `[nodes]`: the key, or the row numbers from 0 where there is none.
        has_ids: whether the rows have a key.
        features: float32 `[nodes, columns]`, array or `scipy.sparse.csr_array`; no columns for a type
            without any.
        feature_names: one name per column.
        plan: how the columns of the table became the features; None for arrays.
        time: int64 `[nodes]`, nanoseconds since 1970, `UNKNOWN_TIME` where unknown; None without times.
        labels: the cells of columns that are to be predicted, by name; never part of the features.
        dated_by: without a time of their own, the columns whose latest time the rows have, `account.date`.
        masks: train, validation and test masks, bool `[nodes, splits]`, of a graph that brings splits.
    """

    name: str
    ids: Ids
    features: Any
    has_ids: bool = True
    feature_names: tuple[str, ...] = ()
    plan: TablePlan | None = None
    time: Integers | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    masks: tuple[Any, Any, Any] | None = None
    dated_by: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class Relation:
    """Links from the nodes of one type to those of another, or of the same.

    Attributes:
        name: the table and columns that hold the links, such as `orders.client_id`.
        source, target: types of the nodes at both ends.
        ends: int64 `[2, links]`, numbers of the source nodes above those of the target nodes.
        time: int64 `[links]` as in `NodeTable`, or None: a link of a table has the time of its row.
        weight: float32 `[links]`, positive, or None.
    """

    name: str
    source: str
    target: str
    ends: Integers
    time: Integers | None = None
    weight: npt.NDArray[np.float32] | None = None

    @cached_property
    def is_function(self) -> bool:
        """Whether every source node has at most one link, as in a column of a table."""
        return bool(len(np.unique(self.ends[0])) == self.ends.shape[1])

    @cached_property
    def is_undirected(self) -> bool:
        """Whether it links nodes of one type, each link in both directions."""
        if self.source != self.target:
            return False
        there, back = (np.unique(ends, axis=1) for ends in (self.ends, self.ends[::-1]))
        return bool(np.array_equal(there, back))


class Step(NamedTuple):
    """A relation walked in one direction: `forward` from its source to its target."""

    relation: Relation
    forward: bool

    @property
    def start(self) -> str:
        """Type at which the step begins."""
        return self.relation.source if self.forward else self.relation.target

    @property
    def end(self) -> str:
        """Type at which the step ends."""
        return self.relation.target if self.forward else self.relation.source

    @property
    def title(self) -> str:
        """The step for display: the column that is followed, or the table whose rows refer to the node."""
        return self.relation.name if self.forward else f"{self.relation.name} (reverse)"


@dataclass(frozen=True, eq=False)
class RelationalGraph:
    """Nodes of several types with their own columns, and relations between them.

    Attributes:
        types: the nodes of each type, by name.
        relations: the links between them, each once; both directions can be walked.
        link_types: types whose nodes only link two others, such as the rows of a link table.
        source: where the graph was read from.
        repairs: what was changed or left out.
    """

    types: Mapping[str, NodeTable]
    relations: tuple[Relation, ...]
    link_types: frozenset[str] = frozenset()
    source: str = "tables"
    repairs: tuple[Repair, ...] = ()

    def __post_init__(self) -> None:
        for one in self.relations:
            for name, ends in zip((one.source, one.target), one.ends, strict=True):
                table = self.type(name)
                if ends.size and not 0 <= int(ends.min()) <= int(ends.max()) < table.nodes:
                    message = f"the relation {one.name} has nodes that {name!r} does not have"
                    raise GraphError(message, code="edge-out-of-range")

    def type(self, name: str) -> NodeTable:
        """Return the nodes of a type."""
        if name not in self.types:
            message = f"there is no node type {name!r}; there are {shortened(self.types, 12)}"
            raise GraphError(message, code="type-unknown")
        return self.types[name]

    @cached_property
    def steps(self) -> dict[str, list[Step]]:
        """The steps that begin at each type."""
        found: dict[str, list[Step]] = {name: [] for name in self.types}
        for relation in self.relations:
            for step in (Step(relation, True), Step(relation, False)):
                found[step.start].append(step)
        return found

    def matrix(self, step: Step) -> sp.csr_array:
        """Return the links of a step as a matrix, `[nodes at its start, nodes at its end]`."""
        first, second = step.relation.ends if step.forward else step.relation.ends[::-1]
        weight = step.relation.weight
        values = np.ones(len(first), np.float32) if weight is None else weight
        shape = (self.type(step.start).nodes, self.type(step.end).nodes)
        return sp.coo_array((values, (first, second)), shape=shape).tocsr()


@dataclass(frozen=True, eq=False)
class Hop:
    """One link, or the two links of a row in a link table.

    Attributes:
        steps: the links, one or two.
        title: for display: the type at the end, and the table or column between.
    """

    steps: tuple[Step, ...]
    title: str

    @property
    def start(self) -> str:
        """Type at which the hop begins."""
        return self.steps[0].start

    @property
    def end(self) -> str:
        """Type at which the hop ends."""
        return self.steps[-1].end

    @property
    def key(self) -> str:
        """Name of the hop within its graph."""
        return " / ".join(step.title for step in self.steps)


Path = tuple[Hop, ...]


def key_of(path: Path) -> tuple[str, ...]:
    """Return the keys of the hops of a path, which name it within its graph."""
    return tuple(hop.key for hop in path)


def hops_from(graph: RelationalGraph, name: str) -> list[Hop]:
    """Return the hops that begin at a type; a link table with columns is also an end of its own."""
    found = []
    for step in graph.steps[name]:
        between = step.end
        if between not in graph.link_types or step.forward:
            found.append(Hop((step,), _title(step)))
            continue
        if graph.type(between).features.shape[1]:
            found.append(Hop((step,), _title(step)))
        for onward in graph.steps[between]:
            if onward.forward and onward.relation is not step.relation:
                found.append(Hop((step, onward), f"{onward.end} via {between}"))
    count = Counter(hop.title for hop in found)
    return [hop if count[hop.title] == 1 else replace(hop, title=_with_columns(hop)) for hop in found]


def _with_columns(hop: Hop) -> str:
    """Return the title of a hop with its columns, where several hops lead to a type."""
    columns = " → ".join(one.relation.name.removeprefix(f"{one.relation.source}.") for one in hop.steps)
    reverse = ", reverse" if len(hop.steps) == 1 and not hop.steps[0].forward else ""
    return f"{hop.title.partition(' (')[0]} ({columns}{reverse})"


def _title(step: Step) -> str:
    column = step.relation.name.removeprefix(f"{step.relation.source}.")
    if step.forward:
        return step.end if column.lower().startswith(step.end.lower()[:4]) else f"{step.end} ({column})"
    same = sum(letter == other for letter, other in zip(column.lower(), step.start.lower(), strict=False))
    return step.end if same >= 4 else f"{step.end} ({column})"


@dataclass(frozen=True, eq=False)
class Reduction:
    """Leading principal components of rows: `(rows - mean) @ directions`; None leaves a step out."""

    mean: npt.NDArray[np.float64] | None
    directions: npt.NDArray[np.float64] | Floats | None

    @classmethod
    def fit(cls, rows: Any, count: int) -> Reduction:
        """Return the reduction of rows to at most `count` columns; few columns are only centred."""
        columns, sparse = int(rows.shape[1]), bool(sp.issparse(rows))
        if sparse and columns > count and min(rows.shape) > count:
            from sklearn.utils.extmath import randomized_svd

            _, sizes, right = randomized_svd(rows, count, n_iter=4, random_state=0)
            right = right[sizes > NEGLIGIBLE * sizes.max(initial=0)]
            return cls(None, (right * np.sign((right**3).sum(axis=1))[:, None]).T)
        dense = _dense(rows)
        mean = dense.mean(axis=0)
        if columns <= count:
            return cls(mean, None)
        dense = dense - mean
        values, vectors = np.linalg.eigh(dense.T @ dense)
        chosen = np.argsort(values)[::-1][:count]
        chosen = chosen[values[chosen] > NEGLIGIBLE * max(float(values.max()), 0)]
        return cls(mean, vectors[:, chosen] * np.sign((vectors[:, chosen] ** 3).sum(axis=0)))

    def __call__(self, rows: Any) -> Floats:
        """Return the components of rows."""
        found = rows if self.mean is None else _dense(rows) - self.mean
        return np.asarray(found if self.directions is None else found @ self.directions, dtype=np.float32)


def reduced(rows: Any, count: int) -> Floats:
    """Return the leading principal components of rows; all columns, centred, if they are few."""
    return Reduction.fit(rows, count)(rows)


def _dense(rows: Any) -> npt.NDArray[np.float64]:
    sparse = bool(sp.issparse(rows))
    return np.asarray(rows.toarray() if sparse else rows, dtype=np.float64)


class PathFeatures:
    """Means of features along paths, each matrix computed once.

    Args:
        graph: the graph.
        name: the type at which the paths begin.
        fitted: the graph and type whose scaling and components are used for a graph with further nodes.
    """

    def __init__(self, graph: RelationalGraph, name: str, fitted: PathFeatures | None = None) -> None:
        self.graph, self.name, self.fitted = graph, name, fitted
        self._matrices: dict[str, sp.csr_array] = {}
        self._means: dict[tuple[str, ...], Floats] = {}
        self._reached: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}
        self._rows: dict[str, Any] = {}
        self._reductions: dict[tuple[str, ...], tuple[Reduction, float]] = {}
        self._of_type: dict[str, Reduction] = {}

    @cached_property
    def hops(self) -> Mapping[str, list[Hop]]:
        """The hops that begin at each type."""
        return {name: hops_from(self.graph, name) for name in self.graph.types}

    def paths(self, longest: int = MOST_HOPS) -> Iterator[Path]:
        """Yield the paths of up to `longest` hops, short ones first; a link table only ends a path."""
        current: list[Path] = [()]
        for _ in range(longest):
            longer = []
            for path in current:
                end = path[-1].end if path else self.name
                if path and end in self.graph.link_types:
                    continue
                for hop in self.hops[end]:
                    if not (path and self._goes_straight_back(path[-1], hop)):
                        longer.append((*path, hop))
            yield from longer
            current = longer

    def _goes_straight_back(self, hop: Hop, onward: Hop) -> bool:
        """Whether a hop returns to the only node that the one before it can come from."""
        (first, *more), (second, *others) = hop.steps, onward.steps
        if more or others or first.relation is not second.relation or first.forward:
            return False
        return second.forward and first.relation.is_function

    def matrix(self, hop: Hop) -> sp.csr_array:
        """Return the number of links between the nodes at both ends of a hop."""
        if hop.key not in self._matrices:
            product = self.graph.matrix(hop.steps[0])
            for step in hop.steps[1:]:
                product = (product @ self.graph.matrix(step)).tocsr()
            self._matrices[hop.key] = product
        return self._matrices[hop.key]

    def mean(self, path: Path) -> Floats:
        """Return the mean of the features at the end of a path, step by step, `[nodes, columns]`."""
        key = key_of(path)
        if not path:
            raise ValueError("a path has at least one hop")
        if key not in self._means:
            rest = self.features(path[-1].end) if len(path) == 1 else self.mean(path[1:])
            matrix = self.matrix(path[0])
            total = np.asarray(matrix.sum(axis=1)).reshape(-1, 1)
            self._means[key] = np.asarray(matrix @ rest / np.where(total > 0, total, 1), dtype=np.float32)
        return self._means[key]

    def features(self, name: str) -> Floats:
        """Return the columns that describe the nodes of a type, at most `WIDE` of them."""
        key = (f"type {name}",)
        if key not in self._means:
            self._means[key] = (self.fitted or self).reduction_of(name)(self.rows(name))
        return self._means[key]

    def reduction_of(self, name: str) -> Reduction:
        """Return the reduction of the rows of a type; identities are not reduced."""
        if name not in self._of_type:
            rows, table = self.rows(name), self.graph.type(name)
            described = rows.shape[1] and (table.features.shape[1] or table.nodes > WIDE)
            self._of_type[name] = Reduction.fit(rows, WIDE) if described else Reduction(None, None)
        return self._of_type[name]

    def rows(self, name: str) -> Any:
        """Return what describes the nodes of a type: own columns, their identity, or whom they link to."""
        if name not in self._rows:
            self._rows[name] = self._describing(name)
        return self._rows[name]

    def _describing(self, name: str) -> Any:
        fitted = self if self.fitted is None else self.fitted
        table, known = self.graph.type(name), fitted.graph.type(name)
        if known.features.shape[1]:
            encoded = known.plan is not None and not known.plan.as_is
            return scaled(table.features, known.features, encoded=encoded)
        if known.nodes <= WIDE:
            return np.eye(table.nodes, dtype=np.float32)[:, self.known(name)]
        parts = []
        for step, before in zip(self.graph.steps[name], fitted.graph.steps[name], strict=True):
            total = np.asarray(fitted.graph.matrix(before).sum(axis=0)).ravel()
            matrix = self.graph.matrix(step)
            matrix = matrix if self.fitted is None else matrix[:, self.known(step.end)]
            parts.append(_rare_first(matrix, total))
        if not parts:
            return np.zeros((table.nodes, 0), dtype=np.float32)
        if known.nodes <= IDENTITY:
            parts.append(sp.eye_array(table.nodes, dtype=np.float32, format="csr")[:, self.known(name)])
        return sp.hstack([_equal_rows(one) for one in parts], format="csr")

    def known(self, name: str) -> npt.NDArray[np.int64]:
        """Return the positions of the nodes of a type that the fitted graph has, in its order."""
        table = self.graph.type(name)
        if self.fitted is None:
            return np.arange(table.nodes)
        known = self.fitted.graph.type(name)
        found = find_ids(known.ids, table.ids)
        if (found < 0).any():
            message = f"{int((found < 0).sum()):,} rows of {name} with which the model was fitted are missing"
            raise GraphError(message, code="fitted-rows-missing")
        return found

    def components(self, path: Path) -> Floats:
        """Return the leading components of the means along a path, rows of mean squared length 1."""
        reduction, length = (self.fitted or self)._reduction_along(key_of(path))
        return (reduction(self.mean(path)) / length).astype(np.float32)

    def _reduction_along(self, key: tuple[str, ...]) -> tuple[Reduction, float]:
        """Return the reduction of the means along a path, and the length of the reduced rows."""
        if key not in self._reductions:
            mean = self.mean(self.path(key))
            reduction = Reduction.fit(mean, COLUMNS)
            columns = reduction(mean).astype(np.float64)
            length = float(np.sqrt((columns**2).sum(axis=1).mean())) if columns.size else 0.0
            self._reductions[key] = reduction, length if length > 0 else 1.0
        return self._reductions[key]

    def path(self, key: tuple[str, ...]) -> Path:
        """Return the path with a key."""
        found: Path = ()
        for name in key:
            hops = self.hops[found[-1].end if found else self.name]
            found = (*found, next(one for one in hops if one.key == name))
        return found

    def _reaching(self, path: Path) -> npt.NDArray[np.bool_]:
        """Return which nodes a path leads from to a node with features."""
        key = key_of(path)
        if key not in self._reached:
            ends = np.asarray(abs(self.features(path[-1].end)).sum(axis=1) > 0)
            rest = ends if len(path) == 1 else self._reaching(path[1:])
            self._reached[key] = np.asarray(self.matrix(path[0]) @ rest.astype(np.float32) > 0)
        return self._reached[key]

    def select(self, longest: int = MOST_HOPS, most: int = MOST_PATHS) -> list[Path]:
        """Return up to `most` paths: short ones first, then those that reach more of the nodes."""
        found: list[tuple[int, float, int, Path]] = []
        for at, path in enumerate(self.paths(longest)):
            if found and len(found) >= most and len(path) > found[-1][0]:
                break
            if not self._describes(path[-1].end):
                continue
            share = float(self._reaching(path).mean())
            if share > 0:
                found.append((len(path), -share, at, path))
        return [path for *_, path in sorted(found, key=lambda one: one[:3])[:most]]

    def _describes(self, name: str) -> bool:
        return self.graph.type(name).nodes > 0 and self.features(name).shape[1] > 0


def _rare_first(matrix: sp.csr_array, total: npt.NDArray[Any]) -> sp.csr_array:
    """Divide the columns of counts by the root of their sums, so that large groups do not dominate."""
    scale: Any = sp.diags_array(1 / np.sqrt(np.where(total > 0, total, 1)))
    return sp.csr_array(matrix @ scale)


def scaled(features: Any, known: Any, *, encoded: bool) -> Any:
    """Return features whose columns are comparable, scaled as the known rows; encoded ones already are."""
    sparse = bool(sp.issparse(features))
    if encoded:
        return features
    values = known.data if sparse else known
    filled, negative = int(np.count_nonzero(values)), bool(values.min(initial=0) < 0)
    if filled <= 0.5 * known.shape[0] * known.shape[1] and not negative:
        return _equal_rows(sp.csr_array(features) if sparse else features)
    rows = _dense(known)
    spread = rows.std(axis=0)
    return np.asarray(
        (_dense(features) - rows.mean(axis=0)) / np.where(spread > 1e-12, spread, 1), dtype=np.float32
    )


def _equal_rows(rows: Any) -> Any:
    """Return rows of length 1, those of zeros unchanged."""
    sparse = bool(sp.issparse(rows))
    if not sparse:
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows / np.where(length > 0, length, 1)).astype(np.float32)
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    scale: Any = sp.diags_array(1 / np.where(length > 0, length, 1))
    return (scale @ rows).astype(np.float32).tocsr()
