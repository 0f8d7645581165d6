"""A stack's weights and its Adam: parts of a model that their authors treat apart."""

from __future__ import annotations

import torch

from h3gnn.baselines.stacks import GridPoint, Member, Weights, stacked_adam

CPU = torch.device("cpu")
POINTS = [GridPoint(4, 0.0, 0.1, 0.02), GridPoint(4, 0.0, 0.01, 0.5)]
MEMBERS = [Member(7, 0, point) for point in POINTS]


def test_a_tensor_with_factors_learns_as_with_rates_of_its_own() -> None:
    weights = Weights(MEMBERS, CPU)
    weights.glorot("map", 3, 4)
    weights.constant("steps", torch.tensor([[0.1, 0.2, 0.7]]), rate=0.5, decay=0.0)
    weights.zeros("bias", 4, decay=3.0)
    names = list(weights.tensors)
    alone = [{name: weights[name][:, model].detach().clone() for name in names} for model in range(2)]
    for model in alone:
        for tensor in model.values():
            tensor.requires_grad_()
    adams = [
        torch.optim.Adam(
            [
                {
                    "params": [model[name]],
                    "lr": point.learning_rate * weights.factors[name].rate,
                    "weight_decay": point.weight_decay * weights.factors[name].decay,
                }
                for name in names
            ]
        )
        for model, point in zip(alone, POINTS, strict=True)
    ]
    wide = stacked_adam(weights)
    for _ in range(5):
        torch.stack([(weights[name] - 1).pow(4).sum() for name in names]).sum().backward()  # type: ignore[no-untyped-call]
        wide.step()
        for model, adam in zip(alone, adams, strict=True):
            adam.zero_grad()
            torch.stack([(model[name] - 1).pow(4).sum() for name in names]).sum().backward()  # type: ignore[no-untyped-call]
            adam.step()
    for place, model in enumerate(alone):
        for name in names:
            torch.testing.assert_close(weights[name][:, place], model[name], msg=name)


def test_starts_of_a_seed_are_those_of_any_stack() -> None:
    weights = Weights([*MEMBERS, Member(8, 0, POINTS[0])], CPU)
    weights.uniform("map", 50, 4, bound=0.1)
    assert torch.equal(weights["map"][:, 0], weights["map"][:, 1])
    assert not torch.equal(weights["map"][:, 0], weights["map"][:, 2])
    assert 0.09 < float(weights["map"].detach().abs().max()) < 0.1001
