from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pandas as pd
import pytest

from h3gnn import H3GNN, mixed_graph
from tests.program import call, invoke
from tests.rejects import rejects

NAMES = np.array([f"n{i}" for i in range(150)])
QUICK = ("--preset", "single", "--epochs", "2", "--channels", "8", "--set", "heads=2", "--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables of named nodes, half of them labelled, the run fitted on them, and two new nodes."""
    place = tmp_path_factory.mktemp("answers")
    graph = mixed_graph(150, words=60)
    assert graph.labels is not None
    features = {f"w{i}": one for i, one in enumerate(graph.dense_features().numpy().T)}
    ends = NAMES[graph.edge_index.numpy()]
    pd.DataFrame({"source": ends[0], "target": ends[1]}).to_csv(place / "edges.csv", index=False)
    pd.DataFrame({"id": NAMES, **features}).to_csv(place / "features.csv", index=False)
    words = np.array(["red", "blue", "blue", "blue", "blue"])[graph.labels.numpy()]
    labels = pd.DataFrame({"id": NAMES, "label": words})[::2]
    labels.to_csv(place / "labels.csv", index=False)
    two = {name: column[:2] for name, column in features.items()}
    pd.DataFrame({"id": ["z1", "z2"], **two}).to_csv(place / "today.csv", index=False)
    pd.DataFrame({"source": ["n0", "z2", "n3"], "target": ["z1", "z1", "z2"]}).to_csv(
        place / "today-edges.csv", index=False
    )
    tables = ("--edges", place / "edges.csv", "--features", place / "features.csv")
    call("fit", *tables, "--labels", place / "labels.csv", *QUICK, "--out", place / "run")
    return place


def new_nodes(folder: Path) -> tuple[object, ...]:
    return ("--new-features", folder / "today.csv", "--new-edges", folder / "today-edges.csv")


def test_every_unlabelled_node_gets_a_class(folder: Path, tmp_path: Path) -> None:
    result = call("predict", folder / "run", "--out", tmp_path / "p.parquet", "--json")
    table = pd.read_parquet(tmp_path / "p.parquet")
    assert table["node"].tolist() == NAMES[1::2].tolist()
    assert set(table["class"]) <= {"red", "blue"}
    assert table[["p_blue", "p_red"]].sum(axis=1).to_numpy() == pytest.approx(1)
    assert table["cannot_tell"].dtype == bool
    held_out = result["held_out"]
    assert (result["nodes"], result["labelled"], held_out["positive_class"]) == (75, 75, "red")
    assert {"accuracy", "balanced_accuracy", "average_precision"} <= held_out["mean"].keys()
    assert held_out["majority_share"] == pytest.approx(0.8, abs=0.05)
    assert sum(result["heads"].values()) > 0


def test_predict_learns_from_a_label_file(folder: Path, tmp_path: Path) -> None:
    own = pd.DataFrame({"node": NAMES[:40], "verdict": np.where(np.arange(40) % 3, "ok", "bad")})
    own.to_csv(tmp_path / "own.csv", index=False)
    how = ("--labels", tmp_path / "own.csv", "--label-column", "verdict", "--threshold", "auto")
    printed = call("predict", folder / "run", *how, "--out", tmp_path / "p.csv")
    assert "average precision of bad" in printed
    assert "accuracy of unmarked nodes" in printed
    assert len(pd.read_csv(tmp_path / "p.csv")) == 110


def test_labels_of_unknown_nodes_are_rejected_or_dropped(folder: Path, tmp_path: Path) -> None:
    own = pd.DataFrame({"node": [*NAMES[:40], "ghost"], "label": ["a", "b"] * 20 + ["a"]})
    own.to_csv(tmp_path / "own.csv", index=False)
    command = ("predict", folder / "run", "--labels", tmp_path / "own.csv", "--out", tmp_path / "p.csv")
    with rejects("node-unknown"):
        call(*command)
    done = invoke(*command, "--unknown-nodes", "drop")
    assert done.exit_code == 0, done.output
    assert "own.csv: 1 label(s) of unknown nodes left out" in done.output
    assert len(pd.read_csv(tmp_path / "p.csv")) == 110


def test_predict_all_includes_labelled_nodes(folder: Path, tmp_path: Path) -> None:
    call("predict", folder / "run", "--all", "--class-weight", "balanced", "--out", tmp_path / "p.csv")
    table = pd.read_csv(tmp_path / "p.csv")
    assert len(table) == 150
    assert table["label"].notna().sum() == 75


def test_new_nodes_get_embeddings_and_classes(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.parquet"
    result = call("embed", folder / "run", *new_nodes(folder), "--out", out, "--json")
    assert (result["nodes"], result["new_nodes"], result["refreshed"]) == (2, 2, False)
    model = H3GNN.load(folder / "run")
    table = pd.read_parquet(out)
    assert table["node"].tolist() == ["z1", "z2"]
    today = pd.read_csv(folder / "today.csv", index_col="id")
    expected = model.extend(today, pd.read_csv(folder / "today-edges.csv")).embedding
    np.testing.assert_allclose(table.drop(columns="node").to_numpy(), expected, atol=1e-5)
    printed = call("embed", folder / "run", *new_nodes(folder), "--refresh", "--out", out)
    assert "all 152 nodes, 2 of them new" in printed
    assert pd.read_parquet(out)["node"].tolist() == [*NAMES, "z1", "z2"]
    call("predict", folder / "run", *new_nodes(folder), "--out", tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv")["node"].tolist() == ["z1", "z2"]


def test_similar_nodes_come_with_reasons(folder: Path, tmp_path: Path) -> None:
    rows = call("similar", folder / "run", "n3", "n4", "--k", 3, "--json")
    assert [row["node"] for row in rows] == ["n3"] * 3 + ["n4"] * 3
    assert {"similar", "similarity", "linked", "neighbours", "features"} <= rows[0].keys()
    assert "Most similar to n3" in call("similar", folder / "run", "n3", "--out", tmp_path / "s.csv")
    assert len(pd.read_csv(tmp_path / "s.csv")) == 10


def test_anomalies_list_all_nodes_in_the_file(folder: Path, tmp_path: Path) -> None:
    result = call("anomalies", folder / "run", "--top", 3, "--out", tmp_path / "a.parquet", "--json")
    assert len(result["anomalies"]) == 3
    assert result["parts"] == ["features", "neighbours", "difficulty"]
    table = pd.read_parquet(tmp_path / "a.parquet")
    assert sorted(table["node"]) == sorted(NAMES)
    assert "top 2 of 150" in call("anomalies", folder / "run", "--top", 2)


def test_links_are_scored_on_hidden_edges(folder: Path, tmp_path: Path) -> None:
    result = call("links", folder / "run", "--top", 5, "--out", tmp_path / "l.csv", "--json")
    assert len(result["links"]) == len(pd.read_csv(tmp_path / "l.csv")) == 5
    assert 0 <= result["held_out"]["random pairs"]["auc"] <= 1
    assert result["hidden"] >= 20
    assert "not checked" in call("links", folder / "run", "n3", "--top", 4, "--check", "none")


def test_exported_tables(folder: Path, tmp_path: Path) -> None:
    run = folder / "run"
    embedding = H3GNN.load(run).embedding_
    for ending in ("parquet", "csv", "npy"):
        call("export", run, "--to", ending, "--out", tmp_path / f"e.{ending}")
    np.testing.assert_allclose(np.load(tmp_path / "e.npy"), embedding, atol=1e-6)
    assert pd.read_csv(tmp_path / "e.ids.csv")["node"].tolist() == NAMES.tolist()
    assert pd.read_parquet(tmp_path / "e.parquet")["node"].tolist() == NAMES.tolist()


def test_exports_for_other_programs(folder: Path, tmp_path: Path) -> None:
    run = folder / "run"
    embedding = H3GNN.load(run).embedding_
    call("export", run, "--to", "graphml", "--dimensions", 4, "--out", tmp_path / "g.graphml")
    graph = nx.read_graphml(tmp_path / "g.graphml")
    stored = H3GNN.load(run).graph_
    assert set(graph) == set(NAMES)
    ends = NAMES[stored.edge_index.numpy()]
    assert set(graph.edges) == set(zip(*ends, strict=True))
    assert {"x", "y", "e0", "e3", "label", "class"} <= graph.nodes["n0"].keys()
    assert ElementTree.parse(tmp_path / "g.graphml").getroot().tag.endswith("graphml")

    call("export", run, "--to", "neo4j", "--out", tmp_path / "neo")
    nodes = pd.read_csv(tmp_path / "neo" / "nodes.csv")
    assert list(nodes) == ["node:ID", "class", "embedding:float[]", ":LABEL"]
    rows = np.array([[float(x) for x in one.split(";")] for one in nodes["embedding:float[]"]])
    np.testing.assert_allclose(rows, embedding, rtol=1e-5, atol=1e-6)
    joined = pd.read_csv(tmp_path / "neo" / "relationships.csv")
    assert joined[":START_ID"].tolist() == ends[0].tolist()

    call("export", run, "--to", "tensorboard", "--out", tmp_path / "tb")
    vectors = np.loadtxt(tmp_path / "tb" / "tensors.tsv", delimiter="\t")
    np.testing.assert_allclose(vectors, embedding, rtol=1e-5, atol=1e-6)
    metadata = pd.read_csv(tmp_path / "tb" / "metadata.tsv", sep="\t")
    assert metadata["node"].tolist() == NAMES.tolist()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".part")]


def test_tensorboard_reads_the_exported_projector(folder: Path, tmp_path: Path) -> None:
    text_format = pytest.importorskip("google.protobuf.text_format")
    config = pytest.importorskip("tensorboard.plugins.projector.projector_config_pb2")
    call("export", folder / "run", "--to", "tensorboard", "--out", tmp_path / "tb")
    text = (tmp_path / "tb" / "projector_config.pbtxt").read_text()
    (read,) = text_format.Parse(text, config.ProjectorConfig()).embeddings
    assert read.tensor_path == "tensors.tsv"
    assert read.tensor_shape[0] == 150


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("similar", "RUN", "nobody"), "unknown-node"),
        (("predict", "RUN", "--threshold", "half"), "value-invalid"),
        (("predict", "RUN", "--class-weight", "heavy"), "value-invalid"),
        (("predict", "RUN", "--out", "p.txt"), "file-ending"),
        (("predict", "RUN", "--new-edges", "e.csv"), "new-nodes-incomplete"),
        (("embed", "RUN", "--new-features", "f.csv"), "new-nodes-incomplete"),
        (("embed", "RUN", "--refresh"), "refresh-alone"),
        (("links", "RUN", "--check", "maybe"), "value-invalid"),
        (("export", "RUN", "--to", "word"), "value-invalid"),
        (("export", "RUN", "--to", "neo4j", "--out", "RUN"), "folder-not-empty"),
        (("export", "RUN", "--to", "csv", "--dimensions", "4000"), "too-many-dimensions"),
    ],
)
def test_invalid_questions_are_rejected(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with rejects(code):
        call(*(folder / "run" if one == "RUN" else one for one in arguments))
    assert not list(tmp_path.iterdir())


def test_export_to_faiss(folder: Path, tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    call("export", folder / "run", "--to", "faiss", "--out", tmp_path / "i.faiss")
    assert faiss.read_index(str(tmp_path / "i.faiss")).ntotal == 150


def test_tables_become_predictions_in_one_command(folder: Path, tmp_path: Path) -> None:
    tables = ("--edges", folder / "edges.csv", "--features", folder / "features.csv")
    settings = (*QUICK[:4], "--set", "channels=8", "--set", "heads=2", "--device", "cpu")
    given = (*tables, "--labels", folder / "labels.csv", *settings, "--out", tmp_path / "once.csv", "--json")
    assert call("predict", tmp_path / "run", *given)["labelled"] == 75
    call("predict", folder / "run", "--out", tmp_path / "twice.csv")
    assert (tmp_path / "once.csv").read_bytes() == (tmp_path / "twice.csv").read_bytes()
    assert call("predict", tmp_path / "run", *given)["labelled"] == 75  # without a second fit
    with rejects("already-fitted"):
        call("predict", tmp_path / "run", *given, "--seed", "5")
    assert call("predict", tmp_path / "run", "--out", tmp_path / "p.csv", "--json")["nodes"] == 75


def test_options_of_a_fit_are_checked_before_it(folder: Path, tmp_path: Path) -> None:
    tables = ("--edges", folder / "edges.csv", "--features", folder / "features.csv")
    for given, code in (
        (tables, "no-labels"),
        (tables[2:], "option-needs-edges"),
        (("--undirected",), "option-needs-edges"),
        (("--epochs", "3"), "option-needs-edges"),
    ):
        with rejects(code):
            call("predict", tmp_path / "run", *given)
        assert not (tmp_path / "run").exists()


def test_without_labels_the_columns_that_few_rows_have_are_named(tmp_path: Path) -> None:
    rows = "".join(f"n{at},{at % 7},{'yes' if at % 5 == 0 else ''}\n" for at in range(40))
    (tmp_path / "n.csv").write_text("id,size,closed\n" + rows)
    edges = "".join(f"n{at},n{(at + 3) % 40}\n" for at in range(40))
    (tmp_path / "e.csv").write_text("source,target\n" + edges)
    given = ("--edges", str(tmp_path / "e.csv"), "--features", str(tmp_path / "n.csv"))
    with rejects("no-labels") as found:
        invoke("predict", tmp_path / "run", *given)
    assert "known for few rows: closed (--label-column)" in found.message
    assert not (tmp_path / "run").exists()
