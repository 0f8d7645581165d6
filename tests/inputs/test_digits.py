"""Digits that are no number: codes, telephone numbers, addresses, seasons and dates, in every table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from h3gnn import Graph, read_graph
from h3gnn.errors import InputError
from h3gnn.ondisk.prepare import prepare_graph
from tests.inputs.tables import read, ring
from tests.rejects import rejects

ROWS = 12


def kinds(folder: Path, cells: list[Any], form: str, name: str = "c") -> dict[str, str]:
    """Return the kind of each column of a table that otherwise holds numbers only."""
    ids = [f"n{row}" for row in range(len(cells))]
    table = pd.DataFrame({"id": ids, name: cells, "x": [row + 0.5 for row in range(len(cells))]})
    graph = read_graph(ring(ids), features=table) if form == "frame" else read(folder, table, form)
    assert graph.plan is not None
    return {column.name: column.kind for column in graph.plan.columns}


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    "cells",
    [
        [f"0{1000 + row // 2}" for row in range(ROWS)],
        [f"030 123 {456 + row // 2}" for row in range(ROWS)],
        [f"+49 30 123 {456 + row // 2}" for row in range(ROWS)],
        [f"192.168.100.{101 + row // 2}" for row in range(ROWS)],
        [f"20{9 + row % 3:02d}/{10 + row % 3}" for row in range(ROWS)],
    ],
    ids=["postcodes", "telephone", "abroad", "addresses", "seasons"],
)
def test_codes_in_digits_are_no_numbers(tmp_path: Path, cells: list[str], form: str) -> None:
    assert kinds(tmp_path, cells, form) == {"c": "category", "x": "number"}


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    ("first", "name", "kind"),
    [
        (930710, "date", "date"),
        (930710, "birth_date", "date"),
        (20150310, "opened", "date"),
        (20150310, "date", "date"),
        (20153310, "opened", "number"),
        (93071, "opened", "number"),
    ],
)
def test_dates_in_digits_are_dates(tmp_path: Path, first: int, name: str, kind: str, form: str) -> None:
    cells = [first + row for row in range(ROWS)]
    assert kinds(tmp_path, cells, form, name) == {name: kind, "x": "number"}


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
def test_six_digits_that_may_be_dates_are_a_question(tmp_path: Path, form: str) -> None:
    with rejects("column-ambiguous", InputError) as caught:
        kinds(tmp_path, [930710 + row for row in range(ROWS)], form)
    assert "c=date:compact" in caught.message


@pytest.mark.parametrize(("declared", "kind"), [("date:compact", "date"), ("number", "number")])
def test_the_question_about_six_digits_is_answered(tmp_path: Path, declared: str, kind: str) -> None:
    table = pd.DataFrame({"id": [*"abcdefghijkl"], "c": [930710 + row for row in range(ROWS)]})
    plan = read(tmp_path, table, columns={"c": declared}).plan
    assert plan is not None
    assert [column.kind for column in plan.columns] == [kind]


def graph_of(folder: Path, edges: str, features: str | None = None) -> Graph:
    (folder / "e.csv").write_text(edges)
    if features is None:
        return read_graph(folder / "e.csv")
    (folder / "f.csv").write_text(features)
    return read_graph(folder / "e.csv", features=folder / "f.csv")


def test_points_in_weights_are_a_question(tmp_path: Path) -> None:
    with rejects("number-ambiguous"):
        graph_of(tmp_path, "source,target,weight\na,b,1.200\nb,c,950\nc,a,2.400\n")
    graph = graph_of(tmp_path, "source,target,weight\na,b,1.200\nb,c,950\nc,a,2.45\n")
    assert graph.edge_weight is not None
    assert sorted(graph.edge_weight.tolist()) == pytest.approx([1.2, 2.45, 950], rel=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "a;1,10;7\nb;2,25;8\nc;3,50;9\n",
        "id;price, EUR;x\na;1,10;7\nb;2,25;8\nc;3,50;9\n",
        "id;price;size, m\na;1,10;7\nb;2,25;8\nc;3;9\n",
    ],
)
def test_semicolons_divide_numbers_with_decimal_commas(tmp_path: Path, text: str) -> None:
    graph = graph_of(tmp_path, "source,target\na,b\nb,c\nc,a\n", text)
    assert graph.node_ids.tolist() == ["a", "b", "c"]
    assert graph.num_features == 2


def test_commas_divide_cells_with_semicolons(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b;c\nb;c,c;d\nc;d,a\n")
    assert sorted(read_graph(tmp_path / "e.csv").node_ids.tolist()) == ["a", "b;c", "c;d"]


def test_commas_and_semicolons_between_integers_are_a_question(tmp_path: Path) -> None:
    with rejects("delimiter-ambiguous"):
        graph_of(tmp_path, "1,2;3\n2,3;1\n3,1;2\n")
    assert read_graph(tmp_path / "e.csv", delimiter=",", header=False).num_nodes == 6


@pytest.mark.parametrize("name", ["label", "target", "class"])
def test_a_label_with_fractions_is_no_feature(tmp_path: Path, name: str) -> None:
    rows = "".join(f"n{row},{row % 5},{row}.{row * 7 % 10}5\n" for row in range(30))
    edges = "source,target\n" + "".join(f"n{row},n{(row + 1) % 30}\n" for row in range(30))
    graph = graph_of(tmp_path, edges, f"id,x,{name}\n{rows}")
    assert graph.targets is not None
    assert graph.num_features == 1


@pytest.mark.parametrize("form", ["csv", "parquet", "frame"])
@pytest.mark.parametrize(
    "name", ["zip", "postal_code", "phoneNumber", "birth_number", "card_no", "status code"]
)
def test_integers_are_codes_if_the_name_says_so(tmp_path: Path, name: str, form: str) -> None:
    cells = [98101 + row // 2 for row in range(ROWS)]
    assert kinds(tmp_path, cells, form, name) == {name: "category", "x": "number"}


@pytest.mark.parametrize("name", ["number", "phones", "rooms", "zip_population", "code_lines"])
def test_integers_are_numbers_otherwise(tmp_path: Path, name: str) -> None:
    cells = [98101 + row // 2 for row in range(ROWS)]
    assert kinds(tmp_path, cells, "csv", name) == {name: "number", "x": "number"}


def test_six_digits_with_a_time_of_day_are_dates(tmp_path: Path) -> None:
    cells = [f"9311{10 + row} 00:00:00" for row in range(ROWS)]
    assert kinds(tmp_path, cells, "csv", "issued") == {"issued": "date", "x": "number"}


def test_prepare_rejects_codes(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("source,target\na,b\nb,c\nc,a\n")
    (tmp_path / "f.csv").write_text("id,district,x\na,01,1.5\nb,02,2.5\nc,11,3\n")
    with rejects("column-not-numeric"):
        prepare_graph(tmp_path / "e.csv", tmp_path / "f.csv", tmp_path / "out")
