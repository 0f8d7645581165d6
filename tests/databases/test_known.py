"""The proposed schemas of databases like well-known ones."""

from __future__ import annotations

from functools import cache

import pytest

from h3gnn.tables.propose import infer_schema
from h3gnn.tables.schema import Schema
from tests.databases.known import KNOWN, Known, known


@cache
def inferred(name: str) -> tuple[Known, Schema]:
    made = known(name)
    return made, infer_schema(made.frames)


@pytest.mark.parametrize("name", KNOWN)
def test_known_databases(name: str) -> None:
    """Every key, link and time is found or asked about, and nothing else is taken for a link or time."""
    made, schema = inferred(name)
    links = {(table, one.columns[0], one.to) for table, of in schema.tables.items() for one in of.links}
    asked = {(one.table, one.link.columns[0], one.link.to) for one in schema.questions if one.link}
    assert links <= made.links
    assert made.links <= links | asked
    assert {table: schema.tables[table].key for table in made.keys} == {
        table: (column,) for table, column in made.keys.items()
    }
    times = {table: of.time for table, of in schema.tables.items() if of.time}
    assert times.items() <= made.times.items()
    assert made.times.items() <= times.items() | {(one.table, one.time) for one in schema.questions}


def test_most_links_need_no_question() -> None:
    pairs = [inferred(name) for name in KNOWN]
    found = sum(len(table.links) for _, schema in pairs for table in schema.tables.values())
    assert found > 0.75 * sum(len(made.links) for made, _ in pairs)
