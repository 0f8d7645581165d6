from __future__ import annotations

import pytest
import torch
from torch import Tensor

from h3gnn import CheckpointError, Graph
from h3gnn.encoder import FeatureMatrix, JointEncoder, build_support
from h3gnn.masking import ProbabilityMask
from h3gnn.training.history import Recorder
from h3gnn.training.objective import LatentPrediction
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.snapshot import put_back, take
from h3gnn.training.step import Step
from h3gnn.training.teacher import Teacher


def two_models(graph: Graph, seed: int = 0) -> Step:
    """Two models with settings of their own: each is a group of parameters, and has its own momentum."""
    support = build_support(graph.edge_index, graph.num_nodes)
    student = JointEncoder(graph.num_features, 4, support.pattern.entries, heads=2, models=2, batch_norm=True)
    drawing = [torch.Generator().manual_seed(seed + model) for model in range(2)]
    student.reset_parameters(drawing, support.start)
    student.train()
    objective = LatentPrediction(Teacher(student, [0.9, 0.99]))
    optimizer = StackedAdam([student], [0.01, 0.002], [0.0, 0.1])
    return Step(student, objective, optimizer, FeatureMatrix(graph.features), support, drawing, 1024)


def make_epochs(step: Step, recorder: Recorder, count: int) -> None:
    for _ in range(count):
        loss, masked = step(ProbabilityMask([0.5, 0.4], [0.5, 0.5]))
        recorder.add(loss=loss, masked=masked)


def copied(step: Step, recorder: Recorder) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in take(step, recorder).items()}


def test_models_with_settings_of_their_own_go_on_as_they_were(small_mixed: Graph) -> None:
    step, recorder = two_models(small_mixed), Recorder()
    assert len(step.optimizer.adam.param_groups) == 2
    make_epochs(step, recorder, 3)
    state = copied(step, recorder)
    make_epochs(step, recorder, 4)
    wanted = copied(step, recorder)

    again = two_models(small_mixed, seed=99)
    rows = put_back(again, state, recorder.names)
    assert len(rows) == 3
    assert copied(again, rows).keys() == state.keys()
    for name, tensor in copied(again, rows).items():
        assert torch.equal(tensor, state[name]), name
    make_epochs(again, rows, 4)
    for name, tensor in copied(again, rows).items():
        assert torch.equal(tensor, wanted[name]), name


def test_a_step_shares_no_memory_with_the_state_it_came_from(small_mixed: Graph) -> None:
    step, recorder = two_models(small_mixed), Recorder()
    make_epochs(step, recorder, 1)
    state = copied(step, recorder)
    again = two_models(small_mixed, seed=99)
    make_epochs(again, put_back(again, state, recorder.names), 1)
    for name, tensor in copied(step, recorder).items():
        assert torch.equal(tensor, state[name]), name  # what was handed in is as it was


def test_a_parameter_that_never_had_a_gradient_has_nothing_to_keep(small_mixed: Graph) -> None:
    step, recorder = two_models(small_mixed), Recorder()
    make_epochs(step, recorder, 2)
    untouched = step.optimizer.adam.param_groups[1]["params"][0]
    del step.optimizer.adam.state[untouched]
    state = copied(step, recorder)
    again = two_models(small_mixed, seed=99)
    put_back(again, state, recorder.names)
    stepped = step.optimizer.adam.state_dict()["state"].keys()
    assert again.optimizer.adam.state_dict()["state"].keys() == stepped
    assert len(stepped) == 2 * len(step.optimizer.parameters) - 1


@pytest.mark.parametrize(
    "name", ["student.linear_bias", "adam.3.exp_avg", "adam.stepped", "generator.1", "difficulty"]
)
def test_a_state_that_does_not_fit_leaves_the_step_as_it_was(small_mixed: Graph, name: str) -> None:
    step, recorder = two_models(small_mixed), Recorder()
    make_epochs(step, recorder, 2)
    state = copied(step, recorder)
    again = two_models(small_mixed, seed=99)
    make_epochs(again, Recorder(), 1)
    before = copied(again, Recorder())
    for spoilt in ({n: t for n, t in state.items() if n != name}, {**state, name: torch.full((7,), 999)}):
        with pytest.raises(CheckpointError, match=name):
            put_back(again, spoilt, recorder.names)
        after = copied(again, Recorder())
        assert all(torch.equal(after[key], before[key]) for key in before)


def test_rows_that_were_not_always_measured_come_back_as_they_were() -> None:
    recorder = Recorder()
    for epoch in range(5):
        values = {"loss": torch.tensor([1.0 / (epoch + 3), float("nan")])}
        if epoch in (0, 3):
            values["rank"] = torch.tensor([epoch, 7])
        recorder.add(**values)
    again = Recorder.from_state(recorder.state(), recorder.names)
    assert len(again) == 5
    assert again.latest("rank") == recorder.latest("rank") == 5.0
    assert again.history().names == ["loss", "rank"]
    for name in ("loss", "rank"):
        assert again.history()[name].tobytes() == recorder.history()[name].tobytes()
