"""`h3gnn evaluate` and `h3gnn cluster`: of a run, of files, and with training."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from h3gnn.cli.output import write_rows
from h3gnn.estimator import H3GNN
from h3gnn.evaluation.probe import linear_probe
from h3gnn.graphs.graph import Graph, random_splits
from h3gnn.graphs.synthetic import mixed_graph
from tests.cli.conftest import write_npz
from tests.program import call, invoke
from tests.rejects import rejects

SMALL = ("--set", "channels=8", "--epochs", "3", "--device", "cpu")


@pytest.fixture(scope="module")
def graph(tables: Path) -> Path:
    return tables / "g.npz"


def test_a_run_is_scored_on_its_own_graph(saved: Path, fitted: H3GNN) -> None:
    result = call("evaluate", saved, "--json", "--device", "cpu")
    graph = fitted.graph_
    arrays = [graph.labels, graph.train_mask, graph.val_mask, graph.test_mask]
    expected = linear_probe(fitted.embedding_, *[one for one in arrays if one is not None])
    assert result["probe"]["per_split"] == [expected.test.tolist()]
    assert result["probe"]["test_mean"] == pytest.approx(expected.mean)
    assert (result["protocol"], result["epoch_rule"]) == ("validation", "last")
    assert result["sha256"] == graph.provenance.sha256
    assert result["params"]["channels"] == 8
    assert result["chosen"][0][0]["epoch"] == 4
    assert set(result["clustering"]) == {"acc", "nmi", "ari", "macro_f1"}
    assert len(result["clustering"]["acc"]["values"]) == 10


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".npy"])
def test_rows_of_a_file_are_matched_by_node_id(
    ending: str, fitted: H3GNN, saved: Path, graph: Path, tmp_path: Path
) -> None:
    path = tmp_path / f"embeddings{ending}"
    write_rows(path, fitted.embedding_, fitted.graph_.node_ids)
    if ending == ".csv":
        pd.read_csv(path).sample(frac=1, random_state=0).to_csv(path, index=False)
    result = call("evaluate", path, graph, "--json", "--no-clusters", "--device", "cpu")
    of_run = call("evaluate", saved, "--json", "--no-clusters", "--device", "cpu")
    assert result["probe"]["per_split"] == of_run["probe"]["per_split"]
    assert (result["clustering"], result["seeds"]) == (None, [])


def test_a_preset_is_trained_and_scored_with_every_seed(graph: Path) -> None:
    command = ("evaluate", "--preset", "paper", graph, *SMALL, "--json", "--seeds")
    last = call(*command, 2)
    assert np.shape(last["probe"]["per_split"]) == (2, 3)
    assert last["seeds"] == [0, 1]
    assert last["params"]["norm"] == "residual-post"
    assert len(last["clustering"]["acc"]["values"]) == 20
    honest = call(*command, 1, "--epoch-rule", "validation", "--no-clusters")
    best = call(*command, 1, "--protocol", "published", "--no-clusters")
    assert (honest["epoch_rule"], best["epoch_rule"]) == ("validation", "best test epoch")
    assert "TEST" in best["protocol_in_words"]
    assert (np.array(best["probe"]["per_split"]) >= np.array(honest["probe"]["per_split"])).all()
    assert {one["epoch"] for seed in honest["chosen"] for one in seed} <= {1, 2, 3}


def overlapping_splits(graph: Graph) -> Graph:
    """Most test nodes of one split are training or validation nodes of the others."""
    assert graph.labels is not None
    train, val, test = random_splits(graph.labels, generator=torch.Generator().manual_seed(1), splits=3)
    return replace(graph, train_mask=train, val_mask=val, test_mask=test)


def test_a_nested_choice_does_not_depend_on_test_labels(tmp_path: Path) -> None:
    graph = overlapping_splits(mixed_graph(60, words=30, splits=3))
    assert graph.labels is not None
    assert graph.test_mask is not None

    def evaluate(labels: torch.Tensor) -> Any:
        path = write_npz(replace(graph, labels=labels), tmp_path / "graph.npz")
        options = ("--protocol", "nested", "--trials", 5, "--seeds", 1, "--models", 1, "--json")
        return call("evaluate", "--preset", "single", path, *SMALL, *options)

    before = evaluate(graph.labels)
    assert (before["protocol"], len(before["params"]["tried"])) == ("nested", 5)
    changed = []
    for split in range(2):
        after = evaluate(torch.where(graph.test_mask[:, split], (graph.labels + 1) % 5, graph.labels))
        assert after["chosen"][0][split] == before["chosen"][0][split]
        assert after["probe"]["validation"][0][split] == before["probe"]["validation"][0][split]
        changed += [one for one in after["chosen"][0] if one not in before["chosen"][0]]
    assert changed  # other splits choose by these nodes


def test_trials_keep_the_given_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_npz(mixed_graph(60, words=30, splits=2), tmp_path / "graph.npz")
    trained: list[dict[str, Any]] = []
    usual = H3GNN.fit

    def fit(self: H3GNN, *given: Any, **how: Any) -> H3GNN:
        trained.append(self.get_settings())
        return usual(self, *given, **how)

    monkeypatch.setattr(H3GNN, "fit", fit)
    options = ("--protocol", "nested", "--trials", 4, "--seeds", 1, "--device", "cpu", "--json")
    fixed = ("--set", "channels=8", "--set", "objective=edges", "--set", "smoothing=0.3")
    command = ("evaluate", "--preset", "single", path, *options, "--epochs", 1, *fixed)
    done = invoke(*command)
    assert "fixed in all trials: objective, channels, smoothing" in done.stderr
    assert len(trained) == 4
    for one in trained:
        assert (one["channels"], one["objective"], one["smoothing"], one["epochs"]) == (8, "edges", 0.3, 1)
    tried, free = json.loads(done.stdout)["params"]["tried"], {"hops", "self_loops", "learning_rate"}
    assert {name for one in tried for name in one} == free
    with rejects("nothing-to-search"):
        call(*command, *(word for name in free for word in ("--set", f"{name}={trained[0][name]}")))


def test_a_preset_tuned_on_this_graph_is_reported_as_pooled(tmp_path: Path, graph: Path) -> None:
    common = (graph, "--seeds", 1, *SMALL, "--no-clusters", "--json")
    plain, preset = call("evaluate", "--preset", "single", *common), tmp_path / "mine.json"
    assert plain["protocol"] == "validation"
    for sha256, protocol in (("0" * 64, "validation"), (plain["sha256"], "pooled")):
        tuned = {"protocol": "pooled", "objective": "validation", "sha256": sha256}
        preset.write_text(json.dumps({"params": H3GNN.from_preset("single").get_settings(), "tuned": tuned}))
        found = call("evaluate", "--preset", preset, *common)
        assert found["protocol"] == protocol
        assert found["probe"] == plain["probe"]
    with rejects("preset-is-pooled"):
        call("evaluate", "--preset", preset, *common, "--protocol", "nested")
    best = call("evaluate", "--preset", preset, *common, "--protocol", "published")
    assert best["protocol"] == "published"


def test_the_table_names_the_protocol(saved: Path) -> None:
    printed = call("evaluate", saved, "--protocol", "published", "--device", "cpu", "--no-clusters")
    assert "H3GNN" in printed
    assert "chosen on TEST nodes" in printed


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("evaluate", "few.csv", "GRAPH"), "embedding-rows-missing"),
        (("evaluate", "few.csv"), "no-labels"),
        (("evaluate",), "no-embeddings"),
        (("evaluate", "none.txt"), "not-embeddings"),
        (("evaluate", "RUN", "--probe", "svm"), "unknown-probe"),
        (("evaluate", "RUN", "--epoch-rule", "validation"), "option-needs-preset"),
        (("evaluate", "RUN", "--epochs", "3"), "option-needs-preset"),
        (("evaluate", "RUN", "--trials", "3"), "trials-need-nested"),
        (("evaluate", "--preset", "single", "GRAPH", "--trials", "3"), "trials-need-nested"),
        (("evaluate", "RUN", "--protocol", "nested"), "nested-needs-preset"),
        (
            ("evaluate", "GRAPH", "--preset", "single", "--protocol", "nested", "--epoch-rule", "validation"),
            "nested-epoch-rule",
        ),
        (("evaluate", "--preset", "paper", "--edges", "edges.csv"), "no-labels"),
        (("cluster", "short.npy"), "embedding-rows"),
        (("cluster", "few.csv", "--clusters", "98"), "too-few-nodes"),
        (("cluster",), "no-embeddings"),
    ],
)
def test_invalid_options_are_rejected(
    saved: Path,
    graph: Path,
    fitted: H3GNN,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(Path("few.csv"), fitted.embedding_[3:], fitted.graph_.node_ids[3:])
    Path("edges.csv").write_text("a,b\n1,2\n2,3\n")
    Path("short.ids.csv").write_text("node\n1\n")
    np.save("short.npy", np.eye(3))
    with rejects(code):
        call(*({"RUN": saved, "GRAPH": graph}.get(one, one) for one in arguments))


def test_an_unknown_protocol_is_rejected(saved: Path) -> None:
    with pytest.raises(ValueError, match="protocol"):
        call("evaluate", saved, "--protocol", "best")


def test_there_are_as_many_clusters_as_classes(saved: Path, tmp_path: Path, fitted: H3GNN) -> None:
    out = tmp_path / "clusters.csv"
    result = call("cluster", saved, "--out", out, "--json", "--device", "cpu")
    assert (result["clusters"], result["chosen_by"]) == (fitted.graph_.num_classes, "classes")
    assert 0 < result["clustering"]["acc"] <= 1
    table = pd.read_csv(out)
    assert list(table) == ["node", "cluster"]
    assert table["cluster"].value_counts().sort_index().tolist() == result["sizes"]
    assert result["sizes"] == sorted(result["sizes"], reverse=True)


def test_without_labels_the_silhouette_chooses_the_clusters(tmp_path: Path) -> None:
    path, out = tmp_path / "rows.parquet", tmp_path / "clusters.parquet"
    random, truth = np.random.default_rng(0), np.arange(60) % 4
    values = 20 * np.eye(4)[truth] + random.normal(size=(60, 4))
    rows = pd.DataFrame(values, columns=[f"e{i}" for i in range(4)])
    rows.insert(0, "node", [f"n{i}" for i in range(60)])
    rows.to_parquet(path)
    result = call("cluster", path, "--out", out, "--json", "--max-clusters", 6)
    assert (result["clusters"], result["chosen_by"], result["sizes"]) == (4, "silhouette", [15] * 4)
    assert result["clustering"] is None
    table = pd.read_parquet(out)
    assert table.groupby(truth)["cluster"].nunique().tolist() == [1, 1, 1, 1]
    assert table["node"].tolist() == rows["node"].tolist()
    assert "2 clusters of 60 nodes" in call("cluster", path, "--clusters", 2)
