"""Features in files: tables with an id column, whose columns become numbers, or an array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.arrays import ARRAY_SUFFIXES, array_place, read_array
from h3gnn.graphs.columns import Column, pick_column
from h3gnn.graphs.encoding import encode_table
from h3gnn.graphs.featuretable import FeatureTable, column_title, open_features, read_frame
from h3gnn.graphs.headers import SPLIT_PREFIX
from h3gnn.graphs.kinds import LABEL_WORDS
from h3gnn.graphs.names import INDEX_NAMES, SPLIT_NAMES, is_id_name, one_kind, words_in
from h3gnn.graphs.plan import TablePlan, plain_plan
from h3gnn.graphs.tables import check_once, joined
from h3gnn.graphs.values import cells_of, texts_of


@dataclass(frozen=True)
class FeatureFile:
    """Features and the ids of their rows.

    Attributes:
        values: `[nodes, features]`, array or scipy sparse matrix.
        ids: `[nodes]`.
        named: whether the file gives the ids, rather than their order.
        place: words for a row.
        path: the file, or the first of several.
        plan: how the columns became numbers; None for an array, which has no columns.
        notes: what there is to say about them.
        classes: the words of the column that holds the class, "" for unknown; None without such a column.
        splits: the words of columns that hold train, val and test.
        names: one name per feature, or none where the file does not give them.
    """

    values: Any
    ids: npt.NDArray[Any]
    named: bool
    place: Callable[[int], str]
    path: Path
    plan: TablePlan | None = None
    notes: tuple[str, ...] = ()
    classes: npt.NDArray[Any] | None = None
    splits: Sequence[list[Any]] = ()
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Encoding:
    """What is said about how the columns of features become numbers; see `encode_table`.

    Attributes:
        columns: the kind of some of them.
        label: the column that holds the class.
        text_model: a folder with a sentence model for text.
        plan: of the table that a model was fitted on.
        hidden: a column that must not be a feature, since the labels are it.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    label: Column | None = None
    hidden: str | None = None
    text_model: str | None = None
    plan: TablePlan | None = None


def read_vectors(
    path: str | Path, id_column: Column | None, columns: Sequence[Column] | None, style: dict[str, Any]
) -> FeatureFile:
    """Read numbers without gaps, and the ids of their rows; nothing is encoded."""
    if Path(path).suffix.lower() in ARRAY_SUFFIXES:
        return _read_array_file(path)
    features = open_features(path, id_column, columns, style)
    block = joined(features.blocks())
    check_once(block.ids[0], features.table.place, features.table.path)
    return FeatureFile(block.numbers, block.ids[0], True, features.table.place, features.table.path)


def read_features(
    paths: Sequence[str | Path],
    id_column: Column | None,
    columns: Sequence[Column] | None,
    style: dict[str, Any],
    how: Encoding,
    added: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = lambda known: known[:0],
) -> FeatureFile:
    """Read the features and the ids of their rows; columns that are no numbers are encoded.

    Args:
        paths: one file, or several tables whose nodes stand below one another: a column that one of them does
            not have is missing there, and which table a node comes from is a category.
        id_column, columns, style: as in `open_features`.
        how: what is said about the columns.
        added: given the ids, returns those of more nodes, whose features are all missing.
    """
    if any(Path(path).suffix.lower() in ARRAY_SUFFIXES for path in paths):
        if len(paths) > 1:
            raise GraphError(f"{paths[0]}: an array cannot stand beside another table of features")
        found = _read_array_file(paths[0])
        if added(found.ids).size:
            raise GraphError(f"{paths[0]}: nodes without features cannot be added to an array; give a table")
        return found
    tables = [open_features(path, id_column, columns, style) for path in paths]
    planned = how.plan is not None and not how.plan.as_is
    plain = not (how.columns or how.label or planned or len(tables) > 1)
    plain = plain and how.hidden not in tables[0].table.names
    numbers = _read_numbers(tables[0], added) if plain else None
    return _read_mixed(tables, how, added) if numbers is None else numbers


def _read_array_file(path: str | Path) -> FeatureFile:
    values = read_array(path)
    ids = np.arange(values.shape[0], dtype=np.int64)
    return FeatureFile(values, ids, False, array_place(path), Path(path))


