"""Column roles by name: node ids, ends and weights of edges, classes and splits."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from h3gnn.errors import GraphError, InputError, shortened

if TYPE_CHECKING:
    from h3gnn.tables.reader import Table

SOURCE_NAMES = ("source", "src", "from", "source_id", "from_id", "u", "node1", "node_1", "head")
TARGET_NAMES = ("target", "dst", "to", "target_id", "to_id", "v", "node2", "node_2", "tail")
WEIGHT_NAMES = ("weight", "weights", "edge_weight", "w")
INDEX_NAMES = ("index", "level_0", "__index_level_0__", "unnamed: 0")  # an unnamed index of pandas
NODE_NAMES = ("id", "node", "node_id", "nodeid")
ID_NAMES = (*NODE_NAMES, "name", *INDEX_NAMES)
CLASS_NAMES = ("label", "labels", "class", "y", "target", "is_fraud")
SPLIT_PREFIX = "split"
END_WORDS = {
    **{"from": ("to",), "source": ("target", "destination", "dest"), "src": ("dst", "dest", "tgt")},
    **{"sender": ("receiver", "recipient"), "payer": ("payee",), "origin": ("destination", "dest")},
    **{"orig": ("dest",), "caller": ("callee",), "follower": ("followee", "followed"), "citing": ("cited",)},
    **{"head": ("tail",), "start": ("end",), "parent": ("child",), "buyer": ("seller",)},
    **{"debtor": ("creditor",), "left": ("right",), "first": ("second",), "1": ("2",), "a": ("b",)},
}
"""Words in the name of a source, and those in the name of the corresponding target."""

SURE_ENDS = frozenset(END_WORDS) - {"1", "a", "left", "first", "start", "head"}
"""Words that identify a header; the others could name a node."""

NO_ENDS = {
    *("date", "time", "timestamp", "day", "month", "year", "at", "amount", "balance", "currency", "country"),
    *("city", "lat", "lon", "type", "x", "y"),
}
"""Words with which `from_date` and `to_date` are not the ends of an edge."""

ROW_WORDS = {
    *("tx", "txn", "transaction", "transfer", "payment", "edge", "row", "event", "record", "message"),
    *("order", "line"),
}
"""Words in the id of a row, which is not a node."""

CODE_WORDS = frozenset({"code", "codes", "zip", "zipcode", "postcode", "plz", "phone", "telephone", "fax"})
NUMBERED = {"phone", "telephone", "fax", "account", "card", "serial", "birth", "passport", "licence"}
"""Words whose number is a code."""

Column = str | int  # A column by name, or by position counted from 1
Position = TypeVar("Position", bound=int | None)


def words_in(name: str) -> list[str]:
    """Return the words of a column name in lower case: `fromAccount`, `from_account` -> from, account."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", str(name))
    return [word.lower() for word in re.split(r"[\W_]+", apart) if word]


def is_id_name(name: str) -> bool:
    """Whether a column name denotes ids: id, account_id, accountId, uuid."""
    return bool({*words_in(name)[-1:]} & {"id", "ids", "uuid", "guid", "key"})


def is_code_name(name: str) -> bool:
    """Whether a column name denotes codes, even if they have digits only: zip, postal_code, phone_number."""
    *others, last = ["", *words_in(name)]
    return last in CODE_WORDS or (last in ("number", "no", "nr") and others[-1:][0] in NUMBERED)


def is_class_name(name: str, names: Sequence[str] = ()) -> bool:
    """Whether a column has a usual name of the class; y beside x is a coordinate."""
    lowered = str(name).lower()
    return lowered in CLASS_NAMES and not (lowered == "y" and "x" in [str(one).lower() for one in names])


def is_question(name: str) -> bool:
    """Whether a name asks for yes or no: is_fraud, hasChildren."""
    return words_in(name)[:1] in (["is"], ["has"])


def is_no_feature(name: str, names: Sequence[str]) -> bool:
    """Whether a column has the name of ids, codes or classes, which are no measurements."""
    return is_id_name(name) or is_code_name(name) or name.lower() in INDEX_NAMES or is_class_name(name, names)


def _first(names: Sequence[str], usual: Sequence[str]) -> int | None:
    """Return the position of the first usual name that occurs among the names."""
    lowered = [name.lower() for name in names]
    return next((lowered.index(name) for name in usual if name in lowered), None)


