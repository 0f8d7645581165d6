"""Which nodes can have a label, what -1 means, rare categories of several tables, and options to paste."""

from __future__ import annotations

import re
import shlex
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from torch_geometric.data import Data

from h3gnn import Graph, NodeClassifier, as_graph, read_graph, read_graph_file
from h3gnn.cli.options import parse_columns
from h3gnn.errors import InputError, as_list, as_option
from h3gnn.graphs.targets import may_have_label
from tests.inputs.tables import QUICK, command, repairs, ring, save
from tests.rejects import rejects

SOURCE = Path(__file__).parents[2] / "src" / "h3gnn"


# -1 and numbers in arrays and objects


def pyg(labels: Any) -> Graph:
    return as_graph(
        Data(x=torch.eye(len(labels)), edge_index=torch.tensor([[0], [1]]), y=torch.tensor(labels))
    )


def dgl(labels: Any) -> Graph:
    network = SimpleNamespace(
        edges=lambda: (np.array([0]), np.array([1])),
        num_nodes=lambda: len(labels),
        ndata={"feat": np.eye(len(labels)), "label": np.array(labels)},
        edata={},
    )
    return as_graph(network)


def npz(labels: Any, folder: Path) -> Graph:
    np.savez(
        folder / "g.npz", edges=np.array([[0, 1]]), node_features=np.eye(len(labels)), node_labels=labels
    )
    return read_graph_file(folder / "g.npz")


ROUTES = ("pyg", "dgl", "npz")


def from_array(route: str, labels: Any, folder: Path) -> Graph:
    return npz(labels, folder) if route == "npz" else {"pyg": pyg, "dgl": dgl}[route](labels)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("labels", "unknown"),
    [
        ([0, 1, -1, 1], 1),
        ([0, 1, 2, 1], 0),
        ([-1, -1, 0, 1], 2),
        ([-1, -1, -1, -1], 4),
        ([0.0, 1.0, float("nan"), 1.0], 1),
    ],
)
def test_unknown_labels_of_arrays_are_counted(tmp_path: Path, route: str, labels: Any, unknown: int) -> None:
    graph = from_array(route, labels, tmp_path)
    found = repairs(graph).get("labels-unknown")
    assert (0 if found is None else found.count) == unknown == int((~graph.labelled).sum())


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("labels", [[-1, 1, -1, 1], [-1, 0, 0, 0], [1.0, -1.0, 1.0, 1.0]])
def test_minus_one_beside_a_single_class_is_a_question(tmp_path: Path, route: str, labels: Any) -> None:
    with rejects("label-negative"):
        from_array(route, labels, tmp_path)


