"""Data drift: how the columns of a new table differ from those of the fit is reported, or rejected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from h3gnn import H3GNN, read_graph
from h3gnn.errors import InputError
from h3gnn.storage.graphs import graph_description, graph_from_tensors, graph_tensors
from h3gnn.tables.drift import features_out_of_range
from h3gnn.tables.plan import TablePlan, encode_table
from tests.inputs.tables import FORMATS, QUICK, command, ring, save

ROWS, NEW = 60, 20
VERBS, THINGS = ("paid", "sent", "lost", "found"), ("the red card", "an old letter", "some of the money")


def table(rows: int = ROWS, start: int = 0) -> pd.DataFrame:
    """Return rows with columns of every kind, all of them within the ranges and words of the first sixty."""
    at = np.arange(start, start + rows) % ROWS
    day = pd.Timestamp("2024-01-01") + pd.to_timedelta(at * 5, unit="D")
    return pd.DataFrame(
        {
            "amount": at * 1.5,
            "price": [f"{one + 5} €" for one in at],
            "comma": [f"{one},25" for one in at],
            "opened": day.strftime("%Y-%m-%d"),
            "ended": day.strftime("%m/%d/%Y"),
            "town": [("Rome", "Oslo", "Bonn")[one % 3] for one in at],
            "tags": [("a|b", "b", "c|a")[one % 3] for one in at],
            "memo": [f"{VERBS[one % 4]} {THINGS[one % 3]} on {one % 7} days" for one in at],
            "vip": [("yes", "no")[one % 2] for one in at],
            "score": [None if one % 10 == 3 else one / 4 for one in at],
            "declared": [f"{one}" for one in at],
            "spare": [("x", "y", "z")[one // 20] for one in at],
        }
    )


def plan_of(frame: pd.DataFrame) -> TablePlan:
    return encode_table(frame, columns={"declared": "number", "memo": "text"})[1]


@pytest.fixture(scope="module")
def fitted() -> TablePlan:
    return plan_of(table())


def notes(plan: TablePlan, frame: pd.DataFrame) -> set[tuple[str, int | None, str]] | str:
    """Return code, count and column of each note; or the code of the error."""
    try:
        found = encode_table(frame, plan)[2]
    except InputError as error:
        return error.code
    assert all(len(one.fields) == 1 and f"{one.count:,}" in one.message for one in found)
    assert len({(one.code, one.fields) for one in found}) == len(found)
    return {(one.code, one.count, one.fields[0]) for one in found}


def test_rows_of_the_fit_have_no_drift(fitted: TablePlan) -> None:
    kinds = {column.name: column.kind for column in fitted.columns}
    assert [kinds[one] for one in ("price", "opened", "ended", "tags", "memo", "vip")] == [
        *("number", "date", "date", "list", "text", "boolean")
    ]
    assert notes(fitted, table()) == notes(fitted, table(NEW, 30)) == notes(fitted, table(1, 7)) == set()


DRIFTS: list[tuple[str, str, list[Any], set[tuple[str, int]] | str]] = [
    # numbers
    ("above the range", "amount", [5.0] * 17 + [88.6, 1e9, 150.0], {("numbers-out-of-range", 3)}),
    ("below the range", "amount", [5.0] * 19 + [-1.0], {("numbers-out-of-range", 1)}),
    ("cents instead of euros", "amount", [600.0] * 20, {("numbers-out-of-range", 20)}),
    ("the largest value", "amount", [0.0] * 19 + [88.5], set()),
    ("gaps where there were none", "amount", [None, None] + [3.0] * 18, {("missing-values-imputed", 2)}),
    ("an empty column", "amount", [None] * 20, {("missing-values-imputed", 20)}),
    ("words for missing", "amount", ["NA"] * 20, {("missing-values-imputed", 20)}),
    ("a word instead of a number", "amount", ["1"] * 19 + ["many"], "cell-unreadable"),
    ("words instead of numbers", "amount", ["few"] * 20, "column-unreadable"),
    ("a unit where there was none", "amount", ["5 €"] * 20, "column-unreadable"),
    ("the other separator", "amount", ["1,5"] * 20, "column-unreadable"),
    ("the unit", "price", ["7 €"] * 20, set()),
    ("another unit", "price", ["7 $"] * 20, "column-unreadable"),
    ("no unit", "price", ["7"] * 20, "column-unreadable"),
    ("no unit, as numbers", "price", [7.0] * 20, "column-unreadable"),
    ("zero needs no unit", "price", ["0 €"] * 10 + ["0"] * 10, {("numbers-out-of-range", 20)}),
    ("one cell of another unit", "price", ["7 €"] * 19 + ["7 $"], "cell-unreadable"),
    ("points for commas", "comma", ["3.14"] * 20, "column-unreadable"),
    ("numbers for commas", "comma", [3.25] * 20, set()),
    ("gaps as often as in the fit", "score", [None, None] + [3.0] * 18, set()),
    ("more gaps", "score", [None] * 10 + [3.0] * 10, {("missing-values-increased", 10)}),
    ("gaps only", "score", [None] * 20, {("missing-values-increased", 20)}),
    # dates
    ("later dates", "opened", ["2024-02-01"] * 18 + ["2031-01-01"] * 2, {("dates-out-of-range", 2)}),
    ("earlier dates", "opened", ["1900-01-01"] * 20, {("dates-out-of-range", 20)}),
    ("dates with slashes", "opened", ["2024/02/01"] * 20, set()),
    ("another order of dates", "opened", ["03/04/2024"] * 20, "column-unreadable"),
    ("seconds instead of dates", "opened", ["1717171717"] * 20, "column-unreadable"),
    ("one cell that is no date", "opened", ["2024-02-01"] * 19 + ["soon"], "cell-unreadable"),
    ("day and month swapped", "ended", ["25/03/2024"] * 20, "column-unreadable"),
    ("days and months swapped", "ended", ["03/04/2024"] * 19 + ["25/03/2024"], "column-unreadable"),
    ("dates of a database", "ended", ["2024-03-25"] * 20, set()),
    # words
    ("unknown towns", "town", ["Rome"] * 17 + ["Lima", "Lima", "Cork"], {("unknown-categories", 3)}),
    ("other codes", "town", ["IT", "NO"] * 10, {("unknown-categories", 20)}),
    ("a town in capitals", "town", ["ROME"] + ["Rome"] * 19, {("unknown-categories", 1)}),
    ("no town", "town", [None] + ["Rome"] * 19, {("missing-values-imputed", 1)}),
    ("unknown items", "tags", ["a|d", "d|e"] + ["a|b"] * 18, {("unknown-items", 2)}),
    ("another separator of items", "tags", ["a;b"] * 20, {("unknown-items", 20)}),
    ("another language", "memo", ["bezahlte die rote Karte sofort"] * 20, {("unknown-words", 20)}),
    (
        "some other texts",
        "memo",
        ["kaufte drei Autos"] * 9 + ["paid the red card"] * 11,
        {("unknown-words", 9)},
    ),
    ("other words for yes", "vip", ["ja", "nein"] * 10, "column-unreadable"),
    ("numbers for yes", "vip", [1, 0] * 10, set()),
    ("a third answer", "vip", ["yes"] * 19 + ["maybe"], "cell-unreadable"),
    ("a third number", "vip", [2] + [1] * 19, "cell-unreadable"),
    # columns whose kind the user declared: cells of another kind are missing, which is reported
    (
        "a declared number",
        "declared",
        ["?", "few"] + ["1"] * 18,
        {("cells-unreadable", 1), ("missing-values-imputed", 2)},
    ),
    ("no declared number", "declared", ["few"] * 20, "column-unreadable"),
    ("a declared number in a unit", "declared", ["5 kg"] * 20, "column-unreadable"),
]


@pytest.mark.parametrize(
    ("column", "cells", "wanted"), [one[1:] for one in DRIFTS], ids=[one[0] for one in DRIFTS]
)
def test_drift_of_a_column(fitted: TablePlan, column: str, cells: list[Any], wanted: Any) -> None:
    new = table(NEW, 10).assign(**{column: pd.Series(cells, dtype=None)})
    found = notes(fitted, new)
    assert found == (wanted if isinstance(wanted, str) else {(*one, column) for one in wanted})


@pytest.mark.parametrize("count", [1, 5])
def test_a_single_new_row_is_compared_too(fitted: TablePlan, count: int) -> None:
    new = table(count).assign(amount=-7.0, town="Lima", memo="bezahlte die rote Karte", score=None)
    assert notes(fitted, new) == {
        ("numbers-out-of-range", count, "amount"),
        ("unknown-categories", count, "town"),
        ("unknown-words", count, "memo"),
        ("missing-values-increased", count, "score"),
    }


def test_columns_that_the_fit_does_not_have_are_reported(fitted: TablePlan) -> None:
    found = encode_table(table(NEW).assign(more=1, others="b"), fitted)[2]
    assert [(one.code, one.count, one.fields) for one in found] == [
        ("columns-unknown", 2, ("more", "others"))
    ]


@pytest.mark.parametrize("many", [False, True])
def test_rare_categories_and_items_of_the_fit_are_known(many: bool) -> None:
    rare = [f"rare {i}" for i in range(300 if many else 20)]
    rows = 4000
    words = [rare[i // 3] if i < 3 * len(rare) else f"often {i % 4}" for i in range(rows)]
    frame = pd.DataFrame({"word": words, "items": [[one, "all"] for one in words], "n": np.arange(rows) / 2})
    values, plan, _ = encode_table(frame)
    assert notes(plan, frame) == set()
    back = TablePlan.from_dict(json.loads(json.dumps(plan.as_dict())), plan.tensors())
    new = pd.DataFrame(
        {"word": ["rare 7", "odd", "often 1"], "items": [["all"], ["odd", "all"], ["rare 7"]], "n": 1.0}
    )
    assert notes(back, new) == {("unknown-categories", 1, "word"), ("unknown-items", 1, "items")}
    assert values.shape[0] == rows


def test_a_plan_of_an_earlier_version_has_no_such_notes(fitted: TablePlan) -> None:
    stored = json.loads(json.dumps(fitted.as_dict()))
    for column in stored["columns"]:
        column.pop("seen", None)
    old = TablePlan.from_dict(
        stored, {name: one for name, one in fitted.tensors().items() if "seen" not in name}
    )
    new = table(NEW).assign(amount=1e6, opened="2031-01-01", town="Lima", score=None)
    assert notes(old, new) == {("unknown-categories", NEW, "town")}
    assert np.array_equal(encode_table(table(), old)[0], encode_table(table(), fitted)[0])


@pytest.mark.parametrize("sparse", [False, True])
def test_unchanged_numbers_are_compared_with_the_fitted_range(sparse: bool) -> None:
    fitted = torch.tensor([[0.0, 1990, 0], [1, 2020, 0], [0, 2000, -2]])
    new = torch.tensor([[2.0, 1995, 0], [-1, 2021, 0], [1, 2000, -1]])
    both = [one.to_sparse_csr() if sparse else one for one in (fitted, new)]
    found = features_out_of_range(both[0], both[1], ("flag", "year", "x"))
    assert [(one.fields, one.count) for one in found] == [(("flag",), 2), (("year",), 1)]
    assert not features_out_of_range(both[0], both[0], ())


def test_many_columns_share_a_note() -> None:
    found = features_out_of_range(torch.zeros(3, 40), torch.ones(2, 40), ())
    assert len(found) == 25
    assert (found[-1].count, len(found[-1].fields)) == (32, 16)


def graph_files(folder: Path, frame: pd.DataFrame, form: str = "csv") -> tuple[Path, Path]:
    ids = [f"n{i}" for i in range(len(frame))]
    edges = save(ring(ids), folder / "edges", form)
    return edges, save(frame.assign(id=ids), folder / "features", form)


@pytest.mark.parametrize("form", FORMATS)
def test_a_stored_graph_keeps_what_the_fit_saw(tmp_path: Path, form: str) -> None:
    edges, features = graph_files(tmp_path, table(), form)
    graph = read_graph(edges, features=features)
    back = graph_from_tensors(graph_tensors(graph), json.loads(json.dumps(graph_description(graph))))
    assert back.plan is not None
    assert notes(back.plan, table(NEW).assign(amount=1e6)) == {("numbers-out-of-range", NEW, "amount")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a run on columns of all kinds, and one on numbers only."""
    found = {}
    for name, columns in (("mixed", ["amount", "opened", "town", "score"]), ("plain", ["amount", "x"])):
        folder = tmp_path_factory.mktemp(name)
        edges, features = graph_files(folder, table().assign(x=1.0)[columns])
        done = command("fit", "--edges", edges, "--features", features, *QUICK, "--out", folder / "run")
        assert done[0] == 0, done[2]
        found[name] = folder
    return found


