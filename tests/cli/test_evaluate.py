"""`h3gnn evaluate` and `h3gnn cluster`, from a run, from files, and by training anew."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from h3gnn.cli.app import app
from h3gnn.cli.output import write_rows
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.probe import linear_probe
from h3gnn.graphs.graph import Graph, random_splits
from h3gnn.graphs.synthetic import mixed_graph

SMALL = ["--set", "channels=8", "--epochs", "6", "--set", "device=cpu"]


def invoke(*arguments: object, fails: bool = False) -> Any:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if fails:
        assert isinstance(done.exception, InputError), done.output
        return str(done.exception)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


@pytest.fixture(scope="module")
def fitted() -> H3GNN:
    return H3GNN.from_preset("single", channels=8, epochs=6, device="cpu").fit(
        mixed_graph(120, words=40, splits=2)
    )


@pytest.fixture(scope="module")
def run(fitted: H3GNN, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fitted.save(folder)
    return folder


def npz(graph: Graph, path: Path) -> Path:
    """Write a graph's edges, features, labels and splits as NPZ."""
    masks = {f"{name}_masks": getattr(graph, f"{name}_mask").T.numpy() for name in ("train", "val", "test")}
    assert graph.labels is not None
    edges = graph.edge_index.T.numpy()
    features = graph.dense_features().numpy()
    np.savez(path, edges=edges, node_features=features, node_labels=graph.labels.numpy(), **masks)
    return path


def test_a_run_is_scored_on_its_own_graph(run: Path, fitted: H3GNN) -> None:
    result = invoke("evaluate", run, "--json", "--device", "cpu")
    graph = fitted.graph_
    arrays = [graph.labels, graph.train_mask, graph.val_mask, graph.test_mask]
    wanted = linear_probe(fitted.embedding_, *[one for one in arrays if one is not None])
    assert result["probe"]["per_split"] == [wanted.test.tolist()]
    assert result["probe"]["test_mean"] == pytest.approx(wanted.mean)
    assert result["protocol"] == "validation"
    assert result["epoch_rule"] == "last"
    assert result["sha256"] == graph.provenance.sha256
    assert result["params"]["channels"] == 8
    assert result["chosen"][0][0]["epoch"] == 6
    assert set(result["clustering"]) == {"acc", "nmi", "ari", "macro_f1"}
    assert len(result["clustering"]["acc"]["values"]) == 10


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".npy"])
def test_rows_of_a_file_are_matched_by_node_id(ending: str, fitted: H3GNN, run: Path, tmp_path: Path) -> None:
    graph = npz(fitted.graph_, tmp_path / "graph.npz")
    path = tmp_path / f"embeddings{ending}"
    write_rows(path, fitted.embedding_, fitted.graph_.node_ids)
    if ending == ".csv":  # any order of rows will do
        pd.read_csv(path).sample(frac=1, random_state=0).to_csv(path, index=False)
    result = invoke("evaluate", path, graph, "--json", "--no-clusters", "--device", "cpu")
    of_run = invoke("evaluate", run, "--json", "--no-clusters", "--device", "cpu")
    assert result["probe"]["per_split"] == of_run["probe"]["per_split"]
    assert result["clustering"] is None
    assert result["seeds"] == []


def test_training_anew_scores_every_seed(tmp_path: Path, fitted: H3GNN) -> None:
    graph = npz(fitted.graph_, tmp_path / "graph.npz")
    common = ("--preset", "paper", graph, "--seeds", 2, *SMALL, "--device", "cpu", "--json")
    last = invoke("evaluate", *common)
    assert np.shape(last["probe"]["per_split"]) == (2, 2)
    assert last["seeds"] == [0, 1]
    assert last["params"]["norm"] == "residual-post"
    assert len(last["clustering"]["acc"]["values"]) == 20
    honest = invoke("evaluate", *common, "--epoch-rule", "validation", "--no-clusters")
    best = invoke("evaluate", *common, "--protocol", "published", "--no-clusters")
    assert honest["epoch_rule"] == "validation"
    assert best["epoch_rule"] == "best test epoch"
    assert "TEST" in best["protocol_in_words"]
    assert (np.array(best["probe"]["per_split"]) >= np.array(honest["probe"]["per_split"])).all()
    assert {one["epoch"] for seed in honest["chosen"] for one in seed} <= set(range(1, 7))