class Unchanged(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """An embedder that returns the features."""

    def fit(self, graph: Graph, y: Any = None) -> Unchanged:
        return self

    def transform(self, graph: Graph) -> Any:
        return graph.dense_features().numpy()


def test_minus_one_is_a_class_in_networkx_and_in_a_classifier() -> None:
    network = nx.path_graph(4)
    nx.set_node_attributes(network, {0: -1, 1: 1, 2: -1, 3: 0}, "y")
    graph = as_graph(network)
    assert (graph.class_names, graph.labels.tolist()) == (("-1", "0", "1"), [0, 2, 0, 1])  # type: ignore[union-attr]
    rows = np.random.default_rng(0).normal(size=(40, 2))
    rows[:, 0] += 2 * (np.arange(40) % 2)
    model = NodeClassifier(Unchanged(), rows, edge_index=np.array([[0], [1]]))
    found = model.fit(np.arange(30), np.array([-1, 1] * 15)).predict(np.arange(30, 40))
    assert {*found.tolist()} == {-1, 1}


@pytest.mark.parametrize("route", ROUTES)
def test_many_distinct_labels_of_arrays_look_like_numbers(tmp_path: Path, route: str) -> None:
    with warnings.catch_warnings(action="ignore"):  # that Python users see
        graph = from_array(route, [3 + 7 * i for i in range(80)], tmp_path)
    assert repairs(graph)["label-looks-numeric"].count == 80
    assert "label-looks-numeric" not in repairs(from_array(route, list(range(80)), tmp_path))


# which nodes can have a label


def bank(folder: Path, *, labelled: tuple[str, ...] = ("account",), towns: int = 77) -> Graph:
    """Return 4 accounts, 3 clients and some districts; every second node of the types is labelled."""
    tables = {
        "account": pd.DataFrame({"account_id": [f"a{i}" for i in range(4)], "balance": [1.0, 2, 3, 4]}),
        "client": pd.DataFrame({"client_id": [f"c{i}" for i in range(3)], "sex": ["F", "M", "F"]}),
        "district": pd.DataFrame(
            {"district_id": [f"d{i}" for i in range(towns)], "region": [f"r{i % 7}" for i in range(towns)]}
        ),
    }
    ends = [("a0", "c0"), ("a1", "c1"), ("a2", "c2"), ("a3", "c0"), ("c0", "d0"), ("c1", "d1"), ("c2", "d2")]
    ids = [one for name in labelled for one in tables[name].iloc[::2, 0]]
    labels = pd.DataFrame({"id": ids, "status": [("good", "bad")[i % 2] for i in range(len(ids))]})
    return read_graph(
        save(pd.DataFrame(ends, columns=["source", "target"]), folder / "edges"),
        features=[save(one, folder / name) for name, one in tables.items()],
        labels=save(labels, folder / "labels"),
    )


@pytest.mark.parametrize(
    ("labelled", "can", "without"),
    [
        (("account",), {"a"}, {"client": 3, "district": 77}),
        (("client",), {"c"}, {"account": 4, "district": 77}),
        (("account", "client"), {"a", "c"}, {"district": 77}),
        (("account", "client", "district"), {"a", "c", "d"}, {}),
    ],
)
def test_nodes_of_types_with_labels_can_have_one(
    tmp_path: Path, labelled: tuple[str, ...], can: set[str], without: dict[str, int]
) -> None:
    graph = bank(tmp_path, labelled=labelled)
    mask, notes = may_have_label(graph, graph.labelled)
    assert mask.tolist() == [name[0] in can for name in graph.node_ids]
    assert [(one.code, one.count, {*one.fields}) for one in notes] == (
        [("types-without-labels", sum(without.values()), {*without})] if without else []
    )
    assert all(f"{name} ({count})" in notes[0].message for name, count in without.items())


def test_without_types_or_labels_every_node_can_have_a_label(tmp_path: Path) -> None:
    graph = as_graph(np.eye(3), np.array([[0], [1]]))
    assert may_have_label(graph, np.array([True, False, False]))[0].all()
    mixed = bank(tmp_path)
    mask, notes = may_have_label(mixed, np.zeros(mixed.num_nodes, bool))
    assert mask.all()
    assert notes == ()


# declared kinds, and the rows of several tables


@pytest.mark.parametrize(
    ("kind", "cells"),
    [
        ("date", ["soon", "later", "soon", "never"]),
        ("date", ["1", "2", "3", "4"]),
        ("number", ["few", "many", "many", ""]),
        ("boolean", ["red", "blue", "red", "blue"]),
        ("number", ["1.5 €", "2 kg", "x", "3 lb"]),
        ("date:dmy", ["12/25/2024", "12/26/2024", "12/27/2024", "12/28/2024"]),
    ],
)
def test_a_declared_kind_that_no_cell_has_is_an_error(tmp_path: Path, kind: str, cells: list[str]) -> None:
    frame = pd.DataFrame({"id": list("abcd"), "x": [1.0, 2, 3, 4], "seen": cells})
    edges, features = save(ring(list("abcd")), tmp_path / "edges"), save(frame, tmp_path / "features")
    with pytest.raises(InputError) as caught:
        read_graph(edges, features=features, columns={"seen": kind})
    assert caught.value.code in ("column-unreadable", "units-mixed", "number-ambiguous")


@pytest.mark.parametrize("cells", [["1", "2", "?", "x"], ["1", "y", "x", "4"]])
def test_unreadable_cells_of_a_declared_column_are_counted(tmp_path: Path, cells: list[str]) -> None:
    frame = pd.DataFrame({"id": list("abcd"), "x": [1.0, 2, 3, 5], "seen": cells})
    edges, features = save(ring(list("abcd")), tmp_path / "edges"), save(frame, tmp_path / "features")
    graph = read_graph(edges, features=features, columns={"seen": "number"})
    assert repairs(graph)["cells-unreadable"].count == sum(one in "xy" for one in cells)
    assert repairs(graph)["cells-unreadable"].fields == ("seen",)


def two_tables(folder: Path, small: pd.DataFrame, rows: int = 20_000) -> Graph:
    """Return the graph of a small table and of one with many rows."""
    large = pd.DataFrame({"client_id": [f"c{i}" for i in range(rows)], "age": np.arange(rows) % 90 + 0.5})
    edges = pd.DataFrame({"source": small["district_id"], "target": large["client_id"][: len(small)]})
    return read_graph(
        save(edges, folder / "edges", "parquet"),
        features=[save(small, folder / "district", "parquet"), save(large, folder / "client", "parquet")],
    )


def column(graph: Graph, name: str) -> Any:
    assert graph.plan is not None
    return next(one for one in graph.plan.columns if one.name == name)


def test_rare_categories_are_those_of_their_own_table(tmp_path: Path) -> None:
    small = pd.DataFrame(
        {
            "district_id": [f"d{i}" for i in range(77)],
            "region": [f"region {i % 8}" for i in range(77)],
            "code_id": np.arange(77) + 1000,
            "is_city": ["yes" if i % 3 else "no" for i in range(77)],
            "nation": "CZ",
        }
    )
    graph = two_tables(tmp_path, small)
    assert [one for one in graph.feature_names if one.startswith("region")] == [
        *(f"region=region {i}" for i in range(8)),
        "region is missing",
    ]
    assert column(graph, "code_id").kind == "identifier"  # in its own table every row has another value
    assert column(graph, "is_city").kind == "boolean"  # and not a class that is known for few rows
    assert column(graph, "nation").kind == "category"
    at = graph.feature_names.index("region=region 3")
    assert graph.features[:77, at].tolist() == [float(i % 8 == 3) for i in range(77)]
    assert not graph.features[77:, at].any()


@pytest.mark.parametrize("rows", [100, 20_000])
def test_a_table_is_encoded_alike_beside_large_and_small_ones(tmp_path: Path, rows: int) -> None:
    values = np.random.default_rng(0).normal(size=77)
    words = [
        f"{('old', 'new', 'big')[i % 3]} {('town', 'city', 'road')[i // 3 % 3]} near {i % 5} rivers"
        for i in range(77)
    ]
    small = pd.DataFrame({"district_id": [f"d{i}" for i in range(77)], "size": values, "memo": words})
    graph = two_tables(tmp_path, small.assign(memo=[f"{one} no {i}" for i, one in enumerate(words)]), rows)
    size = graph.features[:77, graph.feature_names.index("size")].numpy()
    np.testing.assert_allclose(size, (values - values.mean()) / values.std(), atol=1e-5)
    memo = [at for at, name in enumerate(graph.feature_names) if name.startswith("memo ~")]
    assert len(memo) > 3
    assert float(graph.features[:77, memo].std(dim=0).max()) == pytest.approx(1, rel=0.05)


# options to paste


AWKWARD = ["price", "my price", "price, EUR", "it's", "a=b", "$HOME", "`x`", "naïve", 'the "price"', "-dash"]


@pytest.mark.parametrize("name", AWKWARD)
def test_a_suggested_option_survives_the_shell(name: str) -> None:
    flag, value = shlex.split(as_option("--columns", f"{name}=number:comma"))
    assert (flag, parse_columns([value])) == ("--columns", {name: "number:comma"})


FAILURES: list[tuple[str, list[str], str]] = [
    ("ambiguous thousands", ["1,200", "2,000", "3,400", "4,100"], "number-ambiguous"),
    ("ambiguous dates", ["1/2/2020", "3/4/2020", "5/6/2020", "7/8/2020"], "column-ambiguous"),
    ("one word among numbers", ["1", "2", "3", "many"], "cell-unreadable"),
    ("one word among dates", ["2020-01-01", "2020-02-01", "2020-03-01", "soon"], "cell-unreadable"),
    ("several units", ["1 kg", "2 lb", "3 kg", "4 kg"], "units-mixed"),
]


@pytest.mark.parametrize("name", ["price", "my price", "price, EUR", "it's"])
@pytest.mark.parametrize(("cells", "code"), [one[1:] for one in FAILURES], ids=[one[0] for one in FAILURES])
def test_every_suggested_declaration_works_when_pasted(
    tmp_path: Path, cells: list[str], code: str, name: str
) -> None:
    ids = [f"n{i}" for i in range(8)]
    frame = pd.DataFrame({"id": ids, "x": np.arange(8.0), name: [*cells, *cells]})
    given = ["--edges", save(ring(ids), tmp_path / "edges"), "--features", save(frame, tmp_path / "features")]
    done, found, _ = command("inspect", *given)
    assert (done, found["error"]["code"]) == (1, code)
    suggested = re.findall(
        r"--columns (?:'(?:[^']|'\"'\"')*'|[^\s;,)]+(?:,[^\s;,)]+)*)", found["error"]["message"]
    )
    assert suggested
    for option in suggested:
        done, found, text = command("inspect", *given, *shlex.split(option))
        assert done == 0, (option, text)


LABELS: list[tuple[str, list[str], str]] = [
    ("a negative class", ["-1", "0", "1", "0"] * 5, "label-negative"),
    ("codes or numbers", [str(i) for i in range(60)] * 5, "label-looks-numeric"),
    ("a class for two rows", [f"client {i * 60 // 110}" for i in range(110)], "label-almost-unique"),
    ("numbers in two notations", ["1,200", "2,000", "3,400"] * 20, "number-ambiguous"),
]


@pytest.mark.parametrize(("cells", "code"), [one[1:] for one in LABELS], ids=[one[0] for one in LABELS])
def test_every_suggestion_for_labels_works_when_pasted(tmp_path: Path, cells: list[str], code: str) -> None:
    ids = [f"n{i}" for i in range(len(cells))]
    frame = pd.DataFrame({"id": ids, "x": np.random.default_rng(0).normal(size=len(ids))})
    labels = pd.DataFrame({"id": ids, "out come": cells})
    given = ["--edges", save(ring(ids), tmp_path / "edges"), "--features", save(frame, tmp_path / "features")]
    given += ["--labels", save(labels, tmp_path / "labels")]
    if code == "number-ambiguous":
        given += ["--task", "regression"]
    done, found, _ = command("inspect", *given)
    assert (done, found["error"]["code"]) == (1, code)
    message = found["error"]["message"]
    suggested = re.findall(r"--task [a-z]+|--columns '[^']+'", message)
    assert suggested, message
    for option in suggested:
        done, found, text = command("inspect", *given, *shlex.split(option))
        assert done == 0, (option, text)


def test_names_with_commas_can_be_listed(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": list("abcd"), "x, y": [1.0, 2, 3, 4], "z": [4.0, 3, 2, 2], "w": 1.5})
    edges, features = save(ring(list("abcd")), tmp_path / "edges"), save(frame, tmp_path / "features")
    chosen = as_list(["x, y", "z"])
    done, found, text = command(
        "inspect", "--edges", edges, "--features", features, "--feature-columns", chosen
    )
    assert done == 0, text
    assert found["features"] == 2


def test_every_option_that_a_message_names_exists() -> None:
    from typer.main import get_command

    from h3gnn.cli.app import app

    group: Any = get_command(app)
    known = {
        flag
        for one in group.commands.values()
        for option in one.params
        for flag in (*option.opts, *option.secondary_opts)
    }
    known |= {"--help", "--version", "--nproc-per-node"}  # of typer and torchrun
    known |= {"--logdir", "--no-optional-locks", "--porcelain", "--untracked-files"}  # of tensorboard and git
    known |= {"--glob"}  # of hadoop
    for path in SOURCE.rglob("*.py"):
        named = {*re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", path.read_text(encoding="utf-8"))}
        assert named <= known, (path, named - known)


def test_shortened_lists_end_in_an_ellipsis() -> None:
    for path in SOURCE.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if re.search(r"[,;] ?\"\.join\([^()]*\[:\w+\]\)|', '\.join\([^()]*\[:\w+\]\)", line):
                assert "…" in line or "{more}" in line, (path, line)


@pytest.mark.parametrize("count", [3, 30])
def test_a_list_of_columns_in_an_error_is_complete_or_ends_in_an_ellipsis(tmp_path: Path, count: int) -> None:
    frame = pd.DataFrame({"id": list("abcd"), **{f"c{i}": [1.0, 2, 3, i] for i in range(count)}})
    edges, features = save(ring(list("abcd")), tmp_path / "edges"), save(frame, tmp_path / "features")
    with rejects("column-missing") as caught:
        read_graph(edges, features=features, id_column="nobody")
    assert caught.message.endswith("…") == (count == 30)


def test_a_declared_date_of_a_command_is_an_error(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": list("abcd"), "x": [1.0, 2, 3, 4], "first_seen": ["soon"] * 3 + ["now"]})
    given = [
        "--edges",
        save(ring(list("abcd")), tmp_path / "edges"),
        "--features",
        save(frame, tmp_path / "features"),
    ]
    done, found, _ = command("fit", *given, "--columns", "first_seen=date", *QUICK, "--out", tmp_path / "run")
    assert (done, found["error"]["code"]) == (1, "column-unreadable")
    assert not (tmp_path / "run").exists()
