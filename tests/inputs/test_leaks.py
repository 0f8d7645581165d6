"""A feature that contains the class is left out when the labels are known, and rejected once it was used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, Graph, NodeClassifier, as_graph, mixed_graph, read_graph
from h3gnn.database import Database
from h3gnn.errors import InputError
from h3gnn.ondisk.prepare import prepare_graph
from h3gnn.tables.leaks import doubts, find_leaks, is_same_target
from tests.inputs.tables import FORMATS, QUICK, command, repairs, ring, save
from tests.rejects import rejects

ROWS = 80
DRAWS = np.random.default_rng(0)
IDS = [f"n{i:02d}" for i in range(ROWS)]
BAD = DRAWS.random(ROWS) < 0.4
NOISE = DRAWS.random(ROWS).round(4)
OTHER = DRAWS.random(ROWS) < 0.4
"""Has nothing to do with the class, so that only its name can give a column away."""
WORDS = np.where(BAD, "fraud", "fine")

NAMES = ["Outcome", "OUTCOME", "is_outcome", "hasOutcome", "outcome_label", "outcomeFlag", "Outcome class"]
"""Other names of the label column `outcome`."""

COPIES: dict[str, Any] = {
    "boolean": BAD,
    "number": BAD * 1.0,
    "code": np.where(BAD, 7, 3),
    "text": np.where(BAD, "closed", "open"),
    "several words for one class": np.where(BAD, np.where(OTHER, "theft", "abuse"), "none of these"),
    "threshold": NOISE + 2 * BAD,
    "interval": np.where(BAD, 1 + NOISE, np.where(OTHER, NOISE, 3 + NOISE)),
    "gap": [f"2024-01-{1 + i % 28:02d}" if bad else None for i, bad in enumerate(BAD)],
    "list": [f"{'a' if OTHER[i] else 'b'}|{'seen' if bad else 'new'}" for i, bad in enumerate(BAD)],
    "inverse": ~BAD,
}
"""Columns that determine the class, whatever their name."""


def features(**more: Any) -> pd.DataFrame:
    """Return features that say nothing about the class, and further columns."""
    return pd.DataFrame(
        {"id": IDS, "size_": NOISE, "town": ["Ulm", "Bonn", "Jena", "Kiel"] * (ROWS // 4), **more}
    )


def labels(name: str = "outcome", classes: Any = WORDS) -> pd.DataFrame:
    return pd.DataFrame({"id": IDS, name: classes})


def read(
    folder: Path, table: pd.DataFrame, answers: pd.DataFrame | None, form: str = "csv", **more: Any
) -> Graph:
    more["labels"] = None if answers is None else save(answers, folder / "l", form)
    edges = save(ring(IDS), folder / "e", form)
    return read_graph(edges, features=save(table, folder / "f", form), **more)


def used(graph: Graph) -> set[str]:
    """Return the columns that became features."""
    assert graph.plan is not None
    return {one.name for one in graph.plan.used}


ROUTES: dict[str, Callable[[Path, pd.DataFrame], Graph]] = {
    "label file": lambda folder, table: read(folder, table, labels()),
    "label file, Parquet": lambda folder, table: read(folder, table, labels(), "parquet"),
    "label column": lambda folder, table: read(
        folder, table.assign(outcome=WORDS), None, label_column="outcome"
    ),
    "declared label": lambda folder, table: read(
        folder, table.assign(outcome=WORDS), None, columns={"outcome": "label"}
    ),
    "data frame": lambda folder, table: as_graph(
        table.assign(outcome=WORDS).set_index("id"), ring(IDS), columns={"outcome": "label"}
    ),
}
"""Ways in which features and labels come together before a model is fitted."""


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_feature_with_the_name_of_the_class_is_left_out(tmp_path: Path, name: str, route: str) -> None:
    graph = ROUTES[route](tmp_path, features(**{name: OTHER}))
    assert used(graph) == {"size_", "town"}
    assert repairs(graph)["label-leak"].fields == (name,)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_feature_that_determines_the_class_is_left_out(tmp_path: Path, copy: str, route: str) -> None:
    graph = ROUTES[route](tmp_path, features(status=COPIES[copy]))
    assert used(graph) == {"size_", "town"}
    assert repairs(graph)["label-leak"].fields == ("status",)


@pytest.mark.parametrize("form", FORMATS)
def test_a_column_for_each_class_is_left_out(tmp_path: Path, form: str) -> None:
    classes = DRAWS.choice(["red", "green", "blue"], ROWS)
    table = features(**{f"c{at}": (classes == one) * 1 for at, one in enumerate(("red", "green", "blue"))})
    graph = read(tmp_path, table, labels("colour", classes), form)
    assert used(graph) == {"size_", "town"}
    plain = read(tmp_path, table.drop(columns="town"), labels("colour", classes), form)
    assert used(plain) == {"size_"}
    assert plain.features[:, 0].tolist() == pytest.approx(NOISE.tolist())  # unchanged, as without the leak


@pytest.mark.parametrize("route", ["label file", "label column"])
def test_a_copy_of_the_number_to_predict_is_left_out(tmp_path: Path, route: str) -> None:
    price = (DRAWS.lognormal(3, 1, ROWS)).round(2)
    near = price * DRAWS.uniform(0.8, 1.2, ROWS)
    table = features(cents=100 * price, Price=OTHER, rank_=np.argsort(np.argsort(-price)), near=near)
    if route == "label file":
        graph = read(tmp_path, table, labels("price", price), task="regression")
    else:
        graph = read(tmp_path, table.assign(price=price), None, label_column="price", task="regression")
    assert used(graph) == {"size_", "town", "near"}


def test_a_copy_with_one_error_in_a_hundred_rows_is_left_out(tmp_path: Path) -> None:
    truth = np.arange(400) % 2
    for wrong, expected in ((0, 1), (4, 1), (5, 0), (40, 0)):
        copy = truth.copy()
        copy[: 2 * wrong : 2] = 1
        assert len(find_leaks(copy[:, None], ["copy"], truth)) == expected, wrong


def test_a_declared_column_is_kept_and_reported(tmp_path: Path) -> None:
    graph = read(tmp_path, features(status=BAD, Outcome=OTHER), labels(), columns={"status": "boolean"})
    assert used(graph) == {"size_", "town", "status"}
    assert repairs(graph)["label-leak-kept"].fields == ("status",)
    kept = read(tmp_path, features(outcome=OTHER), labels(), columns={"outcome": "boolean"})
    assert "outcome" in used(kept)


def test_what_is_left_out_is_not_needed_later(tmp_path: Path) -> None:
    graph = read(tmp_path, features(status=BAD).drop(columns="town"), labels())
    new = save(features().drop(columns="town"), tmp_path / "new")
    again = read_graph(save(ring(IDS), tmp_path / "e"), features=new, plan=graph.plan)
    assert again.features.tolist() == graph.features.tolist()
    wide = save(features(status=BAD).drop(columns="town"), tmp_path / "wide")
    assert read_graph(tmp_path / "e.csv", features=wide, plan=graph.plan).num_features == 1


def test_labels_read_with_the_plan_of_a_model_that_used_the_class(tmp_path: Path) -> None:
    graph = read(tmp_path, features(status=BAD), None)
    assert "status" in used(graph)
    with rejects("label-leak"):
        read(tmp_path, features(status=BAD), labels(), plan=graph.plan)


@pytest.mark.parametrize(
    "table", [{}, {"town_": ["Ulm", "Bonn"] * (ROWS // 2), "grade": DRAWS.integers(0, 5, ROWS)}]
)
@pytest.mark.parametrize("classes", [WORDS, DRAWS.integers(0, 4, ROWS), np.arange(ROWS) < 6])
def test_honest_columns_are_kept(tmp_path: Path, table: dict[str, Any], classes: Any) -> None:
    near = np.where(DRAWS.random(ROWS) < 0.9, BAD, ~BAD)  # right in nine rows of ten
    graph = read(
        tmp_path,
        features(near=near, day=[f"2024-03-{1 + i % 28:02d}" for i in range(ROWS)], **table),
        labels("y_", classes),
    )
    assert used(graph) == {"size_", "town", "near", "day", *table}
    assert not {"label-leak", "label-leak-kept"} & {*repairs(graph)}


def test_columns_with_another_value_in_every_row_are_no_evidence() -> None:
    noise, truth = np.random.default_rng(1).random((2000, 40)), np.arange(2000) % 2
    assert not find_leaks(noise, [f"x{at}" for at in range(40)], truth)
    assert not find_leaks(noise[:20], [f"x{at}" for at in range(40)], truth[:20])
    rare = np.where(np.arange(2000) < 8, 1, 0)
    assert not find_leaks((noise > 0.996) * 1, [f"x{at}" for at in range(40)], rare)


def test_one_class_that_a_measurement_separates_is_no_leak() -> None:
    flowers = pytest.importorskip("sklearn.datasets").load_iris()
    assert not find_leaks(flowers.data, flowers.feature_names, flowers.target)


def test_the_built_in_example_has_no_leak() -> None:
    graph = mixed_graph()
    assert graph.labels is not None
    width = range(graph.num_features)
    assert not find_leaks(graph.dense_features().numpy(), [*map(str, width)], graph.labels.numpy())


@pytest.mark.parametrize(
    ("name", "target", "same"),
    [
        ("isFraud", "is_fraud", True),
        ("fraud_label", "is_fraud", True),
        ("Fraud", "fraud", True),
        ("isfraud", "is_fraud", True),
        ("FRAUD FLAG", "fraud_label", True),
        ("fraud_score", "is_fraud", False),
        ("is_active", "is_fraud", False),
        ("class", "label", False),
        ("état", "ÉTAT", True),
        ("€", "$", False),
        ("x", None, False),
    ],
)
def test_which_names_say_the_same(name: str, target: str | None, *, same: bool) -> None:
    assert is_same_target(name, target) is same


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that was fitted, without labels, on two columns that contain the class."""
    folder = tmp_path_factory.mktemp("leaking")
    table = features(status=np.where(BAD, "closed", "open"), Outcome=OTHER)
    given = ("--edges", save(ring(IDS), folder / "e"), "--features", save(table, folder / "f"))
    code, _, text = command("fit", *given, *QUICK, "--out", folder / "run")
    assert code == 0, text
    return folder / "run"


