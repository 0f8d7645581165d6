"""Texts of the user are shown as they are, shared arrays cannot be changed, caches follow the content."""

from __future__ import annotations

import ast
import copy
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from typer.testing import CliRunner

from h3gnn import H3GNN, Graph, JointEncoder, NodeClassifier, as_graph
from h3gnn.cli.app import app
from h3gnn.cli.output import print_table
from h3gnn.errors import InputError
from h3gnn.graphs.scaling import csr_features
from h3gnn.resources import new_table
from h3gnn.storage.runs import difference
from tests.inputs.tables import QUICK, command, ring, save
from tests.rejects import rejects

TINY: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 1, "hops": 1, "device": "cpu"}
SOURCE = Path(__file__).parents[2] / "src" / "h3gnn"
HOSTILE = [
    "[/red]",
    "[bold]x",
    ":smile:",
    "[link=file:///etc/passwd]a",
    "a\\",
    "[",
    "]",
    "[[x]]",
    "[/]",
    "[@click=quit]q",
]


# texts of the user


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("where", ["title", "heading", "cell"])
def test_texts_in_tables_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], text: str, where: str
) -> None:
    parts = {"title": "t", "heading": "h", "cell": "c" * 60, where: text}
    print_table(parts["title"], [parts["heading"]], [[parts["cell"]]])
    assert text in capsys.readouterr().out


