"""What a search may choose from, and the stack that trains many of its choices as one program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix
from h3gnn.encoder.encode import embed_models
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.preprocessing import Preprocessing
from h3gnn.training.batches import WholeGraph, compared_nodes
from h3gnn.training.checkpoints import put_back, select_models, take
from h3gnn.training.history import Recorder
from h3gnn.training.loop import runner
from h3gnn.training.models import Shape, Training, stack_step

OWN = ("mask_ratio", "hard_fraction", "momentum", "token_dropout", "attention_dropout")
"""Arguments that each model of a stack may have for itself at no cost; the others all models share."""

FREE = ("smoothing",)
"""Arguments that need no training of their own: each value is tried on every model that was trained."""


class ConfigurationStack:
    """Models that share their shape and the graph, each with its own seed and its own values of `OWN`.

    Args:
        graph: the graph to learn from; labels are not looked at.
        params: arguments of `H3GNN`, shared by all models.
        own: for each model, its values of arguments in `OWN`.
        seeds: one for each model.
        device: where to train.
        scaled: the graph's features after scaling, if a caller keeps them for several stacks.

    Attributes:
        models: the positions, in `own`, of the models that are still in training.
        epoch: how many epochs they have made.
    """

    def __init__(
        self,
        graph: Graph,
        params: Mapping[str, Any],
        own: Sequence[Mapping[str, float]],
        seeds: Sequence[int],
        device: torch.device,
        scaled: FeatureMatrix | None = None,
    ) -> None:
        self._params, self._own, self._seeds, self._device = dict(params), list(own), list(seeds), device
        self._source = source_of(graph, params, device, scaled)
        self.models = list(range(len(own)))
        self.epoch = 0
        self._begin()

    def train(self, epochs: int) -> None:
        """Train until `epochs` have been made in all."""
        self._step.student.train()
        for epoch in range(self.epoch, epochs):
            self._step.set_learning_rate(self._rate_of(epoch))
            self._run(self._mask_of(epoch))
        self.epoch = max(self.epoch, epochs)

    def embeddings(self) -> Tensor:
        """Return the embeddings of the models still in training, float32 `[models, nodes, D]`."""
        return embed_models(self._step.student, self._source.rows())

    def keep(self, models: Sequence[int]) -> None:
        """Go on with some of the models only (positions in `own`); each goes on as if nothing happened."""
        if list(models) == self.models:
            return
        places = [self.models.index(model) for model in models]
        state = take(self._step, Recorder())
        self.models = list(models)
        self._begin()
        put_back(self._step, select_models(state, places), [])

    def _begin(self) -> None:
        own = [self._own[model] for model in self.models]
        models = len(self.models)
        varied = {name for one in own for name in one}
        params = self._params | {
            name: [one.get(name, self._params[name]) for one in own] for name in OWN if name in varied
        }
        training = Training.of(params | {"n_models": models})
        features, entries = self._source.features.shape[1], self._source.support.entries
        student = Shape.of(params).build(features, entries, models, self._device)
        seeds = [self._seeds[model] for model in self.models]
        self._step = stack_step(student, self._source, seeds, training)
        self._run = runner(self._step)
        self._mask_of, self._rate_of = training.mask_of(models), training.learning_rate_of()


def source_of(
    graph: Graph, params: Mapping[str, Any], device: torch.device, scaled: FeatureMatrix | None = None
) -> WholeGraph:
    """Return the graph as one batch, with its features scaled unless the caller has them."""
    support = Preprocessing.of(params).support(graph)
    features = scaled if scaled is not None else scaled_features(graph, params, device)
    compared = compared_nodes(params["nodes_per_step"], graph.num_nodes)
    return WholeGraph(features, support.to(device), params["hops"], compared)


def scaled_features(graph: Graph, params: Mapping[str, Any], device: torch.device) -> FeatureMatrix:
    """Return the graph's features as training takes them in."""
    scaler = graph.fit_scaler(params["scale_features"])
    return FeatureMatrix(scaler(graph.features).to(device), storage=params["feature_storage"])


