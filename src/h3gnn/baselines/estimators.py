"""Every system as a scikit-learn estimator: `from h3gnn.baselines import GREET; GREET().fit(graph)`."""

from __future__ import annotations

import inspect
from dataclasses import asdict, fields, replace
from functools import cache
from numbers import Integral
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from h3gnn.baselines.embedder import train, values_of
from h3gnn.baselines.registry import systems
from h3gnn.baselines.stacks import GridPoint
from h3gnn.baselines.supervised import predict
from h3gnn.baselines.systems import ANY, Sizes, System, check_setting
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
        known = [name for name in cls.system.published if name]
        asked = graph.lower() if graph else None
        told = cls.system.published_for(asked)
        if told is None or (asked is not None and asked not in known):
            raise InputError(
                f"{cls.system.title}'s authors are not known to have settings for {graph or 'every graph'}"
                + (f"; there are some for {', '.join(known)}" if known else "")
                + ("; published() has what they use everywhere" if ANY in cls.system.published else "")
            )
        return cls(**{**told, **changes})

    def _settings(self) -> Any:
        names = {one.name for one in fields(self.system.settings)}
        return self.system.with_settings({k: v for k, v in self.get_params().items() if k in names})

    def _read(self, graph: Any, edge_index: Any) -> tuple[Graph, torch.device, int, Any]:
        """Return the graph, the device, the seed and the settings of a fit, all of them checked."""
        settings, seed = self._settings(), self.random_state
        if seed is None:
            seed = int(np.random.default_rng().integers(2**31))
        if not isinstance(seed, Integral) or not 0 <= int(seed) < 2**32:
            raise InputError(f"random_state must be a whole number from 0, or None, not {seed!r}")
        taken, device = as_graph(graph, edge_index), pick_device(self.device)
        self.system.check_room(Sizes.of(taken), settings, free_bytes(device))
        self._given = graph
        return taken, device, int(seed), settings

    def _check_fitted_graph(self, graph: Any) -> None:
        """Refuse another graph than the fitted one: these systems know no other."""
        check_is_fitted(self, "n_features_in_")
        same = graph is None or graph is self._given
        if not same and isinstance(graph, Graph) and isinstance(self._given, Graph):
            same = graph.provenance.sha256 == self._given.provenance.sha256
        if not same:
            raise InputError(
                f"{self.system.title} knows the graph that it was fitted on, and no other: fit it again"
            )


class SystemEmbedder(TransformerMixin, _System):  # type: ignore[misc]
    """A system that embeds the nodes of a graph without labels.

    Attributes:
        embedding_: float32 `[nodes, D]`, after `fit`.
        labels_: the system's own clusters `[nodes]`, where it has some.
    """

    def fit(self, X: Any, y: Any = None, *, edge_index: Any = None) -> Self:  # noqa: N803
        """Learn from a graph; takes what `H3GNN.fit` takes, and never looks at labels."""
        graph, device, seed, settings = self._read(X, edge_index)
        model = train(self.system.kind, graph, seed, device, settings)
        self.embedding_: npt.NDArray[np.float32] = values_of(model)
        with torch.no_grad():
            own = model.clusters()
        if own is not None:
            self.labels_: npt.NDArray[np.int64] = own.cpu().numpy()
        self.n_features_in_ = graph.num_features
        return self

    def fit_transform(self, X: Any, y: Any = None, **how: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        """Fit, and return the embedding of the graph."""
        return self.fit(X, y, **how).embedding_

    def transform(self, X: Any) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the embedding of the fitted graph; another one is refused."""
        self._check_fitted_graph(X)
        return self.embedding_


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
            y: classes of the nodes, numbers or words, negative or None where unknown; else the graph's.
            edge_index: edges, when X holds features.
        """
        graph, device, seed, settings = self._read(X, edge_index)
        graph, classes = _labelled(graph, y, self.system.title)
        point = GridPoint(**{one.name: getattr(self, one.name) for one in fields(GridPoint)})
        for name, value in asdict(point).items():
            check_setting(self.system.title, name, value, getattr(POINT, name))
        if point.dropout >= 1:
            raise InputError(f"{self.system.title}: dropout must be below 1, or nothing is left")
        (found,) = predict(
            self.system.kind,
            graph,
            [seed],
            device=device,
            memory=MEMORY,
            grid=[point],
            settings=settings,
        )
        self.classes_ = classes
        self.probabilities_: npt.NDArray[np.float32] = found.scores[0].exp().numpy()
        self.epoch_: int = found.chosen[0]["epoch"]
        self.n_features_in_ = graph.num_features
        return self

    def predict(self, X: Any = None) -> npt.NDArray[Any]:  # noqa: N803
        """Return the class of every node of the fitted graph; another one is refused."""
        self._check_fitted_graph(X)
        classes: npt.NDArray[Any] = self.classes_[self.probabilities_.argmax(axis=1)]
        return classes

    def predict_proba(self, X: Any = None) -> npt.NDArray[np.float32]:  # noqa: N803
        """Return the probability of each class at every node of the fitted graph; another one is refused."""
        self._check_fitted_graph(X)
        return self.probabilities_


def _labelled(graph: Graph, y: Any, title: str) -> tuple[Graph, npt.NDArray[Any]]:
    """Return the graph with labels and splits, and its classes as the user calls them."""
    if y is not None:
        given = np.asarray(y.cpu() if isinstance(y, torch.Tensor) else y)
        if given.shape != (graph.num_nodes,):
            raise GraphError(f"y must hold a class for each of {graph.num_nodes:,} nodes, not {given.shape}")
        numbers = given.dtype.kind in "iuf"
        known = given >= 0 if numbers else ~pd.isna(given)
        classes, codes = np.unique(given[known], return_inverse=True)
        labels = torch.full((graph.num_nodes,), -1, dtype=torch.int64)
        labels[torch.from_numpy(known)] = torch.from_numpy(codes.astype(np.int64))
        names = tuple(str(one) for one in classes)
        bare = replace(graph, train_mask=None, val_mask=None, test_mask=None)
        return with_splits(replace(bare, labels=labels, class_names=names)), classes
    if graph.labels is None:
        raise GraphError(f"{title} learns from labels, and the graph has none: give y")
    counted = all(name == str(place) for place, name in enumerate(graph.class_names))
    classes = np.arange(graph.num_classes) if counted else np.array(graph.class_names)
    return (graph if graph.train_mask is not None else with_splits(graph)), classes


@cache
def estimators() -> dict[str, type[_System]]:
    """Return the estimator of every system by its name."""
    return {system.estimator: _estimator(system) for system in systems().values()}


def _estimator(system: System) -> type[_System]:
    """Return a class whose arguments are the system's settings, as scikit-learn wants them."""
    supervised = "labels" in system.sees
    base: type[_System] = SystemClassifier if supervised else SystemEmbedder
    defaults = {**(asdict(POINT) if supervised else {}), **asdict(system.settings)}
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
            "__doc__": _documentation(system),
            "__module__": "h3gnn.baselines",
        },
    )


def _documentation(system: System) -> str:
    parts = [
        f"{system.title}: {system.paper}, {system.year}.",
        inspect.getdoc(system.kind) or "",
        inspect.getdoc(type(system.settings)) or "",
        inspect.getdoc(SystemClassifier if "labels" in system.sees else SystemEmbedder) or "",
        "random_state seeds everything that is drawn; device is auto, cpu or cuda.",
    ]
    return "\n\n".join(parts)