def predict(run: Path, folder: Path, *more: object, name: str = "outcome", rows: int = 60) -> tuple[str, str]:
    """Predict a run with labels; return the code of the error, or "", and the message."""
    answers = save(labels(name)[:rows], folder / "l")
    _, printed, text = command(
        "predict", run, "--labels", answers, *more, "--head", "logistic", "--out", folder / "p.csv"
    )
    return printed.get("error", {}).get("code", ""), text


@pytest.mark.parametrize("name", ["outcome", "y", "Outcome label", "result"])
def test_labels_for_a_model_that_used_the_class(run: Path, tmp_path: Path, name: str) -> None:
    code, message = predict(run, tmp_path, name=name)
    assert code == "label-leak"
    assert "--columns status=identifier" in message
    assert ("--columns Outcome=identifier" in message) == ("utcome" in name)


def test_the_error_about_a_leak_has_two_answers(run: Path, tmp_path: Path) -> None:
    assert predict(run, tmp_path, "--allow-leaks")[0] == ""
    given = ("--edges", run.parent / "e.csv", "--features", run.parent / "f.csv")
    without = ("--columns", "status=identifier", "--columns", "Outcome=identifier")
    assert command("fit", *given, *without, *QUICK, "--out", tmp_path / "run")[0] == 0
    assert predict(tmp_path / "run", tmp_path)[0] == ""


