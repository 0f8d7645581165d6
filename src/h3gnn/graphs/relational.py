"""Graphs with several types of nodes and relations between them, such as the tables of a database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from h3gnn.errors import GraphError, shortened
from h3gnn.graphs.provenance import Repair

if TYPE_CHECKING:
    from h3gnn.tables.plan import TablePlan

Integers = npt.NDArray[np.int64]
Ids = npt.NDArray[Any]

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
