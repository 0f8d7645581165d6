"""Read a table of edges, and apply the rules for unknown nodes, invalid weights and duplicate edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError, check_choice
from h3gnn.graphs.checks import valid_weights
from h3gnn.graphs.ids import NodeIndex, as_text, is_plain, one_kind, quoted, words_in
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.files import Problems
from h3gnn.tables.infer import is_missing_word, is_number
from h3gnn.tables.reader import Table, open_table
from h3gnn.tables.roles import FEW_ROWS, ROW_WORDS, WEIGHT_NAMES, Column, infer_ends, pick_column

UNKNOWN = ("error", "drop", "add")
WEIGHTS = ("error", "drop", "absolute")
REPEATED = ("sum", "count", "mean", "max", "first", "last", "error")
FIX_UNKNOWN = "give it a row, or remove it (--unknown-nodes drop, or add, if the command has it)"
FIX_COLUMN = "correct the cell, or name another column (--weight-column)"
FIX_WEIGHT = "--weights drop leaves such edges out, absolute uses absolute values"


@dataclass(frozen=True)
class EdgeRules:
    """How invalid and duplicate edges are handled.

    Attributes:
        unknown_nodes: an edge or label of a node without features is an "error", is left out ("drop"), or
            its node is added, with all features missing ("add").
        weights: a negative, zero or missing weight is an "error", the edge is left out ("drop"), or its
            absolute value is used ("absolute"; edges with zero and missing ones are then left out).
        repeated: duplicate edges become one with the "sum" of their weights (without weights it is one
            edge), their "count", "mean", "max", the "first" or "last" in the file, or are an "error".
    """

    unknown_nodes: str = "error"
    weights: str = "error"
    repeated: str = "sum"

    def __post_init__(self) -> None:
        check_choice("unknown_nodes", self.unknown_nodes, UNKNOWN)
        check_choice("weights", self.weights, WEIGHTS)
        check_choice("repeated", self.repeated, REPEATED)


@dataclass(frozen=True)
class EdgeTable:
    """A table of edges and the roles of its columns."""

    table: Table
    ends: tuple[int, int]
    weight: tuple[int, ...]  # the column of the weights, or none
    repairs: tuple[Repair, ...]  # unused columns, and the assumed direction
    guessed: bool = False  # whether the ends follow from the order of the columns alone


def open_edges(
    path: str | Path,
    source: Column | None,
    target: Column | None,
    weight: Column | None,
    style: dict[str, Any],
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
    if unused:
        message = f"{table.path.name}: not used: {', '.join(unused[:8])}"
        repairs.append(Repair("edge-columns-unused", message, fields=tuple(unused)))
    weights = () if heavy is None else (heavy,)
    return EdgeTable(table, (start, end), weights, tuple(repairs), not named)


@dataclass(frozen=True)
class EdgeRows:
    """The ids of sources and targets, int64 or text, and the weights, NaN where missing."""

    ids: list[npt.NDArray[Any]]
    weight: npt.NDArray[np.float64] | None


def read_rows(
    edges: EdgeTable, known: npt.NDArray[Any] | None, known_by: Path | None, rules: EdgeRules
) -> EdgeRows:
    """Read all edges, or raise with all their problems; `known` are the nodes, if others are an error."""
    table = edges.table
    try:
        loaded = table.load((*edges.ends, *edges.weight))
        ids = [loaded.ids(at) for at in edges.ends]
        weight = loaded.weights(edges.weight[0]) if edges.weight else np.ones(1)
    except GraphError as error:
        report_problems(edges, known, known_by, rules)
        raise error from None
    if weight is None:
        report_problems(edges, known, known_by, rules)
        message = f"{table.path}{table.title(edges.weight[0])}: not a column of numbers"
        raise GraphError(message, code="column-not-numeric")
    ids = ids if ids[0].dtype == ids[1].dtype else [as_text(one) for one in ids]
    if edges.guessed:
        _check_guess(edges, ids)
    unknown = known is not None and any((NodeIndex(known).find(end) < 0).any() for end in ids)
    if unknown or (rules.weights == "error" and not valid_weights(weight).all()):
        report_problems(edges, known, known_by, rules)
    return EdgeRows(ids, weight if edges.weight else None)


def report_problems(
    edges: EdgeTable, known: npt.NDArray[Any] | None, known_by: Path | None, rules: EdgeRules
) -> None:
    """Walk the file row by row, and raise with all its problems; return if there is none."""
    table = edges.table
    names = None if known is None else {*as_text(known).tolist()}

    def check(problems: Problems, row: int, place: str, cells: list[str]) -> None:
        for cell in cells[:2]:
            if cell and names is not None and cell not in names:
                hint = "if this row is a header, say so (--header); " if not (row or table.header) else ""
                name = cell if is_plain(cell) else quoted(cell)
                what = f"node {name} is unknown; it is not in {known_by}"
                problems.add(place, what, hint + FIX_UNKNOWN, "node-unknown")
        for column, cell in zip(edges.weight, cells[2:], strict=True):
            value = np.array([float(cell) if is_number(cell) else np.nan])
            if not is_missing_word(cell) and not is_number(cell):
                what = f"{cell!r} is not a number"
                problems.add(place + table.title(column), what, FIX_COLUMN, "cell-unreadable")
            elif rules.weights == "error" and not valid_weights(value).all():
                what = f"the edge weight {value[0]:g} is not a positive number"
                problems.add(place, what, FIX_WEIGHT, "edge-weight-not-positive")

    table.find_problems(edges.ends, edges.weight, check).check()


def _check_guess(edges: EdgeTable, ids: list[npt.NDArray[Any]]) -> None:
    """Ask if the first two columns are probably not the ends: row numbers, or scattered pairs."""
    import pandas as pd
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
            f"components of {count:,} rows; say which columns hold the ends (--source, --target): "
            f"{', '.join(table.names[:12])}",
            code="edge-columns-ambiguous",
        )


def apply_rules(
    edge_index: npt.NDArray[np.int64], weight: npt.NDArray[np.float64] | None, rules: EdgeRules, name: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64] | None, npt.NDArray[np.int64], list[Repair]]:
    """Apply the rules to edges by position, -1 for unknown nodes; return edges, weights, rows and repairs."""
    rows, repairs = np.arange(edge_index.shape[1]), list[Repair]()
    strange = (edge_index < 0).any(axis=0)
    if count := int(strange.sum()):
        message = f"{name}: {count:,} edge(s) of unknown nodes left out"
        repairs.append(Repair("edges-of-unknown-nodes", message, count))
    keep = ~strange
    if weight is not None:
        if rules.weights == "absolute":
            if negative := int((weight < 0).sum()):
                message = f"{name}: {negative:,} negative weight(s) replaced by their absolute value"
                repairs.append(Repair("absolute-weights", message, negative))
            weight = np.abs(weight)
        bad = keep & ~valid_weights(weight)
        if (count := int(bad.sum())) and rules.weights != "error":
            message = f"{name}: {count:,} edge(s) without a positive weight left out"
            repairs.append(Repair("weights-not-positive", message, count))
            keep = keep & ~bad
        weight = weight[keep]
    return edge_index[:, keep], weight, rows[keep], repairs


def merge_repeated(
    edge_index: npt.NDArray[np.int64], weight: npt.NDArray[np.float64] | None, rules: EdgeRules, name: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64] | None, npt.NDArray[np.int64] | None, list[Repair]]:
    """Merge duplicate edges; return edges, weights, the row of each (None if unchanged) and repairs."""
    pairs, first, group, count = np.unique(
        edge_index, axis=1, return_index=True, return_inverse=True, return_counts=True
    )
    again = edge_index.shape[1] - pairs.shape[1]
    if not again and rules.repeated != "count":
        return edge_index, weight, None, []
    if rules.repeated == "error":
        row = int(first[count > 1].min()) + 1
        raise GraphError(
            f"{name}: {again:,} duplicate edge(s) (first at row {row}); choose how to merge them with "
            "--repeated sum, count, mean, max, first or last",
            code="edges-duplicate",
        )
    if rules.repeated == "sum" or (weight is None and rules.repeated != "count"):
        how = (
            "are counted once; --repeated count weights them"
            if weight is None
            else "have their weights added"
        )
        return edge_index, weight, None, [Repair("repeated-edges", f"{name}: repeated edges {how}", again)]
    group = group.ravel()
    if rules.repeated == "count" or weight is None:
        merged = count.astype(np.float64)
    elif rules.repeated == "mean":
        merged = np.bincount(group, weights=weight) / count
    elif rules.repeated == "max":
        merged = np.full(len(count), -np.inf)
        np.maximum.at(merged, group, weight)
    else:
        at = first if rules.repeated == "first" else _last(group, len(count))
        merged = weight[at]
    message = f"{name}: {again:,} repeated edge(s) merged, the weight is their {rules.repeated}"
    return pairs, merged, first, [Repair("repeated-edges", message, again)]


def _last(group: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    last = np.zeros(count, dtype=np.int64)
    last[group] = np.arange(len(group))  # of several, the last is written last
    return last


def unknown_ids(parts: Sequence[npt.NDArray[Any]], known: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the distinct ids that are not among the known ones, sorted."""
    import pandas as pd

    wanted = one_kind(parts)
    return np.sort(np.asarray(pd.unique(wanted[NodeIndex(known).find(wanted) < 0])))
