"""Small layers for a stack of models, with the weights of all models along the first axis.

Models in a stack do not interact. A layer computes in the precision of its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from h3gnn.encoder.triton import kernels_for

Generators = Sequence[torch.Generator]


def uniform_(parameter: Tensor, bound: float, generators: Generators) -> None:
    """Fill each model's slice with uniform numbers from its generator."""
    with torch.no_grad():
        for piece, generator in zip(parameter, generators, strict=True):
            piece.uniform_(-bound, bound, generator=generator)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """Return `x + bias` in the precision of x `[models, rows, channels]`."""
    if (kernels := kernels_for(x)) is None:
        return x + bias.to(x.dtype)
    added: Tensor = kernels.add_bias(x, bias)
    return added


class Linear(nn.Module):
    """`y = x W + b` per model: `[models, rows, in]` to `[models, rows, out]`."""

    def __init__(self, models: int, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(models, in_channels, out_channels))
        self.bias = nn.Parameter(torch.empty(models, 1, out_channels)) if bias else None

    def reset_parameters(self, generators: Generators) -> None:
        """Initialise as `torch.nn.Linear`: uniform in ±1/√in."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        uniform_(self.weight, bound, generators)
        if self.bias is not None:
            uniform_(self.bias, bound, generators)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[models, rows, out]`."""
        weight = self.weight.to(x.dtype)
        if self.bias is None:
            return torch.bmm(x, weight)
        if kernels_for(x) is not None:
            return add_bias(torch.bmm(x, weight), self.bias)
        return torch.baddbmm(self.bias.to(x.dtype), x, weight)


class LayerNorm(nn.Module):
    """Layer norm over the last axis of `[models, ..., channels]`, with scale and shift per model."""

    def __init__(self, models: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(models, channels))
        self.bias = nn.Parameter(torch.zeros(models, channels))

    def reset_parameters(self, generators: Generators) -> None:
        """Set scale 1 and shift 0."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each token."""
        models, channels = self.weight.shape
        weight, bias = self.weight.to(x.dtype), self.bias.to(x.dtype)
        if models == 1:
            return nn.functional.layer_norm(x, (channels,), weight.view(-1), bias.view(-1))
        shape = (models, *[1] * (x.dim() - 2), channels)
        normed = nn.functional.layer_norm(x, (channels,))
        return torch.addcmul(bias.view(shape), normed, weight.view(shape))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": nn.functional.gelu, "relu": nn.functional.relu}


class FeedForward(nn.Module):
    """The paper's MLP `in → hidden → out`, by default with GELU."""

    def __init__(
        self, models: int, in_channels: int, hidden_channels: int, out_channels: int, activation: str = "gelu"
    ) -> None:
        super().__init__()
        self.activation_name, self.activation = activation, ACTIVATIONS[activation]
        self.input = Linear(models, in_channels, hidden_channels)
        self.output = Linear(models, hidden_channels, out_channels)

    def reset_parameters(self, generators: Generators) -> None:
        """Reinitialise both layers."""
        self.input.reset_parameters(generators)
        self.output.reset_parameters(generators)

    def forward(self, x: Tensor) -> Tensor:
        """`[models, ..., in]` to `[models, ..., out]`."""
        flat = x.reshape(x.shape[0], -1, x.shape[-1])
        mapped: Tensor = self.output(self.activation(self.input(flat)))
        return mapped.view(*x.shape[:-1], -1)


class BatchNorm(nn.Module):
    """Batch norm over the nodes of `[models, nodes, channels]`, with statistics per model."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, models: int, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(models, 1, channels))
        self.bias = nn.Parameter(torch.zeros(models, 1, channels))
        self.register_buffer("running_mean", torch.zeros(models, 1, channels))
        self.register_buffer("running_var", torch.ones(models, 1, channels))

    def reset_parameters(self, generators: Generators) -> None:
        """Set scale 1, shift 0, running mean 0 and running variance 1."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.running_mean.zero_()
        self.running_var.fill_(1.0)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise by the batch statistics in training, by the running ones in evaluation."""
        given, x = x.dtype, x.to(self.weight.dtype)
        mean, var = self.running_mean, self.running_var
        if self.training:
            var, mean = torch.var_mean(x, dim=1, keepdim=True, correction=0)
            with torch.no_grad():
                self.running_mean.lerp_(mean, self.momentum)
                unbiased = x.shape[1] / max(1, x.shape[1] - 1)
                self.running_var.lerp_(var * unbiased, self.momentum)
        normed: Tensor = (x - mean) * torch.rsqrt(var + self.eps) * self.weight + self.bias
        return normed.to(given)