def pick_column(
    table: Table, wanted: Column | None, what: str, *, known: Sequence[str] = (), default: Position
) -> int | Position:
    """Return the position of a column; without `wanted` the first of the `known` names, else the default."""
    names, path = table.names, table.path
    if wanted is None:
        found = _first(names, known)
        return default if found is None else found
    if isinstance(wanted, str) and wanted in names:
        if names.count(wanted) > 1:
            message = f"{path}: several columns are called {wanted!r}; give the position instead"
            raise InputError(message, code="column-ambiguous")
        return names.index(wanted)
    if not str(wanted).isdecimal():
        message = f"{path}: there is no column {wanted!r} for the {what}; there are {shortened(names, 12)}"
    elif 1 <= int(wanted) <= len(names):
        return int(wanted) - 1
    else:
        message = f"{path}: there is no column {wanted} for the {what}; the file has {len(names)}"
    raise InputError(message, code="column-missing")


def pick_id_column(table: Table, wanted: Column | None, is_unique: Callable[[int], bool]) -> int:
    """Return the column of the node ids: the given one, else a usual name, `…_id`, an index, column 1.

    Of several candidates, it is the first in which every row has another value.
    """
    names = table.names
    usual = pick_column(table, wanted, "node ids", known=NODE_NAMES, default=None)
    if table.rows_named is not None and wanted is None:
        return _pick_frame_ids(table, usual, is_unique)
    if usual is not None:
        return usual
    lowered = [name.lower() for name in names]
    likely = [column for column, name in enumerate(names) if is_id_name(name)]
    likely += [lowered.index("name")] if "name" in lowered else []
    pandas_index = [lowered.index(name) for name in INDEX_NAMES if name in lowered]
    first = [0] if 0 not in pandas_index else []
    candidates = list(dict.fromkeys([*(likely or pandas_index), *first])) or [0]
    return next((column for column in candidates[:-1] if is_unique(column)), candidates[-1])


def _pick_frame_ids(table: Table, usual: int | None, is_unique: Callable[[int], bool]) -> int:
    """Return the column of the ids of a data frame: a usual name, another `…_id`, or its index."""
    index = len(table.names)
    if table.rows_named and usual is not None:
        message = (
            f"{table.path}: both the index and the column {table.names[usual]!r} may hold the node ids; make "
            "the column the index (set_index), or drop it"
        )
        raise GraphError(message, code="id-column-ambiguous")
    if table.rows_named or usual is not None:
        return index if usual is None else usual
    likely = [column for column, name in enumerate(table.names) if is_id_name(name) and is_unique(column)]
    return next(iter(likely), index)


def infer_ends(names: Sequence[str], place: str = "the edges") -> tuple[int, int, bool]:
    """Return source and target by the names of the columns, and whether the names decide; else 1 and 2."""
    start, end = _first(names, SOURCE_NAMES), _first(names, TARGET_NAMES)
    if start is not None and end is not None:
        return start, end, True
    pairs = pairs_of_ends(names)
    with_ids = [pair for pair in pairs if any(is_id_name(names[column]) for column in pair)]
    pairs = with_ids if len(with_ids) == 1 else pairs
    if len(pairs) > 1:
        shown = shortened((f"{names[start]} to {names[end]}" for start, end in pairs), 3, " or ")
        message = f"{place}: an edge could run from {shown}; choose with --source-column and --target-column"
        raise GraphError(message, code="edge-columns-ambiguous")
    if pairs:
        return *pairs[0], True
    ids = [at for at, name in enumerate(names) if is_id_name(name) and not ROW_WORDS & {*words_in(name)}]
    return (ids[0], ids[1], True) if len(ids) == 2 else (0, 1, False)


def pairs_of_ends(
    names: Sequence[str], starts: frozenset[str] = frozenset(END_WORDS)
) -> list[tuple[int, int]]:
    """Return the columns whose names differ by one pair of words: from_account, to_account."""
    words = [re.sub(r"(?<=\D)(\d)$", r" \1", " ".join(words_in(name))).split() for name in names]
    found = []
    for start, start_words in enumerate(words):
        for word in starts & {*start_words}:
            rest = [one for one in start_words if one != word]
            if NO_ENDS & {*rest} or (not rest and word in ("1", "a")):
                continue
            for end, end_words in enumerate(words):
                other = next((one for one in END_WORDS[word] if one in end_words), None)
                if other is not None and [one for one in end_words if one != other] == rest:
                    found.append((start, end))
    return list(dict.fromkeys(found))


def infer_class_column(names: Sequence[str], columns: Sequence[int]) -> int | None:
    """Return the column among some that most likely holds the class: by its name, else the first."""
    usual = [at for one in CLASS_NAMES for at in columns if names[at].lower() == one]
    words = {*CLASS_NAMES[:4]}
    likely = [at for at in columns if is_question(names[at]) or words & {*words_in(names[at])}]
    return next(iter([*usual, *likely, *columns]), None)
