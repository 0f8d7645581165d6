"""The Triton kernels against the operations of torch in float64, values and gradients.

Without a CUDA device Triton's interpreter runs them (see conftest.py), on tiny shapes.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from h3gnn.encoder.features import FeatureMatrix, project
from h3gnn.encoder.fusion import HierarchicalAttention, TokenAttention
from h3gnn.encoder.layers import ACTIVATIONS
from h3gnn.encoder.sparse import Pattern, add_rows, propagate, take_rows
from h3gnn.training.optimizer import EPSILON, FIRST_DECAY, SECOND_DECAY, ParameterStack, StackedAdam

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
pytest.importorskip("triton")
SIZES = [(1, 37, 12), (3, 50, 16), (2, 5000, 128)] if ON_GPU else [(1, 7, 12), (3, 10, 16)]


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the kernels on any device."""
    monkeypatch.setattr("h3gnn.encoder.triton._runs_kernels", lambda values: True)
    if ON_GPU:
        return
    from triton.runtime.interpreter import InterpreterBuilder as Builder

    load = Builder.create_masked_load

    def load_by_bool(self: Builder, pointers: Any, mask: Any, *how: Any) -> Any:
        mask.data = mask.data.astype(bool)  # a scalar mask & a block is int64 in the interpreter
        return load(self, pointers, mask, *how)

    monkeypatch.setattr(Builder, "create_masked_load", load_by_bool)


NORMS, KINDS = ("post", "residual-post", "pre"), (TokenAttention, HierarchicalAttention)
BLOCKS = list(product(NORMS, KINDS, (False, True)))


def agree(fast: Callable[..., Tensor], plain: Callable[..., Tensor], given: Sequence[Tensor]) -> None:
    """Compare a function of tensors, and its gradients, in float32 with its float64 version."""
    there = [one.float().to(DEVICE).requires_grad_() for one in given]
    here = [one.double().requires_grad_() for one in given]
    found, wanted = fast(*there), plain(*here)
    slope = torch.randn_like(wanted)
    ours = (found, *torch.autograd.grad(found, there, slope.float().to(DEVICE)))
    for mine, theirs in zip(ours, (wanted, *torch.autograd.grad(wanted, here, slope)), strict=True):
        size = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine.double().cpu() / size, theirs / size, atol=3e-5, rtol=0)