def test_predict_from_tables_leaves_the_class_out(run: Path, tmp_path: Path) -> None:
    given = ("--edges", run.parent / "e.csv", "--features", run.parent / "f.csv", "--preset", "single")
    code, message = predict(tmp_path / "run", tmp_path, *given, "--epochs", "1", "--set", "channels=8")
    assert code == "", message
    _, printed, _ = command(
        "predict", tmp_path / "run", "--head", "logistic", "--out", tmp_path / "again.csv"
    )
    assert printed["held_out"]["mean"]["accuracy"] < 0.9


@pytest.mark.parametrize("named", [True, False])
def test_classifier_rejects_a_graph_that_contains_the_class(named: bool) -> None:
    graph = as_graph(features(status=BAD, Outcome=OTHER).set_index("id"), ring(IDS))
    y = pd.Series(WORDS[:60], name="outcome") if named else WORDS[:60].tolist()
    quick = H3GNN.from_preset("single", epochs=1, channels=8)
    with rejects("label-leak") as error:
        NodeClassifier(quick, graph).fit(IDS[:60], y)
    assert "status" in error.message
    assert ("Outcome" in error.message) is named
    NodeClassifier(quick, graph, allow_leaks=True).fit(IDS[:60], y)


@pytest.mark.parametrize("name", ["label", "is_fraud", "Class", "target"])
def test_a_class_in_a_frame_of_numbers_is_no_feature(name: str) -> None:
    table = features(**{name: BAD * 1}).drop(columns="town").set_index("id")
    model = H3GNN.from_preset("single", epochs=1, channels=8)
    with pytest.warns(UserWarning, match=name):
        model.fit(table, edge_index=ring(IDS))
    assert used(model.graph_) == {"size_"}
    assert model.transform(table, edge_index=ring(IDS)).shape == model.embedding_.shape
    with pytest.warns(UserWarning, match=name):
        model.fit(table)
    assert used(model.graph_) == {"size_"}
    assert np.array_equal(model.transform(table), model.embedding_)


