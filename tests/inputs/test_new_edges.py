"""New edges are read, merged and scaled as those of the fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, Graph, as_graph, read_graph
from h3gnn.answers.extend import Extension, add_nodes, read_new_nodes
from h3gnn.graphs.provenance import EdgeColumns, EdgePlan, EdgeRules
from h3gnn.storage.graphs import graph_description, graph_from_tensors, graph_tensors
from tests.inputs.tables import QUICK, command, save
from tests.rejects import rejects

NODES = 12
NAMES = [f"n{i}" for i in range(NODES)]
TINY: dict[str, Any] = {"channels": 8, "heads": 2, "epochs": 2, "n_models": 1, "hops": 1, "device": "cpu"}
LOCAL = {"smoothing": 0.0, "input_weight": 0.0, "edge_weights": "fixed"}
"""Without walks and learned weights, a new node's embedding is that in the extended graph."""
RING = [(one, NAMES[(at + 1) % NODES], 1.0 + at % 3) for at, one in enumerate(NAMES)]
NEW = [("n0", "new", 0.5), ("new", "n3", 2.0), ("n0", "new", 1.5)]  # one edge twice


def features(names: list[str]) -> pd.DataFrame:
    rows = [[len(one) + 0.25 * sum(map(ord, one)) % 7, (sum(map(ord, one)) % 5) - 1.5] for one in names]
    return pd.DataFrame(rows, columns=["x", "z"]).assign(id=names)[["id", "x", "z"]]


COLUMNS = ("source", "target", "weight")


def table(rows: Any, names: tuple[str, ...] = COLUMNS) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(names))


def graph_of(folder: Path, edges: Any, names: list[str] = NAMES, **options: Any) -> Graph:
    """Return the graph of some tables of edges, written under their names."""
    folder.mkdir(exist_ok=True)
    paths: list[str | Path] = [save(one, folder / name) for name, one in edges.items()]
    return read_graph(paths, features=save(features(names), folder / "features"), **options)


def extended(
    folder: Path,
    graph: Graph,
    edges: pd.DataFrame,
    name: str = "today",
    wanted: str | None = None,
    **reading: Any,
) -> tuple[dict[tuple[int, int], float], list[str]]:
    """Return the weights of the new edges by their ends, and the codes of the repairs."""
    new, path = save(features(["new"]), folder / "new-nodes"), save(edges, folder / name)
    table, tables = read_new_nodes(graph, new, [(wanted, path)], reading)
    _, ends, weights, repairs = add_nodes(graph, table, tables, between_known=True)
    heavy = np.ones(ends.shape[1]) if weights is None else weights.double().numpy()
    pairs = zip(*ends.tolist(), strict=True)
    return dict(zip(pairs, heavy.tolist(), strict=True)), [one.code for one in repairs]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, {(0, 12): 2.0, (12, 3): 2.0}),
        ({"repeated": "count"}, {(0, 12): 2.0, (12, 3): 1.0}),
        ({"repeated": "mean"}, {(0, 12): 1.0, (12, 3): 2.0}),
        ({"repeated": "max"}, {(0, 12): 1.5, (12, 3): 2.0}),
        ({"repeated": "first"}, {(0, 12): 0.5, (12, 3): 2.0}),
        ({"repeated": "last"}, {(0, 12): 1.5, (12, 3): 2.0}),
        ({"undirected": True}, {(0, 12): 2.0, (12, 0): 2.0, (12, 3): 2.0, (3, 12): 2.0}),
    ],
)
@pytest.mark.parametrize("as_frame", [False, True])
def test_duplicates_are_merged_as_in_the_fit(
    tmp_path: Path, options: Any, wanted: Any, as_frame: bool
) -> None:
    graph = graph_of(tmp_path, {"edges": table(RING)}, **options)
    if as_frame:
        new = as_graph(features(["new"]).set_index("id"), np.empty((2, 0), int), plan=graph.plan)
        _, ends, weights, _ = add_nodes(graph, new, table(NEW))
        assert weights is not None
        found = dict(zip(zip(*ends.tolist(), strict=True), weights.tolist(), strict=True))
    else:
        found, _ = extended(tmp_path, graph, table(NEW))
    assert found == pytest.approx(wanted)


@pytest.mark.parametrize("repeated", ["sum", "count", "mean", "max", "first", "last"])
@pytest.mark.parametrize("undirected", [False, True])
def test_a_node_that_joins_is_embedded_as_if_it_had_been_there(
    tmp_path: Path, repeated: str, undirected: bool
) -> None:
    rules: dict[str, Any] = {"repeated": repeated, "undirected": undirected}
    before = graph_of(tmp_path / "before", {"edges": table(RING)}, **rules)
    whole = graph_of(tmp_path / "whole", {"edges": table([*RING, *NEW])}, [*NAMES, "new"], **rules)
    model = H3GNN.from_settings({**TINY, **LOCAL}).fit(before)
    new = features(["new"]).set_index("id")
    found = model.extend(new, table(NEW)).embedding
    np.testing.assert_allclose(found, model.transform(whole)[-1:], atol=1e-5)
    again = model.extend(new, table(NEW), refresh=True).graph
    assert again.edge_index.tolist() == whole.edge_index.tolist()
    assert again.edge_weight is not None
    assert whole.edge_weight is not None
    assert again.edge_weight.tolist() == pytest.approx(whole.edge_weight.tolist())