def with_objectives(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with objectives that a space joins by "+" as the list that `H3GNN` takes."""
    objective = params.get("objective")
    if isinstance(objective, str) and "+" in objective:
        return {**params, "objective": objective.split("+")}
    return dict(params)


@dataclass(frozen=True)
class Space:
    """The values that each argument of `H3GNN` may take; a single value is fixed.

    Attributes:
        choices: of each argument, in the order in which a sampler is asked. Objectives that stand together
            are joined by "+", since a study keeps words.
        start: the preset that the other arguments come from; None is the default.
    """

    choices: Mapping[str, Sequence[Any]]
    start: str | None = "single"

    @property
    def shared(self) -> dict[str, Sequence[Any]]:
        """Arguments that all models of a stack share."""
        return {name: values for name, values in self.proposed.items() if name not in OWN}

    @property
    def own(self) -> dict[str, Sequence[Any]]:
        """Arguments that each model of a stack has for itself."""
        return {name: values for name, values in self.choices.items() if name in OWN}

    @property
    def proposed(self) -> dict[str, Sequence[Any]]:
        """Arguments that a sampler proposes; the others are tried all."""
        return {name: values for name, values in self.choices.items() if name not in FREE}

    def restricted(self, choices: Mapping[str, Sequence[Any]]) -> Space:
        """Return the space with other values for some arguments."""
        for name, values in choices.items():
            if not values:
                raise InputError(f"the search space has no value for {name}")
        return Space({**self.choices, **choices}, self.start)


# Appendix "Hyperparameters" of the paper, for the arguments of the encoder and its training. The classifier's
# own settings are the probe's business; widths above 512 are left to `--choices channels=…`.
PAPER: dict[str, Sequence[Any]] = {
    "learning_rate": (0.01, 0.005, 0.001),
    "weight_decay": (0.0, 1e-4, 5e-4, 8e-4, 1e-3, 5e-3, 8e-3),
    "channels": (128, 256, 512),
    "hidden_channels": (16, 32, 64, 128),
    "token_dropout": (0.1, 0.3, 0.5, 0.7, 0.8),
    "attention_dropout": (0.1, 0.3, 0.5, 0.7, 0.8),
    "mask_ratio": (0.9, 0.8, 0.5, 0.3, 0.2, 0.1),
    "hard_fraction": (0.9, 0.8, 0.5, 0.3, 0.2, 0.1),
    "momentum": (0.9, 0.99, 0.999),
}

# What the paper leaves open or fixes without saying, and this implementation offers.
STRUCTURE: dict[str, Sequence[Any]] = {
    "hops": (1, 2, 3, 4),
    "norm": ("post", "residual-post", "pre"),
    "self_loops": (False, True),
    "normalize": (False, True),
    "edge_init": ("normalized", 0.5, 0.73),
    "batch_norm": (False, True),
    "scale_features": ("none", "rows"),
    "mask": ("probability", "difficulty", "random"),
    "mask_token": ("zero", "normal"),
    "smoothing": (0.0, 0.5, 0.8, 0.9, 0.95, -0.3, -0.6),
}

# What the default's committee may vary.
COMMITTEE: dict[str, Sequence[Any]] = {
    "objective": (
        "teacher+decorrelation+neighbours+edges",
        "decorrelation",
        "edges",
        "teacher+decorrelation",
        "neighbours+edges",
        "teacher",
    ),
    "hops": (2, 1, 3),
    "self_loops": (False, True),
    "channels": (128, 64, 256),
    "learning_rate": (0.002, 0.001, 0.004),
    "smoothing": (0.0, 0.3, 0.6, 0.8, 0.95, -0.2),
}

SPACES: dict[str, Space] = {
    "committee": Space(COMMITTEE, start=None),
    "paper": Space(PAPER),
    "structure": Space(STRUCTURE),
    "full": Space(
        {
            **PAPER,
            **STRUCTURE,
            "learning_rate": (0.01, 0.005, 0.002, 0.001, 0.0005),
            "weight_decay": (0.0, 1e-4, 5e-4, 1e-3),
            "hidden_channels": (None, 64, 128),
            "token_dropout": (0.0, 0.1, 0.3, 0.5),
            "attention_dropout": (0.0, 0.1, 0.3, 0.5),
        }
    ),
}