def test_every_table_of_the_terminal_is_a_plain_one() -> None:
    assert new_table("[/x]").title is not None
    for path in SOURCE.rglob("*.py"):
        if path.name == "resources.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
                names = {one.name for one in node.names}
                assert names in ({"SIMPLE_HEAD"}, {"Console"}) or path.name == "page.py", path


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tables and a run whose names, classes, ids and files look like markup."""
    folder = tmp_path_factory.mktemp("hostile")
    ids, draws = [f"[/red]{i}" for i in range(40)], np.random.default_rng(0)
    further = pd.DataFrame({"source": ids, "target": [ids[(7 * i + 3) % 40] for i in range(40)]})
    columns = {
        "[bold]x": draws.normal(size=40),
        ":smile:": draws.normal(size=40),
        "[/z]": draws.normal(size=40),
    }
    save(pd.concat([ring(ids), further]), folder / "[bold]edges")
    save(pd.DataFrame({"id": ids, **columns}), folder / "[features]")
    save(pd.DataFrame({"id": ids, "[/cls]": ["[/red]", ":warning:"] * 20}), folder / "[red]labels")
    done = shown("fit", *tables(folder), *QUICK, "--out", folder / "[run]")
    assert done[0] == 0, done[1]
    return folder


def tables(folder: Path) -> list[Any]:
    names = {"--edges": "[bold]edges.csv", "--features": "[features].csv", "--labels": "[red]labels.csv"}
    return [one for flag, name in names.items() for one in (flag, folder / name)]


def shown(*arguments: object) -> tuple[int, str]:
    """Return the exit code and everything that a command prints on a wide terminal."""
    done = CliRunner().invoke(app, [*map(str, arguments)], env={**os.environ, "COLUMNS": "250"})
    if done.exception is not None and not isinstance(done.exception, SystemExit | InputError):
        raise done.exception
    return done.exit_code, done.output + (str(done.exception) if done.exception else "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("inspect", "TABLES"), ["[bold]edges.csv", "[features].csv"]),
        (("evaluate", "RUN"), ["[bold]edges.csv"]),
        (("cluster", "RUN"), ["cluster"]),
        (("similar", "RUN", "[/red]0"), ["[/red]0", ":smile:"]),
        (("similar", "RUN", "[/nobody]"), ["[/nobody]", "[/red]0"]),
        (("anomalies", "RUN"), ["[/red]"]),
        (("links", "RUN", "--check", "none"), ["[/red]"]),
        (("predict", "RUN", "--head", "logistic", "--all", "--out", "OUT"), [":warning:"]),
        (("report", "RUN", "--out", "PAGE"), ["report:"]),
        (("fit", "[/red]", "--out", "RUN"), ["[/red]"]),
        (("fit", "--epochs", "[/red]"), ["--epochs"]),
        (("fit", "--[/red]"), ["--[/red]"]),
        (("[/red]",), ["[/red]"]),
    ],
)
def test_commands_show_texts_as_they_are(
    hostile: Path, tmp_path: Path, arguments: tuple[str, ...], words: list[str]
) -> None:
    places = {"RUN": [hostile / "[run]"], "OUT": [tmp_path / "p.csv"], "PAGE": [tmp_path / "r.html"]}
    given = [one for word in arguments for one in ({**places, "TABLES": tables(hostile)}.get(word) or [word])]
    _, text = shown(*given)
    assert all(word in text for word in words), text


# shared arrays


@pytest.fixture
def fitted() -> H3GNN:
    draws = np.random.default_rng(0)
    edges = np.array([list(range(30)), [(i * 7 + 1) % 30 for i in range(30)]])
    return H3GNN.from_settings(TINY).fit(draws.normal(size=(30, 4)).astype(np.float32), edge_index=edges)


WRITES: dict[str, Callable[[Any], Any]] = {
    "embedding": lambda model: model.embedding_.__setitem__(0, 9.0),
    "part of the embedding": lambda model: model.embedding_[:3].fill(0),
    "ids": lambda model: model.graph_.node_ids.__setitem__(0, 9),
}


@pytest.mark.parametrize("name", WRITES)
def test_shared_arrays_are_read_only(fitted: H3GNN, name: str, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    for model in (fitted, H3GNN.load(tmp_path / "run")):
        with pytest.raises(ValueError, match="read-only"):
            WRITES[name](model)


@pytest.mark.parametrize("name", ["transform", "fit_transform"])
def test_returned_embeddings_are_copies(fitted: H3GNN, name: str) -> None:
    before = fitted.embedding_.copy()
    rows = getattr(fitted, name)(fitted.graph_)
    rows[:] = 0
    assert rows.flags.writeable
    if name == "transform":
        assert np.array_equal(fitted.embedding_, before)
    assert fitted.embedding_.any()


ANSWERS: dict[str, Callable[[H3GNN], Any]] = {
    "transform": lambda model: model.transform(model.graph_),
    "similar": lambda model: model.similar(0, 3),
    "anomalies": lambda model: model.anomalies(),
    "links": lambda model: model.links(check=False),
    "attention": lambda model: model.attention(),
    "fit": lambda model: model.fit(model.graph_),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("part", ["features", "edge_index"])
def test_answers_notice_a_graph_that_was_changed_in_place(fitted: H3GNN, answer: str, part: str) -> None:
    ANSWERS[answer](fitted)
    getattr(fitted.graph_, part)[0, 0] = 1
    with rejects("graph-changed"):
        ANSWERS[answer](fitted)


def test_changed_values_of_sparse_features_are_noticed() -> None:
    crow, cols = torch.arange(5), torch.arange(4)
    graph = as_graph(np.eye(4), np.array([[0], [1]]))
    sparse = Graph(
        csr_features(crow, cols, torch.ones(4), (4, 4)),
        graph.edge_index,
        graph.provenance,
        node_ids=np.arange(4),
    )
    sparse.check_unchanged()
    sparse.features.values()[0] = 3
    with rejects("graph-changed"):
        sparse.check_unchanged()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies_of_a_graph_are_unchanged(fitted: H3GNN, copied: Callable[[Graph], Graph]) -> None:
    again = copied(fitted.graph_)
    again.check_unchanged()
    assert not again.node_ids.flags.writeable
    model = copy.deepcopy(fitted)
    assert np.array_equal(model.transform(model.graph_), fitted.embedding_)


def test_input_arrays_stay_writable_and_apart(fitted: H3GNN) -> None:
    rows, edges = np.eye(5, dtype=np.float32), np.array([[0, 1], [1, 2]])
    ids = np.array(list("abcde"), dtype=object)
    graph = as_graph(pd.DataFrame(rows, index=ids).rename(columns="f{}".format), edge_index=edges)
    rows[0, 0], edges[0, 0], ids[0] = 7, 4, "z"
    assert float(graph.features[0, 0]) == 1
    assert graph.edge_index.tolist() == [[0, 1], [1, 2]]
    assert graph.node_ids.tolist() == list("abcde")
    graph.check_unchanged()


# caches


class Scaled(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """An embedder with an array as a parameter; counts its fits."""

    fits = 0

    def __init__(self, factors: Any = None) -> None:
        self.factors = factors

    def fit(self, graph: Graph, y: Any = None) -> Scaled:
        return self

    def transform(self, graph: Graph) -> Any:
        Scaled.fits += 1
        return graph.dense_features().numpy() * self.factors


def cached(folder: Path, graph: Graph, factors: Any) -> Any:
    model = NodeClassifier(Scaled(factors), graph, head="logistic", memory=str(folder), allow_leaks=True)
    return model.fit(np.arange(40), np.arange(40) % 2).embedding_


@pytest.mark.parametrize("change", ["factors", "graph", "nothing"])
def test_cached_embeddings_follow_the_content(tmp_path: Path, change: str) -> None:
    features, factors = np.random.default_rng(0).normal(size=(1500, 2)), np.ones((1500, 2))
    graph = as_graph(features, np.array([[0], [1]]))
    first, fits = cached(tmp_path, graph, factors), Scaled.fits
    if change == "factors":  # in the middle, which `repr` does not show
        factors = factors.copy()
        factors[700] = 5
    elif change == "graph":
        features[700] = 9
        graph = as_graph(features, np.array([[0], [1]]))
    second = cached(tmp_path, graph, factors)
    assert Scaled.fits == fits + (change != "nothing")
    assert np.array_equal(first, second) == (change == "nothing")


@pytest.mark.parametrize("shared", ["tensor", "array"])
def test_a_module_notices_changed_edges(shared: str) -> None:
    torch.manual_seed(0)
    module = JointEncoder(4, channels=8, heads=2).eval()
    x, edges = torch.randn(6, 4), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
    with torch.no_grad():
        module(x, edges)
        if shared == "tensor":
            edges[0, 0] = 5
        else:
            edges.numpy()[0, 0] = 5  # which torch does not count
        assert torch.equal(module(x, edges), copy.deepcopy(module)(x, edges.clone()))


@pytest.mark.parametrize("change", ["ids", "nothing"])
def test_a_run_on_other_names_is_another_run(tmp_path: Path, change: str) -> None:
    ids = [f"n{i}" for i in range(24)]
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=24), "z": np.arange(24) % 5})
    for at in range(2):
        ids = [f"m{i}" for i in range(24)] if at and change == "ids" else ids
        labels = pd.DataFrame({"id": ids[:20], "outcome": ["blue", "green"] * 10})
        given = [
            "--edges",
            save(ring(ids), tmp_path / "edges"),
            "--labels",
            save(labels, tmp_path / "labels"),
        ]
        given += ["--features", save(frame.assign(id=ids), tmp_path / "features"), "--epochs", "1"]
        _, found, _ = command(
            "predict", tmp_path / "run", *given, "--head", "logistic", "--out", tmp_path / "p.csv"
        )
    assert found.get("error", {}).get("code") == (None if change == "nothing" else "already-fitted")


@pytest.mark.parametrize("part", ["node_ids", "class_names", "feature_names", "type_names"])
def test_graphs_that_differ_in_names_only_are_different(fitted: H3GNN, part: str) -> None:
    settings, graph = fitted.get_settings(), replace(fitted.graph_, class_names=("a", "b"))
    others: dict[str, Any] = {"node_ids": np.arange(30) + 1, "class_names": ("a", "c")}
    others |= {"feature_names": tuple("abcd"), "type_names": ("user", "film")}
    assert difference((settings, graph), (settings, replace(graph))) == ""
    assert difference((settings, graph), (settings, replace(graph, **{part: others[part]})))


@pytest.mark.parametrize("change", ["content", "time"])
def test_prepared_stages_follow_the_content_of_files(tmp_path: Path, change: str) -> None:
    from h3gnn.ondisk import prepare

    edges = tmp_path / "edges.csv"
    edges.write_text("source,target\na,b\nb,c\n")
    before, times = prepare._sha256(edges), edges.stat()
    if change == "content":
        edges.write_text("source,target\na,b\nb,d\n")  # as many bytes
        os.utime(edges, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        os.utime(edges)
    assert (prepare._sha256(edges) == before) == (change == "time")


# small graphs


IDS = [f"n{i}" for i in range(24)]


def rows(ids: list[str]) -> pd.DataFrame:
    draws = np.random.default_rng(0)
    return pd.DataFrame({"id": ids, "x": draws.normal(size=len(ids)), "z": draws.normal(size=len(ids))})


GRAPHS: dict[str, tuple[pd.DataFrame, pd.DataFrame | None, list[str]]] = {
    "one node": (pd.DataFrame({"source": ["n0"], "target": ["n0"]}), rows(IDS[:1]), []),
    "one node without features": (pd.DataFrame({"source": ["n0"], "target": ["n0"]}), None, []),
    "two nodes": (pd.DataFrame({"source": ["n0"], "target": ["n1"]}), rows(IDS[:2]), []),
    "self-loops only": (pd.DataFrame({"source": IDS, "target": IDS}), rows(IDS), []),
    "no edges left": (ring(IDS).assign(weight=0.0), rows(IDS), ["--weights", "drop"]),
    "no known nodes left": (ring([f"m{i}" for i in range(24)]), rows(IDS), ["--unknown-nodes", "drop"]),
    "text as weight": (ring(IDS).assign(weight="heavy"), rows(IDS), []),
    "no rows": (ring(IDS)[:0], rows(IDS), []),
}
COMMANDS = {
    "embed": ["--out", "OUT"],
    "similar": ["n0"],
    "anomalies": [],
    "links": [],
    "links by similarity": ["--check", "none"],
    "report": ["--out", "PAGE"],
    "predict": ["--labels", "LABELS", "--out", "OUT"],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_every_command_answers_on_a_small_graph_or_says_in_a_sentence_why_not(
    tmp_path: Path, name: str
) -> None:
    edges, features, more = GRAPHS[name]
    given: list[Any] = ["--edges", save(edges, tmp_path / "edges"), *more]
    given += [] if features is None else ["--features", save(features, tmp_path / "features")]
    ids = IDS[:1] if features is None else features["id"].tolist()[:20]
    labels = pd.DataFrame({"id": ids, "outcome": (["a", "b"] * 10)[: len(ids)]})
    places = {
        "OUT": tmp_path / "o.csv",
        "PAGE": tmp_path / "r.html",
        "LABELS": save(labels, tmp_path / "labels"),
    }
    results = [command("inspect", *given), command("fit", *given, *QUICK, "--out", tmp_path / "run")]
    if results[1][0] == 0:
        for one, options in COMMANDS.items():
            words = [places.get(word, word) for word in options]
            results.append(command(one.split()[0], tmp_path / "run", *words))  # any other exception is raised
    errors = [found["error"] for code, found, _ in results if code]
    assert all(0 < len(one["message"]) < 400 and "\n" not in one["message"] for one in errors), errors
    assert all(one["code"] != "input" for one in errors)
    if name in ("text as weight", "no rows"):
        assert [one["code"] for one in errors] == [
            {"no rows": "table-empty"}.get(name, "column-unreadable")
        ] * 2


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_text_in_the_column_of_weights_is_one_sentence(tmp_path: Path, form: str) -> None:
    from h3gnn import read_graph

    edges = save(ring(IDS).assign(weight=["heavy", "light"] * 12), tmp_path / "edges", form)
    with rejects("column-unreadable") as caught:
        read_graph(edges, features=save(rows(IDS), tmp_path / "features", form))
    assert "'heavy'" in caught.message
    renamed = save(ring(IDS).assign(kind="heavy"), tmp_path / "edges", form)
    assert read_graph(renamed, features=tmp_path / f"features.{form}").edge_weight is None
