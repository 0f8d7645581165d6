"""Many configurations on one graph, trained as one program and looked at along the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from h3gnn.encoder import FeatureMatrix, build_support
from h3gnn.encoder.encode import embed_models
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import fit_scaler
from h3gnn.training.batches import WholeGraph
from h3gnn.training.history import Recorder
from h3gnn.training.loop import runner
from h3gnn.training.models import Shape, Training, stack_step
from h3gnn.training.state import put_back, select_models, take

OWN = ("mask_ratio", "exploit_ratio", "momentum", "token_dropout", "attention_dropout")
"""Arguments that each model of a stack may have for itself at no cost; the others all models share."""


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
        support = build_support(
            graph.edge_index,
            graph.num_nodes,
            edge_weight=graph.edge_weight,
            undirected=params["undirected"],
            self_loops=params["self_loops"],
            start=params["edge_start"],
            normalize=params["normalize"],
        )
        features = scaled if scaled is not None else scaled_features(graph, params, device)
        self._source = WholeGraph(features, support.to(device), params["hops"])
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
        params = self._params | {
            name: [one.get(name, self._params[name]) for one in own] for name in OWN if own
        }
        training = Training.of(params | {"n_models": models})
        features, entries = self._source.features.shape[1], self._source.support.entries
        student = Shape.of(params).build(features, entries, models, self._device)
        seeds = [self._seeds[model] for model in self.models]
        self._step = stack_step(student, self._source, seeds, training)
        self._run = runner(self._step)
        self._mask_of, self._rate_of = training.mask_of(models), training.learning_rate_of()


def scaled_features(graph: Graph, params: Mapping[str, Any], device: torch.device) -> FeatureMatrix:
    """Return the graph's features as training takes them in."""
    scaler = fit_scaler(graph.features, params["scale_features"])
    return FeatureMatrix(scaler(graph.features).to(device), storage=params["feature_storage"])
