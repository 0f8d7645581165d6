from __future__ import annotations

import pytest
import torch

from h3gnn import H3GNN, CheckpointError, Graph
from h3gnn.encoder import EncoderStack, FeatureMatrix, build_support
from h3gnn.training.batches import WholeGraph
from h3gnn.training.checkpoints import State, collect_state, restore_state
from h3gnn.training.history import Recorder
from h3gnn.training.masking import ProbabilityMask
from h3gnn.training.models import Training, stack_step
from h3gnn.training.step import Step

OWN = {"momentum": [0.9, 0.99], "learning_rate": [0.01, 0.002], "weight_decay": [0.0, 0.1]}


def two_models(graph: Graph, seed: int = 0, objective: str | list[str] = "teacher") -> Step:
    """Two models with settings of their own: each is a group of parameters, and has its own momentum."""
    support = build_support(graph.edge_index, graph.num_nodes)
    student = EncoderStack(graph.num_features, 4, support.entries, heads=2, models=2, batch_norm=True)
    training = Training.of(
        H3GNN.from_preset("single", n_models=2).get_settings() | OWN | {"objective": objective}
    )
    source = WholeGraph(FeatureMatrix(graph.features), support, 2)
    step = stack_step(student, source, [seed, seed + 1], training, chunk=1024)
    step.student.train()
    return step


def make_epochs(step: Step, recorder: Recorder, count: int) -> None:
    for _ in range(count):
        loss, masked = step(ProbabilityMask([0.5, 0.4], [0.5, 0.5]))
        recorder.add(loss=loss, masked=masked)


def copied(step: Step, recorder: Recorder) -> State:
    return {
        part: {name: tensor.detach().clone() for name, tensor in tensors.items()}
        for part, tensors in collect_state(step, recorder).items()
    }


def assert_same(found: State, wanted: State) -> None:
    assert found.keys() == wanted.keys()
    for part, tensors in wanted.items():
        assert found[part].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(found[part][name], tensor), (part, name)


@pytest.mark.parametrize("objective", ["teacher", "features", ["decorrelation", "edges"]], ids=str)
def test_models_with_settings_of_their_own_go_on_as_they_were(
    small_mixed: Graph, objective: str | list[str]
) -> None:
    step, recorder = two_models(small_mixed, objective=objective), Recorder()
    assert len(step.optimizer.groups) == 2
    make_epochs(step, recorder, 3)
    state = copied(step, recorder)
    make_epochs(step, recorder, 4)
    wanted = copied(step, recorder)

    again = two_models(small_mixed, seed=99, objective=objective)
    rows = restore_state(again, state, recorder.names)
    assert len(rows) == 3
    assert_same(copied(again, rows), state)
    make_epochs(again, rows, 4)
    assert_same(copied(again, rows), wanted)


def test_a_step_shares_no_memory_with_the_state_it_came_from(small_mixed: Graph) -> None:
    step, recorder = two_models(small_mixed), Recorder()
    make_epochs(step, recorder, 1)
    state = copied(step, recorder)
    again = two_models(small_mixed, seed=99)
    make_epochs(again, restore_state(again, state, recorder.names), 1)
    assert_same(copied(step, recorder), state)  # what was handed in is as it was


def test_a_parameter_that_never_had_a_gradient_has_nothing_to_keep(small_mixed: Graph) -> None:
    step, recorder = two_models(small_mixed), Recorder()
    make_epochs(step, recorder, 2)
    del step.optimizer.state[len(step.optimizer.groups[0].parameters)]
    state = copied(step, recorder)
    again = two_models(small_mixed, seed=99)
    restore_state(again, state, recorder.names)
    stepped = step.optimizer.state.keys()
    assert again.optimizer.state.keys() == stepped
    assert len(stepped) == 2 * len(step.optimizer.parameters) - 1


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("student", "linear_bias"),
        ("moments", "3.exp_avg"),
        ("adam", "stepped"),
        ("adam", "3.step"),
        ("generators", "1"),
        ("generators", "2"),
        ("step", "difficulty"),
        ("strides", "nodes"),
    ],
)
def test_a_state_that_does_not_fit_leaves_the_step_as_it_was(
    small_mixed: Graph, part: str, name: str
) -> None:
    step, recorder = two_models(small_mixed), Recorder()
    make_epochs(step, recorder, 2)
    state = copied(step, recorder)
    again = two_models(small_mixed, seed=99)
    make_epochs(again, Recorder(), 1)
    before = copied(again, Recorder())
    lost = {one: tensor for one, tensor in state[part].items() if one != name}
    for spoilt in (lost, {**state[part], name: torch.full((7,), 999)}):
        with pytest.raises(CheckpointError, match=f"{part}/{name}"):
            restore_state(again, {**state, part: spoilt}, recorder.names)
        assert_same(copied(again, Recorder()), before)


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