CALLS = [(one, NAMES[(at + 1) % NODES], 10.0) for at, one in enumerate(NAMES)]
PAID = [(one, NAMES[(at + 5) % NODES], 400.0) for at, one in enumerate(NAMES)]


def test_new_edges_have_the_scale_of_the_table_that_they_continue(tmp_path: Path) -> None:
    paths = {"transfers": table(PAID), "calls": table(CALLS)}
    before = graph_of(tmp_path / "before", paths)
    assert before.edge_plan is not None
    assert [(one.table, one.scale) for one in before.edge_plan.tables] == [("transfers", 400), ("calls", 10)]
    new = {
        "calls": table([("n0", "new", 10.0)]),
        "transfers": table([("n5", "new", 400.0), ("n5", "n4", 400.0)]),
    }
    both = {name: pd.concat([paths[name], new[name]]) for name in paths}
    whole = graph_of(tmp_path / "whole", both, [*NAMES, "new"])
    model = H3GNN.from_settings({**TINY, **LOCAL}).fit(before)
    found = model.extend(features(["new"]).set_index("id"), new, refresh=True).graph
    assert found.edge_index.tolist() == whole.edge_index.tolist()
    assert found.edge_weight is not None
    assert whole.edge_weight is not None
    assert found.edge_weight.tolist() == pytest.approx(whole.edge_weight.tolist())


@pytest.mark.parametrize(
    ("edges", "name", "wanted", "answer"),
    [
        (table([("n0", "new", 40.0)], ("payer", "payee", "weight")), "today", None, 0.1),
        (table([("n0", "new", 40.0)]), "today", "transfers", 0.1),
        (table([("n0", "new", 40.0)]), "today", "calls", 4.0),
        (table([("n0", "new", 40.0)]), "calls", None, 4.0),
        (table([("n0", "new", 40.0)]), "today", None, "edge-table-ambiguous"),
        (table([("n0", "new", 40.0)]), "today", "mails", "edge-table-unknown"),
    ],
)
def test_the_fitted_table_is_found_by_columns_or_name(
    tmp_path: Path, edges: pd.DataFrame, name: str, wanted: str | None, answer: Any
) -> None:
    distinct = "payer" in edges
    tables = {
        "calls": table(CALLS),
        "transfers": table(PAID, ("payer", "payee", "weight") if distinct else COLUMNS),
    }
    graph = graph_of(tmp_path, tables)
    if isinstance(answer, str):
        with rejects(answer):
            extended(tmp_path, graph, edges, name, wanted)
        return
    assert extended(tmp_path, graph, edges, name, wanted)[0] == pytest.approx({(0, 12): answer})


@pytest.mark.parametrize("as_frame", [False, True])
@pytest.mark.parametrize(
    ("fitted", "names", "answer"),
    [
        ("weight", ("source", "target", "weight"), 7.0),
        ("weight", ("source", "target", "amount"), "new-edge-weights"),
        ("amount", ("source", "target", "amount"), 7.0),
        ("amount", ("source", "target", "when"), "new-edge-weights"),
        ("", ("source", "target", "when"), 1.0),
        ("", ("source", "target", "weight"), "new-edge-weights"),
    ],
)
def test_weights_are_found_by_name_only(
    tmp_path: Path, as_frame: bool, fitted: str, names: tuple[str, ...], answer: Any
) -> None:
    known = table(RING, ("source", "target", fitted)) if fitted else table(RING).drop(columns="weight")
    graph = graph_of(tmp_path, {"edges": known}, weight_column=fitted or None)
    edges = table([("n0", "new", 7.0)], names)

    def found() -> dict[tuple[int, int], float]:
        if not as_frame:
            return extended(tmp_path, graph, edges)[0]
        new = as_graph(features(["new"]).set_index("id"), np.empty((2, 0), int), plan=graph.plan)
        _, ends, weights, _ = add_nodes(graph, new, edges)
        heavy = [1.0] * ends.shape[1] if weights is None else weights.tolist()
        return dict(zip(zip(*ends.tolist(), strict=True), heavy, strict=True))

    if isinstance(answer, str):
        with rejects(answer):
            found()
    else:
        assert found() == pytest.approx({(0, 12): answer})


@pytest.mark.parametrize(
    ("fitted", "new", "reading", "code"),
    [
        ({"unknown_nodes": "drop"}, [("n0", "new", 1.0), ("n0", "who", 1.0)], {}, "edges-of-unknown-nodes"),
        ({"weights": "drop"}, [("n0", "new", 1.0), ("n1", "new", -1.0)], {}, "weights-not-positive"),
        ({}, [("n0", "new", 1.0), ("n0", "who", 1.0)], {"unknown_nodes": "drop"}, "edges-of-unknown-nodes"),
        ({}, [("n0", "new", 1.0), ("n1", "new", 0.0)], {"weights": "drop"}, "weights-not-positive"),
    ],
)
def test_unusable_edges_are_left_out_as_in_the_fit_or_as_asked(
    tmp_path: Path, fitted: Any, new: Any, reading: Any, code: str
) -> None:
    graph = graph_of(tmp_path, {"edges": table(RING)}, **fitted)
    found, codes = extended(tmp_path, graph, table(new), **reading)
    assert found == pytest.approx({(0, 12): 1.0})
    assert code in codes


