from __future__ import annotations

import pytest
import scipy.sparse as sp
import torch

from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.scaling import csr_features, fit_scaler, torch_features

COUNTS = torch.tensor([[3, 0, 4, 0], [0, 0, 0, 0], [0, 5, 0, 0], [1, 0, 0, 0]]).float()


def to_csr(matrix: torch.Tensor) -> torch.Tensor:
    return torch_features(sp.csr_array(matrix.numpy()))


def test_sparse_features_are_checked_when_they_are_built() -> None:
    with pytest.raises(RuntimeError, match="col_indices"):
        csr_features(torch.tensor([0, 1]), torch.tensor([5]), torch.ones(1), (1, 2))


@pytest.mark.parametrize("kind", ["auto", "none", "rows", "columns"])
def test_sparse_and_dense_features_are_scaled_alike(kind: str) -> None:
    wide = torch.zeros(6, 40)
    wide[[0, 1, 2, 5], [3, 3, 7, 39]] = torch.tensor([2.0, 5.0, -1.0, 4.0])
    sparse = check_graph(wide.to_sparse(), torch.zeros(2, 0).long()).features
    assert sparse.layout == torch.sparse_csr
    for features in (wide, wide.abs()):
        dense, ours = fit_scaler(features, kind), fit_scaler(to_csr(features), kind)
        assert dense.kind == ours.kind
        torch.testing.assert_close(ours(to_csr(features)).to_dense(), dense(features))


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


def test_auto_depends_on_the_values() -> None:
    assert fit_scaler((COUNTS > 0).float()).kind == "none"
    assert fit_scaler(COUNTS).kind == "rows"
    assert fit_scaler(to_csr(COUNTS)).kind == "rows"
    assert fit_scaler(torch.randn(5, 3)).kind == "columns"


def test_the_input_does_not_change() -> None:
    before = COUNTS.clone()
    for kind in ("none", "rows", "columns"):
        fit_scaler(COUNTS, kind)(COUNTS)
    assert torch.equal(COUNTS, before)