@pytest.mark.parametrize(
    ("run", "column", "value", "code"),
    [
        ("mixed", "amount", 1e6, "numbers-out-of-range"),
        ("mixed", "town", "Lima", "unknown-categories"),
        ("mixed", "opened", "2031-01-01", "dates-out-of-range"),
        ("mixed", "score", None, "missing-values-increased"),
        ("plain", "amount", 1e6, "numbers-out-of-range"),
        ("plain", "x", -1.0, "numbers-out-of-range"),
    ],
)
@pytest.mark.parametrize("name", ["embed", "predict"])
def test_commands_report_drift(
    runs: dict[str, Path], tmp_path: Path, run: str, column: str, value: Any, code: str, name: str
) -> None:
    folder = runs[run]
    columns = pd.read_csv(folder / "features.csv").columns.drop("id")
    new = table(3).assign(x=1.0)[columns].assign(id=["new1", "new2", "new3"], **{column: value})
    edges = save(pd.DataFrame({"source": new["id"], "target": "n0"}), tmp_path / "edges")
    given: list[object] = [
        folder / "run",
        "--new-features",
        save(new, tmp_path / "new"),
        "--new-edges",
        edges,
    ]
    if name == "predict":
        labels = pd.DataFrame({"id": [f"n{i}" for i in range(40)], "outcome": ["red", "blue"] * 20})
        given += ["--labels", save(labels, tmp_path / "labels"), "--head", "logistic"]
    done, found, text = command(name, *given, "--out", tmp_path / "out.csv")
    assert done == 0, text
    assert [(one["code"], one["count"], one["fields"]) for one in found["repairs"]] == [(code, 3, [column])]
    assert f"note: {column}: 3" in text


