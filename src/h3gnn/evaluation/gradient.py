"""The probe as the paper trains it: a linear layer and Adam, all splits and settings at once."""

from __future__ import annotations

from itertools import product

import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.evaluation.candidates import Candidates, Setting, gather, judge
from h3gnn.evaluation.probe import known_classes
from h3gnn.evaluation.rows import as_rows, standardise

LEARNING_RATES = (0.01, 0.005, 0.001)
WEIGHT_DECAYS = (0.0, 5e-4, 5e-5)
"""The paper's grid for the classifier."""
STEPS = 300
EVERY = 10
"""A candidate is taken after every so many steps."""


def gradient_candidates(
    embedding: npt.ArrayLike | Tensor,
    labels: Tensor,
    train_mask: Tensor,
    val_mask: Tensor,
    test_mask: Tensor,
    *,
    learning_rates: tuple[float, ...] = LEARNING_RATES,
    weight_decays: tuple[float, ...] = WEIGHT_DECAYS,
    steps: int = STEPS,
    every: int = EVERY,
    classes: int | None = None,
) -> Candidates:
    """Train a linear layer for each split, learning rate and weight decay; each step may be chosen.

    The layers start at 0, so nothing here is left to chance. The other arguments are as in
    `probe.probe_candidates`.
    """
    rows = standardise(as_rows(embedding).float())
    labels, train, val, test = (one.to(rows.device) for one in (labels, train_mask, val_mask, test_mask))
    train = train & (labels >= 0)[:, None]
    classes = known_classes(labels, train, val) if classes is None else classes
    grid = list(product(learning_rates, weight_decays))
    asked = [torch.nonzero((val | test)[:, split]).flatten() for split in range(train.shape[1])]
    taken: list[list[Tensor]] = [[] for _ in asked]  # of each split, log-probabilities of its asked nodes
    settings: list[Setting] = []
    layers = _Layers(rows, labels, train, grid, classes)
    for step in range(1, steps + 1):
        layers.step()
        if step % every == 0 or step == steps:
            settings += [_setting(rate, decay, step) for rate, decay in grid]
            for split, nodes in enumerate(asked):
                taken[split].append(layers.log_probabilities(split, nodes))
    judged = []
    for split, nodes in enumerate(asked):
        log_p = torch.cat(taken[split])
        judged.append(judge(log_p, labels[nodes], val[nodes, split], test[nodes, split]))
    return gather(judged, settings, classes)


def _setting(rate: float, decay: float, step: int) -> Setting:
    return {"learning_rate": rate, "weight_decay": decay, "step": step}


class _Layers:
    """One linear layer for each split and setting, trained together by Adam.

    The losses are summed over layers; Adam scales each weight on its own, so a layer moves as it would alone.
    """

    def __init__(
        self, rows: Tensor, labels: Tensor, train: Tensor, grid: list[tuple[float, float]], classes: int
    ) -> None:
        nodes = torch.nonzero(train.any(dim=1)).flatten()
        self.rows, self.training = rows, rows[nodes]
        self.targets = torch.nn.functional.one_hot(labels[nodes], classes).float()
        self.share = (train[nodes] / train.sum(dim=0).clamp_min(1)).t().float()  # [splits, training nodes]
        self.weights = [rows.new_zeros(train.shape[1], rows.shape[1], classes) for _ in grid]
        self.biases = [rows.new_zeros(train.shape[1], 1, classes) for _ in grid]
        groups = [
            {"params": [weight.requires_grad_(), bias.requires_grad_()], "lr": rate, "weight_decay": decay}
            for (rate, decay), weight, bias in zip(grid, self.weights, self.biases, strict=True)
        ]
        self.adam = torch.optim.Adam(groups)

    def step(self) -> None:
        """Move every layer once."""
        self.adam.zero_grad()
        for weight, bias in zip(self.weights, self.biases, strict=True):
            with torch.no_grad():
                logits = torch.einsum("nd,sdk->snk", self.training, weight) + bias
                slope = (logits.softmax(dim=-1) - self.targets) * self.share[:, :, None]
                weight.grad = torch.einsum("nd,snk->sdk", self.training, slope)
                bias.grad = slope.sum(dim=1, keepdim=True)
        self.adam.step()

    @torch.no_grad()
    def log_probabilities(self, split: int, nodes: Tensor) -> Tensor:
        """Return what every setting says of some nodes, `[settings, nodes, classes]`."""
        weights = torch.stack([weight[split] for weight in self.weights])
        biases = torch.stack([bias[split] for bias in self.biases])
        return (torch.einsum("nd,gdk->gnk", self.rows[nodes], weights) + biases).log_softmax(dim=-1)