def splits_that_overlap(graph: Graph) -> Graph:
    """Most test nodes of one split are training or validation nodes of the others."""
    assert graph.labels is not None
    train, val, test = random_splits(graph.labels, generator=torch.Generator().manual_seed(1), splits=3)
    return replace(graph, train_mask=train, val_mask=val, test_mask=test)


def test_under_nested_a_split_s_choice_hangs_on_no_label_of_its_test_nodes(tmp_path: Path) -> None:
    graph = splits_that_overlap(mixed_graph(100, words=40, splits=3))
    assert graph.labels is not None
    assert graph.test_mask is not None

    def of(labels: torch.Tensor) -> Any:
        path = npz(replace(graph, labels=labels), tmp_path / "graph.npz")
        options = ("--protocol", "nested", "--trials", 5, "--seeds", 1, "--models", 1, "--device", "cpu")
        return invoke("evaluate", "--preset", "single", path, *SMALL[:4], *options, "--json")

    before = of(graph.labels)
    assert (before["protocol"], len(before["params"]["tried"])) == ("nested", 5)
    changed = []
    for split in range(2):
        after = of(torch.where(graph.test_mask[:, split], (graph.labels + 1) % 5, graph.labels))
        assert after["chosen"][0][split] == before["chosen"][0][split]
        assert after["probe"]["validation"][0][split] == before["probe"]["validation"][0][split]
        changed += [one for one in after["chosen"][0] if one not in before["chosen"][0]]
    assert changed  # other splits have these nodes to choose by


def test_no_trial_changes_what_a_user_fixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = npz(mixed_graph(60, words=30, splits=2), tmp_path / "graph.npz")
    trained: list[dict[str, Any]] = []
    usual = H3GNN.fit

    def fit(self: H3GNN, *given: Any, **how: Any) -> H3GNN:
        trained.append(self.get_settings())
        return usual(self, *given, **how)

    monkeypatch.setattr(H3GNN, "fit", fit)
    options = ("--protocol", "nested", "--trials", 4, "--seeds", 1, "--device", "cpu", "--json")
    common = ("evaluate", "--preset", "single", path, *options, "--epochs", 1, "--set", "channels=8")
    asked = [*map(str, common), "--set", "objective=edges", "--set", "smoothing=0.3"]
    told = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert "fixed in all trials: objective, channels, smoothing" in told.stderr
    assert len(trained) == 4
    for one in trained:
        assert (one["channels"], one["objective"], one["smoothing"], one["epochs"]) == (8, "edges", 0.3, 1)
    tried, free = json.loads(told.stdout)["params"]["tried"], {"hops", "self_loops", "learning_rate"}
    assert {name for one in tried for name in one} == free
    rest = [word for name in free for word in ("--set", f"{name}={trained[0][name]}")]
    with pytest.raises(InputError, match=r"every setting that a search varies is fixed .*--trials 1$"):
        app([*asked, *rest], standalone_mode=False)


def test_a_preset_that_all_splits_of_this_graph_chose_is_called_pooled(tmp_path: Path) -> None:
    graph = npz(splits_that_overlap(mixed_graph(100, words=40, splits=3)), tmp_path / "graph.npz")
    common = (graph, "--seeds", 1, *SMALL, "--device", "cpu", "--no-clusters", "--json")
    plain = invoke("evaluate", "--preset", "single", *common)
    assert plain["protocol"] == "validation"
    for sha256, protocol in ((plain["sha256"], "pooled"), ("0" * 64, "validation")):
        tuned = {"protocol": "pooled", "objective": "validation", "sha256": sha256}
        preset = tmp_path / "mine.json"
        preset.write_text(json.dumps({"params": H3GNN.from_preset("single").get_settings(), "tuned": tuned}))
        found = invoke("evaluate", "--preset", preset, *common)
        assert found["protocol"] == protocol
        assert found["probe"] == plain["probe"]
    tuned["sha256"] = plain["sha256"]
    preset.write_text(json.dumps({"params": {"channels": 8}, "tuned": tuned}))
    refused = invoke("evaluate", "--preset", preset, *common, "--protocol", "nested", fails=True)
    assert "(`pooled`, not `nested`)" in refused
    assert len(refused.splitlines()) == 1
    best = invoke("evaluate", "--preset", preset, *common, "--protocol", "published")
    assert best["protocol"] == "published"


