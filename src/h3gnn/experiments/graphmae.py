"""GraphMAE's objective (Hou et al., 2022) on H3GNN's encoder: rebuild the features of masked nodes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.matrices import SparseMatrix, gcn_adjacency
from h3gnn.encoder import FeatureMatrix
from h3gnn.encoder.layers import Dropout, Generators, Linear
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.inference import as_array
from h3gnn.masking import RandomMask
from h3gnn.smoothing import Smoother
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.resources import pick_device
from h3gnn.training.schedules import constant, warmup_cosine

SHARPNESS = 2
"""γ of the scaled cosine error: how little an easy node counts."""


class RemaskDecoder(nn.Module):
    """Masked nodes are hidden once more, then one graph convolution rebuilds features from what is left.

    So a masked node's features can only come from its neighbours' embeddings.
    """

    def __init__(self, models: int, width: int, channels: int, features: int, matrix: SparseMatrix) -> None:
        super().__init__()
        self.matrix = matrix
        self.inner = Linear(models, width, channels, bias=False)
        self.outer = Linear(models, channels, features)

    def reset_parameters(self, generators: Generators) -> None:
        """Start anew, each model from its own generator."""
        self.inner.reset_parameters(generators)
        self.outer.reset_parameters(generators)

    def forward(self, embedding: Tensor, mask: Tensor) -> Tensor:
        """Return rebuilt features `[models, nodes, features]`."""
        hidden = self.inner(embedding).masked_fill(mask[..., None], 0.0)
        spread = (self.matrix @ hidden.transpose(0, 1)).transpose(0, 1)
        rebuilt: Tensor = self.outer(spread)
        return rebuilt


def scaled_cosine_error(rebuilt: Tensor, features: Tensor, mask: Tensor) -> Tensor:
    r"""Return the mean of :math:`(1 - \cos(\hat x_v, x_v))^\gamma` over each model's masked nodes."""
    error = (1 - functional.cosine_similarity(rebuilt, features[None], dim=-1)).pow(SHARPNESS)
    return (error * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1)


class GraphMAE:
    """An encoder in training: mask, encode, hide the masked nodes again, rebuild, compare, step.

    Args:
        model: the settings of encoder, start, mask ratio and Adam; it is not fitted itself.
        graph: to learn from.
    """

    def __init__(self, model: H3GNN, graph: Graph) -> None:
        device, models = pick_device(model.device), model.n_models
        untrained = H3GNN(**{**model.get_params(), "epochs": 0}).fit(graph)
        self.encoder, self.support = untrained.encoder_.to(device), untrained.support_.to(device)
        scaled = untrained.scaler_(graph.features).to(device)
        self.smoother = Smoother(graph, model.smoothing, device)
        self.features = FeatureMatrix(scaled, storage=model.feature_storage)
        self.targets = scaled.to_dense()
        width, matrix = self.encoder.out_channels, gcn_adjacency(graph, device)
        self.decoder = RemaskDecoder(models, width, model.channels, graph.num_features, matrix)
        self.decoder.reset_parameters([torch.Generator().manual_seed(seed) for seed in untrained.seeds_])
        self.decoder.to(device)
        rates, decays = [model.learning_rate] * models, [model.weight_decay] * models
        self.adam = StackedAdam([self.encoder, self.decoder], rates, decays)
        self.draw_mask = RandomMask([model.mask_ratio] * models)
        self.generators = [torch.Generator(device).manual_seed(seed) for seed in untrained.seeds_]
        self.difficulty = torch.zeros(models, graph.num_nodes, device=device)  # random masks ask for none

    def step(self) -> Tensor:
        """Make one step and return each model's loss, `[models]`."""
        encoder, dropout = self.encoder.train(), Dropout(self.generators)
        mask = self.draw_mask(self.difficulty, self.generators)
        tokens = encoder.tokens(encoder.project(self.features), self.support, mask, dropout=dropout)
        embedding = encoder.fuse(tokens, encoder.attention_keep(tokens.shape[1], dropout))
        loss = scaled_cosine_error(self.decoder(embedding, mask), self.targets, mask)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self.adam.step()
        return loss.detach()

    @torch.no_grad()
    def embedding(self) -> npt.NDArray[np.float32]:
        """Return the embedding of the whole graph, `[nodes, n_models · D]`."""
        joined = self.encoder.eval()(self.features, self.support).transpose(0, 1).flatten(1)
        return as_array(self.smoother(joined))


def graphmae_embedding(
    model: H3GNN, graph: Graph, watch: Callable[[float], None] | None = None
) -> npt.NDArray[np.float32]:
    """Train GraphMAE with an estimator's settings and return its embedding, `[nodes, n_models · D]`.

    Encoder, start, mask ratio, epochs, learning rate, its schedule and the smoothing of the embedding are the
    estimator's; masks are random.
    """
    training = GraphMAE(model, graph)
    schedule = warmup_cosine if model.schedule == "cosine" else constant
    for epoch in range(model.epochs):
        training.adam.set_learning_rate(schedule(epoch, model.epochs, model.lr_warmup))
        training.step()
        if watch is not None:
            watch((epoch + 1) / model.epochs)
    return training.embedding()