def test_classes_of_files_without_header_have_no_name(tmp_path: Path) -> None:
    """The second columns of two files are not the same for being the second."""
    (tmp_path / "e.csv").write_text("1,2\n2,3\n")
    (tmp_path / "f.csv").write_text("1,5.5\n2,6.5\n3,8\n")
    (tmp_path / "l.csv").write_text("1,4\n2,4\n3,9\n")
    graph = read_graph(
        tmp_path / "e.csv", features=tmp_path / "f.csv", labels=tmp_path / "l.csv", header=False
    )
    assert graph.num_features == 1


def test_prepare_leaves_the_class_out_or_rejects_it(tmp_path: Path) -> None:
    edges, table = save(ring(IDS), tmp_path / "e"), features(Outcome=OTHER * 1).drop(columns="town")
    answers = save(labels(), tmp_path / "l")
    graph = prepare_graph(edges, save(table, tmp_path / "f"), tmp_path / "named", labels=answers)
    assert graph.feature_names == ("size_",)
    leaking = save(table.assign(status=BAD * 1), tmp_path / "g")
    with rejects("label-leak", InputError):
        prepare_graph(edges, leaking, tmp_path / "values", labels=answers)


# conditions on a column of one of several tables


def races(flipped: float, status: float, rows: int = 300) -> dict[str, pd.DataFrame]:
    """Return results with points, and a flag and a status that say whether there are any, but for a share."""
    draw = np.random.default_rng(3)
    points = np.where(draw.random(rows) < 0.5, 0.0, 1 + draw.random(rows).round(3))
    scored, wrong, other = points > 0, draw.random(rows) < flipped, draw.random(rows) < status
    results = pd.DataFrame(
        {
            "result_id": np.arange(rows),
            "status_id": np.where(scored ^ other, 1, 2) + 2 * draw.integers(0, 2, rows),
            "grid": draw.random(rows).round(3),
            "flag": scored ^ wrong,
            "points": points,
        }
    )
    return {"results": results, "status": pd.DataFrame({"status_id": np.arange(1, 5)})}


def test_a_column_that_determines_a_condition_is_rejected_before_the_fit(tmp_path: Path) -> None:
    given = races(0, 0.5)
    database = Database(given, folder=tmp_path / "db")
    with rejects("label-leak") as caught:
        database.ask("results.points>0")
    assert "--columns results.flag=identifier" in caught.message
    assert not database.fitted
    model = H3GNN(channels=8, encoder__heads=2, epochs=2, n_models=1, device="cpu", random_state=0)
    free = Database(given, columns={"results.flag": "identifier"}, model=model).ask("results.points>0")
    assert free.names == ("not points>0", "points>0")


def test_columns_that_nearly_determine_the_class_are_noted() -> None:
    def noted(flipped: float, status: float) -> set[str]:
        view = Database(races(flipped, status)).view("results", "points")
        assert view.targets is not None
        found = doubts(view, (view.targets > 0).long().numpy(), "results", "points>0")
        return {one for repair in found for one in repair.fields}

    assert noted(0.5, 0.5) == set()
    assert noted(0.1, 0.5) == {"results.flag"}
    assert noted(0.5, 0.1) == {"status"}  # which of its rows
