"""Read the link columns of a graph: infer what the columns of edge tables hold, and decode their cells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from h3gnn.errors import GraphError, check_choice, shortened
from h3gnn.graphs import link_columns
from h3gnn.graphs.link_columns import LinkColumn, LinkColumns, LinkPlan, LinkTable
from h3gnn.graphs.provenance import EdgePlan, Repair
from h3gnn.tables.edges import EdgeRows, Edges, EdgeTable, Index, usable_rows
from h3gnn.tables.encoders import RARE_SHARE
from h3gnn.tables.infer import LEAK, Array, Cells, parse_types
from h3gnn.tables.leaks import Target, kept_leak, leak_reason, link_leaks
from h3gnn.tables.plan import infer_columns
from h3gnn.tables.reader import FEW_ROWS, LoadedTable
from h3gnn.tables.roles import words_in

MODES = ("auto", "yes", "no")
MOST_SHARES = 10
"""Values of a category whose shares are link columns."""
SAMPLE = 50_000
"""Evenly spaced rows from which the kinds of columns are inferred."""
CODES = r"^\s*0\d"
"""A cell that begins so may be a code written in digits."""
Values = dict[str, npt.NDArray[Any]]
Declared = Mapping[str, str]


@dataclass(frozen=True)
class LinkRows:
    """The columns of an edge table, and their values for all rows."""

    table: LinkTable
    values: Values


def link_mode(wanted: str | bool | LinkPlan) -> str:
    """Return `auto`, `yes` or `no`; the plan of a fitted graph is `yes`."""
    if isinstance(wanted, bool | LinkPlan):
        return "yes" if wanted else "no"
    check_choice("link_columns", wanted, MODES)
    return wanted


def read_link_columns(
    tables: Sequence[EdgeTable],
    rows: Sequence[EdgeRows],
    edges: Edges,
    nodes: int,
    *,
    declared: Declared,
    wanted: str | bool | LinkPlan,
    target: Target | None,
) -> tuple[LinkColumns | None, list[Repair]]:
    """Return the link columns of all nodes, and the repairs; None if they are not wanted.

    Args:
        tables, rows, edges: the tables, their rows, and the edges made of them.
        nodes: number of nodes.
        declared: the kinds of some columns.
        wanted: "auto" for tables with further columns or duplicate edges, or the plan of a fitted graph.
        target: what is to be predicted, if known; columns that contain it are left out, unless declared.
    """
    mode, rules = link_mode(wanted), edges.plan.rules
    if mode == "no":
        return None, [repair for table in tables for repair in table.unused()]
    used = [usable_rows(index, block.weight, rules) for index, block in zip(edges.ends, rows, strict=True)]
    ends = [index[:, keep] for index, keep in zip(edges.ends, used, strict=True)]
    if isinstance(wanted, LinkPlan):
        plan, loaded = wanted, [block.loaded for block in rows]
        check_tables(plan, edges.plan)
        paths = [str(one.table.path) for one in tables]
        read = [read_again(*one) for one in zip(plan.tables, loaded, paths, strict=True)]
    else:
        names = [one.table for one in edges.plan.tables]
        directions = link_columns.BOTH if rules.undirected else link_columns.DIRECTIONS
        found = zip(tables, rows, names, strict=True)
        read = [infer_links(table, block, name, directions, declared) for table, block, name in found]
    read = [
        LinkRows(one.table, {name: part[keep] for name, part in one.values.items()})
        for one, keep in zip(read, used, strict=True)
    ]
    summaries = [one.table.summarize(index, one.values, nodes) for one, index in zip(read, ends, strict=True)]
    if isinstance(wanted, LinkPlan):
        known = [{column.name for column in one.columns} for one in wanted.tables]
        unused = [one.unused(names) for one, names in zip(tables, known, strict=True)]
        values = wanted.encode(np.concatenate(summaries, axis=1))
        return LinkColumns(values, wanted), [repair for one in unused for repair in one]
    parts, kept = list[LinkTable](), list[Repair]()
    for at, one in enumerate(read):
        part, chosen, declared_leaks = without_leaks(one.table, summaries[at], target)
        parts, kept, summaries[at] = [*parts, part], kept + declared_leaks, summaries[at][:, chosen]
    repairs = [one for table, part in zip(tables, parts, strict=True) for one in unused_columns(table, part)]
    if mode == "auto" and not any(part.used for part in parts) and not any(map(has_duplicates, ends)):
        return None, repairs
    columns = LinkColumns.fit(parts, summaries)
    message = f"{len(columns.names)} link columns describe the edges of each node (h3gnn inspect shows them)"
    return columns, [*repairs, *kept, Repair("link-columns", message, len(columns.names))]


def has_duplicates(ends: Index) -> bool:
    """Whether two rows have the same source and the same target."""
    size = int(ends.max(initial=0)) + 1
    return bool(len(np.unique(ends[0] * size + ends[1])) < ends.shape[1])


def infer_links(
    edges: EdgeTable, rows: EdgeRows, name: str, directions: tuple[str, ...], declared: Declared
) -> LinkRows:
    """Infer what each further column of an edge table holds, and decode those that are used."""
    loaded, at_of = rows.loaded, _positions(edges)
    assert loaded is not None
    columns, values = list[LinkColumn](), Values()
    weight = [one for one, at in at_of.items() if at in edges.weight]
    for one in weight:
        assert rows.weight is not None
        columns.append(_weight_column(one, rows.weight))
        values[one] = rows.weight
    count = len(loaded.columns[edges.ends[0]])
    chosen = np.linspace(0, count - 1, min(count, SAMPLE)).astype(np.int64)
    frame = pd.DataFrame({one: _sample(loaded, at, chosen) for one, at in at_of.items() if one not in weight})
    own = parse_types({one: kind for one, kind in declared.items() if one in frame})

    def place(row: int, name: str) -> str:
        return loaded.place(int(chosen[row]), at_of[name])

    inferred = infer_columns(frame, own, place, loaded.problems)
    loaded.problems.check()
    for one, (found, _) in inferred.items():
        column = LinkColumn(one, found.kind, found.form, found.reason, found.declared)
        if found.kind in link_columns.SUMMARIES:
            read = decode_column(column, loaded, at_of[one])
            column = _checked(column, read)
            values |= {one: _coded(column, read)} if column.summaries else {}
        columns.append(column)
    loaded.problems.check()
    return LinkRows(LinkTable(name, directions, tuple(columns)), values)


def _weight_column(name: str, weight: Array) -> LinkColumn:
    constant = len(weight) > 1 and bool((weight == weight[0]).all())
    kind = "constant" if constant else "number"
    return LinkColumn(name, kind, "" if constant else "plain", "the weights of the edges")


def _positions(edges: EdgeTable) -> dict[str, int]:
    """Return the position of each column that is no end, by its name."""
    chosen = sorted((*edges.weight, *edges.further))
    return dict(zip(edges.table.unique_names(chosen), chosen, strict=True))


def _sample(loaded: LoadedTable, at: int, rows: Index) -> Any:
    """Return some rows of a column as a Series; of a text file, plain numbers as numbers."""
    numbers = _plain_numbers(loaded, at) if "date" not in words_in(loaded.table.names[at]) else None
    if numbers is not None:
        return pd.Series(numbers[rows])
    return replace(loaded, columns={at: loaded.columns[at].take(rows)}).frame([at]).iloc[:, 0]


def _plain_numbers(loaded: LoadedTable, at: int) -> Array | None:
    """Return the numbers of a column of a text file, NaN for empty cells; None if it holds other cells."""
    column = loaded.columns[at]
    if loaded.table.delimiter is None or pc.any(pc.match_substring_regex(column, CODES)).as_py():
        return None
    empty = pc.equal(pc.utf8_trim_whitespace(column), "")
    numbers = replace(loaded, columns={at: pc.if_else(empty, "0", column)}).numbers([at])
    return None if numbers is None else np.where(empty.to_numpy(), np.nan, numbers[:, 0])


def _checked(column: LinkColumn, values: Array) -> LinkColumn:
    """Return a column with its frequent values; one whose values have no useful summary is left out."""
    if column.kind == "category":
        counts = Counter(one for one in values if one is not None)
        least = max(1, int(RARE_SHARE * len(values)))
        ordered = sorted(counts, key=lambda one: (-counts[one], one))[:MOST_SHARES]
        return replace(column, kept=tuple(one for one in ordered if counts[one] >= least))
    if np.isnan(values).all():
        return replace(column, kind="constant", reason=f"no cell is a {column.kind}")
    if column.kind == "number" and not column.declared and _counts_rows(values):
        return replace(column, kind="identifier", reason="it counts the rows")
    return column


def _counts_rows(values: Array) -> bool:
    """Whether numbers are consecutive integers, each of which occurs once."""
    if len(values) < FEW_ROWS or np.isnan(values).any() or np.ptp(values) != len(values) - 1:
        return False
    return bool(len(np.unique(values)) == len(values) and (values == np.floor(values)).all())


def _coded(column: LinkColumn, values: Array) -> Array:
    """Return numbers unchanged, and words of a category as codes."""
    if column.kind != "category":
        return values
    rows, words = pd.factorize(values)
    codes = {one: code for code, one in enumerate(column.kept)}
    return np.array(
        [*(codes.get(one, link_columns.OTHER) for one in words), link_columns.MISSING], dtype=np.int64
    )[rows]


def decode_column(column: LinkColumn, loaded: LoadedTable, at: int) -> Array:
    """Return numbers, days or words of all rows; cells that cannot be read become problems."""
    if column.kind == "number" and column.form in ("", "plain"):
        numbers = _plain_numbers(loaded, at)
        if numbers is not None:
            return numbers
    cells, rows = loaded.columns[at], None
    if pa.types.is_string(cells.type) or pa.types.is_large_string(cells.type):  # each text is decoded once
        encoded = pa.chunked_array([cells.combine_chunks().dictionary_encode()])
        rows = encoded.chunk(0).indices.fill_null(-1).to_numpy()
        cells = pa.chunked_array([pa.concat_arrays([encoded.chunk(0).dictionary, pa.nulls(1, cells.type)])])
    found = Cells(replace(loaded, columns={at: cells}).frame([at]).iloc[:, 0])
    values, unreadable = found.decode(column.kind, column.form)
    if rows is not None:
        values, unreadable = values[rows], np.flatnonzero(np.isin(rows, unreadable))
    for row in unreadable.tolist() if not column.declared else ():
        what = f"{str(loaded.columns[at][row]).strip()!r} is not a {column.kind}"
        loaded.add(row, at, what, "correct the cell", "cell-unreadable")
    return values


def read_again(table: LinkTable, loaded: LoadedTable | None, place: str = "the table") -> LinkRows:
    """Decode the columns of a further table, found by name, as those of the fitted one; None has none."""
    values, names = Values(), list[str]()
    if loaded is not None:
        names = loaded.table.unique_names(range(len(loaded.table.names)))
    for column in table.used:
        if loaded is None or column.name not in names:
            message = f"{place} has no column {column.name!r}, which the model was fitted with"
            raise GraphError(f"{message}; there are {shortened(names, 12) or 'none'}", code="column-missing")
        values[column.name] = _coded(column, decode_column(column, loaded, names.index(column.name)))
        loaded.problems.check()
    return LinkRows(table, values)


def check_tables(plan: LinkPlan, edges: EdgePlan) -> None:
    """Reject another number of edge tables than those of the fit."""
    if len(plan.tables) != len(edges.tables):
        wanted = ", ".join(one.table for one in plan.tables)
        message = f"the model was fitted with the tables of edges {wanted}: give as many, in this order"
        raise GraphError(message, code="plan-differs")


def without_leaks(
    table: LinkTable, summaries: Any, target: Target | None
) -> tuple[LinkTable, list[int], list[Repair]]:
    """Return a table without the columns that contain the class, unless declared; and its link columns.

    The link columns are given as positions among the previous ones. Repairs name the columns that stay.
    """
    leaks = {} if target is None else link_leaks(table, summaries, target)
    out = {one.name for one in table.used if one.name in leaks and not one.declared}
    chosen = [at for at, (_, one, _) in enumerate(table.entries) if one is None or one.name not in out]
    marked = [
        replace(one, kind=LEAK, form="", kept=(), reason=leak_reason(one.name, one.kind, leaks[one.name]))
        if one.name in out
        else one
        for one in table.columns
    ]
    kept = [kept_leak(name, why) for name, why in leaks.items() if name not in out]
    return replace(table, columns=tuple(marked)), chosen, kept


def unused_columns(edges: EdgeTable, table: LinkTable) -> list[Repair]:
    """Return the repairs that name the columns that are left out, and why."""
    weights = {edges.table.names[at] for at in edges.weight}
    out = [one for one in table.columns if not one.summaries and one.name not in weights]
    repairs = []
    if others := [one for one in out if one.kind != LEAK]:
        listed = shortened((f"{one.name} ({one.kind}: {one.reason})" for one in others), 8)
        fields = tuple(one.name for one in others)
        message = f"{edges.table.path.name}: not used: {listed}"
        repairs.append(Repair("edge-columns-unused", message, fields=fields, warn=True))
    for one in out:
        if one.kind == LEAK:
            message = f"the column {one.name} of {edges.table.path.name} is left out, since it {one.reason}"
            repairs.append(Repair("label-leak", message, fields=(one.name,), warn=True))
    return repairs


def names_of_edges(tables: Sequence[EdgeTable]) -> Collection[str]:
    """Return the names of the columns whose kinds can be declared for link columns."""
    return {name for one in tables for name in _positions(one)}
