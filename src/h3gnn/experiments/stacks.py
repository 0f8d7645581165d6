"""Many configurations on one graph, trained as one program and looked at along the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from h3gnn.building import encoder_of, support_of, training_of
from h3gnn.encoder import FeatureMatrix
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.scaling import fit_scaler
from h3gnn.training.capture import CapturedStep
from h3gnn.training.history import Recorder
from h3gnn.training.models import stack_step
from h3gnn.training.snapshot import put_back, take
from h3gnn.training.step import Step

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
        self._support = support_of(params, graph).to(device)
        self._features = scaled if scaled is not None else scaled_features(graph, params, device)
        self.models = list(range(len(own)))
        self.epoch = 0
        self._begin()

    def train(self, epochs: int) -> None:
        """Train until `epochs` have been made in all."""
        self._step.student.train()
        for epoch in range(self.epoch, epochs):
            self._step.optimizer.set_learning_rate(self._rate_of(epoch))
            self._run(self._mask_of(epoch))
        self.epoch = max(self.epoch, epochs)

    @torch.no_grad()
    def embeddings(self) -> Tensor:
        """Return the embeddings of the models still in training, float32 `[models, nodes, D]`."""
        student = self._step.student.eval()
        in_bfloat16, student.fuse_in_bfloat16 = student.fuse_in_bfloat16, False
        tokens = student.tokens(student.project(self._features), self._support)
        chunk = max(1, 2**22 // (tokens.shape[0] * tokens.shape[2] * tokens.shape[3]) * 64)
        fused = torch.cat([student.fuse(piece) for piece in torch.split(tokens, chunk, dim=1)], dim=1)
        student.fuse_in_bfloat16 = in_bfloat16
        return fused

    def keep(self, models: Sequence[int]) -> None:
        """Go on with some of the models only (positions in `own`); each goes on as if nothing happened."""
        if list(models) == self.models:
            return
        places = [self.models.index(model) for model in models]
        state = take(self._step, Recorder())
        self.models = list(models)
        self._begin()
        put_back(self._step, _of_models(state, places), [])

    def _begin(self) -> None:
        own = [self._own[model] for model in self.models]
        params = self._params | {
            name: [one.get(name, self._params[name]) for one in own] for name in OWN if own
        }
        training = training_of(params)
        models = len(self.models)
        student = encoder_of(
            params, self._features.shape[1], self._support.pattern.entries, models, self._device
        )
        seeds = [self._seeds[model] for model in self.models]
        self._step: Step = stack_step(student, self._features, self._support, seeds, training)
        self._run = CapturedStep(self._step) if self._device.type == "cuda" else self._step
        self._mask_of, self._rate_of = training.mask_of(models), training.learning_rate_of()


def scaled_features(graph: Graph, params: Mapping[str, Any], device: torch.device) -> FeatureMatrix:
    """Return the graph's features as training takes them in."""
    scaler = fit_scaler(graph.features, params["scale_features"])
    return FeatureMatrix(scaler(graph.features).to(device), storage=params["feature_storage"])


def _of_models(state: dict[str, Tensor], places: list[int]) -> dict[str, Tensor]:
    """Cut a stack's state to some of its models; Adam counts its steps for all of them together."""
    shared = {
        name: value for name, value in state.items() if name == "adam.stepped" or name.endswith(".step")
    }
    apart = ("generator.", "strides.", "history.")
    cut = {
        name: value[places]
        for name, value in state.items()
        if name not in shared and not name.startswith(apart)
    }
    strides = {
        name.replace("projected.", "strides."): torch.tensor(value.stride())
        for name, value in cut.items()
        if name.startswith("projected.")
    }
    generators = {f"generator.{new}": state[f"generator.{old}"] for new, old in enumerate(places)}
    return shared | cut | strides | generators
