"""Learning rates along a curve, and slow copies."""

from __future__ import annotations

import pytest
import torch

from h3gnn.baselines.layers import Features, GraphEncoder
from h3gnn.baselines.sampling import follow, half_cosine, set_rate, slow_copy, warm_cosine


def test_curves_by_hand() -> None:
    assert [half_cosine(share) for share in (0.0, 1 / 3, 0.5, 1.0)] == pytest.approx([1, 0.75, 0.5, 0])
    assert [warm_cosine(epoch, 20) for epoch in (0, 1, 2, 11, 20)] == pytest.approx([0.5, 1, 1, 0.5, 0])
    assert warm_cosine(0, 1) == 1


def test_a_rate_is_set_for_all_parameters() -> None:
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in (0.1, 0.2)]
    optimiser = torch.optim.Adam(groups)
    set_rate(optimiser, 0.05)
    assert [group["lr"] for group in optimiser.param_groups] == [0.05, 0.05]


def test_a_slow_copy_follows_and_shares_what_is_constant() -> None:
    encoder = GraphEncoder(Features(torch.eye(3), torch.device("cpu")), [2], [torch.nn.PReLU()])
    slow = slow_copy(encoder)
    assert slow.features is encoder.features
    assert not any(parameter.requires_grad for parameter in slow.parameters())
    before = [parameter.clone() for parameter in slow.parameters()]
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(1)
    for one, start in zip(slow.parameters(), before, strict=True):
        assert torch.equal(one, start)
    follow(slow, encoder, 0.75)
    for one, start in zip(slow.parameters(), before, strict=True):
        torch.testing.assert_close(one, start + 0.25)
