"""Learning rates along a curve, and slow copies."""

from __future__ import annotations

import torch

from h3gnn.baselines.layers import Features, GraphEncoder
from h3gnn.baselines.sampling import frozen_copy, set_learning_rate, update_average


def test_a_rate_is_set_for_all_parameters() -> None:
    groups = [{"params": [torch.zeros(1, requires_grad=True)], "lr": rate} for rate in (0.1, 0.2)]
    optimizer = torch.optim.Adam(groups)
    set_learning_rate(optimizer, 0.05)
    assert [group["lr"] for group in optimizer.param_groups] == [0.05, 0.05]


def test_a_slow_copy_follows_and_shares_what_is_constant() -> None:
    encoder = GraphEncoder(Features(torch.eye(3), torch.device("cpu")), [2], [torch.nn.PReLU()])
    slow = frozen_copy(encoder)
    assert slow.features is encoder.features
    assert not any(parameter.requires_grad for parameter in slow.parameters())
    before = [parameter.clone() for parameter in slow.parameters()]
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(1)
    for one, start in zip(slow.parameters(), before, strict=True):
        assert torch.equal(one, start)
    update_average(slow, encoder, 0.75)
    for one, start in zip(slow.parameters(), before, strict=True):
        torch.testing.assert_close(one, start + 0.25)
