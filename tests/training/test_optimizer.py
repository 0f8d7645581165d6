from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor, nn

from h3gnn.training.optimizer import ParameterStack, StackedAdam, constant, warmup_cosine


class Stack(nn.Module):
    def __init__(self, models: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(1.0, 3 * models + 1).view(models, 3))

    @property
    def stepped(self) -> list[ParameterStack]:
        return [ParameterStack([self.weight], range(len(self.weight)))]

    def loss(self) -> Tensor:
        return (self.weight.square() * torch.tensor([1.0, 2.0, 3.0])).sum()


def test_each_model_gets_torch_adam_with_its_own_settings() -> None:
    rates, decays = [0.1, 0.01], [0.0, 0.5]
    together = Stack(2)
    optimizer = StackedAdam(together.stepped, rates, decays)
    alone = [nn.Parameter(row.clone()) for row in together.weight.detach()]
    adams = [
        torch.optim.Adam([row], lr=rate, weight_decay=decay)
        for row, rate, decay in zip(alone, rates, decays, strict=True)
    ]
    for step in range(5):
        together.loss().backward()  # type: ignore[no-untyped-call]
        optimizer.set_learning_rate(1 / (step + 1))
        optimizer.step()
        for row, adam, rate in zip(alone, adams, rates, strict=True):
            adam.param_groups[0]["lr"] = rate / (step + 1)
            adam.zero_grad()
            (row.square() * torch.tensor([1.0, 2.0, 3.0])).sum().backward()  # type: ignore[no-untyped-call]
            adam.step()
    torch.testing.assert_close(together.weight, torch.stack(list(alone)))


def test_shared_settings_are_one_group_with_the_same_result() -> None:
    shared, apart = Stack(2), Stack(2)
    optimizers = [
        StackedAdam(shared.stepped, [0.1, 0.1], [0.1, 0.1]),
        StackedAdam(apart.stepped, [0.1, 0.1 + 1e-12], [0.1, 0.1]),
    ]
    assert [len(optimizer.groups) for optimizer in optimizers] == [1, 2]
    for _ in range(3):
        for stack, optimizer in zip((shared, apart), optimizers, strict=True):
            stack.loss().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    torch.testing.assert_close(shared.weight, apart.weight)


def test_schedules() -> None:
    assert [warmup_cosine(step, 10, 4) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert warmup_cosine(4, 10, 4) == 1.0
    assert abs(warmup_cosine(7, 10, 4) - 0.5) < 1e-12
    assert warmup_cosine(9, 10, 4) < 0.1
    assert warmup_cosine(0, 10, 0) == 1.0
    assert [constant(step, 10, 2) for step in range(3)] == [0.5, 1.0, 1.0]
    assert constant(0, 10, 0) == 1.0


def test_a_step_does_not_import_a_compiler() -> None:
    steps = (
        "import sys, torch; from h3gnn.training.optimizer import StackedAdam, ParameterStack; "
        "weight = torch.nn.Parameter(torch.ones(2, 1)); weight.grad = torch.ones(2, 1); "
        "StackedAdam([ParameterStack([weight], range(2))], [0.1, 0.1], [0.0, 0.0]).step(); "
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", steps], check=True)
