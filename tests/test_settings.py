from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.experiments.spaces import with_objectives
from h3gnn.graphs.datasets import benchmarks
from h3gnn.settings import (
    PURPOSES,
    SETTINGS,
    canonical,
    check_arguments,
    choice,
    kept_for,
    parse_value,
)
from h3gnn.tuned import _shipped, preset, preset_names, tuned_on, tuned_presets
from tests.rejects import rejects

STUDIES = Path(__file__).parents[1] / "results" / "studies"


def test_every_benchmark_has_a_preset_with_its_origin() -> None:
    assert set(tuned_presets()) == set(benchmarks())
    for name, kept in tuned_presets().items():
        made = kept["tuned"]
        assert made["by"] in ("h3gnn tune", "h3gnn reproduce")
        assert (made["protocol"], made["objective"]) == ("pooled", "validation")
        assert tuned_on(name) == made["sha256"]
        assert {"study", "seed", "date", "sha256", "trials", "score", "nested"} <= set(made)
        assert kept["params"]["n_models"] <= 16
        check_arguments(H3GNN.from_preset(name).get_settings())


@pytest.mark.parametrize("name", sorted(tuned_presets()))
def test_a_preset_matches_its_stored_study(name: str) -> None:
    study = json.loads((STUDIES / f"{name}.json").read_text())
    assert {key: study[key] for key in ("params", "tuned")} == tuned_presets()[name]
    looks = [look for one in study["finalists"] for look in one["looks"]]
    params, best = tuned_presets()[name]["params"], max(score for *_, score in looks)
    (score,) = {
        one
        for epochs, smoothing, one in looks
        if (epochs, smoothing) == (params["epochs"], params["smoothing"])
    }
    assert score == pytest.approx(best, abs=1e-4)  # stored with four digits
    assert tuned_presets()[name]["tuned"]["score"] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("name", sorted(tuned_presets()))
def test_a_preset_is_one_of_the_finalists_of_its_study(name: str) -> None:
    study, kept = json.loads((STUDIES / f"{name}.json").read_text()), tuned_presets()[name]
    made, trials = kept["tuned"], [trial["params"] for trial in study["trials"]]
    assert made["trials"] == len(trials)
    assert len(trials) > 1
    chosen = [
        one["params"]
        for one in study["finalists"]
        if all(kept["params"][key] == value for key, value in with_objectives(one["params"]).items())
    ]
    assert chosen
    assert all(one in trials for one in chosen)
    assert made["study_file"] == f"{name}.json"
    assert made["trainings"] == len(trials) + made["repeats"] * len(study["finalists"])
    assert made["origin"].keys() == {"commit", "code"}
    assert " ".join(study["command"][:2]) == made["by"]
    assert study["search"].keys() >= {"space", "rungs", "at_once", "joined", "seed", "objective", "splits"}


def test_every_argument_of_the_estimator_is_one_setting() -> None:
    assert set(SETTINGS) == set(H3GNN().get_settings())
    check_arguments(H3GNN().get_settings())
    check_arguments(H3GNN.from_preset("paper").get_settings())


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - {"random_state", "device"}))
def test_every_setting_rejects_invalid_values_by_name(name: str) -> None:
    params = H3GNN().get_settings()
    for wrong in ("nonsense", -7, [1.5], None):
        if wrong is None and SETTINGS[name].may_be_none:
            continue
        with pytest.raises(InputError, match=f"^{name} "):
            check_arguments({**params, name: wrong})


def test_conflicting_settings_are_rejected() -> None:
    params = H3GNN().get_settings()
    with rejects("channels-not-multiple-of-heads"):
        check_arguments({**params, "channels": 10})
    check_arguments({**params, "channels": 10, "fusion": "mlp"})
    with rejects("more-layers-than-hops"):
        check_arguments({**params, "hops": 1, "min_layers": 2})
    with rejects("num-neighbors-per-hop"):
        check_arguments({**params, "num_neighbors": [5, 5, -1]})
    check_arguments({**params, "num_neighbors": (5, np.int64(-1)), "self_loops": np.True_})


