from __future__ import annotations

import pytest
import torch

from h3gnn.encoder.fusion import HierarchicalAttention, TokenAttention, attention_weights, mix_tokens
from h3gnn.encoder.layers import FeedForward


def example(tokens: int, heads: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(2, 5, tokens, 3, heads, width, generator=generator, dtype=torch.double)
    kept = torch.rand(2, 5, tokens, tokens, heads, generator=generator) < 0.7
    return qkv, kept, torch.tensor([1.5, 2.0], dtype=torch.double)


@pytest.mark.parametrize("tokens", [3, 4, 6])
def test_attention_equals_torch(tokens: int) -> None:
    qkv, _, _ = example(tokens, 2, 8)
    query, key, value = (part.transpose(2, 3) for part in qkv.unbind(3))  # [models, nodes, heads, S, c]
    wanted = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(mix_tokens(qkv).transpose(2, 3), wanted)


def test_dropped_weights_are_zero_and_the_others_scaled() -> None:
    qkv, kept, scale = example(4, 2, 8)
    weights = attention_weights(qkv) * kept * scale.view(2, 1, 1, 1, 1)
    wanted = torch.einsum("mnqkh,mnkhc->mnqhc", weights, qkv.unbind(3)[2])
    torch.testing.assert_close(mix_tokens(qkv, kept, scale), wanted)


@pytest.mark.parametrize("norm", ["residual-post", "pre"])
def test_hierarchical_attention_runs_among_hops_and_then_among_all_tokens(norm: str) -> None:
    both = HierarchicalAttention(2, 8, 2, norm, [0.5, 0.25], "gelu").double()
    both.reset_parameters([torch.Generator().manual_seed(seed) for seed in range(2)])
    last = TokenAttention(2, 8, 2, norm, [0.5, 0.25], "gelu").double()
    last.load_state_dict({name: one for name, one in both.state_dict().items() if "among_hops" not in name})
    tokens = torch.randn(2, 6, 5, 8, dtype=torch.double)
    of_all, of_hops = torch.rand(2, 6, 5, 5, 2) < 0.5, torch.rand(2, 6, 3, 3, 2) < 0.5
    mixed = torch.cat([tokens[:, :, :2], both.among_hops(tokens[:, :, 2:], of_hops)], dim=2)
    kept = torch.cat([of_all.flatten(2, 3), of_hops.flatten(2, 3)], dim=2)
    assert kept.shape[2:] == both.keep_shape(5)
    torch.testing.assert_close(both(tokens, kept), last(mixed, of_all))
    mixed = torch.cat([tokens[:, :, :2], both.among_hops(tokens[:, :, 2:])], dim=2)
    torch.testing.assert_close(both(tokens), last(mixed))
    torch.testing.assert_close(both.attention(tokens), last.attention(mixed))


def test_the_mlp_uses_the_given_activation() -> None:
    mlp = FeedForward(1, 2, 2, 2, "relu")
    for layer in (mlp.input, mlp.output):
        assert layer.bias is not None
        layer.weight.data.copy_(torch.eye(2))
        layer.bias.data.zero_()
    assert mlp(torch.tensor([[[-1.0, 2.0]]])).tolist() == [[[0.0, 2.0]]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("tokens", "heads", "width"), [(4, 4, 32), (3, 2, 8), (6, 1, 20)])
@pytest.mark.parametrize("dropping", [False, True])
def test_cuda_kernels_and_gradients_equal_the_formula(
    tokens: int, heads: int, width: int, dropping: bool
) -> None:
    qkv, kept, scale = example(tokens, heads, width)
    plain, fast = qkv.float().requires_grad_(), qkv.float().cuda().requires_grad_()
    wanted = mix_tokens(plain, kept, scale.float()) if dropping else mix_tokens(plain)
    found = mix_tokens(fast, kept.cuda(), scale.float().cuda()) if dropping else mix_tokens(fast)
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(wanted)
    (mine,) = torch.autograd.grad((found * weight.cuda()).sum(), fast)
    (theirs,) = torch.autograd.grad((wanted * weight).sum(), plain)
    torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)
