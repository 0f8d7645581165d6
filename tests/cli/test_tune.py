from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from h3gnn.cli.app import app
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.synthetic import mixed_graph
from tests.program import run

QUICK = (
    "--trials", "2", "--epochs", "1,2", "--models", "2", "--joined", "2",
    "--finalists", "1", "--choices", "channels=8", "--choices", "hops=1,2",
)  # fmt: skip


def test_tune_then_fit_with_what_was_found(tmp_path: Path) -> None:
    tuned = run("tune", "synthetic", *QUICK, "--out", "p.json", "--record", "r.json", "--json", cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    assert json.loads(tuned.stdout) == json.loads((tmp_path / "p.json").read_text())
    found, record = (json.loads((tmp_path / name).read_text()) for name in ("p.json", "r.json"))
    assert record.items() > found.items()
    assert len(record["trials"]) == found["tuned"]["trials"] == 2
    assert found["tuned"]["study_file"] == "r.json"
    assert record["command"][:5] == ["h3gnn", "tune", "synthetic", "--trials", "2"]
    assert record["search"]["space"]["hops"] == [1, 2]
    assert record["search"]["eval_epochs"] == [1, 2]
    fitted = run("fit", "synthetic", "--preset", "p.json", "--embeddings", "e.npy", "--json", cwd=tmp_path)
    assert fitted.returncode == 0, fitted.stderr
    assert json.loads(fitted.stdout)["params"]["n_models"] == 2
    again = run("tune", "synthetic", *QUICK, "--out", "q.json", "--record", "r.json", cwd=tmp_path)
    assert "2 trials" in again.stdout
    assert (tmp_path / "q.json").read_text() == (tmp_path / "p.json").read_text()


LIST = (
    "--protocol", "nested", "--trials", "3", "--models", "1", "--device", "cpu", "--space", "structure",
    "--choices", "channels=8", "--choices", "heads=2", "--choices", "epochs=2",
    "--choices", "smoothing=0,0.5",
)  # fmt: skip


def test_a_list_is_tuned_from_without_optuna(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "optuna", None)  # whoever imports it fails
    graph = mixed_graph(80, words=30, splits=2)
    monkeypatch.setattr("h3gnn.graphs.synthetic.mixed_graph", lambda *_, **__: graph)
    told = CliRunner().invoke(app, ["tune", "synthetic", *LIST, "--out", "p.json", "--record", "r.json"])
    assert told.exit_code == 0, (told.output, told.exception)
    found, record = (json.loads((tmp_path / name).read_text()) for name in ("p.json", "r.json"))
    assert record.items() > found.items()
    made = found["tuned"]
    assert (made["protocol"], made["study_file"], made["sha256"]) == (
        *("pooled", "r.json"), graph.provenance.sha256
    )  # fmt: skip
    assert made["trials"] == len(record["trials"]) == 3
    assert (found["params"]["channels"], found["params"]["epochs"]) == (8, 2)
    assert "3 settings; tuned like this, test accuracy is " in told.stdout
    assert f"{100 * made['nested']['test_mean']:.1f} ± " in told.stdout
    assert H3GNN.from_preset("p.json").channels == 8


def test_a_list_is_looked_at_after_the_epochs_and_on_the_splits_that_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = mixed_graph(80, words=30, splits=3)
    monkeypatch.setattr("h3gnn.graphs.synthetic.mixed_graph", lambda *_, **__: graph)
    place = LIST.index("epochs=2")
    asked = (*LIST[: place - 1], *LIST[place + 1 :])
    more = ("--epochs", "1,3", "--splits", "2", "--out", "p.json", "--record", "r.json")
    told = CliRunner().invoke(app, ["tune", "synthetic", *asked, *more])
    assert told.exit_code == 0, (told.output, told.exception)
    found, record = (json.loads((tmp_path / name).read_text()) for name in ("p.json", "r.json"))
    assert all(trial["curve"].keys() == {"1", "3"} for trial in record["trials"])
    assert (record["search"]["eval_epochs"], record["search"]["splits"]) == ([1, 3], 2)
    assert (found["params"]["schedule"], found["params"]["epochs"] in (1, 3)) == ("constant", True)
    assert len(found["tuned"]["nested"]["trials"]) == 2
    assert "2 split(s) choose" in told.stderr
    assert found["tuned"]["sha256"] == graph.provenance.sha256


def test_a_list_of_which_all_is_fixed_has_one_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = mixed_graph(80, words=30, splits=2)
    monkeypatch.setattr("h3gnn.graphs.synthetic.mixed_graph", lambda *_, **__: graph)
    fixed = (
        "objective=teacher",
        "hops=1",
        "self_loops=true",
        "channels=8",
        "learning_rate=0.01",
        "smoothing=0.3",
    )
    choices = [word for one in fixed for word in ("--choices", one)]
    asked = ["tune", "synthetic", "--protocol", "nested", "--choices", "epochs=1", *choices, "--models", "1"]
    with pytest.raises(InputError, match="every setting that a search varies is fixed"):
        app([*asked, "--trials", "2"], standalone_mode=False)
    told = CliRunner().invoke(app, [*asked, "--trials", "1", "--device", "cpu"])
    assert told.exit_code == 0, (told.output, told.exception)
    assert "fixed in all trials: objective, hops, self_loops, channels" in told.stderr
    params = json.loads((tmp_path / "preset.json").read_text())["params"]
    assert (params["hops"], params["self_loops"], params["smoothing"]) == (1, True, 0.3)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--epochs", "20,10"), "increasing integers"),
        (("--choices", "hops"), "write NAME"),
        (("--choices", "hops=0"), "hops"),
        (("--space", "none"), "--space must be one of"),
        (("--objective", "test"), "objectives are"),
        (("--out", "p.txt"), "must end in"),
        (("--protocol", "test"), "--protocol must be pooled or nested"),
        (("--protocol", "nested", "--objective", "label-free"), "needs --objective validation"),
        (("--protocol", "nested", "--choices", "epochs=2,4"), "leave out --epochs, or --choices"),
        (("--protocol", "nested", "--choices", "schedule=cosine"), "leave out --epochs, or --choices"),
        (("--protocol", "nested", "--choices", "n_models=2,4"), "give --models"),
    ],
)
def test_bad_options_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=word) as refused:
        app(["tune", "synthetic", *QUICK, *options], standalone_mode=False)
    assert len(str(refused.value).splitlines()) == 1
    assert not list(tmp_path.glob("*.json"))