def test_the_table_says_what_the_numbers_are(run: Path) -> None:
    shown = invoke("evaluate", run, "--protocol", "published", "--device", "cpu")
    assert "H3GNN" in shown
    assert "chosen on TEST nodes" in shown


def test_mistakes_are_said_in_one_sentence(run: Path, tmp_path: Path, fitted: H3GNN) -> None:
    path = tmp_path / "embeddings.csv"
    write_rows(path, fitted.embedding_, fitted.graph_.node_ids)
    pd.read_csv(path).iloc[3:].to_csv(path, index=False)
    graph = npz(fitted.graph_, tmp_path / "graph.npz")
    assert "3 of 120 nodes are missing" in invoke("evaluate", path, graph, fails=True)
    assert "also give the graph" in invoke("evaluate", path, fails=True)
    assert "give a run" in invoke("evaluate", fails=True)
    assert "neither a folder" in invoke("evaluate", tmp_path / "none.txt", fails=True)
    assert "unknown protocol" in invoke("evaluate", run, "--protocol", "best", fails=True)
    assert "unknown probe" in invoke("evaluate", run, "--probe", "svm", fails=True)
    assert "--preset" in invoke("evaluate", run, "--epoch-rule", "validation", fails=True)
    assert "--preset" in invoke("evaluate", run, "--epochs", 3, fails=True)
    trials = ("--trials", 3)
    for more in ((run,), ("--preset", "single", graph)):
        assert "--trials needs --preset NAME and --protocol nested" in invoke(
            "evaluate", *more, *trials, fails=True
        )
    assert "needs --preset NAME" in invoke("evaluate", run, "--protocol", "nested", fails=True)
    nested = ("--preset", "single", graph, "--protocol", "nested", "--epoch-rule", "validation")
    assert "omit --epoch-rule" in invoke("evaluate", *nested, fails=True)
    bare = tmp_path / "edges.csv"
    bare.write_text("a,b\n1,2\n2,3\n")
    assert "no labels" in invoke("evaluate", "--preset", "paper", "--edges", bare, fails=True)
    (tmp_path / "short.ids.csv").write_text("node\n1\n")
    np.save(tmp_path / "short.npy", np.eye(3))
    assert "has 1 ids" in invoke("cluster", tmp_path / "short.npy", fails=True)


def test_clusters_with_labels_are_as_many_as_classes(run: Path, tmp_path: Path, fitted: H3GNN) -> None:
    out = tmp_path / "clusters.csv"
    result = invoke("cluster", run, "--out", out, "--json", "--device", "cpu")
    assert result["clusters"] == fitted.graph_.num_classes
    assert result["chosen_by"] == "classes"
    assert 0 < result["clustering"]["acc"] <= 1
    table = pd.read_csv(out)
    assert list(table) == ["node", "cluster"]
    assert table["cluster"].value_counts().sort_index().tolist() == result["sizes"]
    assert result["sizes"] == sorted(result["sizes"], reverse=True)


def test_clusters_without_labels_are_picked_by_silhouette(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    centres = 20 * np.eye(4)[np.arange(60) % 4]
    rows = pd.DataFrame(centres + random.normal(size=(60, 4)), columns=[f"e{i}" for i in range(4)])
    rows.insert(0, "node", [f"n{i}" for i in range(60)])
    rows.to_parquet(tmp_path / "rows.parquet")
    out = tmp_path / "clusters.parquet"
    result = invoke("cluster", tmp_path / "rows.parquet", "--out", out, "--json", "--max-clusters", 6)
    assert result["clusters"] == 4
    assert result["chosen_by"] == "silhouette"
    assert result["sizes"] == [15] * 4
    assert result["clustering"] is None
    table = pd.read_parquet(out)
    assert table.groupby(np.arange(60) % 4)["cluster"].nunique().tolist() == [1, 1, 1, 1]
    assert table["node"].tolist() == rows["node"].tolist()
    shown = invoke("cluster", tmp_path / "rows.parquet", "--clusters", 2)
    assert "2 clusters of 60 nodes" in shown
    assert "there are 60" in invoke("cluster", tmp_path / "rows.parquet", "--clusters", 61, fails=True)
