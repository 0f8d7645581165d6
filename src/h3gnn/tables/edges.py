"""Tables of edges: their ends and the types of these, and the rules for unknown, invalid and duplicate edges.

Columns such as `userId` and `movieId` name different things. Where they share ids, the user is asked: user 1
and film 1 are one node or two. As two types, their ids become `user:1` and `movie:1`, in tables of features
and labels, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.errors import GraphError, shortened
from h3gnn.graphs.checks import valid_weights
from h3gnn.graphs.graph import GraphLike
from h3gnn.graphs.ids import NodeIndex, as_text, one_kind, quoted
from h3gnn.graphs.provenance import EdgeColumns, EdgePlan, EdgeRules, Repair
from h3gnn.tables.reader import FEW_ROWS, LoadedTable, Table, joined_place, open_table
from h3gnn.tables.roles import END_WORDS, ROW_WORDS, WEIGHT_NAMES, Column, infer_ends, pick_column, words_in

Ids = npt.NDArray[Any]
Types = tuple[npt.NDArray[np.int16] | None, tuple[str, ...]]
"""The type of each node, -1 where unknown, or None; and the names of the types."""
NO_TYPE = {
    *("id", "ids", "key", "no", "nr", "num", "number", "code", "uuid", "guid", "index", "idx", "name"),
    *("node", "nodes", "vertex", "edge", "column", "col", "row", "entity", "subject", "object", "ego"),
    *("alter", "friend", "neighbor", "neighbour", "reference", "cites", "cite", "followed", "follows"),
    *("manager", "boss", "supervisor", "reports", "reply", "mentor", "winner", "loser", "lender"),
    *("borrower", "referrer", "referred", "home", "away", "with", "by", "of", "the", "new", "old"),
    *("what", "who", "whom", "this", "that", "here", "there", "other", "thing", "partner", "spouse"),
    *("husband", "wife", "colleague", "coauthor", "teammate", "opponent", "rival", "peer", "twin"),
    *("contact", *END_WORDS),
    *(word for words in END_WORDS.values() for word in words),
}
"""Words in the names of columns that name no type: ids, and roles that nodes of one type have."""


def types_in_ids(graph: GraphLike) -> tuple[str, ...]:
    """Return the types of a graph whose ids name them, such as `user:1`; else nothing."""
    plan = graph.edge_plan
    return graph.type_names if plan is not None and plan.rules.bipartite else ()


def type_name(column: str) -> str:
    """Return what a column of ids names, "" if nothing: `userId`, `user_id` -> user; `source_id` -> ""."""
    words = [re.sub(r"\d+$", "", word) for word in words_in(column)]
    return "_".join(word for word in words if len(word) > 1 and word not in NO_TYPE)


def types_of_ends(columns: Sequence[str]) -> tuple[str, str]:
    """Return the types of source and target: two, one twice, or "" for a type that no column names."""
    first, second = (type_name(column) for column in columns)
    shared = {*first.split("_")} & {*second.split("_")}
    if first and second and not shared and first not in second and second not in first:
        return first, second
    return (first or second,) * 2


def declared_types(columns: Sequence[str]) -> tuple[str, str]:
    """Return the types of ends that are declared to be two; without better names, source and target."""
    types = types_of_ends(columns)
    return types if types[0] else ("source", "target")


def type_names(ends: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the types that the columns of all tables of edges have, if the user declares two."""
    return tuple(dict.fromkeys(one for columns in ends for one in declared_types(columns)))


def ids_of_ends(ids: list[Ids], columns: Sequence[str], file: str, *, bipartite: bool | None) -> list[Ids]:
    """Return the ids of both ends, with their types if they are to be two; ask where that is unclear."""
    if bipartite:
        return [with_type(end, one) for end, one in zip(ids, declared_types(columns), strict=True)]
    types = types_of_ends(columns)
    if bipartite is None and types[0] != types[1]:
        first, second = (np.unique(one) for one in ids)
        both = np.intersect1d(first, second)
        if both.size:
            raise GraphError(
                f"{file}: {columns[0]} and {columns[1]} name different things, and {both.size:,} ids occur "
                f"in both, such as {quoted(both[0])}. If these are different nodes, read them as two types, "
                f"{types[0]}:{both[0]} and {types[1]}:{both[0]} (--two-types, in Python "
                "read_graph(bipartite=True)); if both columns hold the same nodes, say so (--one-type, "
                "bipartite=False)",
                code="node-types-ambiguous",
            )
    return ids


