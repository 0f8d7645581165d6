"""Every system as a scikit-learn estimator: `from h3gnn.baselines import GREET; GREET().fit(graph)`."""

from __future__ import annotations

import inspect
from dataclasses import asdict, fields
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin

from h3gnn.baselines.embedder import embedding_of, train
from h3gnn.baselines.registry import systems
from h3gnn.baselines.stacks import GridPoint
from h3gnn.baselines.supervised import predict
from h3gnn.baselines.systems import Sizes, System
from h3gnn.errors import GraphError, InputError
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.graph import Graph, with_splits
from h3gnn.training.resources import free_bytes, pick_device

POINT = GridPoint(width=64, dropout=0.5, learning_rate=0.01, weight_decay=5e-4)
"""What a classifier has that nobody has tuned."""
MEMORY = 2**30


class _System(BaseEstimator):  # type: ignore[misc]
    """What the estimators of all systems share; `system` says which it is."""

    system: System

    @classmethod
    def published(cls, graph: str | None = None, **changes: Any) -> Self:
        """Return the estimator with its authors' settings, for one of the benchmark graphs or in general.

        Args:
            graph: name of the graph, such as "cora".
            changes: arguments that differ.
        """
        told = cls.system.published_for(graph)
        if told is None:
            known = ", ".join(name for name in cls.system.published if name)
            raise InputError(
                f"{cls.system.title}'s authors are not known to have settings for {graph or 'any graph'}"
                + (f"; there are some for {known}" if known else "")
            )
        return cls(**{**told, **changes})

    def _settings(self) -> Any:
        names = {one.name for one in fields(self.system.settings)}
        return self.system.with_settings({k: v for k, v in self.get_params().items() if k in names})

    def _read(self, graph: Any, edge_index: Any) -> tuple[Graph, torch.device]:
        taken, device = as_graph(graph, edge_index), pick_device(self.device)
        self.system.check_room(Sizes.of(taken), self._settings(), free_bytes(device))
        return taken, device


class SystemEmbedder(TransformerMixin, _System):  # type: ignore[misc]
    """A system that embeds the nodes of a graph without labels.

    Attributes:
        embedding_: float32 `[nodes, D]`, after `fit`.
        labels_: the system's own clusters `[nodes]`, where it has some.
    """

    def fit(self, X: Any, y: Any = None, *, edge_index: Any = None) -> Self:  # noqa: N803
        """Learn from a graph; takes what `H3GNN.fit` takes, and never looks at labels."""
        graph, device = self._read(X, edge_index)
        model = train(self.system.kind, graph, self.random_state, device, self._settings())
        self.embedding_: npt.NDArray[np.float32] = embedding_of(model).float().cpu().numpy()
        with torch.no_grad():
            own = model.clusters()
        if own is not None:
            self.labels_: npt.NDArray[np.int64] = own.cpu().numpy()
        self.n_features_in_ = graph.num_features
        return self

    def fit_transform(self, X: Any, y: Any = None, **how: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        """Fit, and return the embedding of the graph."""
        return self.fit(X, y, **how).embedding_


class SystemClassifier(ClassifierMixin, _System):  # type: ignore[misc]
    """A system that is trained on labels: those of a graph's training nodes, stopped on its validation nodes.

    Attributes:
        classes_: names of the classes.
        probabilities_: of each class at every node, float32 `[nodes, classes]`.
        epoch_: the one that the validation nodes chose.
    """

    def fit(self, X: Any, y: Any = None, *, edge_index: Any = None) -> Self:  # noqa: N803
        """Train on a graph with labels, and classify all of its nodes.

        Args:
            X: the graph, as `H3GNN.fit` takes it. Without splits it gets random ones; of several splits the
                first counts.
            y: classes of the nodes, whole numbers, -1 where unknown; None for the graph's own.
            edge_index: edges, when X holds features.
        """
        graph, device = self._read(X, edge_index)
        if y is not None:
            from dataclasses import replace

            given = torch.as_tensor(np.asarray(y), dtype=torch.int64)
            names = tuple(str(one) for one in range(int(given.max()) + 1))
            graph = with_splits(replace(graph, labels=given, class_names=names, train_mask=None))
        if graph.labels is None:
            raise GraphError(f"{self.system.title} learns from labels, and the graph has none: give y")
        graph = graph if graph.train_mask is not None else with_splits(graph)
        point = GridPoint(**{one.name: getattr(self, one.name) for one in fields(GridPoint)})
        (found,) = predict(
            self.system.kind,
            graph,
            [self.random_state],
            device=device,
            memory=MEMORY,
            grid=[point],
            settings=self._settings(),
        )
        self.classes_ = np.array(graph.class_names)
        self.probabilities_: npt.NDArray[np.float32] = found.scores[0].exp().numpy()
        self.epoch_: int = found.chosen[0]["epoch"]
        self.n_features_in_ = graph.num_features
        return self

    def predict(self, X: Any = None) -> npt.NDArray[Any]:  # noqa: N803
        """Return the class of every node of the fitted graph; X is not looked at."""
        classes: npt.NDArray[Any] = self.classes_[self.probabilities_.argmax(axis=1)]
        return classes

    def predict_proba(self, X: Any = None) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the probability of each class at every node of the fitted graph; X is not looked at."""
        return self.probabilities_


@cache
def estimators() -> dict[str, type[_System]]:
    """Return the estimator of every system by its name."""
    return {system.estimator: _estimator(system) for system in systems().values()}


def _estimator(system: System) -> type[_System]:
    """Return a class whose arguments are the system's settings, as scikit-learn wants them."""
    supervised = "labels" in system.sees
    base: type[_System] = SystemClassifier if supervised else SystemEmbedder
    defaults = {**(asdict(POINT) if supervised else {}), **_plain(system.settings)}
    defaults |= {"random_state": 0, "device": "auto"}

    def start(self: _System, **given: Any) -> None:
        unknown = [name for name in given if name not in defaults]
        if unknown:
            raise TypeError(f"{system.estimator} has no argument {', '.join(unknown)}")
        for name, value in {**defaults, **given}.items():
            setattr(self, name, value)

    kinds = inspect.Parameter.KEYWORD_ONLY
    start.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *(inspect.Parameter(name, kinds, default=value) for name, value in defaults.items()),
        ]
    )
    return type(
        system.estimator,
        (base,),
        {
            "system": system,
            "__init__": start,
            "__doc__": f"{system.title}: {system.paper}, {system.year}.\n\n{inspect.getdoc(system.kind)}",
            "__module__": "h3gnn.baselines",
        },
    )


def _plain(settings: Any) -> dict[str, Any]:
    return {one.name: getattr(settings, one.name) for one in fields(settings)}