@pytest.mark.parametrize(("models", "rows", "channels"), SIZES)
@pytest.mark.parametrize("inside", [False, True])
def test_norm_with_residual(models: int, rows: int, channels: int, inside: bool) -> None:
    from h3gnn.encoder.triton.rows import add_norm

    def plain(residual: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        summed = branch + bias + (residual if inside else 0)
        normed = layer_norm(summed, (channels,)) * weight[:, None] + shift[:, None]
        return normed if inside else normed + residual

    wide, narrow = (models, rows, channels), (models, channels)
    given = [torch.randn(*wide), torch.randn(*wide), torch.randn(models, 1, channels)]
    given += [torch.randn(*narrow), torch.randn(*narrow)]
    agree(lambda *those: add_norm(*those, inside=inside), plain, given)


@pytest.mark.parametrize(("models", "rows", "channels"), [*SIZES, (1, 700, 512)] if ON_GPU else SIZES)
@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_activation_with_bias(models: int, rows: int, channels: int, name: str) -> None:
    from h3gnn.encoder.triton.rows import activate

    agree(
        lambda x, bias: activate(x[:, :, 8:], bias, name),  # some columns of a wider tensor
        lambda x, bias: ACTIVATIONS[name](x[:, :, 8:] + bias),
        [torch.randn(models, rows, channels + 8), torch.randn(models, 1, channels)],
    )


@pytest.mark.parametrize(("models", "rows", "channels"), SIZES)
@pytest.mark.parametrize("side_by_side", [False, True])
def test_masked_rows(models: int, rows: int, channels: int, side_by_side: bool) -> None:
    from h3gnn.encoder.triton.rows import mask_rows

    mask = torch.rand(models, rows) < 0.4

    def laid(nodes: Tensor) -> Tensor:
        return nodes.transpose(0, 1).contiguous().transpose(0, 1) if side_by_side else nodes

    agree(
        lambda nodes, token: torch.cat(mask_rows(laid(nodes), token, mask.to(DEVICE), [4, channels - 4]), 2),
        lambda nodes, token: torch.where(mask[..., None], token, nodes),
        [torch.randn(models, rows, channels), torch.randn(models, 1, channels)],
    )


@pytest.mark.parametrize("channels", [3, 128, 300] if ON_GPU else [3])
def test_propagation_with_long_and_empty_rows(channels: int) -> None:
    places = torch.rand(20, 300) < 0.03
    places[7], places[11], places[:, 13] = True, False, True
    csr = places.float().to_sparse_csr()
    pattern = Pattern(csr.crow_indices(), csr.col_indices(), 300).to(DEVICE)
    empty = torch.zeros(20, 300, dtype=torch.double)
    agree(
        lambda values, messages: propagate(values, messages, pattern),
        lambda values, messages: empty.masked_scatter(places, values) @ messages,
        [torch.randn(pattern.entries), torch.randn(300, channels)],
    )


@pytest.mark.parametrize("channels", [3, 20] if ON_GPU else [3])
def test_sparse_products_with_long_and_empty_rows(channels: int) -> None:
    from h3gnn.encoder.triton.sparse import cut_long_rows, multiply, sampled_product

    places = torch.rand(6, 140) < 0.03
    places[1], places[2] = True, False
    csr = places.float().to_sparse_csr()
    crow, cols = csr.crow_indices().to(DEVICE), csr.col_indices().to(DEVICE)
    values, dense, before = torch.randn(len(cols)), torch.randn(140, channels), torch.randn(6, channels)
    order = torch.randperm(len(cols))
    pieces = cut_long_rows(crow)
    assert pieces is not None
    shuffled = torch.empty_like(values).index_copy_(0, order, values)
    there = [one.to(DEVICE) for one in (shuffled, dense, order)]
    wanted = torch.zeros(6, 140).masked_scatter(places, values) @ dense
    for cut in (pieces, None):
        found = multiply(crow, cols, there[0], there[1], cut, there[2], before.to(DEVICE, copy=True))
        torch.testing.assert_close(found.cpu(), before + wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(multiply(crow, cols, None, there[1], pieces).cpu(), places.float() @ dense)
    left = torch.randn(6, channels)
    rows = places.nonzero()[:, 0].to(DEVICE)
    found = sampled_product(rows, cols, left.to(DEVICE), there[1])
    torch.testing.assert_close(found.cpu(), (left @ dense.T)[places], atol=1e-5, rtol=1e-5)


def test_take_rows_and_add_rows() -> None:
    chosen, places = torch.randint(30, (2, 50)), torch.randint(30, (50,))
    agree(
        lambda values: take_rows(values, chosen.to(DEVICE)),
        lambda values: torch.stack([one[rows] for one, rows in zip(values, chosen, strict=True)]),
        [torch.randn(2, 30, 5)],
    )
    agree(
        lambda values: add_rows(values, places.to(DEVICE), 30),
        lambda values: values.new_zeros(2, 30, 5).index_add(1, places, values),
        [torch.randn(2, 50, 5)],
    )


@pytest.mark.parametrize(
    ("norm", "kind", "dropping"),
    BLOCKS if ON_GPU else [BLOCKS[1], BLOCKS[2], ("pre", HierarchicalAttention, False)],
)
def test_fusion_block_and_gradients(norm: str, kind: type[TokenAttention], dropping: bool) -> None:
    block = kind(2, 16, 4, norm, [0.3, 0.1], "gelu")
    block.reset_parameters([torch.Generator().manual_seed(seed) for seed in (0, 1)])
    names, weights = zip(*block.named_parameters(), strict=True)
    kept = torch.rand(2, 3, *block.keep_shape(4)) < 0.8 if dropping else None

    def run(tokens: Tensor, *values: Tensor) -> Tensor:
        masks = None if kept is None else kept.to(tokens.device)
        given = dict(zip(names, values, strict=True))
        fused: Tensor = torch.func.functional_call(block.to(tokens.device), given, (tokens, masks))
        return fused

    agree(run, run, [torch.randn(2, 3, 4, 16), *(weight.detach() for weight in weights)])


@pytest.mark.parametrize("density", [0.01, 0.05, 1.0])
@pytest.mark.parametrize("models", [1, 3])
def test_feature_products_in_both_precisions(density: float, models: int) -> None:
    features = torch.randn(30, 20) * (torch.rand(30, 20) < density)
    weight, token = torch.randn(20, models, 24).transpose(0, 1), torch.randn(models, 1, 20)
    there = FeatureMatrix(features.to(DEVICE))
    agree(
        lambda weight, token: torch.cat(project(there, weight, token), dim=1),
        lambda weight, token: torch.cat([features.double() @ weight, token @ weight], dim=1),
        [weight, token],
    )
    if not ON_GPU:
        return
    rounded = project(there, weight.to(DEVICE), token.to(DEVICE), bfloat16=True)[0]
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float().cpu(), features @ weight, atol=0.3, rtol=0.02)


def test_adam_equals_torch() -> None:
    from h3gnn.encoder.triton.sparse import adam

    start, slopes = torch.randn(2, 30, 25), torch.randn(5, 2, 30, 25)
    weight, mean, square = start.to(DEVICE).clone(), *torch.zeros(2, *start.shape, device=DEVICE)
    rate, step = torch.tensor(0.01, device=DEVICE), torch.zeros((), device=DEVICE)
    theirs = start.double().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01, weight_decay=0.1)
    how = {"decay": 0.1, "first": FIRST_DECAY, "second": SECOND_DECAY, "epsilon": EPSILON}
    for slope in slopes:
        step += 1
        adam(weight, slope.to(DEVICE), mean, square, rate, step, **how)
        theirs.grad = slope.double()
        optimizer.step()
    torch.testing.assert_close(weight.double().cpu(), theirs.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not ON_GPU, reason="on a CPU the optimizer never calls the kernel")
def test_the_optimizer_steps_large_weights_with_the_kernel() -> None:
    start, slopes = torch.randn(2, 300, 256), torch.randn(5, 2, 300, 256)
    weight = torch.nn.Parameter(start.to(DEVICE))
    ours = StackedAdam([ParameterStack([weight], range(2))], [0.01, 0.01], [0.1, 0.1])
    theirs = start.double().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=0.01, weight_decay=0.1)
    for slope in slopes:
        weight.grad, theirs.grad = slope.to(DEVICE), slope.double()
        ours.step()
        optimizer.step()
    torch.testing.assert_close(weight.detach().double().cpu(), theirs.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side_by_side", [False, True])
def test_moving_average(side_by_side: bool) -> None:
    from h3gnn.encoder.triton.sparse import ema_update

    shape = (30, 4, 50) if side_by_side else (4, 30, 50)
    theirs = torch.randn(*shape)
    mine = torch.randn(*((30, 3, 50) if side_by_side else (3, 30, 50)))
    theirs, mine = (one.transpose(0, 1) if side_by_side else one for one in (theirs, mine))
    there = mine.to(DEVICE, copy=True)
    ema_update(there, theirs.to(DEVICE)[:3], 0.25)
    torch.testing.assert_close(there.cpu(), torch.lerp(mine, theirs[:3], 0.25))