def check_one_type(columns: Sequence[str], path: Path, shared: int, *, bipartite: bool | None) -> None:
    """Reject two types of nodes that share ids in tables of a graph on disk, where ids are not rewritten."""
    first, second = types_of_ends(columns)
    if not bipartite and (bipartite is False or not shared or first == second):
        return
    what = f"{shared:,} ids occur in both" if shared else "a graph on disk keeps ids as they are"
    raise GraphError(
        f"{path}: {columns[0]} and {columns[1]}: {what}; if these are different nodes, give them different "
        f"ids in the tables, such as {first or 'source'}:1 and {second or 'target'}:1; if both columns "
        "hold the same nodes, say so (--one-type, bipartite=False)",
        code="node-types-ambiguous",
    )


def with_type(ids: Ids, name: str) -> Ids:
    """Return ids such as `user:1`; those that are written so, and missing ones, stay."""
    texts = as_text(ids)
    start, found = f"{name}:", np.empty(texts.size, dtype=object)
    found[:] = [one if not one or one.startswith(start) else start + one for one in texts.tolist()]
    return found


def ids_of_table(loaded: LoadedTable, key: int, types: Sequence[str]) -> Ids:
    """Return the ids of features or labels with their type, which the id column or the file names.

    Ids that are all written as `user:1` name it themselves. Without `types` the ids stay.
    """
    ids, names, table = loaded.ids(key), loaded.table.names, loaded.table.path
    if not types:
        return ids
    column = names[key] if key < len(names) else "index"  # of a data frame
    for name in (type_name(column), type_name(table.stem)):
        for one in types:
            if {one, f"{one}s", re.sub("y$", "ies", one)} & {name, *name.split("_")}:
                return with_type(ids, one)
    texts = as_text(ids)
    if all(one.partition(":")[0] in types for one in texts.tolist() if one):
        return texts
    raise GraphError(
        f"{table}: nodes are of the types {' and '.join(types)}, and neither the column {column!r} nor the "
        f"name of the table says of which these are; call the column {types[0]}_id, say, or write the ids as "
        f"{types[0]}:1",
        code="node-type-unknown",
    )


def types_of_nodes(
    nodes: Ids, ends: Iterable[tuple[Sequence[str], list[Ids]]], *, bipartite: bool | None
) -> Types:
    """Return the types of nodes that the columns of all tables of edges name, if they name two or more.

    Args:
        nodes: the ids of all nodes.
        ends: for each table the names of the two columns, and the ids in them.
        bipartite: what the user declared; if nothing, the ids of two types share no node.
    """
    listed = list(ends)
    pairs = [(declared_types if bipartite else types_of_ends)(columns) for columns, _ in listed]
    names = tuple(dict.fromkeys(one for pair in pairs for one in pair if one))
    if bipartite:
        return types_by_ids(nodes, names), names
    if bipartite is False or all(first == second for first, second in pairs):
        return None, ()
    index, types = NodeIndex(nodes), np.full(len(nodes), -1, dtype=np.int16)
    for pair, (_, ids) in zip(pairs, listed, strict=True):
        for name, end in zip(pair, ids, strict=True):
            found = index.find(end)
            found = found[found >= 0]
            if (
                name
                and bool((types[found] >= 0).any())
                and {*types[found].tolist()} - {-1, names.index(name)}
            ):
                return None, ()  # one node has two types in different tables
            types[found] = names.index(name) if name else types[found]
    return types, names


def types_by_ids(nodes: Ids, names: Sequence[str]) -> npt.NDArray[np.int16]:
    """Return the types that ids such as `user:1` name, -1 for others."""
    code = {name: at for at, name in enumerate(names)}
    found = [code.get(one.partition(":")[0], -1) for one in as_text(nodes).tolist()]
    return np.array(found, dtype=np.int16)


def types_repair(types: npt.NDArray[np.int16], names: Sequence[str]) -> Repair:
    """Return the repair that counts the nodes of each type."""
    counts = [int((types == at).sum()) for at in range(len(names))]
    listed = ", ".join(f"{count:,} {name}" for count, name in zip(counts, names, strict=True))
    message = f"the columns of the edges name {len(names)} types of nodes: {listed} (--one-type: one type)"
    return Repair("node-types", message, len(names), tuple(names))


FIX_COLUMN = "correct the cell, or name another column (--weight-column)"
FIX_WEIGHT = "--weights drop leaves such edges out, absolute uses absolute values"

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
