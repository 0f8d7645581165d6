"""Random tables: each is read correctly, or rejected with a remedy."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from h3gnn.errors import InputError
from h3gnn.tables.plan import ColumnPlan
from h3gnn.tables.read import read_graph

Random = np.random.Generator
WORDS = ["oak", "elm", "fir", "ash", "yew"]
NAMES = ["age", "Größe", "a b", "x", "town", "price", "since", "Is_New", "col-7", "item", "note", "1st"]


def numbers(chance: Random, rows: int) -> list[Any]:
    scale = float(chance.choice([0.01, 1.0, 1e6]))
    return [round(float(one), 6) for one in chance.normal(size=rows) * scale]


def wholes(chance: Random, rows: int) -> list[Any]:
    return [int(one) for one in chance.integers(-50, 5000, rows)]


def heavy(chance: Random, rows: int) -> list[Any]:
    return [round(float(one), 3) for one in chance.lognormal(0, 4, rows)]


def yes_or_no(chance: Random, rows: int) -> list[Any]:
    words = [("yes", "no"), ("True", "False"), ("t", "f"), ("Y", "N")][int(chance.integers(4))]
    return ["" if one is None else words[one] for one in [0, 1, *chance.integers(0, 2, rows - 2).tolist()]]


def categories(chance: Random, rows: int) -> list[Any]:
    return [*WORDS[:2], *WORDS[:2], *(str(one) for one in chance.choice(WORDS, rows - 4))]


def dates(chance: Random, rows: int) -> list[Any]:
    forms = ["%Y-%m-%d", "%d.%m.%Y", "%Y/%m/%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%SZ"]
    form = forms[int(chance.integers(5))]
    moments = pd.Timestamp("2001-01-31") + pd.to_timedelta(chance.integers(0, 9000, rows), unit="D")
    return [moment.strftime(form) for moment in moments]


def lists(chance: Random, rows: int) -> list[Any]:
    mark = str(chance.choice(["|", ";"]))
    several = [chance.choice(WORDS, int(chance.integers(1, 4)), replace=False) for _ in range(rows)]
    return ["oak" + mark + "elm", *(mark.join(str(word) for word in words) for words in several[1:])]


def sentences(chance: Random, rows: int) -> list[Any]:
    return [" ".join(str(word) for word in chance.choice(WORDS, 6)) + f" {row}" for row in range(rows)]


def codes(chance: Random, rows: int) -> list[Any]:
    return [f"k{one:05d}x" for one in chance.permutation(10_000)[:rows].tolist()]


def same(chance: Random, rows: int) -> list[Any]:
    return ["always"] * rows


def spoiled(chance: Random, rows: int) -> list[Any]:
    found: list[Any] = numbers(chance, rows)
    found[int(chance.integers(rows))] = "oops!"
    return found


def ambiguous(chance: Random, rows: int) -> list[Any]:
    return [f"{int(a)}/{int(b)}/2020" for a, b in chance.integers(1, 13, (rows, 2))]


MADE: dict[str, tuple[Callable[[Random, int], list[Any]], str]] = {
    **{"numbers": (numbers, "number"), "wholes": (wholes, "number"), "heavy": (heavy, "number")},
    **{"yes": (yes_or_no, "boolean"), "categories": (categories, "category"), "dates": (dates, "date")},
    **{"lists": (lists, "list"), "sentences": (sentences, "text"), "codes": (codes, "identifier")},
    **{"same": (same, "constant"), "spoiled": (spoiled, "refused"), "ambiguous": (ambiguous, "refused")},
}
"""How a column is made, and what must be found in it."""


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.integers(12, 40))
    usual = [name for name in MADE if MADE[name][1] != "refused"]
    kinds = draw(st.lists(st.sampled_from(usual), min_size=1, max_size=5))
    kinds += draw(st.sampled_from([[], [], [], ["spoiled"], ["ambiguous"]]))
    names = draw(st.permutations(NAMES))[: len(kinds)]
    cells, gaps = {}, {}
    for name, kind in zip(names, kinds, strict=True):
        cells[name] = MADE[kind][0](chance, rows)
        share = draw(st.sampled_from([0.0, 0.0, 0.2])) if kind not in ("same", "spoiled") else 0.0
        gaps[name] = chance.random(rows) < share
        gaps[name][:4] = False  # what the kinds begin with, so that they are what they are
    ids = [f"n{one}" for one in range(rows)] if draw(st.booleans()) else list(range(100, 100 + rows))
    key = draw(st.sampled_from(["id", "account_id", "node", "userId", "name"]))
    return {
        "rows": rows,
        "cells": cells,
        "gaps": gaps,
        "kinds": dict(zip(names, kinds, strict=True)),
        "ids": [ids[at] for at in chance.permutation(rows)],
        "key": key,
        "key_at": draw(st.integers(0, len(kinds))),
        "suffix": draw(st.sampled_from([".csv", ".tsv", ".parquet"])),
        "ends": draw(st.sampled_from([("source", "target"), ("from_node", "to_node"), ("id_1", "id_2")])),
    }


def write(folder: Path, made: dict[str, Any]) -> tuple[Path, Path]:
    frame = pd.DataFrame()
    for name, cells in made["cells"].items():
        pairs = zip(cells, made["gaps"][name], strict=True)
        frame[name] = pd.Series([None if gap else cell for cell, gap in pairs])
    frame.insert(made["key_at"], made["key"], made["ids"])
    path = folder / f"features{made['suffix']}"
    if made["suffix"] == ".parquet":
        for name in frame.columns:
            if frame[name].dtype == object:
                frame[name] = frame[name].map(lambda one: one if one is None else str(one))
        frame.to_parquet(path, index=False)
    else:
        frame.to_csv(path, index=False, sep="\t" if made["suffix"] == ".tsv" else ",")
    ids, edges = made["ids"], folder / "edges.csv"
    start, end = made["ends"]
    ring = {start: ids, end: [*ids[1:], ids[0]]}
    pd.DataFrame(ring).to_csv(edges, index=False)
    return edges, path


def check_block(block: Any, column: ColumnPlan, cells: list[Any], gaps: Any) -> None:
    """Compare an encoded column with its cells: order, equality, and the mark of a gap."""
    known = np.flatnonzero(~gaps)
    marked = column.names[-1].endswith("is missing")
    assert marked == bool(gaps.any())
    if marked:
        np.testing.assert_array_equal(block[:, -1], gaps)
    if column.kind == "number":
        order = np.argsort([float(cells[row]) for row in known], kind="stable")
        assert (np.diff(block[known, 0][order]) >= -1e-4).all()
    elif column.kind in ("category", "list", "boolean"):
        for one in known:
            for other in known:
                alike = np.array_equal(block[one], block[other])
                sets = [{*str(cells[row]).replace(";", "|").split("|")} for row in (one, other)]
                assert alike == (sets[0] == sets[1])
    elif column.kind == "date":
        dates = [cells[row] for row in known]
        days = pd.to_datetime(dates, dayfirst="." in cells[0], utc=True, format="mixed")
        assert (np.diff(block[known, 0][np.argsort(days, kind="stable")]) >= -1e-5).all()


PROFILE: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=40, **PROFILE)
@given(tables())
def test_each_table_is_read_correctly_or_rejected_with_a_remedy(made: dict[str, Any]) -> None:
    check_table(made)


@pytest.mark.slow
@settings(max_examples=400, **PROFILE)
@given(tables())
def test_many_tables_are_read_correctly_or_rejected_with_a_remedy(made: dict[str, Any]) -> None:
    check_table(made)


def check_table(made: dict[str, Any]) -> None:
    found = {name: MADE[kind][1] for name, kind in made["kinds"].items()}
    with tempfile.TemporaryDirectory() as folder:
        edges, features = write(Path(folder), made)
        graph, error = None, ""
        try:
            graph = read_graph(edges, features=features)
        except InputError as rejection:
            error = str(rejection)
        if graph is None:
            useless = {*found.values()} <= {"identifier", "constant"}
            assert "refused" in found.values() or useless, error
            assert any(word in error for word in ("correct", "declare", "--columns")), error
            event("refused")
            return
        event("read")
        assert "refused" not in found.values()
        assert np.isfinite(graph.dense_features().numpy()).all()
        assert graph.num_edges == made["rows"]
        assert graph.node_ids.tolist() == made["ids"]
        plan = graph.plan
        assert plan is not None
        assert {column.name: column.kind for column in plan.columns} == found
        for column in plan.used:
            cells, gaps = made["cells"][column.name], made["gaps"][column.name]
            if column.encoder != "plain":
                at = [plan.names.index(name) for name in column.names]
                check_block(graph.dense_features().numpy()[:, at].astype(float), column, cells, gaps)
        again = read_graph(edges, features=features, plan=plan)
        assert again.provenance.sha256 == graph.provenance.sha256
