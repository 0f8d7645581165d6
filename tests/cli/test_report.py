from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from h3gnn import H3GNN, Graph
from h3gnn.errors import ModelFolderError
from h3gnn.experiments.report_data import collect_findings
from h3gnn.experiments.scoring import find_clusters
from tests.program import call, invoke
from tests.rejects import rejects

SMALL: dict[str, Any] = {"channels": 8, "heads": 2, "device": "cpu", "precision": "float32"}


def test_report_writes_a_page_and_a_table(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    page, table = tmp_path / "page.html", tmp_path / "nodes.parquet"
    result = call("report", saved, "--out", page, "--table", table, "--open", "--json")
    assert opened == [page.resolve().as_uri()]
    assert (result["nodes"], result["bytes"]) == (100, len(page.read_bytes()))
    nodes = pd.read_parquet(table)
    assert {"node", "x", "y", "raw_x", "class", "predicted", "split", "degree", "embedding"} <= set(nodes)
    embedding = np.stack(nodes["embedding"].to_list())
    np.testing.assert_allclose(embedding, H3GNN.load(saved).embedding_, rtol=1e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nodes.parquet", "page.html"]


def test_the_default_page_is_in_the_run(saved: Path, tmp_path: Path) -> None:
    run = shutil.copytree(saved, tmp_path / "run")
    assert "report.html" in call("report", run, "--map", "pca")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert H3GNN.load(run).graph_.num_nodes == 100


@pytest.mark.parametrize("labelled", [True, False])
def test_the_page_and_the_command_find_the_same_clusters(
    small_mixed: Graph, tmp_path: Path, labelled: bool
) -> None:
    bare = replace(small_mixed, labels=None, class_names=(), train_mask=None, val_mask=None, test_mask=None)
    model = H3GNN.from_preset("single", epochs=1, **SMALL)
    model.fit(small_mixed if labelled else bare).save(tmp_path / "run")
    result = call("cluster", tmp_path / "run", "--out", tmp_path / "clusters.csv", "--json")
    shown = collect_findings(H3GNN.load(tmp_path / "run")).category("cluster")
    assert shown is not None
    assert len(shown.names) == result["clusters"]
    assert pd.read_csv(tmp_path / "clusters.csv")["cluster"].tolist() == shown.values.tolist()


def test_the_page_and_the_command_try_the_same_numbers_of_clusters(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = np.concatenate([random.normal(size=(20, 12)) + 40 * np.eye(12)[i] for i in range(12)])
    pd.DataFrame(rows.astype(np.float32)).add_prefix("e").assign(node=range(240)).to_parquet(
        tmp_path / "e.parquet"
    )
    result = call("cluster", tmp_path / "e.parquet", "--json")
    assert result["clusters"] == 12 == len(np.unique(find_clusters(rows, None)))


@pytest.mark.parametrize("kind", ["map", "history", "homophily", "attention", "accuracy"])
def test_plot_draws_every_kind(saved: Path, tmp_path: Path, kind: str) -> None:
    picture = tmp_path / f"{kind}.png"
    call("plot", saved, "--kind", kind, "--map", "pca", "--out", picture)
    with Image.open(picture) as image:
        assert image.width > 800
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 50


def test_an_ensemble_is_reported_by_objective(small_mixed: Graph, tmp_path: Path) -> None:
    objectives: dict[str, Any] = {"objective": ("teacher", "edges"), "n_models": 2, "edge_weights": "fixed"}
    model = H3GNN.from_preset("single", epochs=2, **SMALL, **objectives)
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


def test_plot_writes_vectors_and_colours_by_measure(saved: Path, tmp_path: Path) -> None:
    call("plot", saved, "--map", "pca", "--colour", "attention_hop1", "--out", tmp_path / "map.svg")
    assert "attention: neighbours, hop 1" in (tmp_path / "map.svg").read_text()
    call("plot", saved, "--map", "pca", "--colour", "cluster", "--out", tmp_path / "map.pdf")
    assert (tmp_path / "map.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("report", "RUN", "--out", "page.txt"), "file-ending"),
        (("report", "RUN", "--id-column", "node"), "option-needs-columns"),
        (("plot", "RUN", "--kind", "pie"), "value-invalid"),
        (("plot", "RUN", "--colour", "mood"), "value-invalid"),
        (("plot", "RUN", "--kind", "history", "--colour", "class"), "colour-without-map"),
    ],
)
def test_invalid_options_are_rejected(saved: Path, arguments: tuple[str, ...], code: str) -> None:
    with rejects(code):
        call(*(saved if one == "RUN" else one for one in arguments))


def test_a_missing_run_and_an_unknown_map_are_rejected(saved: Path) -> None:
    with pytest.raises(ModelFolderError, match="nowhere"):
        call("report", "nowhere")
    with pytest.raises(ValueError, match="mds"):
        call("report", saved, "--map", "mds")


def test_tensorboard_gets_every_epoch_of_every_model(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (tmp_path / "e.csv").write_text("source,target\n" + "".join(f"{i},{(i + 1) % 20}\n" for i in range(20)))
    training = ("--epochs", 3, "--models", 2, "--channels", 8, "--set", "heads=2", "--device", "cpu")
    outputs = ("--out", tmp_path / "run", "--tensorboard", tmp_path / "logs")
    call("fit", "--edges", tmp_path / "e.csv", *training, *outputs)
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


def test_other_columns_and_another_run_are_in_the_page(
    saved: Path, tmp_path: Path, small_mixed: Graph
) -> None:
    other, own, page, table = (tmp_path / name for name in ("other", "own.csv", "page.html", "t.parquet"))
    H3GNN.from_preset("single", epochs=1, **SMALL).fit(small_mixed).save(other)
    own.write_text("node,shop\n" + "".join(f"{node},{'a' if node % 2 else 'b'}\n" for node in range(99)))
    given = ("--with", other, "--columns", own, "--map", "pca", "--title", "My shops", "--table", table)
    done = invoke("report", saved, *given, "--out", page, "--json")
    assert done.exit_code == 0, done.output
    assert "has no row for 1 of 100 nodes" in done.stderr
    result = json.loads(done.stdout)
    assert (result["title"], result["other"]) == ("My shops", str(other))
    assert "<h1>My shops</h1>" in page.read_text()
    assert pd.read_parquet(table)["own_shop"].tolist()[:2] == ["b", "a"]
