"""Labels: missing words are missing, spellings of a class are one class, numbers are not classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from h3gnn import as_graph, read_graph
from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph, with_splits
from h3gnn.graphs.targets import read_labels, with_task
from tests.inputs.tables import FORMATS, ring, save
from tests.rejects import rejects

ROUTES = ("labels", "column")
MISSING = ["", "NaN", "nan", "NA", "N/A", "null", "NULL", "None", "none", "#N/A", "\\N", "<NA>"]


def read(folder: Path, cells: Any, form: str = "csv", route: str = "labels", **options: Any) -> Graph:
    """Read a graph with labels in their own table or in a column of the features."""
    ids = [f"n{i}" for i in range(len(cells))]
    edges = save(ring(ids), folder / "edges", form)
    table = pd.DataFrame(
        {"id": ids, "x": np.arange(len(ids)) + 0.5, "city": ["Rome", "Oslo"] * (len(ids) // 2)}
    )
    if route == "labels":
        features = save(table, folder / "features", form)
        labels = save(pd.DataFrame({"id": ids, "outcome": cells}), folder / "labels", form)
        return read_graph(edges, features=features, labels=labels, **options)
    features = save(table.assign(outcome=cells), folder / "features", form)
    return read_graph(edges, features=features, label_column="outcome", **options)


def classes(
    folder: Path, cells: list[Any], form: str = "csv", route: str = "labels", **options: Any
) -> list[str | None] | str:
    """Return the class of each node, or the code of the error."""
    try:
        graph = read(folder, cells, form, route, **options)
    except InputError as error:
        return error.code
    assert graph.labels is not None
    return [None if one < 0 else graph.class_names[one] for one in graph.labels.tolist()]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("word", MISSING)
def test_words_for_missing_are_missing_labels(tmp_path: Path, word: str, form: str, route: str) -> None:
    found = classes(tmp_path, ["red", "blue", word, "red"] * 3, form, route)
    assert found == ["red", "blue", None, "red"] * 3


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("word", MISSING)
def test_words_for_missing_are_missing_beside_numbers(tmp_path: Path, word: str, route: str) -> None:
    assert classes(tmp_path, ["1", "0", word, "1"] * 3, route=route) == ["1", "0", None, "1"] * 3


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
def test_integers_and_whole_floats_are_one_class(tmp_path: Path, form: str, route: str) -> None:
    assert classes(tmp_path, ["1", "1.0", "0", "2"] * 3, form, route) == ["1", "1", "0", "2"] * 3


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("pair", [("Fraud", "fraud"), ("YES", "yes"), ("Rome", "ROME")])
def test_classes_that_differ_in_case_are_a_question(
    tmp_path: Path, pair: tuple[str, str], form: str, route: str
) -> None:
    assert classes(tmp_path, [*pair, "other", "other"] * 3, form, route) == "classes-differ-in-case"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
def test_spaces_around_a_class_are_not_part_of_it(tmp_path: Path, form: str, route: str) -> None:
    assert (
        classes(tmp_path, ["red ", " red", "blue", "red"] * 3, form, route)
        == ["red", "red", "blue", "red"] * 3
    )


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("cells", [["-1", "1", "1", "-1"], ["-1", "0", "1", "0"]])
def test_class_minus_one_is_never_dropped(tmp_path: Path, cells: list[str], form: str, route: str) -> None:
    found = classes(tmp_path, cells * 3, form, route)
    assert found in ("label-negative", cells * 3)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("values", ["distinct", "decimals", "prices"])
def test_numbers_are_not_classes(tmp_path: Path, values: str, form: str, route: str) -> None:
    draws = np.random.default_rng(0)
    numbers = {
        "distinct": np.arange(7, 207),
        "decimals": draws.normal(size=200).round(3),
        "prices": draws.integers(100, 100_000, 200),
    }[values]
    cells, graph = [str(one) for one in numbers], read(tmp_path, numbers, form, route)
    assert graph.labels is None
    assert graph.targets is not None
    assert graph.targets.tolist() == [float(one) for one in cells]
    assert [one.code for one in graph.provenance.repairs if one.code.startswith("label-is")] == [
        "label-is-number"
    ]


@pytest.mark.parametrize("route", ROUTES)
def test_a_few_integers_are_classes(tmp_path: Path, route: str) -> None:
    cells = [str(i % 10) for i in range(200)]
    assert classes(tmp_path, cells, route=route) == cells


@pytest.mark.parametrize("route", ROUTES)
def test_a_class_for_almost_every_node_is_a_question(tmp_path: Path, route: str) -> None:
    found = classes(tmp_path, [f"client {i}" for i in range(200)], route=route)
    assert isinstance(found, str)


@pytest.mark.parametrize("form", FORMATS)
def test_booleans_are_two_classes(tmp_path: Path, form: str) -> None:
    found = classes(tmp_path, [True, False, False, True] * 3, form)
    assert isinstance(found, list)
    assert len({*found}) == 2


def test_a_class_has_the_same_name_from_csv_and_parquet(tmp_path: Path) -> None:
    for cells in ([True, False] * 6, [1, 0] * 6, [1.0, 0.0] * 6, ["a", "b"] * 6):
        assert classes(tmp_path, list(cells), "csv") == classes(tmp_path, list(cells), "parquet")


FEW = ["1", "2", "3", "4", "5"] * 20
MANY = [f"{1_000 + 7 * i}" for i in range(100)]
DECISIONS: list[tuple[list[str], str, str]] = [
    (["red", "blue"] * 50, "auto", "classes"),
    (["0", "1"] * 50, "auto", "classes"),
    (["0.5", "1.5"] * 50, "auto", "classes"),
    (["0", "1", "2"] * 30, "auto", "classes"),  # codes of classes
    (FEW, "auto", "label-is-class"),
    ([str(1990 + i % 30) for i in range(200)], "auto", "label-is-class"),
    ([f"{i % 10 / 2}" for i in range(200)], "auto", "label-is-class"),
    (["007", "010", "300"] * 30, "auto", "classes"),
    (MANY, "auto", "label-is-number"),
    ([f"{i % 30 / 4}" for i in range(200)], "auto", "label-is-number"),
    ([str(3 + i % 60) for i in range(200)], "auto", "label-is-number"),
    ([str(i % 60) for i in range(200)], "auto", "label-looks-numeric"),
    (["0.5", "1.25", "3.75", "8.5"], "auto", "label-is-number"),
    (["3", "7", "9", "12"], "auto", "label-is-class"),  # too few rows to conclude from distinct integers
    ([*MANY, "-1"], "auto", "label-negative"),
    ([*MANY, "-1", "-5"], "auto", "label-is-number"),
    ([*MANY, "oops"], "auto", "label-not-numeric"),
    (FEW, "regression", "numbers"),
    ([*MANY, "-1"], "regression", "numbers"),
    (["red", "blue"] * 50, "regression", "label-not-numeric"),
    (["1,200", "3,400", "5,600"] * 9, "regression", "number-ambiguous"),
    (["5 kg", "5 lb"] * 9, "regression", "units-mixed"),
    (MANY, "classification", "classes"),
    (["-1", "0", "1"] * 9, "classification", "classes"),
    (["-1", "0", "1"] * 9, "auto", "label-negative"),
    (FEW, "price", "value-invalid"),
]


@pytest.mark.parametrize(("cells", "task", "expected"), DECISIONS)
def test_decisions(tmp_path: Path, cells: list[str], task: str, expected: str) -> None:
    found = []
    try:
        graph = read(tmp_path, [*cells, *[""] * (len(cells) % 2)], task=task)
        reports = [one.code for one in graph.provenance.repairs if one.code.startswith("label-is")]
        found = reports or ["numbers" if graph.labels is None else "classes"]
    except InputError as error:
        found = [error.code]
    assert found == [expected]


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("cells", "columns", "expected"),
    [
        (["1.200,5 €", "10 €", "?", "-3,25 €"], {}, [1200.5, 10, None, -3.25]),
        (["1 200", "1e3", "missing", "-"], {}, [1200, 1000, None, None]),
        (["1,200", "2,000", "", "3,400"], {"outcome": "number:grouped"}, [1200, 2000, None, 3400]),
        (["1,200", "2,000", "", "3,400"], {"outcome": "number:comma"}, [1.2, 2, None, 3.4]),
    ],
)
def test_targets_are_read_as_numbers_elsewhere(
    tmp_path: Path, cells: list[str], columns: dict[str, str], expected: list[float | None], route: str
) -> None:
    graph = read(tmp_path, cells * 3, route=route, columns=columns, task="auto" if columns else "regression")
    assert graph.targets is not None
    assert [None if np.isnan(one) else one for one in graph.targets.tolist()] == expected * 3
    assert graph.target_name == "outcome"
    assert "outcome" not in graph.feature_names


def test_a_declared_class_is_no_number(tmp_path: Path) -> None:
    assert classes(tmp_path, MANY, columns={"outcome": "label"}) == MANY


def test_splits_of_numbers_are_stratified(tmp_path: Path) -> None:
    graph = with_splits(read(tmp_path, [*MANY, "", ""]))
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    assert graph.test_mask is not None
    assert graph.train_mask.sum(dim=0).tolist() == [50] * 10  # 5 of every ten neighbouring numbers
    assert graph.test_mask.view(-1)[-20:].tolist() == [False] * 20  # nodes without a number
    assert (graph.test_mask[:100].view(10, 10, 10).sum(dim=1) == 2).all()


def test_the_task_of_a_graph_can_be_changed(tmp_path: Path) -> None:
    graph = read(tmp_path, FEW, task="classification")
    numbers = with_task(graph, "regression")
    assert numbers.labels is None
    assert numbers.targets is not None
    assert numbers.targets.tolist() == [float(one) for one in FEW]
    again = with_task(numbers, "classification")
    assert again.class_names == graph.class_names
    assert again.provenance.sha256 == graph.provenance.sha256 != numbers.provenance.sha256
    with rejects("label-not-numeric"):
        with_task(read(tmp_path, ["red", "blue"] * 5), "regression")


def test_objects_with_fractions_have_targets() -> None:
    network = nx.path_graph(4)
    nx.set_node_attributes(network, {0: 0.5, 1: 2.25, 2: 3.0}, "y")
    numbers = as_graph(network).targets
    assert numbers is not None
    assert numbers.isnan().tolist() == [False, False, False, True]
    assert numbers[:3].tolist() == [0.5, 2.25, 3.0]
    with rejects("labels-and-targets"):
        check_graph(np.eye(2), np.zeros((2, 0), int), labels=[0, 1], targets=[0.5, 1])
    with rejects("target-not-finite"):
        check_graph(np.eye(2), np.zeros((2, 0), int), targets=[0.5, np.inf])


@pytest.mark.parametrize("word", ["?", "-", "unknown", "Missing"])
@pytest.mark.parametrize("words", [("yes", "no"), ("0", "1"), ("a", "b")])
def test_a_class_that_may_mean_unknown_is_a_question(word: str, words: tuple[str, str]) -> None:
    cells = [*words, word] * 4
    with rejects("label-missing-word", GraphError):
        read_labels(cells, "y")
    assert word in read_labels(cells, "y", task="classification").class_names


@pytest.mark.parametrize(
    "cells",
    [
        [f"2020-01-{day:02d}" for day in range(1, 25)],
        [f"{1000 + 37 * row:,}" for row in range(24)],
        [f"{'$€'[row % 2]}{row}" for row in range(24)],
        [f"w{row}" for row in range(24)],
    ],
    ids=["dates", "thousands", "units", "words"],
)
def test_a_class_for_almost_every_row_is_a_question(cells: list[str]) -> None:
    with pytest.raises(GraphError) as error:
        read_labels(cells, "y")
    assert error.value.code in ("label-almost-unique", "number-ambiguous", "units-mixed")
    assert len(read_labels(cells, "y", task="classification").class_names) == 24
