"""Order, names and units carry no information: changing them leaves the result equal up to rounding."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from h3gnn import H3GNN, mixed_graph
from h3gnn.answers.similarity import similar_nodes
from h3gnn.evaluation.clustering import clustering_accuracy, kmeans_clusters, project_to_plane
from h3gnn.experiments.report_data import collect_findings
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import canonical_graph, node_order, with_splits
from tests.inputs.tables import QUICK, command, save

ROWS = 100


def tables() -> dict[str, pd.DataFrame]:
    """Return edges, features and labels of a small graph with columns of several kinds."""
    graph = mixed_graph(ROWS, words=12)
    draws = np.random.default_rng(0)
    assert graph.labels is not None
    ids = np.array([f"n{i:02d}" for i in range(ROWS)])
    words = {f"w{i}": column for i, column in enumerate(graph.dense_features().numpy().T)}
    features = pd.DataFrame(
        {
            "id": ids,
            **words,
            "income": draws.lognormal(size=ROWS).round(3),
            "city": draws.choice(["Rome", "Oslo", "Bonn"], ROWS),
            "opened": [f"20{10 + i % 9}-0{1 + i % 9}-1{i % 10}" for i in range(ROWS)],
        }
    )
    ends = ids[graph.edge_index.numpy()]
    edges = pd.DataFrame(
        {"source": ends[0], "target": ends[1], "weight": draws.random(ends.shape[1]).round(3) + 0.1}
    )
    classes = np.array(["red", "blue", "green"])[graph.labels.numpy() % 3]
    labels = pd.DataFrame({"id": ids, "label": classes}).iloc[draws.permutation(ROWS)[:40]]
    return {"edges": edges, "features": features, "labels": labels}


def shuffled(table: pd.DataFrame) -> pd.DataFrame:
    return table.sample(frac=1, random_state=1)


CHANGES: dict[str, Any] = {
    "order of nodes": lambda t: t | {"features": shuffled(t["features"])},
    "order of edges": lambda t: t | {"edges": shuffled(t["edges"])},
    "order of labels": lambda t: t | {"labels": shuffled(t["labels"])},
    "order of columns": lambda t: (
        t | {"features": t["features"][["id", *reversed(t["features"].columns[1:])]]}
    ),
    "unit of a column": lambda t: t | {"features": t["features"].assign(w0=1000 * t["features"]["w0"])},
    "names of the ids": lambda t: {
        name: table.assign(**{c: "x" + table[c] for c in ("id", "source", "target") if c in table})
        for name, table in t.items()
    },
    "names of the classes": lambda t: t | {"labels": t["labels"].assign(label="c_" + t["labels"]["label"])},
}


def run_of(folder: Path, data: dict[str, pd.DataFrame]) -> Path:
    """Write the tables and fit them; return the folder with all of it."""
    paths = {name: save(table, folder / name) for name, table in data.items()}
    given = [one for name in paths for one in (f"--{name}", paths[name])]
    code, _, text = command("fit", *given, *QUICK, "--set", "smoothing=auto", "--out", folder / "run")
    assert code == 0, text
    return folder


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("original"), tables())


@pytest.fixture(scope="module", params=CHANGES)
def changed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("changed"), CHANGES[request.param](tables()))


def answer(folder: Path, *line: object) -> pd.DataFrame:
    """Run a command on a run and return its table, with the original names of nodes and classes."""
    renamed = str(pd.read_csv(folder / "features.csv")["id"][0]).startswith("x")
    verb, *rest = (f"x{one}" if renamed and one in {"n05", "n17"} else one for one in line)
    code, _, text = command(verb, folder / "run", *rest, "--out", folder / f"{verb}.csv")
    assert code == 0, text
    table = pd.read_csv(folder / f"{verb}.csv")
    texts = table.select_dtypes(exclude="number").columns
    table[texts] = table[texts].map(lambda cell: str(cell).replace("xn", "n").replace("c_", ""))
    return table.rename(columns=lambda name: str(name).replace("c_", ""))


COMMANDS: dict[str, tuple[tuple[str, ...], list[str], tuple[str, ...]]] = {
    "embed": (("embed",), ["node"], ()),
    "predict": (("predict",), ["node"], ("cannot_tell",)),
    "similar": (
        ("similar", "n05", "n17", "--k", "8"),
        ["node", "similar"],
        ("rank", "features", "neighbours"),
    ),
    "anomalies": (("anomalies",), ["node"], ()),
    "links": (("links", "--top", "30"), ["source", "target"], ()),
    "links of a node": (("links", "n05", "--check", "none", "--top", "20"), ["source", "target"], ()),
}
"""Command lines, the columns that name a row, and columns that are not compared."""


@pytest.mark.parametrize("name", COMMANDS)
def test_answers_do_not_depend_on_order_names_or_units(original: Path, changed: Path, name: str) -> None:
    line, key, ignored = COMMANDS[name]
    before, after = (answer(folder, *line) for folder in (original, changed))
    key = [one if one in before else before.columns[0] for one in key]
    if len(key) == 2:  # a pair has no direction
        for table in (before, after) if "source" in key else ():
            table[key] = np.sort(table[key].to_numpy(str), axis=1)
    before, after = (table.set_index(key).sort_index() for table in (before, after))
    assert before.index.tolist() == after.index.tolist()
    for column in before.columns.difference([*ignored]):
        assert column in after
        left, right = before[column], after[column]
        if pd.api.types.is_numeric_dtype(left):
            np.testing.assert_allclose(left, right, atol=2e-3, err_msg=column)


def numbers_in(found: Any, at: str = "") -> dict[str, float]:
    """Return all numbers in nested dicts and lists, by their path."""
    if isinstance(found, dict):
        return {k: v for key, one in found.items() for k, v in numbers_in(one, f"{at}/{key}").items()}
    if isinstance(found, list):
        return {k: v for key, one in enumerate(found) for k, v in numbers_in(one, f"{at}/{key}").items()}
    return {at: float(found)} if isinstance(found, int | float) and "second" not in at else {}


def test_scores_of_an_evaluation(original: Path, changed: Path) -> None:
    found = []
    for folder in (original, changed):
        code, printed, text = command("evaluate", folder / "run")
        assert code == 0, text
        found.append({key.replace("c_", ""): value for key, value in numbers_in(printed).items()})
    assert len(found[0]) > 10
    assert found[0] == pytest.approx(found[1], abs=2e-3)


def test_clusters(original: Path, changed: Path) -> None:
    before, after = (
        answer(folder, "cluster", "--clusters", "4").set_index("node") for folder in (original, changed)
    )
    pairs = pd.crosstab(before.iloc[:, 0], after.iloc[:, 0].reindex(before.index))
    assert ((pairs > 0).sum(axis=1) == 1).all()
    assert ((pairs > 0).sum(axis=0) == 1).all()


def test_data_of_a_report(original: Path, changed: Path) -> None:
    found = [collect_findings(H3GNN.load(folder / "run"), most_nodes=40) for folder in (original, changed)]
    assert found[0].scores is not None
    assert found[1].scores is not None
    assert [one.replace("xn", "n") for one in sorted(found[1].ids)] == sorted(found[0].ids)
    rows = [{row.representation: row for row in one.scores.rows} for one in found if one.scores is not None]
    assert rows[0].keys() == rows[1].keys()
    for name in rows[0]:
        left, right = (numbers_in(asdict(one[name])) for one in rows)
        assert left == pytest.approx(right, abs=2e-3), name


SMALL = ("--quick", "--set", "channels=8", "--set", "encoder.heads=2", "--models", "1", "--device", "cpu")
COMPARED = ("order of nodes", "order of edges", "order of columns", "unit of a column", "names of the ids")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from tables to the scores of a comparison."""

    def scores(data: dict[str, pd.DataFrame]) -> dict[str, float]:
        folder = tmp_path_factory.mktemp("compared")
        given = [one for name in data for one in (f"--{name}", save(data[name], folder / name))]
        methods = "raw,boosting-neighbours,label-propagation,gcn,h3gnn"
        code, found, text = command("compare", *given, "--methods", methods, *SMALL)
        assert code == 0, text
        return {
            key: value
            for row in found["rows"]
            for key, value in numbers_in(row, row["name"]).items()
            if "/probe/" in key or "macro_f1" in key
        }

    return scores


