from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from h3gnn import H3GNN, Graph
from h3gnn.cli.app import app
from h3gnn.errors import InputError
from h3gnn.experiments.report_data import collect_findings
from h3gnn.experiments.scoring import find_clusters
from tests.rejects import rejects


@pytest.fixture(scope="module")
def run(small_mixed: Graph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "run"
    H3GNN.from_preset("single", epochs=4, channels=8, heads=2, device="cpu", precision="float32").fit(
        small_mixed
    ).save(folder)
    return folder


def call(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(one) for one in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_report_writes_a_page_and_a_table(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page, table = tmp_path / "page.html", tmp_path / "nodes.parquet"
    told = json.loads(call("report", run, "--out", page, "--table", table, "--open", "--json"))
    assert opened == [page.resolve().as_uri()]
    assert told["nodes"] == 100
    assert told["bytes"] == len(page.read_bytes())
    nodes = pd.read_parquet(table)
    assert {"node", "x", "y", "raw_x", "class", "predicted", "split", "degree", "embedding"} <= set(nodes)
    embedding = np.stack(nodes["embedding"].to_list())
    np.testing.assert_allclose(embedding, H3GNN.load(run).embedding_, rtol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nodes.parquet", "page.html"]


def test_the_page_goes_into_the_run_unless_told(run: Path) -> None:
    assert "report.html" in call("report", run, "--map", "pca")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert H3GNN.load(run).graph_.num_nodes == 100


@pytest.mark.parametrize("labelled", [True, False])
def test_the_page_and_the_command_find_the_same_clusters(
    small_mixed: Graph, tmp_path: Path, labelled: bool
) -> None:
    bare = replace(small_mixed, labels=None, class_names=(), train_mask=None, val_mask=None, test_mask=None)
    model = H3GNN.from_preset("single", epochs=4, channels=8, heads=2, device="cpu", precision="float32")
    model.fit(small_mixed if labelled else bare).save(tmp_path / "run")
    told = json.loads(call("cluster", tmp_path / "run", "--out", tmp_path / "clusters.csv", "--json"))
    shown = collect_findings(H3GNN.load(tmp_path / "run")).category("cluster")
    assert shown is not None
    assert len(shown.names) == told["clusters"]
    assert pd.read_csv(tmp_path / "clusters.csv")["cluster"].tolist() == shown.values.tolist()


def test_the_page_and_the_command_try_the_same_numbers_of_clusters(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(20, 12)) + 40 * np.eye(12)[i] for i in range(12)])
    pd.DataFrame(rows.astype(np.float32)).add_prefix("e").assign(node=range(240)).to_parquet(
        tmp_path / "e.parquet"
    )
    told = json.loads(call("cluster", tmp_path / "e.parquet", "--json"))
    assert told["clusters"] == 12 == len(np.unique(find_clusters(rows, None)))


@pytest.mark.parametrize("kind", ["map", "history", "homophily", "attention", "accuracy"])
def test_plot_draws_every_kind(run: Path, tmp_path: Path, kind: str) -> None:
    picture = tmp_path / f"{kind}.png"
    call("plot", run, "--kind", kind, "--map", "pca", "--out", picture)
    with Image.open(picture) as image:
        assert image.width > 800
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50


def test_a_committee_has_its_page_and_its_pictures(small_mixed: Graph, tmp_path: Path) -> None:
    model = H3GNN.from_preset("single",
        epochs=4, channels=8, heads=2, device="cpu", objective=("teacher", "edges"), n_models=2,
        edge_weights="fixed",
    )  # fmt: skip
    model.fit(small_mixed).save(tmp_path / "run")
    call("report", tmp_path / "run", "--map", "pca", "--table", tmp_path / "nodes.parquet")
    nodes = pd.read_parquet(tmp_path / "nodes.parquet")
    assert {"carried", "difficulty", "difficulty_teacher", "difficulty_edges"} <= set(nodes)
    for kind, words in (("history", "Loss: edges"), ("accuracy", "H3GNN: edges")):
        call("plot", tmp_path / "run", "--kind", kind, "--out", tmp_path / f"{kind}.svg")
        assert words in (tmp_path / f"{kind}.svg").read_text()
    colour = ("--map", "pca", "--colour", "difficulty_edges", "--out", tmp_path / "map.svg")
    call("plot", tmp_path / "run", *colour)
    assert "difficulty for edges, percentile" in (tmp_path / "map.svg").read_text()


def test_plot_writes_vectors_and_colours_by_measure(run: Path, tmp_path: Path) -> None:
    call("plot", run, "--map", "pca", "--colour", "attention_hop1", "--out", tmp_path / "map.svg")
    assert "attention: neighbours, hop 1" in (tmp_path / "map.svg").read_text()
    call("plot", run, "--map", "pca", "--colour", "cluster", "--out", tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["report", "nowhere"], "there is no folder nowhere"),
        (["report", "RUN", "--out", "page.txt"], "must end in one of .html"),
        (["report", "RUN", "--map", "mds"], "--map mds: choose one of tsne, umap, pca"),
        (["plot", "RUN", "--kind", "pie"], "--kind must be one of map, history"),
        (["plot", "RUN", "--colour", "mood"], "--colour mood: this run has class, cluster, homophily"),
        (["plot", "RUN", "--kind", "history", "--colour", "class"], "--colour is for maps"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(run: Path, arguments: list[str], sentence: str) -> None:
    given = [str(run) if one == "RUN" else one for one in arguments]
    with pytest.raises(InputError, match=sentence):
        CliRunner().invoke(app, given, catch_exceptions=False)


def test_tensorboard_gets_every_epoch_of_every_model(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"{i},{(i + 1) % 20}\n" for i in range(20)))
    training = ("--epochs", 3, "--models", 2, "--channels", 8, "--set", "heads=2", "--device", "cpu")
    call(
        "fit",
        "--edges",
        tmp_path / "e.csv",
        *training,
        "--out",
        tmp_path / "run",
        "--tensorboard",
        tmp_path / "logs",
    )
    events = event_accumulator.EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    history = H3GNN.load(tmp_path / "run").history_
    for model in (0, 1):
        written = events.Scalars(f"loss/model {model}")
        assert [event.step for event in written] == [0, 1, 2]
        np.testing.assert_allclose([event.value for event in written], history["loss"][:, model], rtol=1e-5)


def test_tensorboard_must_be_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.setattr("h3gnn.cli.fit.find_spec", lambda _: None)
    with rejects("missing-library"):
        call("fit", "synthetic", "--out", tmp_path / "run", "--tensorboard", tmp_path / "logs")


def test_columns_of_the_users_own_and_another_run_reach_the_page(
    run: Path, tmp_path: Path, small_mixed: Graph
) -> None:
    other, own, page = tmp_path / "other", tmp_path / "own.csv", tmp_path / "page.html"
    H3GNN.from_preset("single", epochs=1, channels=8, heads=2, device="cpu", precision="float32").fit(
        small_mixed
    ).save(other)
    own.write_text("node,shop\n" + "".join(f"{node},{'a' if node % 2 else 'b'}\n" for node in range(99)))
    arguments = ["report", run, "--with", other, "--columns", own, "--map", "pca", "--title", "My shops"]
    done = CliRunner().invoke(
        app, [*map(str, arguments), "--out", str(page), "--table", str(tmp_path / "t.parquet"), "--json"]
    )
    assert done.exit_code == 0, done.output
    assert done.stderr.strip() == f"h3gnn: note: {own} has no row for 1 of 100 nodes; they are grey"
    told = json.loads(done.stdout)
    assert (told["title"], told["other"]) == ("My shops", str(other))
    assert "<h1>My shops</h1>" in page.read_text()
    assert pd.read_parquet(tmp_path / "t.parquet")["own_shop"].tolist()[:2] == ["b", "a"]
    refused = CliRunner().invoke(app, ["report", str(run), "--id-column", "node"])
    assert isinstance(refused.exception, InputError)
    assert refused.exception.code == "option-needs-columns"