def test_embedding_of_another_graph_reports_drift(runs: dict[str, Path], tmp_path: Path) -> None:
    edges, features = graph_files(tmp_path, table(NEW).assign(x=7.0)[["amount", "x"]])
    code, found, text = command(
        "embed",
        runs["plain"] / "run",
        "--edges",
        edges,
        "--features",
        features,
        "--out",
        tmp_path / "out.csv",
    )
    assert code == 0, text
    assert [(one["code"], one["fields"]) for one in found["provenance"]["repairs"]] == [
        ("numbers-out-of-range", ["x"])
    ]


def test_extend_in_python_has_the_notes_as_data() -> None:
    ids = [f"n{i}" for i in range(ROWS)]
    frame = table()[["amount", "town"]].set_axis(ids, axis="index")
    model = H3GNN.from_settings({"epochs": 1, "n_models": 1, "channels": 8, "heads": 2, "device": "cpu"})
    model.fit(frame, edges=ring(ids))
    new = pd.DataFrame({"amount": [-5.0], "town": ["Lima"]}, index=["new"])
    found = model.extend(new, pd.DataFrame({"source": ["new"], "target": ["n0"]})).repairs
    assert [(one.code, one.fields) for one in found] == [
        ("numbers-out-of-range", ("amount",)),
        ("unknown-categories", ("town",)),
    ]
