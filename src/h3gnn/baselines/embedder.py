"""Self-supervised systems: one training loop for all, and scikit-learn estimators of every system."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from functools import cache
from numbers import Integral
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from h3gnn.baselines import Progress, unwatched
from h3gnn.baselines.layers import scaled_features
from h3gnn.baselines.registry import ANY, Sizes, System, check_setting, systems
from h3gnn.baselines.supervised import GridPoint, predict
from h3gnn.errors import GraphError, InputError, LossError
from h3gnn.graphs.convert import as_graph, input_kind
from h3gnn.graphs.graph import Graph, with_splits
from h3gnn.training.resources import free_bytes, pick_device
from h3gnn.training.teacher import move_towards

Module = TypeVar("Module", bound=nn.Module)

CHECKED = 50
"""Number of epochs between two checks that the loss is finite."""


@dataclass(frozen=True)
class EmbedderSettings:
    """Settings that every such system has; a subclass adds its own, with its own defaults.

    Attributes:
        width: of the embedding, or of each of its parts.
        epochs: the number, or with patience the maximum.
        learning_rate, weight_decay: of Adam.
        patience: stop after this many epochs without a smaller loss, and restore the best epoch; 0 to keep
            the last epoch.
        scale_features: auto, none, rows or columns as for `H3GNN`; "sums" divides rows by their sum.
    """

    width: int = 512
    epochs: int = 300
    learning_rate: float = 0.001
    weight_decay: float = 0.0
    patience: int = 0
    scale_features: str = "auto"


class Embedder(nn.Module):
    """Base class of self-supervised systems: a subclass defines `build`, `loss` and `embedding`.

    The class argument `settings` is the dataclass of its settings, by default that of its base. The methods
    may use torch's global generators; `train` seeds them and restores the caller's state. They must not use
    the graph's labels.
    """

    settings_class: type[Any] = EmbedderSettings
    uses_features = True
    """Whether `features` holds the scaled features before `build`."""
    has_chance = True
    """Whether the result depends on the seed."""
    adam: type[torch.optim.Adam | torch.optim.AdamW] = torch.optim.Adam

    def __init_subclass__(cls, settings: type[Any] | None = None) -> None:
        super().__init_subclass__()
        cls.settings_class = settings or cls.settings_class

    def __init__(self, graph: Graph, settings: Any, device: torch.device) -> None:
        super().__init__()
        self.settings, self.device = settings, device
        if self.uses_features:
            self.features = scaled_features(graph, device, settings.scale_features)
        self.build(graph)
        self.to(device)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        width: int = settings.width
        weights, rows = 8 * sizes.features * width, sizes.nodes * (24 * width + sizes.features)
        return 4 * (weights + rows + 12 * sizes.edges)

    def build(self, graph: Graph) -> None:
        """Create layers and constants on `self.device`."""
        raise NotImplementedError

    def loss(self, epoch: int) -> Tensor:
        """Return the loss of an epoch, counted from 0."""
        raise NotImplementedError

    def embedding(self) -> Tensor:
        """Return the embedding `[nodes, D]`; called without gradients and in `eval` mode."""
        raise NotImplementedError

    def clusters(self) -> Tensor | None:
        """Return the system's own cluster assignments `[nodes]`, if it has any."""
        return None

    def adam_of(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return self.adam(parameters, lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay)

    def begin(self) -> None:
        """Prepare the training, before the first `step`."""
        self.optimizer = self.adam_of(one for one in self.parameters() if one.requires_grad)

    def step(self, epoch: int) -> Tensor:
        """Train for one epoch and return the loss before the update."""
        loss = minimize(self.loss(epoch), self.optimizer)
        self.after(epoch)
        return loss

    def after(self, epoch: int) -> None:
        """Called after each step, for moving averages and schedules."""


def minimize(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """Take a step of the optimizer, and return the loss without its graph."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.detach()


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all parameters."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def frozen_copy(module: Module) -> Module:
    """Return a copy without gradients; constant features are shared."""
    return copy.deepcopy(module).requires_grad_(False)


@torch.no_grad()
def update_average(average: nn.Module, module: nn.Module, momentum: float) -> None:
    """Move the parameters of a moving average towards those of a module."""
    move_towards(list(average.parameters()), list(module.parameters()), 1 - momentum)


class BatchEmbedder(Embedder):
    """A system that takes one step per batch; a subclass defines `batches` and `batch_loss`."""

    falling = False
    """Whether the learning rate decays linearly, as in word2vec."""

    def batches(self) -> Iterator[Tensor]:
        raise NotImplementedError

    def batch_loss(self, batch: Tensor) -> Tensor:
        raise NotImplementedError

    def step(self, epoch: int) -> Tensor:
        if self.falling:
            rate = self.settings.learning_rate * (1 - epoch / self.settings.epochs)
            set_learning_rate(self.optimizer, rate)
        losses = [minimize(self.batch_loss(batch), self.optimizer) for batch in self.batches()]
        self.after(epoch)
        return torch.stack(losses).mean()


def shuffled_batches(nodes: int, size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return all nodes in random order, in batches of a size."""
    return torch.split(torch.randperm(nodes, device=device), size)


def train(
    kind: type[Embedder],
    graph: Graph,
    seed: int,
    device: torch.device,
    settings: Any,
    watch: Progress = unwatched,
    *,
    eval_epochs: Collection[int] = (),
    callback: Callable[[int, Tensor], None] = lambda epoch, rows: None,
) -> Embedder:
    """Train a system on a graph and return it in `eval` mode; `LossError` if the loss is not finite.

    The callback receives the embedding after each of `eval_epochs`; 0 is before the first.
    """

    def report(epoch: int) -> None:
        if epoch in eval_epochs:
            with forked_rng(device):
                callback(epoch, embedding_of(model))

    with forked_rng(device, seed):
        model = kind(graph, settings, device)
        model.begin()
        model.train()
        report(0)
        best, best_epoch, kept = float("inf"), 0, None
        for epoch in range(settings.epochs):
            before = copy.deepcopy(model.state_dict()) if settings.patience else None
            loss = model.step(epoch)
            if settings.patience or epoch % CHECKED == 0 or epoch + 1 == settings.epochs:
                value = float(loss)
                if not np.isfinite(value):
                    message = f"the loss of epoch {epoch + 1} is {value}; lower learning_rate"
                    raise LossError(f"{kind.__name__}: {message}")
                if settings.patience and value < best:
                    best, best_epoch, kept = value, epoch, before
            watch((epoch + 1) / settings.epochs)
            report(epoch + 1)
            if settings.patience and epoch - best_epoch >= settings.patience:
                break
        if kept is not None:
            model.load_state_dict(kept)
    model.eval()
    return model


def values_of(model: Embedder) -> npt.NDArray[np.float32]:
    """Return the embedding of a trained system `[nodes, D]`; reject one that is not finite."""
    rows = embedding_of(model)
    if not bool(torch.isfinite(rows).all()):
        message = f"{type(model).__name__}: the embedding is not finite; lower learning_rate"
        raise LossError(message, code="embedding-not-finite")
    return rows.float().cpu().numpy()


@torch.no_grad()
def embedding_of(model: Embedder) -> Tensor:
    """Return the current embedding of a system."""
    training = model.training
    model.eval()
    rows = model.embedding().detach()
    model.train(training)
    return rows


@contextmanager
def forked_rng(device: torch.device, seed: int | None = None) -> Iterator[None]:
    """Restore torch's generators of the CPU and the device on exit; seed them inside if asked."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        if seed is not None:
            torch.manual_seed(seed)
        yield


POINT = GridPoint(width=64, dropout=0.5, learning_rate=0.01, weight_decay=5e-4)
"""Default hyper-parameters of a classifier estimator."""
MEMORY = 2**30


class _System(BaseEstimator):  # type: ignore[misc]
    """Base class of the estimators; `system` is the card."""

    system: System

    @classmethod
    def published(cls, graph: str | None = None, **changes: Any) -> Self:
        """Return the estimator with its authors' settings, in general or for a graph such as "cora"."""
        known = [name for name in cls.system.published if name != ANY]
        asked = graph.lower() if graph else None
        found = cls.system.published_for(asked)
        if found is None or (asked is not None and asked not in known):
            message = f"{cls.system.title} has no published settings for {graph or 'all graphs'}"
            message += f"; there are some for {', '.join(cls.system.published) or 'no graph'}"
            raise InputError(message, code="no-published-settings")
        return cls(**{**found, **changes})

    def _read(self, graph: Any, edge_index: Any) -> tuple[Graph, torch.device, int, Any]:
        """Validate and return the graph, the device, the seed and the settings of a fit."""
        names = {one.name for one in fields(self.system.settings)}
        settings = self.system.with_settings({k: v for k, v in self.get_params().items() if k in names})
        seed = self.random_state
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        if not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
            message = f"random_state must be a non-negative integer or None, not {seed!r}"
            raise InputError(message, code="invalid-setting")
        taken, device = as_graph(graph, edge_index), pick_device(self.device)
        self.system.check_memory(Sizes.of(taken), settings, free_bytes(device))
        self._given, self._sha256 = graph, taken.provenance.sha256
        return taken, device, int(seed), settings

    def _check_fitted_graph(self, graph: Any) -> None:
        """Reject another graph than the fitted one: the systems are transductive."""
        check_is_fitted(self, "n_features_in_")
        same = graph is None or graph is self._given
        if not same and (input_kind(graph) != "graph" or graph.provenance.sha256 != self._sha256):
            message = f"{self.system.title} is transductive: fit it again for another graph"
            raise InputError(message, code="not-the-fitted-graph")


class SystemEmbedder(TransformerMixin, _System):  # type: ignore[misc]
    """A self-supervised system.

    Attributes:
        embedding_: float32 `[nodes, D]`.
        labels_: the system's own clusters `[nodes]`, if it has any.
    """

    def fit(self, X: Any, y: Any = None, *, edge_index: Any = None) -> Self:  # noqa: N803
        """Train on a graph, given as for `H3GNN.fit`; labels are ignored."""
        graph, device, seed, settings = self._read(X, edge_index)
        model = train(self.system.kind, graph, seed, device, settings)
        self.embedding_: npt.NDArray[np.float32] = values_of(model)
        with torch.no_grad():
            own = model.clusters()
        if own is not None:
            self.labels_: npt.NDArray[np.int64] = own.cpu().numpy()
        self.n_features_in_ = graph.num_features
        return self

    def transform(self, X: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the embedding of the fitted graph."""
        self._check_fitted_graph(X)
        return self.embedding_.copy()


class SystemClassifier(ClassifierMixin, _System):  # type: ignore[misc]
    """A system trained on the labels of the training nodes, with early stopping on the validation nodes.

    Attributes:
        classes_: names of the classes.
        probabilities_: float32 `[nodes, classes]`.
        epoch_: the selected epoch.
    """

    def fit(self, X: Any, y: Any = None, *, edge_index: Any = None) -> Self:  # noqa: N803
        """Train on a graph with labels, and classify all of its nodes.

        A graph, given as for `H3GNN.fit`, is split at random unless it has splits; the first one is used. `y`
        holds the classes of the nodes, negative or None where unknown, instead of the graph's labels.
        """
        graph, device, seed, settings = self._read(X, edge_index)
        graph, classes = _labelled(graph, y, self.system.title)
        point = GridPoint(**{one.name: getattr(self, one.name) for one in fields(GridPoint)})
        for name, value in asdict(point).items():
            check_setting(self.system.title, name, value, getattr(POINT, name))
        if point.dropout >= 1:
            raise InputError(f"{self.system.title}: dropout must be below 1", code="invalid-setting")
        (found,) = predict(
            self.system.kind, graph, [seed], device=device, memory=MEMORY, grid=[point], settings=settings
        )
        self.classes_ = classes
        self.probabilities_: npt.NDArray[np.float32] = found.scores[0].exp().numpy()
        self.epoch_: int = found.chosen[0]["epoch"]
        self.n_features_in_ = graph.num_features
        return self

    def predict(self, X: Any = None) -> npt.NDArray[Any]:  # noqa: N803
        """Return the class of every node of the fitted graph."""
        self._check_fitted_graph(X)
        return self.classes_[self.probabilities_.argmax(axis=1)]

    def predict_proba(self, X: Any = None) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the class probabilities of every node of the fitted graph."""
        self._check_fitted_graph(X)
        return self.probabilities_


def _labelled(graph: Graph, y: Any, title: str) -> tuple[Graph, npt.NDArray[Any]]:
    """Return the graph with labels and splits, and the user's class names."""
    if y is not None:
        given = np.asarray(y.cpu() if isinstance(y, torch.Tensor) else y)
        if given.shape != (graph.num_nodes,):
            raise GraphError(
                f"y must hold one class for each of {graph.num_nodes:,} nodes, but has shape {given.shape}",
                code="label-count",
            )
        numbers = given.dtype.kind in "iuf"
        known = given >= 0 if numbers else ~pd.isna(given)
        classes, codes = np.unique(given[known], return_inverse=True)
        labels = torch.full((graph.num_nodes,), -1, dtype=torch.int64)
        labels[torch.from_numpy(known)] = torch.from_numpy(codes.astype(np.int64))
        names = tuple(str(one) for one in classes)
        bare = replace(graph, train_mask=None, val_mask=None, test_mask=None)
        return with_splits(replace(bare, labels=labels, class_names=names)), classes
    if graph.labels is None:
        raise GraphError(f"{title} needs labels: pass y", code="no-labels")
    counted = all(name == str(number) for number, name in enumerate(graph.class_names))
    classes = np.arange(graph.num_classes) if counted else np.array(graph.class_names)
    return (graph if graph.train_mask is not None else with_splits(graph)), classes


@cache
def estimators() -> dict[str, type[_System]]:
    """Return the estimator of every system by its name."""
    return {system.estimator: _estimator(system) for system in systems().values()}


def _estimator(system: System) -> type[_System]:
    """Return a scikit-learn estimator class whose arguments are the system's settings."""
    supervised = "labels" in system.sees
    base: type[_System] = SystemClassifier if supervised else SystemEmbedder
    defaults = {**(asdict(POINT) if supervised else {}), **asdict(system.settings)}
    defaults |= {"random_state": 0, "device": "auto"}
    documentation = [
        f"{system.title}: {system.paper}, {system.year}.",
        *(inspect.getdoc(part) or "" for part in (system.kind, type(system.settings), base)),
        "random_state seeds all random numbers; device is auto, cpu or cuda.",
    ]
    return make_dataclass(
        system.estimator,
        [(name, Any, value) for name, value in defaults.items()],
        bases=(base,),
        namespace={"system": system, "__doc__": "\n\n".join(documentation), "__module__": "h3gnn.baselines"},
        kw_only=True,
        eq=False,
        repr=False,
    )
