from __future__ import annotations

import pytest
import torch

from h3gnn.graphs.scaling import fit_scaler
from h3gnn.sparse import to_csr

COUNTS = torch.tensor(
    [[3.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 5.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_get_one_length_and_empty_rows_stay_empty(sparse: bool) -> None:
    features = to_csr(COUNTS) if sparse else COUNTS
    scaled = fit_scaler(features, "rows")(features).to_dense()
    torch.testing.assert_close(scaled.norm(dim=1), torch.tensor([1.0, 0.0, 1.0, 1.0]))  # 4 values, 4 rows
    torch.testing.assert_close(scaled[0], torch.tensor([0.6, 0.0, 0.8, 0.0]))


def test_columns_get_mean_zero_and_variance_one_and_constants_stay_finite() -> None:
    features = torch.tensor([[1.0, 7.0], [3.0, 7.0]])
    scaler = fit_scaler(features, "columns")
    torch.testing.assert_close(scaler(features), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
    torch.testing.assert_close(scaler(torch.tensor([[5.0, 8.0]])), torch.tensor([[3.0, 1.0]]))


def test_auto_looks_at_the_values() -> None:
    assert fit_scaler((COUNTS > 0).float()).kind == "none"
    assert fit_scaler(COUNTS).kind == "rows"
    assert fit_scaler(to_csr(COUNTS)).kind == "rows"
    assert fit_scaler(torch.randn(5, 3)).kind == "columns"


def test_the_callers_features_are_left_alone() -> None:
    before = COUNTS.clone()
    for kind in ("none", "rows", "columns"):
        fit_scaler(COUNTS, kind)(COUNTS)
    assert torch.equal(COUNTS, before)
