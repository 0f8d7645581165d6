from __future__ import annotations

import json
from pathlib import Path

import pytest

from h3gnn.arguments import check_arguments
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.catalogue import benchmarks
from h3gnn.presets import preset, preset_names, tuned_presets

STUDIES = Path(__file__).parents[1] / "results" / "studies"
CLUSTERED = {"texas-clustering", "cornell-clustering", "actor-clustering", "citeseer-clustering"}


def test_every_benchmark_has_a_preset_that_says_how_it_was_made() -> None:
    assert set(tuned_presets()) == set(benchmarks()) | CLUSTERED
    for name, kept in tuned_presets().items():
        made = kept["tuned"]
        assert made["by"] == "h3gnn tune"
        assert made["protocol"] == "validation"
        assert {"study", "seed", "date", "sha256", "trials", "score"} <= set(made)
        assert made["objective"] == ("clustering" if name in CLUSTERED else "validation")
        assert kept["params"]["n_models"] <= 16
        check_arguments(H3GNN.from_preset(name).get_params())


@pytest.mark.parametrize("name", sorted(tuned_presets()))
def test_a_preset_is_what_its_stored_study_found(name: str) -> None:
    study = json.loads((STUDIES / f"{name}.json").read_text())
    assert {key: study[key] for key in ("params", "tuned")} == tuned_presets()[name]
    looks = [look for one in study["finalists"] for look in one["looks"]]
    epochs, smoothing, score = max(looks, key=lambda look: look[2])
    params = tuned_presets()[name]["params"]
    assert (params["epochs"], params["smoothing"]) == (epochs, smoothing)
    assert tuned_presets()[name]["tuned"]["score"] == pytest.approx(score, abs=1e-5)


def test_the_paper_comes_without_what_a_search_added() -> None:
    assert preset_names()[0] == "paper"
    model = H3GNN.from_preset("paper", channels=64)
    assert (model.channels, model.norm, model.schedule) == (64, "residual-post", "cosine")


def test_a_preset_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"params": {"channels": 32}}))
    assert H3GNN.from_preset(str(path)).channels == 32


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"params": 3}'])
def test_a_file_that_is_no_preset_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"mine\.json"):
        preset(str(path))


def test_unknown_names_are_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="paper"):
        preset("nothing")
    path = tmp_path / "mine.json"
    path.write_text('{"params": {"no_such": 1}}')
    with pytest.raises(InputError, match="no_such"):
        H3GNN.from_preset(str(path))
