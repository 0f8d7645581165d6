"""`h3gnn compare` from the outside."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from h3gnn.cli.app import app
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.experiments.compare import Comparing, compare
from h3gnn.experiments.methods import METHODS
from h3gnn.graphs.graph import Graph

QUICK = ("--set", "epochs=2", "--set", "channels=8", "--set", "heads=2", "--device", "cpu")


def run(*arguments: str | Path | int) -> Any:
    return CliRunner().invoke(app, ["compare", *(str(one) for one in arguments)])


@pytest.fixture
def files(tmp_path: Path, small_mixed: Graph) -> Path:
    """The small graph as a user's own files, without splits."""
    assert small_mixed.labels is not None
    edges = "\n".join(f"{a},{b}" for a, b in small_mixed.edge_index.t().tolist())
    (tmp_path / "e.csv").write_text(f"source,target\n{edges}\n")
    labels = "\n".join(f"{node},c{label}" for node, label in enumerate(small_mixed.labels.tolist()))
    (tmp_path / "y.csv").write_text(f"id,label\n{labels}\n")
    rows = small_mixed.dense_features().int().tolist()
    words = "\n".join(",".join(map(str, [node, *row])) for node, row in enumerate(rows))
    names = ",".join(f"w{i}" for i in range(len(rows[0])))
    (tmp_path / "f.csv").write_text(f"id,{names}\n{words}\n")
    return tmp_path


def test_a_graph_of_the_users_own(files: Path) -> None:
    own = ("--edges", files / "e.csv", "--features", files / "f.csv", "--labels", files / "y.csv")
    asked = (*own, "--methods", "raw,smoothed,h3gnn", *QUICK, "--out", files / "r.json")
    result = run(*asked)
    assert result.exit_code == 0, result.output
    for word in ("★", "accuracy", "interval", "H3GNN", "raw features", "10 split(s)", "On this graph"):
        assert word in result.stdout
    assert "…" not in result.stdout  # nothing is cut off at 80 columns
    again = run(*asked, "--json")
    assert again.exit_code == 0, again.output
    told = json.loads(again.stdout)
    assert {row["name"] for row in told["rows"]} == {"raw", "smoothed", "h3gnn"}
    assert told["verdict"] in result.stdout.replace("\n", " ")
    assert "taken from" in again.stderr


def test_bad_input_is_told_before_the_work(files: Path) -> None:
    for arguments, words in (
        (("synthetic", "--methods", "magic"), "unknown method 'magic'"),
        (("synthetic", "--grid", "huge"), "unknown grid 'huge'"),
        (("synthetic", "--out", files / "r.txt"), "must end in"),
        (("--edges", files / "e.csv"), "no labels"),
    ):
        result = run(*arguments)
        assert isinstance(result.exception, InputError), result.output
        assert words in str(result.exception)


def test_a_rare_class_leads_with_average_precision(files: Path) -> None:
    rare = "\n".join(f"{node},{'fraud' if node % 20 == 0 else 'honest'}" for node in range(100))
    (files / "y.csv").write_text(f"id,label\n{rare}\n")
    own = ("--edges", files / "e.csv", "--features", files / "f.csv", "--labels", files / "y.csv")
    asked = (*own, "--methods", "raw,smoothed", *QUICK)
    result = run(*asked)
    assert result.exit_code == 0, result.output
    for words in ("precision", "balanced", "at k", "95.0 % of the test nodes", "class fraud, k = as many as"):
        assert words in result.stdout
    assert "…" not in result.stdout
    assert "points of average precision" in result.stdout or "score the same" in result.stdout
    told = json.loads(run(*asked, "--json", "--top", 20).stdout)
    assert (told["leading"], told["rows"][0]["rare_class"], told["rows"][0]["k"]) == (
        "average_precision", "fraud", 20
    )  # fmt: skip
    # of the twenty test nodes of each split, twenty are looked at, and every fraud is among them
    assert told["rows"][0]["probe"]["recall_at_k"]["test_mean"] == 1.0
    shown = CliRunner().invoke(app, ["evaluate", str(emb(files)), *map(str, own), "--no-clusters"])
    assert shown.exit_code == 0, shown.output
    for words in ("precision", "balanced", "recall at k", "majority's", "ROC-AUC", "10 split(s)"):
        assert words in shown.stdout
    assert "…" not in shown.stdout


def emb(folder: Path) -> Path:
    """Embeddings of the small graph's nodes, one column that says nothing."""
    path = folder / "emb.csv"
    path.write_text("node,e0\n" + "\n".join(f"{node},{node % 7}" for node in range(100)) + "\n")
    return path