@pytest.fixture(scope="module")
def comparison(compared: Any) -> dict[str, float]:
    found: dict[str, float] = compared(tables())
    return found


@pytest.mark.parametrize("change", COMPARED)
def test_a_comparison(compared: Any, comparison: dict[str, float], change: str) -> None:
    assert len(comparison) > 10
    assert compared(CHANGES[change](tables())) == pytest.approx(comparison, abs=2e-3)


@pytest.mark.parametrize("method", ["tsne", "pca"])
@pytest.mark.parametrize("landmarks", [100, 50])
def test_maps_of_shuffled_rows(method: str, landmarks: int) -> None:
    rows = np.random.default_rng(0).normal(size=(80, 5)).astype(np.float32)
    order = np.random.default_rng(1).permutation(80)
    before, after = (project_to_plane(one, method=method, landmarks=landmarks) for one in (rows, rows[order]))
    np.testing.assert_allclose(before[order], after, atol=1e-3)


@pytest.mark.parametrize("width", [3, 60])
@pytest.mark.parametrize("unit", [False, True])
def test_clusters_of_shuffled_rows(width: int, unit: bool) -> None:
    rows = np.random.default_rng(0).normal(size=(50, width)).astype(np.float32)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True) if unit else rows
    order = np.random.default_rng(1).permutation(50)
    for seed in range(4):
        before, after = (kmeans_clusters(one, 5, n_init=1, seed=seed) for one in (rows, rows[order]))
        assert clustering_accuracy(before[order], after) == 1


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_random_splits_of_shuffled_rows(kind: str) -> None:
    graph = mixed_graph(60, words=30)
    assert graph.labels is not None
    x, y = graph.dense_features().numpy(), graph.labels.numpy()
    order = np.random.default_rng(1).permutation(60)
    given: dict[str, Any] = (
        {"labels": y} if kind == "classes" else {"targets": x[:, 0] + y + np.arange(60) / 100}
    )
    there: dict[str, Any] = {name: value[order] for name, value in given.items()}
    before = with_splits(check_graph(x, graph.edge_index, **given))
    after = with_splits(check_graph(x[order], np.argsort(order)[graph.edge_index.numpy()], **there))
    assert before.train_mask is not None
    assert after.train_mask is not None
    assert torch.equal(before.train_mask[order], after.train_mask)


