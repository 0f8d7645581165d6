from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from h3gnn.estimator import H3GNN
from h3gnn.experiments.compare import Comparing, compare
from h3gnn.experiments.methods import METHODS
from h3gnn.graphs.graph import Graph
from tests.program import call, invoke
from tests.rejects import rejects

QUICK = ("--set", "epochs=2", "--set", "channels=8", "--set", "heads=2", "--device", "cpu")


def own(folder: Path, labels: Path | None = None) -> tuple[object, ...]:
    """The options of the small graph in files."""
    return (
        *("--edges", folder / "e.csv", "--features", folder / "f.csv"),
        *("--labels", labels or folder / "y.csv"),
    )


def test_results_are_printed_stored_and_reused(tables: Path, tmp_path: Path) -> None:
    command = ("compare", *own(tables), "--methods", "raw,smoothed,h3gnn", *QUICK, "--models", 1)
    printed = call(*command, "--out", tmp_path / "r.json")
    for word in ("★", "accuracy", "interval", "H3GNN", "raw features", "10 split(s)", "On this graph"):
        assert word in printed
    assert "…" not in printed  # nothing is cut off at 80 columns
    again = invoke(*command, "--out", tmp_path / "r.json")
    assert again.stderr.count("taken from") == 3
    result = call(*command, "--out", tmp_path / "r.json", "--json")
    assert {row["name"] for row in result["rows"]} == {"raw", "smoothed", "h3gnn"}
    assert result["verdict"] in printed.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("synthetic", "--methods", "magic"), "unknown-method"),
        (("synthetic", "--grid", "huge"), "unknown-grid"),
        (("synthetic", "--out", "r.txt"), "file-ending"),
        (("synthetic", "--quick", "--published"), "quick-and-published"),
        (("synthetic", "--quick", "--trials", "2"), "trials-and-settings"),
        (("--edges", "e.csv"), "no-labels"),
    ],
)
def test_invalid_options_are_rejected_before_the_work(
    tables: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: str
) -> None:
    monkeypatch.chdir(tables)
    with rejects(code):
        call("compare", *arguments)


def test_a_rare_class_leads_with_average_precision(tables: Path, tmp_path: Path) -> None:
    labels, embeddings = tmp_path / "y.csv", tmp_path / "emb.csv"
    rare = "\n".join(f"{node},{'fraud' if node % 20 == 0 else 'honest'}" for node in range(100))
    labels.write_text(f"id,label\n{rare}\n")
    command = ("compare", *own(tables, labels), "--methods", "raw,smoothed", *QUICK)
    printed = call(*command)
    for words in ("precision", "balanced", "at k", "95.0 % of the test nodes", "class fraud, k = as many as"):
        assert words in printed
    assert "…" not in printed
    assert "points of average precision" in printed or "score the same" in printed
    result = call(*command, "--json", "--top", 20)
    row = result["rows"][0]
    assert (result["leading"], row["rare_class"], row["k"]) == ("average_precision", "fraud", 20)
    assert row["probe"]["recall_at_k"]["test_mean"] == 1.0  # each split has twenty test nodes
    embeddings.write_text("node,e0\n" + "\n".join(f"{node},{node % 7}" for node in range(100)) + "\n")
    printed = call("evaluate", embeddings, *own(tables, labels), "--no-clusters")
    for words in ("precision", "balanced", "recall at k", "majority's", "ROC-AUC", "10 split(s)"):
        assert words in printed
    assert "…" not in printed


def test_methods_are_listed_and_described() -> None:
    listed = call("methods")
    for word in ("self-supervised", "greet", "2023", "features, edges", "clustering"):
        assert word in listed
    described = call("methods", "greet")
    for word in ("GREET", "paper:", "settings:", "ranges:", "published:", "cora:", "h3gnn.baselines.GREET"):
        assert word in described
    rows = call("methods", "--json")
    assert {"name", "paper", "year", "sees", "settings", "ranges", "published", "cost"} <= set(rows[0])
    assert "gprgnn: GPR-GNN" in call("methods", "GPR-GNN")
    with rejects("unknown-method") as error:
        call("methods", "greeet")
    assert "did you mean greet?" in error.message


def test_a_quick_comparison(tables: Path) -> None:
    done = invoke("compare", *own(tables), "--methods", "raw,dgi", "--quick", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "3 split(s)" in done.stdout
    assert "trial run" in done.stderr
    assert re.search(r"DGI: [\d.]+ % in \d+ s \(2 of 2\)", done.stderr)
    assert "one seed" in done.stdout


def test_given_settings_are_not_searched(small_mixed: Graph) -> None:
    model = H3GNN(learning_rate=0.2, smoothing=0.3)
    free = Comparing(small_mixed, [0], model, trials=3)
    held = replace(free, fixed=("learning_rate", "smoothing"))
    assert held.method("h3gnn").ranges.keys() == METHODS["h3gnn"].ranges.keys() - {*held.fixed}
    assert "learning_rate" not in held.method("paper-prob").ranges
    assert held.key("paper-prob")["params"]["learning_rate"] == 0.2  # instead of the method's own
    assert held.method("dgi") == METHODS["dgi"]  # its settings are not those of H3GNN
    assert free.method("h3gnn") == METHODS["h3gnn"]
    assert held.key("h3gnn") == {**free.key("h3gnn"), "fixed": ["learning_rate", "smoothing"]}
    everything: Any = {"fixed": tuple(METHODS["h3gnn"].ranges), "trials": 3}
    with rejects("nothing-to-search"):
        compare([METHODS["raw"], METHODS["h3gnn"]], small_mixed, seeds=[0], model=model, **everything)


def test_a_comparison_reports_fixed_settings(tables: Path) -> None:
    fixed = (*QUICK, "--set", "smoothing=0.3", "--models", 1)
    done = invoke("compare", tables / "g.npz", *fixed, "--methods", "h3gnn", "--trials", 2, "--json")
    assert "fixed in all trials: channels, smoothing" in done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["params"]["smoothing"] == 0.3
    assert not any({"channels", "smoothing"} & chosen.keys() for chosen in row["chosen"][0])


def test_tuned_methods_replace_stored_results(tables: Path, tmp_path: Path) -> None:
    command = ("compare", tables / "g.npz", "--methods", "raw,s2gc", "--out", tmp_path / "r.json")
    call(*command)
    tuned = invoke(*command, "--trials", 2)
    assert re.search(r"S²GC: .* has it with other settings; running it again", tuned.stderr)
    assert "raw features: taken from" in tuned.stderr
    assert "up to 2 settings of each method tried" in tuned.stdout.replace("\n", " ")
    rows = {row["name"]: row for row in call(*command, "--trials", 2, "--json")["rows"]}
    assert (rows["raw"]["protocol"], rows["s2gc"]["protocol"]) == ("validation", "nested")
    assert len(rows["s2gc"]["params"]["tried"]) == 2