def test_all_methods_are_listed_and_one_is_shown_in_full() -> None:
    listed = CliRunner().invoke(app, ["methods"])
    assert listed.exit_code == 0, listed.output
    for word in ("self-supervised", "greet", "2023", "features, edges", "clustering"):
        assert word in listed.stdout
    one = CliRunner().invoke(app, ["methods", "greet"])
    for word in ("GREET", "paper:", "settings:", "ranges:", "published:", "cora:", "h3gnn.baselines.GREET"):
        assert word in one.stdout
    rows = json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)
    assert {"name", "paper", "year", "sees", "settings", "ranges", "published", "cost"} <= set(rows[0])
    wrong = CliRunner().invoke(app, ["methods", "greeet"])
    assert "did you mean greet?" in str(wrong.exception)
    assert "gprgnn: GPR-GNN" in CliRunner().invoke(app, ["methods", "GPR-GNN"]).stdout


def test_a_quick_look_says_that_it_is_one(files: Path) -> None:
    own = ("--edges", files / "e.csv", "--features", files / "f.csv", "--labels", files / "y.csv")
    result = run(*own, "--methods", "raw,dgi", "--quick", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "3 split(s)" in result.stdout
    assert "trial run" in result.stderr
    assert re.search(r"DGI: [\d.]+ % in \d+ s \(2 of 2\)", result.stderr)
    assert "one seed" in result.stdout
    for options in (("--quick", "--published"), ("--quick", "--trials", "2")):
        assert isinstance(run(*own, *options).exception, InputError)


def test_methods_are_tuned_alike(files: Path) -> None:
    own = ("--edges", files / "e.csv", "--features", files / "f.csv", "--labels", files / "y.csv")
    result = run(*own, "--methods", "raw,s2gc", "--trials", "3", "--json", "--device", "cpu")
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    assert (rows["raw"]["protocol"], rows["s2gc"]["protocol"]) == ("validation", "nested")
    assert len(rows["s2gc"]["params"]["tried"]) == 3


def test_a_comparison_varies_nothing_that_is_fixed(small_mixed: Graph) -> None:
    model = H3GNN(learning_rate=0.2, smoothing=0.3)
    free = Comparing(small_mixed, [0], model, trials=3)
    held = replace(free, fixed=("learning_rate", "smoothing"))
    assert held.method("h3gnn").ranges.keys() == METHODS["h3gnn"].ranges.keys() - {*held.fixed}
    assert "learning_rate" not in held.method("paper-prob").ranges
    assert held.key("paper-prob")["params"]["learning_rate"] == 0.2  # its usual one gives way to the user's
    assert held.method("dgi") == METHODS["dgi"]  # has settings of its own
    assert free.method("h3gnn") == METHODS["h3gnn"]
    assert held.key("h3gnn") == {**free.key("h3gnn"), "fixed": ["learning_rate", "smoothing"]}
    everything: Any = {"fixed": tuple(METHODS["h3gnn"].ranges), "trials": 3}
    with pytest.raises(InputError, match=r"^H3GNN: every setting that a search varies is fixed"):
        compare([METHODS["raw"], METHODS["h3gnn"]], small_mixed, seeds=[0], model=model, **everything)


def test_a_comparison_says_what_is_fixed(files: Path) -> None:
    own = ("--edges", files / "e.csv", "--features", files / "f.csv", "--labels", files / "y.csv")
    told = run(
        *own, *QUICK, "--set", "smoothing=0.3", "--methods", "h3gnn", "--trials", 2, "--models", 1, "--json"
    )
    assert told.exit_code == 0, (told.output, told.exception)
    assert "fixed in all trials: channels, smoothing" in told.stderr
    (row,) = json.loads(told.stdout)["rows"]
    assert row["params"]["smoothing"] == 0.3
    assert not any({"channels", "smoothing"} & chosen.keys() for chosen in row["chosen"][0])


@pytest.mark.slow
def test_other_settings_in_the_file_are_said(files: Path) -> None:
    own = ("--edges", files / "e.csv", "--features", files / "f.csv", "--labels", files / "y.csv")
    asked = (*own, "--methods", "raw,s2gc", "--device", "cpu", "--out", files / "r.json")
    assert run(*asked).exit_code == 0
    tuned = run(*asked, "--trials", "2")
    assert "S²GC" in tuned.stderr
    assert "has it with other settings; it is run again, and replaced" in tuned.stderr
    assert "raw features: taken from" in tuned.stderr
    assert "up to 2 settings of each method tried" in tuned.stdout.replace("\n", " ")