def test_each_purpose_leaves_out_more_settings() -> None:
    params = H3GNN().get_settings()
    left_out = [set(params) - set(kept_for(purpose, params)) for purpose in PURPOSES]
    sizes = {"memory", "batch_size", "num_neighbors", "batches", "max_paths"}
    assert left_out[:2] == [{"verbose"}, {"verbose", "device"}]
    assert left_out[2:] == [left_out[1] | {"random_state"}, left_out[1] | {"random_state"} | sizes]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("scale_features", "none", "none"),
        ("hidden_channels", "none", None),
        ("self_loops", "True", True),
        ("edge_init", "normalized", "normalized"),
        ("edge_init", " 0.5", 0.5),
        ("num_neighbors", "[10, 5]", [10, 5]),
        ("device", "cuda:1", "cuda:1"),
    ],
)
def test_values_are_parsed_from_text(name: str, text: str, value: object) -> None:
    assert parse_value(name, text) == value


def test_only_some_choices_may_be_lists() -> None:
    several, one = (choice(("a", "b"), "", several=both) for both in (True, False))
    several.check("objective", ["a", "b"])
    several.check("objective", "a")
    for setting, wrong in ((several, ["a", "c"]), (several, []), (one, ["a", "b"])):
        with rejects("value-invalid"):
            setting.check("objective", wrong)


def test_the_paper_preset_can_be_overridden() -> None:
    assert preset_names()[0] == "paper"
    model = H3GNN.from_preset("paper", channels=64)
    wanted = {"channels": 64, "norm": "residual-post", "schedule": "constant"}
    assert wanted.items() <= model.get_settings().items()


@pytest.mark.parametrize("name", ["paper", "released", "later"])
def test_the_paper_and_its_variants_set_everything(name: str) -> None:
    params = canonical(_shipped()[name]["params"])
    assert set(params) == set(kept_for("preset", H3GNN().get_settings()))
    assert {key for key, value in params.items() if value == "auto"} <= {"feature_storage"}
    check_arguments(H3GNN.from_preset(name).get_settings())


def test_the_variants_of_the_paper_differ_as_documented() -> None:
    paper, released, later = (canonical(_shipped()[name]["params"]) for name in preset_names()[:3])
    assert {"edge_weights": "free", "mask_size": "bounded", "targets": "plain"}.items() <= paper.items()
    assert {name for name in paper if released[name] != paper[name]} == {
        *("norm", "activation", "output", "min_layers", "edge_weights", "edge_init", "self_loops"),
        *("batch_norm", "mask_token", "teacher_mode", "schedule", "warmup_epochs", "mask_size"),
    }
    assert released["edge_init"] == pytest.approx(1 / (1 + np.exp(-1)))  # σ(1)
    assert {name for name in paper if later[name] != paper[name]} == {"norm", "fusion", "edge_weights"}


def test_a_preset_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"params": {"channels": 32}}))
    assert H3GNN.from_preset(str(path)).channels == 32


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"params": 3}'])
def test_a_file_that_is_not_a_preset_is_rejected(tmp_path: Path, content: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"mine\.json"):
        preset(str(path))


def test_a_preset_chosen_without_labels_was_tuned_on_no_graph(tmp_path: Path) -> None:
    made = {"sha256": "0" * 64, "objective": "validation", "protocol": "pooled"}
    for origin, graph in (
        (made, "0" * 64),
        ({**made, "protocol": "validation"}, "0" * 64),  # former name of `pooled`
        ({**made, "objective": "label-free", "protocol": "no labels"}, None),
    ):
        (tmp_path / "mine.json").write_text(json.dumps({"params": {}, "tuned": origin}))
        assert tuned_on(str(tmp_path / "mine.json")) == graph
    assert tuned_on("paper") is None


def test_unknown_presets_and_settings_are_rejected(tmp_path: Path) -> None:
    with rejects("unknown-preset"):
        preset("nothing")
    path = tmp_path / "mine.json"
    path.write_text('{"params": {"no_such": 1}}')
    with pytest.raises(InputError, match="no_such"):
        H3GNN.from_preset(str(path))
