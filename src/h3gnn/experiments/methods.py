"""The methods that can be compared, by name: how each comes from a graph to something that can be scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.baselines.bootstrap import BootstrapSettings, bootstrap_embedding
from h3gnn.baselines.infomax import InfomaxSettings, infomax_embedding
from h3gnn.baselines.smoothing import DIFFUSION, diffused_features, raw_features, smoothed_features
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph

Watch = Callable[[float], None]
"""Told the share of the work that is done."""
Embed = Callable[[Graph, int, torch.device, Watch], npt.NDArray[np.float32]]
"""From a graph and a seed to its embedding `[nodes, D]`."""

Objective = Callable[[H3GNN, Graph, Watch], npt.NDArray[np.float32]]
"""From settings of `H3GNN` and a graph to its embedding."""


@dataclass(frozen=True)
class Method:
    """One way to classify nodes.

    Exactly one of four: settings of `H3GNN` that differ from the ones asked for, another objective for its
    encoder, a function that embeds, or a supervised classifier.

    Attributes:
        name: as the command line knows it.
        title: as tables show it.
        overrides: what is changed in the settings of `H3GNN`.
        objective: how to train the encoder that the settings of `H3GNN` describe, and embed a graph with it.
        embed: how to embed a graph; the embedding is then probed.
        classifier: whether `baselines.supervised` trains it on labels.
        has_chance: whether seeds matter; without chance one run says all.
        probe: the probe of its embedding.
        params: its settings, for the result.
    """

    name: str
    title: str
    overrides: dict[str, Any] | None = None
    objective: Objective | None = None
    embed: Embed | None = None
    classifier: bool = False
    has_chance: bool = True
    probe: str = "logistic"
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def takes_settings(self) -> bool:
        """Whether the settings of `H3GNN` are its own."""
        return self.overrides is not None or self.objective is not None


def _features(name: str, title: str, of: Callable[[Graph], npt.NDArray[np.float32]], **params: Any) -> Method:
    def embed(graph: Graph, seed: int, device: torch.device, watch: Watch) -> npt.NDArray[np.float32]:
        return of(graph)

    return Method(name, title, embed=embed, has_chance=False, probe="features", params=params)


_UNIT = {"rows": "unit length"}
_LISTED = (
    _features("raw", "raw features", raw_features),
    _features("smoothed", "features + neighbours", lambda g: smoothed_features(g, 1), hops=1, **_UNIT),
    _features("smoothed2", "features + two hops", lambda g: smoothed_features(g, 2), hops=2, **_UNIT),
    _features("diffused", "diffused features", diffused_features, smoothing=DIFFUSION, **_UNIT),
    Method("untrained", "untrained encoder", overrides={"epochs": 0}),
    Method("mlp", "MLP (supervised)", classifier=True),
    Method("gcn", "GCN (supervised)", classifier=True),
    Method("gat", "GAT (supervised)", classifier=True),
    Method("h2gcn", "H2GCN (supervised)", classifier=True),
    Method(
        "dgi",
        "DGI",
        embed=lambda graph, seed, device, watch: infomax_embedding(graph, seed, device, watch=watch),
        params=asdict(InfomaxSettings()),
    ),
    Method(
        "bgrl",
        "BGRL",
        embed=lambda graph, seed, device, watch: bootstrap_embedding(graph, seed, device, watch=watch),
        params=asdict(BootstrapSettings()),
    ),
    Method("decoder", "encoder–decoder", overrides={"objective": "features"}),
    Method("graphmae", "GraphMAE objective", overrides={"objective": "masked-features", "mask": "random"}),
    Method("h3gnn", "H3GNN", overrides={}),
)
METHODS: dict[str, Method] = {method.name: method for method in _LISTED}
"""All methods by name, simple ones first."""


def find_methods(names: str) -> list[Method]:
    """Return the methods of a list such as `raw,gcn,h3gnn`, in the order of `METHODS`."""
    asked = [name.strip().lower() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if name not in METHODS]
    if unknown or not asked:
        raise InputError(
            f"there is no method {', '.join(unknown) or names!r}; there are {', '.join(METHODS)}"
        )
    return [method for name, method in METHODS.items() if name in asked]
