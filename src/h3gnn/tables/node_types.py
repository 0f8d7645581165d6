"""Types of nodes that follow from columns of edges: `userId` and `movieId` name different things.

Where such columns share ids, the user is asked: user 1 and film 1 are one node or two. As two types, their
ids become `user:1` and `movie:1`, in tables of features and labels, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.graph import GraphLike
from h3gnn.graphs.ids import NodeIndex, as_text, quoted
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.reader import LoadedTable
from h3gnn.tables.roles import END_WORDS, words_in

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
