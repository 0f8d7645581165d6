"""Sums over all pairs, in blocks, by plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines import allpairs
from h3gnn.baselines.allpairs import (
    LeftOut,
    log_sums,
    mean_log_sums,
    nearest_others,
    sum_of_softplus,
    two_view_loss,
)
from h3gnn.baselines.layers import SparseMatrix


@pytest.fixture(params=["one block", "blocks, kept", "blocks, recomputed"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two rows of seven nodes, or one of all."""
    if request.param != "one block":
        monkeypatch.setattr(allpairs, "BLOCK", 14)
    if request.param == "blocks, recomputed":
        monkeypatch.setattr(allpairs, "KEPT", 0)


def two_views() -> tuple[Tensor, Tensor]:
    """Seven nodes with three channels, with gradients."""
    rows = torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return rows[0].requires_grad_(), rows[1].requires_grad_()


def pairs_of(places: list[tuple[int, int]]) -> SparseMatrix:
    rows, cols = torch.tensor(sorted(places)).t()
    return SparseMatrix(rows, cols, torch.ones(len(places)), (7, 7))


@pytest.mark.usefixtures("blocks")
def test_log_sums_exclude_pairs_in_both_directions() -> None:
    first, second = two_views()
    places = [(0, 0), (0, 3), (3, 0), (1, 6), (5, 2)]
    left_out = LeftOut.of(pairs_of(places))
    value = mean_log_sums(first, second, 0.3, left_out=left_out)
    a, b = (functional.normalize(view.detach()).numpy() for view in (first, second))
    logs = [
        np.log(sum(np.exp(one[i] @ other[k] / 0.3) for k in range(7) if (i, k) not in places))
        for one, other in ((a, b), (b, a))
        for i in range(7)
    ]
    assert float(value.detach()) == pytest.approx(np.mean(logs), rel=1e-6)
    assert torch.autograd.gradcheck(
        lambda x, y: mean_log_sums(x, y, 0.3, left_out=left_out), (first, second), atol=1e-4
    )


@pytest.mark.usefixtures("blocks")
def test_two_view_loss_by_loops() -> None:
    first, second = two_views()
    a, b = (functional.normalize(view.detach()).numpy() for view in (first, second))
    losses = []
    for one, other in ((a, b), (b, a)):
        for i in range(7):
            across = sum(np.exp(one[i] @ other[k] / 0.5) for k in range(7))
            within = sum(np.exp(one[i] @ one[k] / 0.5) for k in range(7) if k != i)
            losses.append(-np.log(np.exp(one[i] @ other[i] / 0.5) / (across + within)))
    value = two_view_loss(first, second, 0.5)
    assert float(value.detach()) == pytest.approx(np.mean(losses), rel=1e-6)
    assert torch.autograd.gradcheck(lambda x, y: two_view_loss(x, y, 0.5), (first, second))


@pytest.mark.usefixtures("blocks")
def test_log_sums_of_rows_by_loops() -> None:
    rows = functional.normalize(two_views()[0].detach()).requires_grad_()
    unit = rows.detach().numpy()
    expected = [np.log(sum(np.exp(unit[i] @ unit[k] / 0.3) for k in range(7))) for i in range(7)]
    np.testing.assert_allclose(log_sums(rows, 0.3).detach().numpy(), expected, rtol=1e-9)
    assert torch.autograd.gradcheck(lambda x: log_sums(x, 0.3), (rows,))


@pytest.mark.usefixtures("blocks")
def test_sum_of_softplus_of_all_pairs() -> None:
    rows, _ = two_views()
    plain = functional.softplus(rows @ rows.t()).sum()
    torch.testing.assert_close(sum_of_softplus(rows), plain)
    assert torch.autograd.gradcheck(sum_of_softplus, (rows,))


@pytest.mark.usefixtures("blocks")
def test_nearest_others_by_hand() -> None:
    angles = torch.tensor([0.0, 0.1, 0.3, 1.0, 1.1, 2.0, 2.5])
    rows = torch.stack([angles.cos(), angles.sin()], dim=1) * torch.arange(1, 8)[:, None]
    assert nearest_others(rows, 2).tolist() == [[1, 2], [0, 2], [1, 0], [4, 2], [3, 2], [6, 4], [5, 4]]
    assert nearest_others(rows, 50).shape == (7, 6)


def test_a_sparse_product_has_the_gradient_of_a_dense_one() -> None:
    pairs = pairs_of([(0, 1), (2, 0), (2, 6), (5, 5)])
    values = torch.tensor([0.5, -1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    dense, _ = two_views()
    product = pairs.with_values(values) @ dense
    whole = torch.zeros(7, 7, dtype=torch.float64).index_put((pairs.rows, pairs.cols), values)
    torch.testing.assert_close(product, whole @ dense)
    assert torch.autograd.gradcheck(lambda v, x: pairs.with_values(v) @ x, (values, dense))
