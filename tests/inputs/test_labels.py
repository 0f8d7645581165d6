"""Labels: missing words are missing, spellings of a class are one class, numbers are not classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import read_graph
from h3gnn.errors import InputError
from tests.inputs.tables import FORMATS, ring, save

ROUTES = ("labels", "column")
MISSING = ["", "NaN", "nan", "NA", "N/A", "null", "NULL", "None", "none", "#N/A", "\\N", "<NA>"]


def classes(
    folder: Path, cells: list[Any], form: str = "csv", route: str = "labels"
) -> list[str | None] | str:
    """Return the class of each node, or the code of the error; labels in their own table or a column."""
    ids = [f"n{i}" for i in range(len(cells))]
    edges = save(ring(ids), folder / "edges", form)
    table = pd.DataFrame(
        {"id": ids, "x": np.arange(len(ids)) + 0.5, "city": ["Rome", "Oslo"] * (len(ids) // 2)}
    )
    labels = pd.DataFrame({"id": ids, "label": cells})
    try:
        if route == "labels":
            features = save(table, folder / "features", form)
            graph = read_graph(edges, features=features, labels=save(labels, folder / "labels", form))
        else:
            features = save(table.assign(outcome=cells), folder / "features", form)
            graph = read_graph(edges, features=features, label_column="outcome")
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
        "distinct": np.arange(200),
        "decimals": draws.normal(size=200).round(3),
        "prices": draws.integers(100, 100_000, 200),
    }[values]
    assert classes(tmp_path, [str(one) for one in numbers], form, route) == "label-looks-numeric"


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
