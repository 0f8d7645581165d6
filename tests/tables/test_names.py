"""Names of rows: their own columns, else the rows to which they refer."""

from __future__ import annotations

import pandas as pd

from h3gnn.tables.database import OpenedTables
from h3gnn.tables.rows import row_names
from h3gnn.tables.schema import Link, Schema, TableSchema

FRAMES = {
    "races": pd.DataFrame({"id": [1, 2], "name": ["Monza", "Spa"]}),
    "drivers": pd.DataFrame({"id": [7, 8], "forename": ["Ann", "Bo"], "surname": ["Lee", None]}),
    "results": pd.DataFrame({"id": [3, 4, 5], "race": [1, 2, 9], "driver": [8, 7, 7], "points": [1, 2, 3]}),
    "status": pd.DataFrame({"id": [1], "status": ["Finished"]}),
    "stops": pd.DataFrame({"id": [1], "race": [2], "place": [4]}),
    "transfers": pd.DataFrame(
        {
            "id": ["x", "y"],
            "filer_id": ["b", "a"],
            "filer_name": ["Bank B", "Bank A"],
            "from_id": ["a", "c"],
            "from": ["Bank A", None],
            "to_id": ["c", "b"],
        }
    ),
}
TABLES = {
    "races": TableSchema("races", ("id",)),
    "drivers": TableSchema("drivers", ("id",)),
    "results": TableSchema("results", ("id",), (Link(("race",), "races"), Link(("driver",), "drivers"))),
    "status": TableSchema("status", ("id",)),
    "stops": TableSchema("stops", ("id",), (Link(("race",), "races"),)),
    "transfers": TableSchema("transfers", ("id",), nodes={"bank": ("filer_id", "from_id", "to_id")}),
}


def names(node_type: str) -> dict[str, str]:
    return row_names(OpenedTables.open(FRAMES), Schema(TABLES), node_type)


def test_rows_have_the_names_in_their_columns() -> None:
    assert names("races") == {"1": "Monza", "2": "Spa"}
    assert names("status") == {"1": "Finished"}
    assert names("drivers") == {"7": "Ann Lee", "8": "Bo"}


def test_rows_without_names_have_those_of_several_rows_to_which_they_refer() -> None:
    assert names("results") == {"3": "Monza – Bo", "4": "Spa – Ann Lee", "5": "Ann Lee"}  # there is no race 9
    assert names("stops") == {}  # the name of the race would be that of many stops


def test_a_column_beside_the_id_of_a_node_names_the_node_and_not_the_row() -> None:
    assert names("bank") == {"a": "Bank A", "b": "Bank B"}
    assert names("transfers") == {"x": "Bank B – Bank A", "y": "Bank A – Bank B"}
