"""The kernels for CUDA devices against torch's own operations in float64, values and gradients."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, relu

from h3gnn.encoder.features import FeatureMatrix, project
from h3gnn.encoder.fusion import HierarchicalAttention, TokenAttention
from h3gnn.encoder.sparse import Pattern, add_rows, propagate, take_rows
from h3gnn.training.optimizer import StackedAdam, Stepped

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SIZES = [(1, 37, 12), (3, 50, 16), (2, 5000, 128)]


def agree(fast: Callable[..., Tensor], plain: Callable[..., Tensor], given: Sequence[Tensor]) -> None:
    """Compare a function of tensors, and its gradients, on the device in float32 and here in float64."""
    there = [one.float().cuda().requires_grad_() for one in given]
    here = [one.double().requires_grad_() for one in given]
    found, wanted = fast(*there), plain(*here)
    slope = torch.randn_like(wanted)
    pairs = [(found, wanted)]
    pairs += zip(
        torch.autograd.grad(found, there, slope.float().cuda()),
        torch.autograd.grad(wanted, here, slope),
        strict=True,
    )
    for mine, theirs in pairs:
        size = max(1.0, float(theirs.detach().abs().max()))
        torch.testing.assert_close(mine.double().cpu() / size, theirs / size, atol=3e-5, rtol=0)


@pytest.mark.parametrize(("models", "rows", "channels"), SIZES)
@pytest.mark.parametrize("inside", [False, True])
def test_a_norm_with_its_residual(models: int, rows: int, channels: int, inside: bool) -> None:
    from h3gnn.encoder.triton.rows import add_norm

    def plain(residual: Tensor, branch: Tensor, bias: Tensor, weight: Tensor, shift: Tensor) -> Tensor:
        summed = branch + bias + (residual if inside else 0)
        normed = layer_norm(summed, (channels,)) * weight[:, None] + shift[:, None]
        return normed if inside else normed + residual

    wide, narrow = (models, rows, channels), (models, channels)
    given = [torch.randn(*wide), torch.randn(*wide), torch.randn(models, 1, channels)]
    given += [torch.randn(*narrow), torch.randn(*narrow)]
    agree(lambda *those: add_norm(*those, inside=inside), plain, given)


@pytest.mark.parametrize(("models", "rows", "channels"), [*SIZES, (1, 700, 512)])
@pytest.mark.parametrize("name", ["gelu", "relu"])
def test_an_activation_with_its_bias(models: int, rows: int, channels: int, name: str) -> None:
    from h3gnn.encoder.triton.rows import activate

    functions: dict[str, Callable[[Tensor], Tensor]] = {"gelu": gelu, "relu": relu}
    function = functions[name]
    given = [torch.randn(models, rows, channels + 8), torch.randn(models, 1, channels)]
    agree(
        lambda x, bias: activate(x[:, :, 8:], bias, name),  # some columns of a wider tensor
        lambda x, bias: function(x[:, :, 8:] + bias),
        given,
    )


@pytest.mark.parametrize(("models", "rows", "channels"), SIZES)
@pytest.mark.parametrize("side_by_side", [False, True])
def test_masked_rows(models: int, rows: int, channels: int, side_by_side: bool) -> None:
    from h3gnn.encoder.triton.rows import mask_rows

    mask = torch.rand(models, rows) < 0.4

    def laid(nodes: Tensor) -> Tensor:
        return nodes.transpose(0, 1).contiguous().transpose(0, 1) if side_by_side else nodes

    given = [torch.randn(models, rows, channels), torch.randn(models, 1, channels)]
    agree(
        lambda nodes, token: torch.cat(mask_rows(laid(nodes), token, mask.cuda(), [4, channels - 4]), 2),
        lambda nodes, token: torch.where(mask[..., None], token, nodes),
        given,
    )


def _pattern(matrix: Tensor) -> Pattern:
    csr = matrix.to_sparse_csr()
    return Pattern(csr.crow_indices(), csr.col_indices(), matrix.shape[1])


@pytest.mark.parametrize("channels", [3, 128, 300])
def test_products_along_edges_with_long_and_empty_rows(channels: int) -> None:
    places = torch.rand(60, 400) < 0.05
    places[7], places[11], places[:, 13] = True, False, True
    pattern = _pattern(places.float())
    there = pattern.to(torch.device("cuda"))
    given = [torch.randn(pattern.entries), torch.randn(400, channels)]
    agree(
        lambda values, messages: propagate(values, messages, there),
        lambda values, messages: (
            torch.zeros(60, 400, dtype=values.dtype).masked_scatter(places, values) @ messages
        ),
        given,
    )


def test_rows_that_are_taken_and_added() -> None:
    chosen, places = torch.randint(30, (2, 200)), torch.randint(30, (200,))
    agree(
        lambda values: take_rows(values, chosen.cuda()),
        lambda values: torch.stack([one[rows] for one, rows in zip(values, chosen, strict=True)]),
        [torch.randn(2, 30, 5)],
    )
    agree(
        lambda values: add_rows(values, places.cuda(), 30),
        lambda values: values.new_zeros(2, 30, 5).index_add(1, places, values),
        [torch.randn(2, 200, 5)],
    )


@pytest.mark.parametrize("norm", ["post", "residual-post", "pre"])
@pytest.mark.parametrize("kind", [TokenAttention, HierarchicalAttention])
@pytest.mark.parametrize("dropping", [False, True])
def test_the_block_and_every_gradient(norm: str, kind: type[TokenAttention], dropping: bool) -> None:
    block = kind(2, 16, 4, norm, [0.3, 0.1])
    block.reset_parameters([torch.Generator().manual_seed(seed) for seed in (0, 1)])
    names, weights = zip(*block.named_parameters(), strict=True)
    kept = torch.rand(2, 9, *block.keep_shape(4)) < 0.8 if dropping else None

    def run(tokens: Tensor, *values: Tensor) -> Tensor:
        masks = None if kept is None else kept.to(tokens.device)
        given = dict(zip(names, values, strict=True))
        fused: Tensor = torch.func.functional_call(block.to(tokens.device), given, (tokens, masks))
        return fused

    agree(run, run, [torch.randn(2, 9, 4, 16), *(weight.detach() for weight in weights)])


@pytest.mark.parametrize("density", [0.001, 0.04, 1.0])
@pytest.mark.parametrize("models", [1, 3])
def test_products_with_features_in_either_precision(density: float, models: int) -> None:
    features = torch.randn(300, 200) * (torch.rand(300, 200) < density)
    weight, token = torch.randn(200, models, 24).transpose(0, 1), torch.randn(models, 1, 200)
    there = FeatureMatrix(features.cuda())
    agree(
        lambda weight, token: torch.cat(project(there, weight, token), dim=1),
        lambda weight, token: torch.cat([features.double() @ weight, token @ weight], dim=1),
        [weight, token],
    )
    rounded = project(there, weight.cuda(), token.cuda(), rounded=True)[0]
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float().cpu(), features @ weight, atol=0.3, rtol=0.02)


def test_adam_of_large_weights_is_torchs() -> None:
    start, slopes = torch.randn(2, 300, 256), torch.randn(5, 2, 300, 256)
    weight = torch.nn.Parameter(start.cuda())
    ours = StackedAdam([Stepped([weight], range(2))], [0.01, 0.01], [0.1, 0.1])
    theirs = start.double().requires_grad_()
    adam = torch.optim.Adam([theirs], lr=0.01, weight_decay=0.1)
    for slope in slopes:
        weight.grad, theirs.grad = slope.cuda(), slope.double()
        ours.step()
        adam.step()
    torch.testing.assert_close(weight.detach().double().cpu(), theirs.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("side_by_side", [False, True])
def test_an_average_of_large_weights(side_by_side: bool) -> None:
    from h3gnn.encoder.triton.sparse import follow

    shape = (300, 4, 256) if side_by_side else (4, 300, 256)
    theirs = torch.randn(*shape)
    mine = torch.randn(*((300, 3, 256) if side_by_side else (3, 300, 256)))
    theirs, mine = (one.transpose(0, 1) if side_by_side else one for one in (theirs, mine))
    there = mine.cuda()
    follow(there, theirs.cuda()[:3], 0.25)
    torch.testing.assert_close(there.cpu(), torch.lerp(mine, theirs[:3], 0.25))
