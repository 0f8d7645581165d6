"""Link columns of graphs on disk: decoded a block of rows at a time, and summarized by DuckDB."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import InputError
from h3gnn.graphs import link_columns
from h3gnn.graphs.link_columns import LinkColumn, LinkPlan, LinkTable
from h3gnn.graphs.provenance import Repair
from h3gnn.graphs.scaling import BLOCK_ROWS
from h3gnn.ondisk.engine import Work
from h3gnn.ondisk.mapped import LINKS
from h3gnn.tables.edges import EdgeRows, EdgeTable
from h3gnn.tables.encoders import RARE_SHARE
from h3gnn.tables.leaks import Target
from h3gnn.tables.links import (
    MOST_SHARES,
    decode_column,
    infer_links,
    link_mode,
    unused_columns,
    without_leaks,
)
from h3gnn.tables.reader import LoadedTable

SUMMARIES = "links.part"
"""float64 `[link columns, nodes]` while a graph is prepared."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LinkSource:
    """What is known of the link columns of a table of edges before all of its rows are read."""

    edges: EdgeTable
    table: LinkTable | None  # None if no link columns are wanted
    wanted: str | bool | LinkPlan

    @property
    def columns(self) -> tuple[LinkColumn, ...]:
        """The columns that are summarized."""
        return () if self.table is None else self.table.used

    @property
    def positions(self) -> list[int]:
        """Their positions in the table of edges."""
        names = self.edges.table.unique_names(range(len(self.edges.table.names)))
        return [names.index(one.name) for one in self.columns]

    def arrays(self, block: LoadedTable) -> dict[str, Any]:
        """Return the values of a block as Arrow columns `v0`, `v1`, …: numbers, or words of categories."""
        import pyarrow as pa

        found = {}
        for number, (column, at) in enumerate(zip(self.columns, self.positions, strict=True)):
            kind = pa.string() if column.kind == "category" else pa.float64()
            weight = at in self.edges.weight
            values = block.column_numbers(at)[0] if weight else decode_column(column, block, at)
            found[f"v{number}"] = pa.array(values, kind, from_pandas=True)
        block.problems.check()
        return found

    @property
    def definitions(self) -> str:
        """Their columns in the table of edges of the database."""
        kinds = ["VARCHAR" if one.kind == "category" else "DOUBLE" for one in self.columns]
        return "".join(f", v{number} {kind}" for number, kind in enumerate(kinds))

    @property
    def selected(self) -> str:
        """Their names there."""
        return "".join(f", v{number}" for number in range(len(self.columns)))


def open_links(
    edges: EdgeTable, wanted: str | bool | LinkPlan, declared: Mapping[str, str]
) -> tuple[EdgeTable, LinkSource]:
    """Infer the columns of a table of edges from its first block of rows.

    A column that is the weight by its name alone and has negative values is a link column instead: the table
    is returned with its final roles.
    """
    names = {edges.table.names[at] for at in (*edges.weight, *edges.further)}
    if unknown := [name for name in declared if name not in names]:
        message = f"{edges.table.path} has no column {unknown[0]!r} besides the ends of the edges"
        raise InputError(message, code="column-missing")
    if link_mode(wanted) == "no":
        return edges, LinkSource(edges, None, wanted)
    if edges.weight and not edges.weight_given:
        at = edges.weight[0]
        columns = (block.column_numbers(at) for block in edges.table.load_blocks([at]))
        negative = sum(int((one < 0).sum()) for one, unreadable in columns if not unreadable.size)
        edges = edges.without_weight(negative) if negative else edges
    if isinstance(wanted, LinkPlan):
        if len(wanted.tables) > 1 or wanted.tables[0].directions != link_columns.DIRECTIONS:
            message = "a graph on disk is prepared from one directed table of edges, unlike the fitted graph"
            raise InputError(message, code="plan-differs")
        return edges, LinkSource(edges, wanted.tables[0], wanted)
    block = next(edges.table.load_blocks(range(len(edges.table.names))))
    weight = block.column_numbers(edges.weight[0])[0] if edges.weight else None
    found = infer_links(
        edges, EdgeRows([], weight, block), edges.columns.table, link_columns.DIRECTIONS, declared
    ).table
    return edges, LinkSource(edges, found, wanted)


