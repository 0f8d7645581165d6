from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.synthetic import mixed_graph
from tests.program import call, invoke
from tests.rejects import rejects

QUICK = (
    "--trials", "2", "--epochs", "1,2", "--models", "2", "--joined", "2",
    "--finalists", "1", "--choices", "channels=8", "--choices", "hops=1,2",
)  # fmt: skip


@pytest.fixture(autouse=True)
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    """The graph that `synthetic` names here; the current folder is empty."""
    graph = mixed_graph(80, words=30, splits=3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("h3gnn.graphs.synthetic.mixed_graph", lambda *_, **__: graph)
    return graph


def read(*names: str) -> list[Any]:
    return [json.loads(Path(name).read_text()) for name in names]


def test_tune_then_fit_with_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["tune", "synthetic", *QUICK, "--out", "p.json", "--record", "r.json"]
    monkeypatch.setattr(sys, "argv", ["h3gnn", *command])
    printed = call(*command, "--json")
    found, record = read("p.json", "r.json")
    assert printed == found
    assert record.items() > found.items()
    assert len(record["trials"]) == found["tuned"]["trials"] == 2
    assert found["tuned"]["study_file"] == "r.json"
    assert record["command"] == ["h3gnn", *command]
    assert record["search"]["space"]["hops"] == [1, 2]
    assert record["search"]["eval_epochs"] == [1, 2]
    fitted = call("fit", "synthetic", "--preset", "p.json", "--embeddings", "e.npy", "--json")
    assert fitted["params"]["n_models"] == 2
    again = call("tune", "synthetic", *QUICK, "--at-once", 2, "--out", "q.json", "--record", "r.json")
    assert "2 trials" in again
    assert Path("q.json").read_text() == Path("p.json").read_text()


NESTED = (
    "--protocol", "nested", "--trials", "3", "--models", "1", "--device", "cpu", "--space", "structure",
    "--choices", "channels=8", "--choices", "heads=2", "--choices", "smoothing=0,0.5",
)  # fmt: skip


def test_nested_tuning_needs_no_optuna(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)  # importing it fails
    printed = call(
        "tune", "synthetic", *NESTED, "--choices", "epochs=2", "--out", "p.json", "--record", "r.json"
    )
    found, record = read("p.json", "r.json")
    assert record.items() > found.items()
    made = found["tuned"]
    assert (made["protocol"], made["study_file"]) == ("pooled", "r.json")
    assert made["sha256"] == graph.provenance.sha256
    assert made["trials"] == len(record["trials"]) == 3
    assert (found["params"]["channels"], found["params"]["epochs"]) == (8, 2)
    assert f"3 settings; nested test accuracy {100 * made['nested']['test_mean']:.1f} ± " in printed
    assert H3GNN.from_preset("p.json").channels == 8


def test_nested_tuning_on_some_epochs_and_splits() -> None:
    scored = ("--epochs", "1,3", "--splits", "2", "--out", "p.json", "--record", "r.json")
    done = invoke("tune", "synthetic", *NESTED, *scored)
    assert "2 split(s) choose" in done.stderr
    found, record = read("p.json", "r.json")
    assert all(trial["curve"].keys() == {"1", "3"} for trial in record["trials"])
    assert (record["search"]["eval_epochs"], record["search"]["splits"]) == ([1, 3], 2)
    assert found["params"]["schedule"] == "constant"
    assert found["params"]["epochs"] in (1, 3)
    assert len(found["tuned"]["nested"]["trials"]) == 2


def test_nested_tuning_of_fixed_settings_has_one_trial() -> None:
    fixed = ("objective=teacher", "hops=1", "self_loops=true", "channels=8", "learning_rate=0.01")
    choices = [word for one in (*fixed, "smoothing=0.3", "epochs=1") for word in ("--choices", one)]
    command = ("tune", "synthetic", "--protocol", "nested", *choices, "--models", 1, "--device", "cpu")
    with rejects("nothing-to-search"):
        call(*command, "--trials", 2)
    done = invoke(*command, "--trials", 1)
    assert "fixed in all trials: objective, hops, self_loops, channels" in done.stderr
    params = read("preset.json")[0]["params"]
    assert (params["hops"], params["self_loops"], params["smoothing"]) == (1, True, 0.3)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--epochs", "20,10"), "value-invalid"),
        (("--choices", "hops"), "value-invalid"),
        (("--choices", "hops=0"), "value-invalid"),
        (("--space", "none"), "value-invalid"),
        (("--objective", "test"), "unknown-objective"),
        (("--out", "p.txt"), "file-ending"),
        (("--protocol", "test"), "value-invalid"),
        (("--protocol", "nested", "--objective", "label-free"), "nested-objective"),
        (("--protocol", "nested", "--choices", "epochs=2,4"), "epochs-conflict"),
        (("--protocol", "nested", "--choices", "schedule=cosine"), "epochs-conflict"),
        (("--protocol", "nested", "--choices", "n_models=2,4"), "n-models-choice"),
    ],
)
def test_invalid_options_are_rejected(options: tuple[str, ...], code: str) -> None:
    with rejects(code) as error:
        call("tune", "synthetic", *QUICK, *options)
    assert len(error.message.splitlines()) == 1
    assert not list(Path().glob("*.json"))