def test_nodes_with_equal_rows_are_ordered_by_their_neighbours() -> None:
    x, ends = np.ones((8, 2)), np.array([[0, 1, 2, 3, 0, 5, 0], [1, 2, 3, 4, 5, 6, 7]])
    order = np.random.default_rng(3).permutation(8)
    before = check_graph(x, ends, kind="table")
    after = check_graph(x, np.argsort(order)[ends], kind="table")
    assert order[node_order(after)].tolist() == node_order(before).tolist()


@pytest.mark.parametrize("seed", range(3))
def test_smoothing_does_not_depend_on_the_order_of_rows(seed: int) -> None:
    graph = mixed_graph(60, words=30, seed=seed)
    order = np.random.default_rng(seed).permutation(60)
    x = graph.dense_features().numpy()
    where = np.argsort(order)
    chosen = []
    for features, ends in ((x, graph.edge_index.numpy()), (x[order], where[graph.edge_index.numpy()])):
        model = H3GNN.from_preset("single", epochs=1, channels=8, smoothing="auto").fit(
            features, edge_index=ends
        )
        chosen.append(model.smoothing_)
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("seed", range(3))
def test_equally_similar_nodes(seed: int) -> None:
    draw = np.random.default_rng(seed)
    x, ends = draw.normal(size=(12, 3)), np.array([[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    embedding = np.repeat(np.array([[1, 0], [0, 1], [-1, -1]], dtype=np.float32), 4, axis=0)
    order = draw.permutation(12)
    names = np.array([f"n{i}" for i in range(12)], dtype=object)
    before = check_graph(x, ends, node_ids=names, kind="table")
    after = check_graph(x[order], np.argsort(order)[ends], node_ids=names[order], kind="table")
    found = [
        similar_nodes(graph, rows, np.flatnonzero(graph.node_ids == "n5"), 2)["similar"].tolist()
        for graph, rows in ((before, embedding), (after, embedding[order]))
    ]
    assert found[0] == found[1]
    assert {*found[0]} < {"n4", "n6", "n7"}


@pytest.mark.parametrize("kind", ["dataset", "generated"])
def test_benchmark_graphs_keep_their_order(kind: Any) -> None:
    graph = check_graph(np.random.default_rng(0).normal(size=(20, 3)), np.array([[0, 1], [1, 2]]), kind=kind)
    assert node_order(graph).tolist() == list(range(20))
    assert canonical_graph(graph) is graph
