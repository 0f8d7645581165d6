"""Read tables of edges, and apply the rules for unknown nodes, invalid weights and duplicate edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, shortened
from h3gnn.graphs.checks import valid_weights
from h3gnn.graphs.edge_plan import EdgeColumns, EdgePlan, EdgeRules
from h3gnn.graphs.ids import NodeIndex, as_text, one_kind
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.node_types import ids_of_ends
from h3gnn.tables.reader import FEW_ROWS, LoadedTable, Table, joined_place, open_table
from h3gnn.tables.roles import ROW_WORDS, WEIGHT_NAMES, Column, infer_ends, pick_column, words_in

FIX_COLUMN = "correct the cell, or name another column (--weight-column)"
FIX_WEIGHT = "--weights drop leaves such edges out, absolute uses absolute values"

Ids = npt.NDArray[Any]
Index = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64] | None


@dataclass(frozen=True)
class EdgeTable:
    """A table of edges and the roles of its columns."""

    table: Table
    ends: tuple[int, int]
    weight: tuple[int, ...]  # the column of the weights, or none
    repairs: tuple[Repair, ...]  # the assumed direction
    guessed: bool = False  # whether the ends follow from the order of the columns alone
    weight_given: bool = False  # whether the user named the column of the weights

    @property
    def columns(self) -> EdgeColumns:
        """The names of the table and of its columns."""
        names = [self.table.names[at] for at in (*self.ends, *self.weight)]
        return EdgeColumns.of(self.table.path.stem, names)

    @property
    def further(self) -> tuple[int, ...]:
        """The other columns."""
        taken = (*self.ends, *self.weight)
        return tuple(at for at in range(len(self.table.names)) if at not in taken)

    def unused(self, used: Collection[str] = ()) -> tuple[Repair, ...]:
        """Return the repair that names the columns besides the ends, the weight and the used ones, if any."""
        names = [self.table.names[at] for at in self.further if self.table.names[at] not in used]
        message = f"{self.table.path.name}: not used: {shortened(names)}"
        unused = Repair("edge-columns-unused", message, fields=tuple(names), warn=True)
        return (unused,) if names else ()

    def without_weight(self, count: int) -> EdgeTable:
        """Return the table with a column that has negative values as a link column, not as the weight."""
        name = self.table.names[self.weight[0]]
        message = (
            f"{self.table.path.name}: {count:,} values of {name} are negative: it is a link column, and the "
            "edges have no weights (--weight-column makes it the weight)"
        )
        repair = Repair("weights-negative", message, count, (name,), warn=True)
        return replace(self, weight=(), repairs=(*self.repairs, repair))


@dataclass(frozen=True)
class EdgeRows:
    """The ids of sources and targets, int64 or text, and the weights, NaN where missing."""

    ids: list[Ids]
    weight: Weights
    loaded: LoadedTable | None = None  # all columns, if link columns are wanted


@dataclass(frozen=True)
class Edges:
    """Edges by position, their weights, a function that names the row of each, and the repairs."""

    index: Index
    weight: Weights
    place: Callable[[int], str]
    repairs: list[Repair]
    plan: EdgePlan = field(default_factory=EdgePlan)
    ends: tuple[Index, ...] = ()  # of each table before the rules, by position, -1 for unknown nodes


def open_edges(
    path: Any, source: Column | None, target: Column | None, weight: Column | None, style: dict[str, Any]
) -> EdgeTable:
    """Find the columns: the given ones, else those with telling names, else the first two."""
    table = open_table(path, role="edges", expected=(source, target, weight), **style)
    if len(table.names) < 2:
        message = f"{table.path}: an edge needs two columns, but the file has one; is the delimiter right?"
        raise GraphError(message, code="column-missing")
    given = source is not None and target is not None
    start, end, named = 0, 1, given
    if not given and table.header:
        start, end, named = infer_ends(table.names, str(table.path))
    start = pick_column(table, source, "source", default=start)
    end = pick_column(table, target, "target", default=end)
    heavy = pick_column(table, weight, "weight", known=WEIGHT_NAMES, default=None)
    if len({start, end, heavy}) < 3:
        message = f"{table.path}: source, target and weight must be different columns; name each of them"
        raise GraphError(message, code="edge-columns-ambiguous")
    unused = [name for column, name in enumerate(table.names) if column not in (start, end, heavy)]
    repairs = []
    if unused and not given and table.header:
        names = (table.names[start], table.names[end])
        message = f"{table.path.name}: edges run from {names[0]} to {names[1]}"
        repairs.append(Repair("edge-columns-inferred", message, fields=names))
    weights = () if heavy is None else (heavy,)
    return EdgeTable(table, (start, end), weights, tuple(repairs), not named, weight is not None)


def read_rows(
    edges: EdgeTable, known: Ids | None, known_by: Path | None, rules: EdgeRules, *, links: bool = False
) -> tuple[EdgeTable, EdgeRows]:
    """Read all edges, or raise with all their problems; `known` are the nodes, if others are an error.

    With `links` all columns are loaded, and one that was taken for the weight because of its name alone is
    no weight if it has negative values: the table is returned with its final roles.
    """
    loaded = edges.table.load((*edges.ends, *edges.weight, *(edges.further if links else ())))
    ids, weight = [loaded.ids(at) for at in edges.ends], None
    ids = ids if ids[0].dtype == ids[1].dtype else [as_text(one) for one in ids]
    if edges.guessed and not loaded.problems.count:
        _check_guess(edges, ids)
    ids = ids_of_ends(ids, edges.columns.ends, str(edges.table.path), bipartite=rules.bipartite)
    if known is not None:
        loaded.check_known(ids, known, known_by)
    for at in edges.weight:
        weight, unreadable = loaded.column_numbers(at)
        if links and _is_no_weight(edges, weight, rules) and not unreadable.size:
            edges, weight = edges.without_weight(int((weight < 0).sum())), None
            break
        if unreadable.size == len(weight):
            name, cell = edges.table.names[at], str(loaded.columns[at][0])
            raise GraphError(
                f"{edges.table.path}: no cell of the weights {name!r} is a number, such as {cell!r}; name "
                "another column (--weight-column), or rename this one if the edges have no weights",
                code="column-unreadable",
            )
        loaded.add_unreadable(at, unreadable, FIX_COLUMN)
        invalid = np.flatnonzero(~valid_weights(weight)) if rules.weights == "error" else ()
        for row in np.setdiff1d(invalid, unreadable).astype(int).tolist():
            what = f"the edge weight {weight[row]:g} is not a positive number"
            loaded.add(row, None, what, FIX_WEIGHT, "edge-weight-not-positive")
    loaded.problems.check()
    return edges, EdgeRows(ids, weight, loaded if links else None)


def _is_no_weight(edges: EdgeTable, weight: npt.NDArray[np.float64], rules: EdgeRules) -> bool:
    """Whether a column that is a weight by its name alone has negative values, which weights cannot have."""
    return not edges.weight_given and rules.weights == "error" and bool((weight < 0).any())


def _check_guess(edges: EdgeTable, ids: list[Ids]) -> None:
    """Ask if the first two columns are probably not the ends: row numbers, or scattered pairs."""
    import scipy.sparse as sp

    table, count = edges.table, len(ids[0])
    wide = len(table.names) > 2 + len(edges.weight)
    if count < FEW_ROWS or not (wide or table.header):
        return
    codes, nodes = pd.factorize(one_kind(ids))
    graph = sp.coo_array((np.ones(count), (codes[:count], codes[count:])), shape=(len(nodes),) * 2)
    parts = sp.csgraph.connected_components(graph, directed=False)[0]
    numbered = any(ROW_WORDS & {*words_in(table.names[column])} for column in edges.ends)
    if numbered or (wide and len(nodes) >= 0.9 * count) or parts > 0.25 * len(nodes):
        first, second = (table.names[column] for column in edges.ends)
        raise GraphError(
            f"{table.path}: edges from {first} to {second} would make {len(nodes):,} nodes in {parts:,} "
            f"components of {count:,} rows; name the columns of the ends (--source-column, --target-column): "
            f"{shortened(table.names, 12)}",
            code="edge-columns-ambiguous",
        )


def join_edges(
    tables: Sequence[EdgeTable], rows: Sequence[EdgeRows], nodes: NodeIndex, rules: EdgeRules
) -> Edges:
    """Apply the rules to each table; of several, each has a mean weight of 1."""
    parts, ends = [], []
    for table, block in zip(tables, rows, strict=True):
        index = np.stack([nodes.find(end) for end in block.ids])
        ends.append(index)
        part = apply_rules(index, block.weight, rules, table.table.path.name, table.table.place)
        parts.append(replace(part, repairs=[*table.repairs, *part.repairs]))
    columns = _distinct_names([one.columns for one in tables])
    if len(parts) == 1:
        return replace(parts[0], plan=EdgePlan(rules, columns), ends=(*ends,))
    weights = [np.ones(part.index.shape[1]) if part.weight is None else part.weight for part in parts]
    scales = [float(heavy.mean()) if heavy.size else 1.0 for heavy in weights]
    names = " and ".join(one.table.path.name for one in tables)
    message = f"the edges of {names} are one graph: each table's weights have a mean of 1, and are added"
    joined = Repair("edge-tables-joined", message, len(tables))
    scaled = tuple(replace(one, scale=scale) for one, scale in zip(columns, scales, strict=True))
    return Edges(
        np.concatenate([part.index for part in parts], axis=1),
        np.concatenate([heavy / scale for heavy, scale in zip(weights, scales, strict=True)]),
        joined_place([part.place for part in parts], [part.index.shape[1] for part in parts]),
        [*(repair for part in parts for repair in part.repairs), joined],
        EdgePlan(rules, scaled),
        (*ends,),
    )


def _distinct_names(columns: Sequence[EdgeColumns]) -> tuple[EdgeColumns, ...]:
    """Number the tables that have the name of an earlier one."""
    names = [one.table for one in columns]
    again = [names[:at].count(name) for at, name in enumerate(names)]
    return tuple(
        replace(one, table=f"{one.table}-{count + 1}") if count else one
        for one, count in zip(columns, again, strict=True)
    )


def apply_rules(
    index: Index, weight: Weights, rules: EdgeRules, name: str, place: Callable[[int], str]
) -> Edges:
    """Apply the rules to edges by position, -1 for unknown nodes; `name` and `place` are of the table."""
    repairs, rows = list[Repair](), np.arange(index.shape[1])
    keep = (index >= 0).all(axis=0)
    used = usable_rows(index, weight, rules)
    if count := int((~keep).sum()):
        message = f"{name}: {count:,} edge(s) of unknown nodes left out"
        repairs.append(Repair("edges-of-unknown-nodes", message, count))
    if weight is not None and rules.weights == "absolute":
        if negative := int((weight < 0).sum()):
            message = f"{name}: {negative:,} negative weight(s) replaced by their absolute value"
            repairs.append(Repair("absolute-weights", message, negative))
        weight = np.abs(weight)
    if count := int((keep & ~used).sum()):
        message = f"{name}: {count:,} edge(s) without a positive weight left out"
        repairs.append(Repair("weights-not-positive", message, count))
    index, rows, weight = index[:, used], rows[used], None if weight is None else weight[used]
    if rules.undirected:
        between = index[0] != index[1]  # a self-loop is its own opposite
        index = np.concatenate([index, index[::-1, between]], axis=1)
        weight = None if weight is None else np.concatenate([weight, weight[between]])
        rows = np.concatenate([rows, rows[between]])
    index, weight, first = _merge_repeated(index, weight, rules, name, repairs)
    rows = rows if first is None else rows[first]
    return Edges(index, weight, lambda at: place(int(rows[at])), repairs)


def usable_rows(index: Index, weight: Weights, rules: EdgeRules) -> npt.NDArray[np.bool_]:
    """Return which rows are edges: those between known nodes that the rule for weights does not leave out."""
    known = (index >= 0).all(axis=0)
    if weight is None or rules.weights == "error":
        return np.asarray(known)
    return known & valid_weights(np.abs(weight) if rules.weights == "absolute" else weight)


def _merge_repeated(
    index: Index, weight: Weights, rules: EdgeRules, name: str, repairs: list[Repair]
) -> tuple[Index, Weights, Index | None]:
    """Merge duplicate edges; return edges, weights, and the position of each (None if unchanged)."""
    pairs, first, group, count = np.unique(
        index, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    again, how = index.shape[1] - pairs.shape[1], rules.repeated
    if not again and how != "count":
        return index, weight, None
    if how == "error":
        row = int(first[count > 1].min()) + 1
        choices = "--repeated sum, count, mean, max, first or last"
        message = (
            f"{name}: {again:,} duplicate edge(s) (first at row {row}); choose how to merge them: {choices}"
        )
        raise GraphError(message, code="edges-duplicate")
    if how == "sum" or (weight is None and how != "count"):
        counted = "counted once; --repeated count weights them"
        merged_as = counted if weight is None else "merged, their weights are added"
        message = f"{name}: {again:,} duplicate edge(s) {merged_as}"
        repairs.append(Repair("repeated-edges", message, again))
        return (pairs, None, first) if weight is None else (index, weight, None)
    group = group.ravel()
    if how == "count" or weight is None:
        merged = count.astype(np.float64)
    elif how == "mean":
        merged = np.bincount(group, weights=weight) / count
    elif how == "max":
        merged = np.full(len(count), -np.inf)
        np.maximum.at(merged, group, weight)
    else:
        merged = weight[first]
        if how == "last":
            merged[group] = weight  # of several, the last is written last
    message = f"{name}: {again:,} repeated edge(s) merged, the weight is their {how}"
    repairs.append(Repair("repeated-edges", message, again))
    return pairs, merged, first


def unknown_ids(parts: Sequence[Ids], known: Ids) -> Ids:
    """Return the distinct ids that are not among the known ones, sorted."""
    wanted = one_kind(parts)
    return np.sort(np.asarray(pd.unique(wanted[NodeIndex(known).find(wanted) < 0])))
