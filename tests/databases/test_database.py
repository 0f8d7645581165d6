"""Relational graphs of several tables: 200 damaged databases, and rows up to a date."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from h3gnn.graphs.relational import RelationalGraph
from h3gnn.tables.database import read_database
from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Schema
from tests.databases.damaged import Damaged, damaged, joined, rows_of
from tests.rejects import rejects

SEEDS = range(200)


def check(graph: RelationalGraph, frames: dict[str, pd.DataFrame], schema: Schema) -> None:
    """Compare a graph with joins by dictionaries."""
    assert {name: one.nodes for name, one in graph.types.items()} == {
        name: len(frames[name]) for name in schema.tables
    }
    found = {one.name: {*map(tuple, one.ends.T.tolist())} for one in graph.relations}
    assert found == joined(frames, schema)
    assert all(len(found[one.name]) == one.ends.shape[1] for one in graph.relations)
    for name, table in schema.tables.items():
        if len(table.key) == 1:
            keys = [one[0] for one in rows_of(frames[name], table.key) if one]
            assert list(map(str, graph.type(name).ids)) == keys


@pytest.mark.parametrize("seed", SEEDS)
def test_damaged_databases(seed: int, tmp_path: Path) -> None:
    made = damaged(seed)
    source: Any = made.write(tmp_path) if seed % 3 == 0 else made.frames
    if made.code is None:
        check(read_database(source, made.schema), made.frames, made.schema)
    else:
        with rejects(made.code):
            read_database(source, made.schema)
    schema = infer_schema(source)
    truth = {(name, one.columns, one.to) for name, table in made.schema.tables.items() for one in table.links}
    truth |= {(name, columns[:1], to) for name, columns, to in truth}  # enough where a table has few rows
    found = {(name, one.columns, one.to) for name, table in schema.tables.items() for one in table.links}
    assert found <= truth
    check(read_database(source, schema), made.frames, schema)


def test_the_damaged_databases_have_every_defect() -> None:
    counts = Counter(defect for seed in SEEDS for defect in _defects(damaged(seed)))
    assert min(counts[one] for one in ("key-not-unique", "link-without-match", "graph", "empty")) >= 10
    assert min(counts[one] for one in ("one row", "composite", "self", "cycle", "no key", "gaps")) >= 10


def _defects(made: Damaged) -> set[str]:
    tables = made.schema.tables
    links = [(name, one) for name, table in tables.items() for one in table.links]
    targets = {(name, one.to) for name, one in links}
    sizes = {len(frame) for frame in made.frames.values()}
    gaps = any(None in rows_of(made.frames[name], one.columns) for name, one in links)
    found = {made.code or "graph", *(["empty"] * (0 in sizes)), *(["one row"] * (1 in sizes))}
    found |= {"composite" for _, one in links if len(one.columns) > 1} | {"gaps" for _ in range(gaps)}
    found |= {"self" if one == two else "cycle" for one, two in targets if (two, one) in targets}
    return found | {"no key" for one in tables.values() if not one.key}