def _read_numbers(features: FeatureTable, added: Callable[[Any], npt.NDArray[Any]]) -> FeatureFile | None:
    """Read a table of numbers, the quick way; None where it is something else."""
    table = features.table
    names = table.unique_names(features.chosen)
    if not features.named and any(_means_something_else(name) for name in names):
        return None
    try:
        block = joined(features.blocks())
    except GraphError:
        return None
    width = block.numbers.shape[1]
    widths = [width] if len(names) == 1 else [1] * len(names)
    if sum(widths) != width:
        return None
    check_once(block.ids[0], table.place, table.path)
    if added(block.ids[0]).size:
        return None
    plan = plain_plan(names, widths)
    told = plan.names if table.header and len({*plan.names}) == width else ()
    return FeatureFile(block.numbers, block.ids[0], True, table.place, table.path, plan, names=told)


def _means_something_else(name: str) -> bool:
    """Tell a name of ids, classes or splits, which are no features even where they are numbers."""
    lowered = name.lower()
    return (
        is_id_name(name) or lowered in INDEX_NAMES or lowered in LABEL_WORDS or words_in(name)[:1] == ["is"]
    )


def _read_mixed(
    tables: Sequence[FeatureTable], how: Encoding, added: Callable[[Any], npt.NDArray[Any]]
) -> FeatureFile:
    """Read any columns and encode them by a plan."""
    import pandas as pd

    label = _label_name(tables, how)
    said = {**how.columns, **({} if label is None else {label: "label"})}
    parts = [read_frame(one, how.columns, how.plan is not None) for one in tables]
    frames, kept = [frame for frame, _ in parts], [ids for _, ids in parts]
    place = _places(tables, [len(ids) for ids in kept])
    ids = one_kind(kept)
    check_once(ids, place, tables[0].table.path)
    more = added(ids)
    if len(tables) > 1:
        frames = [frame.assign(table=one.table.path.stem) for one, frame in zip(tables, frames, strict=True)]
    frame = pd.concat(
        [*frames, *([pd.DataFrame(index=range(more.size))] if more.size else [])], ignore_index=True
    )
    splits = [name for name in frame if _is_split(name, frame[name]) and name not in how.columns]
    values, plan, notes = encode_table(
        frame.drop(columns=splits),
        how.plan,
        columns={} if how.plan is not None and not how.columns else said,
        text_model=how.text_model,
        place=lambda row, name: place(row) + column_title(tables, name),
    )
    label = label or plan.label
    classes = None
    if label is not None and label in frame.columns:
        words = texts_of(cells_of(frame[label]))
        classes = np.array(["" if one is None else one for one in words], dtype=object)
    return FeatureFile(
        values,
        one_kind([ids, more]) if more.size else ids,
        named=True,
        place=place,
        path=tables[0].table.path,
        plan=plan,
        notes=notes,
        classes=classes,
        splits=[frame[name].tolist() for name in splits],
        names=plan.names if all(one.table.header for one in tables) or not plan.as_is else (),
    )


def _is_split(name: str, column: Any) -> bool:
    """Tell a column of train, val and test, which says nothing of a node."""
    if not str(name).lower().startswith(SPLIT_PREFIX):
        return False
    words = {str(one).strip().lower() for one in column.dropna()} - {"", "none"}
    return bool(words) and words <= SPLIT_NAMES.keys()


def _label_name(tables: Sequence[FeatureTable], how: Encoding) -> str | None:
    """Return the column that holds the class: the one that was named, or the one that the labels are."""
    names = [name for one in tables for name in one.table.unique_names(one.chosen)]
    if how.label is None:
        return how.hidden if how.hidden in names else None
    if how.label in names:
        return str(how.label)
    first = tables[0]
    return first.table.names[pick_column(first.table, how.label, "labels", default=0)]


def _places(tables: Sequence[FeatureTable], sizes: Sequence[int]) -> Callable[[int], str]:
    ends = np.cumsum(sizes)

    def place(row: int) -> str:
        at = int(np.searchsorted(ends, row, side="right"))
        if at == len(tables):
            return "a node that was added"
        return tables[at].table.place(row - (int(ends[at - 1]) if at else 0))

    return place