def write_links(
    work: Work, source: LinkSource, nodes: int, duplicates: int, target: Target | None
) -> tuple[LinkPlan | None, list[Repair]]:
    """Summarize the edges in the database for each node; write the scaled columns, and return their plan."""
    table = source.table
    if table is None:
        return None, [*source.edges.unused()]
    fitted = source.wanted if isinstance(source.wanted, LinkPlan) else None
    table = table if fitted is not None else _with_categories(work, table)
    entries = [*table.entries]
    summaries = np.memmap(work.folder / SUMMARIES, np.float64, "w+", shape=(len(entries), nodes))
    _summarize(work, source, table, summaries)
    kept, chosen = list[Repair](), list(range(len(entries)))
    if fitted is None:
        table, chosen, kept = without_leaks(table, summaries.T, target)
    repairs = [*unused_columns(source.edges, table), *kept]
    wanted = bool(table.used or duplicates) or link_mode(source.wanted) == "yes"
    if wanted:
        plan = fitted or LinkPlan((table,), tuple(link_columns.fit_scale(summaries[at]) for at in chosen))
        with (work.folder / LINKS).open("wb") as file:
            for first in range(0, nodes, BLOCK_ROWS):
                block = np.asarray(summaries[chosen, first : first + BLOCK_ROWS]).T
                file.write(plan.encode(block).tobytes())
        message = f"{len(plan.names)} link columns describe the edges of each node"
        repairs.append(Repair("link-columns", message, len(plan.names)))
    del summaries
    (work.folder / SUMMARIES).unlink()
    return (plan, repairs) if wanted else (None, repairs)


def _with_categories(work: Work, table: LinkTable) -> LinkTable:
    """Return the table with the frequent values of its categories among all rows."""
    rows, found = work.run("SELECT count(*) FROM edges")[0][0], {}
    least = max(1, int(RARE_SHARE * rows))
    for number, column in enumerate(table.used):
        if column.kind == "category":
            query = f"SELECT v{number}, count(*) FROM edges WHERE v{number} IS NOT NULL GROUP BY ALL"
            counted = work.run(f"{query} HAVING count(*) >= {least} ORDER BY 2 DESC, 1 LIMIT {MOST_SHARES}")
            found[column.name] = replace(column, kept=tuple(word for word, _ in counted))
    return replace(table, columns=tuple(found.get(one.name, one) for one in table.columns))


def _summarize(work: Work, source: LinkSource, table: LinkTable, summaries: Floats) -> None:
    """Compute the summaries `[link columns, nodes]`, of the rows of each node in their order."""
    for at, (_, _, what) in enumerate(table.entries):
        summaries[at] = 0 if what in (*link_columns.COUNTS, "sum") else np.nan
    used = {one.name: one for one in table.used}
    numbered = [(one.name, f"v{at}") for at, one in enumerate(source.columns) if one.name in used]
    selected = "".join(f", {_value(used[name], value)}" for name, value in numbered)
    width = len(summaries) // len(table.directions)
    for number, direction in enumerate(table.directions):
        ends = "source, target" if direction == "out" else "target, source"
        rows = work.stream(f"SELECT {ends}{selected} FROM edges ORDER BY 1, row")
        for node, partner, *values in _whole_nodes(rows):
            found, own = np.unique(node, return_inverse=True)
            named = {name: column for (name, _), column in zip(numbered, values, strict=True)}
            made = table.summarize_one(own, partner, named, len(found))
            summaries[number * width : (number + 1) * width, found] = made.T


def _value(column: LinkColumn, value: str) -> str:
    """Return the SQL of a column's values: numbers, or codes of a category."""
    if column.kind != "category":
        return value
    words = [one.replace("'", "''") for one in column.kept]
    codes = "".join(f" WHEN {value} = '{one}' THEN {code}" for code, one in enumerate(words))
    return f"CASE WHEN {value} IS NULL THEN {link_columns.MISSING}{codes} ELSE {link_columns.OTHER} END"


def _whole_nodes(batches: Iterable[Any]) -> Iterator[list[npt.NDArray[Any]]]:
    """Yield the columns of batches sorted by node, with all rows of a node together."""
    held: list[npt.NDArray[Any]] = []
    for batch in batches:
        read = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
        columns = [np.concatenate(pair) for pair in zip(held, read, strict=True)] if held else read
        last = int(np.searchsorted(columns[0], columns[0][-1]))
        if last:
            yield [one[:last] for one in columns]
        held = [one[last:] for one in columns]
    if held:
        yield held
