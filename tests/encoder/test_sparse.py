from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from h3gnn.encoder import sparse
from h3gnn.encoder.features import FeatureMatrix, project, side_by_side
from h3gnn.encoder.sparse import Adjacency, Pattern, row_pointers, to_csr


def dense_of(pattern: Pattern, weights: Tensor) -> Tensor:
    values = weights if pattern.weight_of is None else weights[:, pattern.weight_of]
    matrix = torch.zeros(values.shape[0], pattern.targets, pattern.sources, dtype=values.dtype)
    matrix[:, pattern.rows, pattern.cols] = values
    return matrix


@st.composite
def patterns(draw: st.DrawFn, whole: bool) -> Pattern:
    """The pattern of a graph, or of a batch with fewer rows than columns and weights in any order."""
    nodes = draw(st.integers(1, 8))
    targets = nodes if whole else draw(st.integers(1, nodes))
    ordered = sorted(draw(st.sets(st.tuples(st.integers(0, targets - 1), st.integers(0, nodes - 1)))))
    rows, cols = torch.tensor(ordered, dtype=torch.long).view(-1, 2).t()
    order = None if whole else torch.tensor(draw(st.permutations(range(len(ordered)))), dtype=torch.long)
    return Pattern(row_pointers(rows, targets), cols, nodes, order)


@settings(deadline=None, max_examples=120)
@given(st.booleans().flatmap(patterns), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_propagation_and_gradients_equal_the_dense_product(
    pattern: Pattern, models: int, channels: int, as_sparse: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(models, pattern.entries, generator=generator, dtype=torch.double, requires_grad=True)
    messages = torch.rand(models, pattern.sources, channels, generator=generator, dtype=torch.double)
    messages.requires_grad_()
    weight = torch.rand(models, pattern.targets, channels, generator=generator, dtype=torch.double)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sparse.DENSE_NODES, "cpu", 0 if as_sparse else 256)
        fast = Adjacency(pattern, values) @ messages
    plain = dense_of(pattern, values) @ messages
    torch.testing.assert_close(fast, plain)

    if pattern.entries:
        wanted = torch.autograd.grad((plain * weight).sum(), (values, messages))
        found = torch.autograd.grad((fast * weight).sum(), (values, messages))
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("order", [None, torch.tensor([2, 0, 3, 1])])
def test_gradcheck(monkeypatch: pytest.MonkeyPatch, order: Tensor | None) -> None:
    monkeypatch.setitem(sparse.DENSE_NODES, "cpu", 0)
    pattern = Pattern(torch.tensor([0, 2, 3, 4]), torch.tensor([0, 2, 0, 1]), 3, order)
    values = torch.rand(2, 4, dtype=torch.double, requires_grad=True)
    messages = torch.rand(2, 3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v, m: Adjacency(pattern, v) @ m, (values, messages))


@pytest.mark.parametrize("storage", ["csr", "dense"])
@pytest.mark.parametrize("sparse_input", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_features_times_weights(storage: str, sparse_input: bool, wide: bool) -> None:
    features = torch.rand(6, 5).masked_fill(torch.rand(6, 5) < 0.6, 0.0)
    given_features = to_csr(features) if sparse_input else features
    weight = torch.rand(5, 2, 3, dtype=torch.double).transpose(0, 1)
    weight = (weight if wide else weight.contiguous()).requires_grad_()
    assert side_by_side(weight) == wide
    token = torch.rand(2, 1, 5, dtype=torch.double, requires_grad=True)
    matrix = FeatureMatrix(given_features.double(), storage=storage)
    product, of_token = project(matrix, weight, token)
    plain, plain_token = features.double() @ weight, token @ weight
    torch.testing.assert_close(product, plain)
    torch.testing.assert_close(of_token, plain_token)
    found = torch.autograd.grad((product.square().sum() + of_token.square().sum()), (weight, token))
    wanted = torch.autograd.grad((plain.square().sum() + plain_token.square().sum()), (weight, token))
    torch.testing.assert_close(found, wanted)
    assert matrix.storage == storage


def test_storage_depends_on_density() -> None:
    sparse = torch.zeros(100, 100)
    sparse[0, 0] = 1.0
    assert FeatureMatrix(sparse).storage == "csr"
    assert FeatureMatrix(torch.ones(10, 10)).storage == "dense"
    with pytest.raises(ValueError, match="storage must be"):
        FeatureMatrix(sparse, storage="coo")


def test_the_memory_of_a_gradient_is_reused_once() -> None:
    matrix = FeatureMatrix(torch.tensor([[1.0, 0.0], [2.0, 3.0]]), storage="csr")
    weight, token = torch.ones(1, 2, 1, requires_grad=True), torch.full((1, 1, 2), 5.0)
    spent = torch.full((1, 2, 1), float("nan"))
    matrix.recycle(spent)
    (gradient,) = torch.autograd.grad(torch.cat(project(matrix, weight, token), dim=1).sum(), weight)
    assert gradient.data_ptr() == spent.data_ptr()
    twice = [scale * part for scale in (1.0, 3.0) for part in project(matrix, weight, token)]
    (again,) = torch.autograd.grad(torch.cat(twice, dim=1).sum(), weight)
    assert again.flatten().tolist() == [32.0, 32.0]
    assert gradient.flatten().tolist() == [8.0, 8.0]


def test_sum_first_where_few_receive_and_sums_are_not_much_wider() -> None:
    crow, cols = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 2, 3])
    few, all_of_them = Pattern(crow, cols, 100), Pattern(crow, cols % 2, 2)
    assert few.sum_first(8, 8)
    # 98 rows are saved of in · 8 products each; 4 entries cost 16 · (in − 8) more
    assert few.sum_first(1000, 8)
    assert Pattern(crow, cols, 10).sum_first(64, 8)  # 8 · 64 · 8 = 4,096 against 16 · 4 · 56 = 3,584
    assert not Pattern(crow, cols, 8).sum_first(64, 8)  # 6 · 64 · 8 = 3,072
    assert not all_of_them.sum_first(1, 8)
