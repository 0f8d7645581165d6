"""Training a system that learns an embedding without labels: one loop for all of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.moving import set_rate
from h3gnn.baselines.systems import Sizes
from h3gnn.errors import LossError
from h3gnn.graphs.graph import Graph

CHECKED = 50
"""Every so many epochs the loss is read back, to see whether it is still a number."""


@dataclass(frozen=True)
class EmbedderSettings:
    """Settings that every such system has; a subclass adds its own, with its own defaults.

    Attributes:
        width: of the embedding, or of each of its parts.
        epochs: how many, or at most so many where there is patience.
        learning_rate, weight_decay: of Adam.
        patience: stop when the loss has not fallen for so many epochs, and go back to the epoch with the
            smallest; 0 for the last epoch.
        scale_features: as `H3GNN` has it: auto, none, rows or columns; "sums" makes each row add up to 1.
    """

    width: int = 512
    epochs: int = 300
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    patience: int = 0
    scale_features: str = "auto"


class Embedder(nn.Module):
    """A system that learns an embedding; a subclass says what it is made of, its loss, and its embedding.

    `build`, `loss` and `embedding` may draw from torch's own generators (layers, dropout, `torch.rand`), on
    the CPU or on the device: `train` gives them a seed and gives the caller's back.

    Args:
        graph: to learn from; its labels must not be looked at.
        settings: of the system.
        device: where to train.
    """

    has_chance = True
    """Whether seeds matter; a system without chance sets this to False."""
    adam: type[torch.optim.Adam | torch.optim.AdamW] = torch.optim.Adam
    """What moves the parameters."""

    def __init__(self, graph: Graph, settings: Any, device: torch.device) -> None:
        super().__init__()
        self.settings, self.device = settings, device
        self.build(graph)
        self.to(device)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        """Return about how much memory a training takes."""
        width: int = settings.width
        return 4 * (
            sizes.features * width * 8 + sizes.nodes * (width * 24 + sizes.features) + 12 * sizes.edges
        )

    def build(self, graph: Graph) -> None:
        """Make layers, and what is constant: matrices, features (on `self.device`)."""
        raise NotImplementedError

    def loss(self, epoch: int) -> Tensor:
        """Return what is to fall; `epoch` counts from 0."""
        raise NotImplementedError

    def embedding(self) -> Tensor:
        """Return the embedding `[nodes, D]`; called without gradients and with the layers in `eval` mode."""
        raise NotImplementedError

    def clusters(self) -> Tensor | None:
        """Return the system's own clusters `[nodes]`, where it has some; called as `embedding` is."""
        return None

    def optimizer(self) -> torch.optim.Optimizer:
        """Return what moves the parameters; by default Adam with one rate for all that have a gradient."""
        return self.adam_of(parameter for parameter in self.parameters() if parameter.requires_grad)

    def adam_of(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Return Adam with the rate and the decay of the settings."""
        return self.adam(parameters, lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay)

    def begin(self) -> None:
        """Get ready to train: called once, on the device, before the first `step`."""
        self.optimiser = self.optimizer()

    def step(self, epoch: int) -> Tensor:
        """Train for one epoch and return its loss, as it was before."""
        self.optimiser.zero_grad()
        loss = self.loss(epoch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.after(epoch)
        return loss.detach()

    def after(self, epoch: int) -> None:
        """Do what follows a step: a moving average, a learning rate."""


class BatchEmbedder(Embedder):
    """A system that takes several steps in an epoch, one for each batch; a subclass gives both."""

    falling = False
    """Whether the learning rate falls on a line from epoch to epoch, as that of word2vec."""

    def batches(self) -> Iterator[Tensor]:
        """Give the batches of an epoch, in a new order or drawn anew."""
        raise NotImplementedError

    def batch_loss(self, batch: Tensor) -> Tensor:
        """Return what is to fall, on a batch."""
        raise NotImplementedError

    def step(self, epoch: int) -> Tensor:
        """Take one step for each batch, and return the mean of their losses."""
        if self.falling:
            set_rate(self.optimiser, self.settings.learning_rate * (1 - epoch / self.settings.epochs))
        losses = []
        for batch in self.batches():
            self.optimiser.zero_grad()
            loss = self.batch_loss(batch)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimiser.step()
            losses.append(loss.detach())
        self.after(epoch)
        return torch.stack(losses).mean()


def shuffled_batches(nodes: int, size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return all nodes in a new order, so many at a time."""
    return torch.split(torch.randperm(nodes, device=device), size)


@dataclass(frozen=True)
class Looks:
    """After which epochs to hand over the embedding, and to whom; 0 is before the first."""

    epochs: Collection[int] = ()
    callback: Callable[[int, Tensor], None] = lambda epoch, rows: None


def train(
    kind: type[Embedder],
    graph: Graph,
    seed: int,
    device: torch.device,
    settings: Any,
    watch: Progress = unwatched,
    looks: Looks | None = None,
) -> Embedder:
    """Train a system on a graph and return it in `eval` mode; its chance is the seed's alone.

    Args:
        kind: of system.
        graph: to learn from; labels are not looked at.
        seed: of everything that is drawn.
        device: where to train.
        settings: of the system.
        watch: told the share of the work that is done.
        looks: takes embeddings on the way, which does not disturb the training.

    Raises:
        LossError: when the loss is no longer a number.
    """
    looks = looks or Looks()
    with own_chance(seed, device):
        model = kind(graph, settings, device)
        model.begin()
        model.train()
        _look(model, 0, looks)
        best, best_epoch, kept = float("inf"), 0, None
        for epoch in range(settings.epochs):
            before = copy.deepcopy(model.state_dict()) if settings.patience else None
            loss = model.step(epoch)
            if settings.patience or epoch % CHECKED == 0 or epoch + 1 == settings.epochs:
                value = _finite(loss, epoch, kind)
                if settings.patience and value < best:
                    best, best_epoch, kept = value, epoch, before
            watch((epoch + 1) / settings.epochs)
            _look(model, epoch + 1, looks)
            if settings.patience and epoch - best_epoch >= settings.patience:
                break
        if kept is not None:
            model.load_state_dict(kept)
    model.eval()
    return model


def embed(
    kind: type[Embedder],
    graph: Graph,
    seed: int,
    device: torch.device,
    settings: Any,
    watch: Progress = unwatched,
    looks: Looks | None = None,
) -> npt.NDArray[np.float32]:
    """Train a system on a graph and return its embedding `[nodes, D]`; arguments as of `train`."""
    return values_of(train(kind, graph, seed, device, settings, watch, looks))


def values_of(model: Embedder) -> npt.NDArray[np.float32]:
    """Return the embedding of a trained system as an array, or refuse one that is not all numbers."""
    rows = embedding_of(model)
    if not bool(torch.isfinite(rows).all()):
        name = type(model).__name__
        raise LossError(f"{name}: the embedding has values that are no numbers; lower learning_rate")
    values: npt.NDArray[np.float32] = rows.float().cpu().numpy()
    return values


@torch.no_grad()
def embedding_of(model: Embedder) -> Tensor:
    """Return the embedding of a system as it is now, in `eval` mode."""
    training = model.training
    model.eval()
    rows = model.embedding().detach()
    model.train(training)
    return rows


@contextmanager
def own_chance(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's own generators inside, and give the caller's back afterwards."""
    with _forked(device):
        torch.manual_seed(seed)
        yield


def _forked(device: torch.device) -> AbstractContextManager[None]:
    """Give torch's generators, of the CPU and the device, back as they were before."""
    forked: AbstractContextManager[None] = torch.random.fork_rng([device] if device.type == "cuda" else [])
    return forked


def _look(model: Embedder, epoch: int, looks: Looks) -> None:
    if epoch in looks.epochs:
        with _forked(model.device):
            looks.callback(epoch, embedding_of(model))


def _finite(loss: Tensor, epoch: int, kind: type[Embedder]) -> float:
    value = float(loss)
    if not np.isfinite(value):
        raise LossError(f"{kind.__name__}: the loss of epoch {epoch + 1} is {value}; lower learning_rate")
    return value