@pytest.mark.parametrize(
    ("fitted", "new", "reading", "code"),
    [
        ({}, NEW, {"repeated": "max"}, "plan-differs"),
        ({}, NEW, {"undirected": True}, "plan-differs"),
        ({"repeated": "error"}, NEW, {}, "edges-duplicate"),
        ({"repeated": "max"}, [*NEW, ("n0", "n1", 9.0)], {}, "edge-already-fitted"),
        ({}, [("n0", "who", 1.0)], {}, "unknown-node"),
        ({}, [("n0", "new", -1.0)], {}, "edge-weight-not-positive"),
    ],
)
def test_new_edges_that_do_not_fit_are_rejected(
    tmp_path: Path, fitted: Any, new: Any, reading: Any, code: str
) -> None:
    graph = graph_of(tmp_path, {"edges": table(RING)}, **fitted)
    with rejects(code):
        extended(tmp_path, graph, table(new), **reading)


def test_direction_follows_from_the_columns_of_the_fit(tmp_path: Path) -> None:
    """The third column names the source; a graph with each edge both ways does not reverse new edges."""
    both = [*RING, *((b, a, w) for a, b, w in RING)]
    names = ("b", "a", "weight")
    graph = graph_of(tmp_path, {"edges": table(both, names)}, source_column="a", target_column="b")
    found, codes = extended(tmp_path, graph, table([("n3", "new", 1.0)], names))
    assert found == pytest.approx({(12, 3): 1.0})
    assert "reverse-edges-added" not in codes
    found, codes = extended(tmp_path, graph, table([("n3", "new", 1.0)], ("from", "to", "weight")))
    assert found == pytest.approx({(3, 12): 1.0})
    assert "edge-columns-inferred" in codes


def test_without_an_edge_plan_symmetry_decides_and_is_reported(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, {"edges": table(RING)}, undirected=True)
    old = graph_from_tensors(
        graph_tensors(graph), {k: v for k, v in graph_description(graph).items() if k != "edge_plan"}
    )
    assert isinstance(old, Graph)
    assert old.edge_plan is None
    found, codes = extended(tmp_path, old, table([("n3", "new", 1.0)]))
    assert found == pytest.approx({(3, 12): 1.0, (12, 3): 1.0})
    assert {"edge-plan-missing", "reverse-edges-added"} <= {*codes}


def test_the_edge_plan_is_stored(tmp_path: Path) -> None:
    rules: dict[str, Any] = {
        "repeated": "count",
        "undirected": True,
        "weights": "drop",
        "unknown_nodes": "drop",
    }
    graph = graph_of(tmp_path, {"edges": table(RING, ("a", "b", "weight"))}, **rules)
    plan = EdgePlan(
        EdgeRules("drop", "drop", "count", undirected=True, bipartite=False),  # as decided by the reader
        (EdgeColumns("edges", "a", "b", "weight"),),
    )
    assert graph.edge_plan == plan
    stored = graph_from_tensors(graph_tensors(graph), graph_description(graph))
    assert stored.edge_plan == plan
    H3GNN.from_settings(TINY).fit(graph).save(tmp_path / "run")
    assert H3GNN.load(tmp_path / "run").graph_.edge_plan == plan


def test_the_command_takes_several_files_of_new_edges(tmp_path: Path) -> None:
    paths = [save(table(rows), tmp_path / name) for name, rows in (("calls", CALLS), ("paid", PAID))]
    nodes, new = save(features(NAMES), tmp_path / "nodes"), save(features(["new"]), tmp_path / "new")
    first, second = (save(table([("n0", "new", one)]), tmp_path / f"new{one}") for one in (10, 400))
    given = [part for path in paths for part in ("--edges", path)]
    assert command("fit", *given, "--features", nodes, *QUICK, "--out", tmp_path / "run")[0] == 0
    edges = ("--new-edges", f"calls={first}", "--new-edges", f"paid={second}")
    out = ("--out", tmp_path / "e.csv")
    status, found, _ = command("embed", tmp_path / "run", "--new-features", new, *edges, *out)
    assert (status, found["new_nodes"]) == (0, 1)
    model = H3GNN.load(tmp_path / "run")
    both = {"calls": table([("n0", "new", 10)]), "paid": table([("n0", "new", 400)])}
    wanted: Extension = model.extend(features(["new"]).set_index("id"), both)
    rows = pd.read_csv(tmp_path / "e.csv").drop(columns="node").to_numpy()
    np.testing.assert_allclose(rows, wanted.embedding, atol=1e-5)
    code, failed, _ = command("embed", tmp_path / "run", "--new-features", new, "--new-edges", first, *out)
    assert (code, failed["error"]["code"]) == (1, "edge-table-ambiguous")
