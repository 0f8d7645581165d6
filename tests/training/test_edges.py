from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from h3gnn.encoder import FeatureMatrix
from h3gnn.encoder.tokens import Part
from h3gnn.training.batches import Batch
from h3gnn.training.edges import EdgeSteps, SparseEdges

MODELS, ENTRIES = 2, 7
STEPS = EdgeSteps([0.01, 0.003], [0.0, 0.1], [0.9, 0.99])


def start(seed: int = 0) -> torch.Tensor:
    return torch.randn(MODELS, ENTRIES, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def batch_of(entries: torch.Tensor) -> Batch:
    """A batch of no nodes whose edge weights are these entries, each with the fixed factor 2."""
    nothing = torch.empty(0, dtype=torch.int64)
    part = Part(nothing, [0], [], FeatureMatrix(torch.empty(0, 1), "dense"))
    factor = torch.full((len(entries),), 2.0, dtype=torch.double)
    return Batch(part, factor, factor / 4, nothing, nothing.view(2, 0), nothing, entries, nothing)


def test_a_step_that_touches_everything_is_adam() -> None:
    logit = start()
    edges = SparseEdges(logit.clone(), None, STEPS)
    dense = [logit[model].clone().requires_grad_() for model in range(MODELS)]
    adam = torch.optim.Adam(
        [
            {"params": [one], "lr": rate, "weight_decay": decay}
            for one, rate, decay in zip(dense, STEPS.learning_rates, STEPS.weight_decays, strict=True)
        ]
    )
    order = torch.randperm(ENTRIES)
    for step in range(30):
        gradient = start(step + 1)
        edges.step_entries(order, gradient[:, order])
        for one, value in zip(dense, gradient, strict=True):
            one.grad = value
        adam.step()
    torch.testing.assert_close(edges.logit, torch.stack(dense).detach())


@given(st.lists(st.sets(st.integers(0, ENTRIES - 1)), min_size=1, max_size=25))
@settings(max_examples=40, deadline=None)
def test_each_entry_runs_its_own_adam_and_the_teacher_is_the_moving_average(touches: list[set[int]]) -> None:
    edges = SparseEdges(start(), start(), STEPS)
    own = [[start()[m, e].clone().requires_grad_() for e in range(ENTRIES)] for m in range(MODELS)]
    adams = [
        [torch.optim.Adam([one], STEPS.learning_rates[m], weight_decay=STEPS.weight_decays[m]) for one in row]
        for m, row in enumerate(own)
    ]
    teacher = start()
    momentum = torch.tensor(STEPS.momentum, dtype=torch.double)[:, None]
    for step, touched in enumerate(touches):
        entries, gradient = torch.tensor(sorted(touched), dtype=torch.int64), start(step + 1)
        edges.step_entries(entries, gradient[:, entries])
        for model in range(MODELS):
            for entry in touched:
                own[model][entry].grad = gradient[model, entry]
                adams[model][entry].step()
        student = torch.tensor([[float(one.detach()) for one in row] for row in own], dtype=torch.double)
        torch.testing.assert_close(edges.logit, student)
        teacher = momentum * teacher + (1 - momentum) * student
        seen = torch.tensor(sorted(touched)[:2], dtype=torch.int64)
        torch.testing.assert_close(edges.student(batch_of(seen)), 2 * torch.sigmoid(student[:, seen]))
        torch.testing.assert_close(edges.teacher(batch_of(seen)), 2 * torch.sigmoid(teacher[:, seen]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("h3gnn.training.edges.ENTRIES_AT_A_TIME", 3)
        found = edges.distance()
    assert found is not None
    torch.testing.assert_close(found[0], (student - teacher).square().sum(dim=1))
    torch.testing.assert_close(found[1], student.square().sum(dim=1))
    torch.testing.assert_close(edges.teacher_logit, teacher)
