"""Masked autoencoders of features (GraphMAE, GraphMAE2) and of edges (MaskGAE, Bandana)."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.embedder import (
    Embedder,
    EmbedderSettings,
    frozen_copy,
    set_learning_rate,
    update_average,
)
from h3gnn.baselines.layers import (
    Attention,
    Convolution,
    Features,
    Neighbours,
    SparseMatrix,
    adjacency,
    gcn_adjacency,
    linear_layers,
    symmetric,
)
from h3gnn.baselines.registry import Sizes, check_choice
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.training.optimizer import warmup_cosine


@dataclass(frozen=True)
class GraphMAESettings(EmbedderSettings):
    """Settings of GraphMAE.

    Attributes:
        width: of the embedding and of every hidden layer, shared among the heads.
        learning_rate: of Adam; it falls to zero as half a cosine.
        heads: of attention, in every layer of the encoder.
        mask_ratio: fraction of masked nodes.
        replace_ratio: fraction of the masked nodes that show another node's features instead of the token.
        gamma: exponent of the error; a large one gives easy nodes less weight.
        feature_drop, attention_drop: dropout of the input of a layer, and of its attention.
    """

    weight_decay: float = 2e-4
    heads: int = 4
    layers: int = 2
    mask_ratio: float = 0.5
    replace_ratio: float = 0.05
    gamma: float = 3.0
    feature_drop: float = 0.2
    attention_drop: float = 0.1


class GraphMAE(Embedder, settings=GraphMAESettings):
    r"""A masked graph autoencoder of the features (Hou et al., 2022).

    .. math:: \tilde x_v = t \text{ (or some } x_u) \text{ for masked } v, \quad H = f(\tilde X, A), \quad
        \hat X = g(M H W, A), \quad
        \mathcal L = \tfrac1{|V_m|} \textstyle\sum_{v \in V_m} (1 - \cos(x_v, \hat x_v))^\gamma

    The token t is learned; :math:`M` sets masked rows to zero again ("re-mask"), so that a reconstruction
    depends on the neighbours alone. The linear decoder averages before it maps the masked nodes to features.
    """

    def build(self, graph: Graph) -> None:
        settings, features = self.settings, graph.num_features
        if settings.width % settings.heads:
            raise InputError("heads must divide width", code="invalid-setting")
        self.targets = functional.normalize(self.features.dense(), dim=1)
        self.edges = adjacency(graph, self_loops=True).to(self.device)
        self.encoder = Encoder(features, settings)
        self.token = nn.Parameter(torch.zeros(features))
        self.bridge = nn.Linear(settings.width, settings.width, bias=False)
        self.decoder = Attention(settings.width, features, 1, settings.attention_drop)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        edges = sizes.edges * (3 * settings.width // settings.heads + 12 * settings.heads)
        decoded = 6 * sizes.nodes * sizes.features
        return super().bytes_for(sizes, settings) + int(4 * (edges + decoded))

    def after(self, epoch: int) -> None:
        share = warmup_cosine(epoch + 1, self.settings.epochs, 0)
        set_learning_rate(self.optimizer, self.settings.learning_rate * share)

    def loss(self, epoch: int) -> Tensor:
        masked = self.random_nodes(self.settings.mask_ratio)
        code = self.bridge(self.encode_masked(masked))
        return self.error(code.index_fill(0, masked, 0.0), masked)

    def random_nodes(self, ratio: float) -> Tensor:
        """Sample a fraction of the nodes, at least one."""
        nodes = self.features.shape[0]
        return torch.randperm(nodes, device=self.device)[: max(1, int(ratio * nodes))]

    def encode_masked(self, masked: Tensor) -> Tensor:
        """Encode the graph with masked nodes replaced by the token or by another node's features."""
        nodes, drop = self.features.shape[0], self.settings.feature_drop
        weight = self.encoder.first.weight
        replaced = int(self.settings.replace_ratio * masked.numel())
        noisy, hidden = masked[:replaced], masked[replaced:]
        shown = torch.arange(nodes, device=self.device)
        shown[noisy] = torch.randperm(nodes, device=self.device)[:replaced]
        product = self.features.dropped(drop) @ weight
        token = functional.dropout(self.token.expand(hidden.numel(), -1), drop) @ weight
        return self.encoder(product.index_select(0, shown).index_copy(0, hidden, token), self.edges)

    def error(self, code: Tensor, masked: Tensor) -> Tensor:
        code = functional.dropout(code, self.settings.feature_drop)
        decoded = functional.normalize(self.decoder.averaged(code, self.edges, masked), dim=1)
        alike = (decoded * self.targets.index_select(0, masked)).sum(dim=1)
        return ((1 - alike).clamp_min(0) ** self.settings.gamma).mean()  # rounding may make it negative

    def embedding(self) -> Tensor:
        return self.encoder(self.features @ self.encoder.first.weight, self.edges)


class Encoder(nn.Module):
    """Layers of graph attention, each with a PReLU; the input is the features times the first weight."""

    def __init__(self, features: int, settings: GraphMAESettings) -> None:
        super().__init__()
        shape = settings.width, settings.heads, settings.attention_drop
        self.first = Attention(features, *shape)
        self.others = nn.ModuleList(Attention(settings.width, *shape) for _ in range(settings.layers - 1))
        self.activations = nn.ModuleList(nn.PReLU() for _ in range(settings.layers))
        self.drop = nn.Dropout(settings.feature_drop)

    def forward(self, product: Tensor, edges: SparseMatrix) -> Tensor:
        hidden = self.activations[0](self.first(product, edges))
        for attention, activation in zip(self.others, self.activations[1:], strict=True):
            product = self.drop(hidden) @ attention.weight
            hidden = activation(attention(product, edges))
        return hidden


NARROW = 256
"""Width of the projector's hidden layer."""


@dataclass(frozen=True)
class GraphMAE2Settings(GraphMAESettings):
    """Settings of GraphMAE2.

    Attributes:
        decodings: number of decodings, each with other re-masked nodes; 0 for one, as GraphMAE does.
        hidden_ratio: fraction of re-masked nodes.
        latent_weight: λ, of the latent prediction.
        momentum: of the target encoder.
    """

    epochs: int = 150
    replace_ratio: float = 0.0
    decodings: int = 3
    hidden_ratio: float = 0.5
    latent_weight: float = 0.5
    momentum: float = 0.996


class GraphMAE2(GraphMAE, settings=GraphMAE2Settings):
    r"""GraphMAE with multi-view random re-masking and latent prediction (Hou et al., 2023).

    .. math:: \mathcal L = \textstyle\sum_{k=1}^K \tfrac1{|V_m|} \sum_{v \in V_m}
        (1 - \cos(x_v, \hat x^k_v))^\gamma + \lambda \tfrac1n \sum_v (1 - \cos(q(p(h_v)), \bar p(\bar h_v)))

    The moving averages :math:`\bar H = \bar f(X, A)` and :math:`\bar p` of the encoder and its projector see
    all features. Re-masked nodes enter the decoder as a second token; both tokens start at zero.
    """

    def build(self, graph: Graph) -> None:
        super().build(graph)
        width = self.settings.width
        self.second_token = nn.Parameter(torch.zeros(width))
        self.projector = linear_layers(width, NARROW, width, activation=nn.PReLU)
        self.predictor = nn.Sequential(nn.PReLU(), nn.Linear(width, width))
        self.target_encoder, self.target_projector = frozen_copy(self.encoder), frozen_copy(self.projector)

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        more = max(0, settings.decodings - 1) * sizes.nodes * (3 * sizes.features + 6 * settings.width)
        return super().bytes_for(sizes, settings) + int(4 * more)

    def loss(self, epoch: int) -> Tensor:
        settings = self.settings
        masked = self.random_nodes(settings.mask_ratio)
        encoded = self.encode_masked(masked)
        code = self.bridge(encoded)
        if settings.decodings:
            errors = [self.error(self.hide(code), masked) for _ in range(settings.decodings)]
            decoded = torch.stack(errors).sum()
        else:
            decoded = self.error(code.index_fill(0, masked, 0.0), masked)
        return decoded + settings.latent_weight * self.disagreement(encoded)

    def hide(self, code: Tensor) -> Tensor:
        """Replace random nodes by the second token."""
        hidden = self.random_nodes(self.settings.hidden_ratio)
        return code.index_copy(0, hidden, self.second_token.expand(len(hidden), -1))

    def disagreement(self, encoded: Tensor) -> Tensor:
        with torch.no_grad():
            shown = self.features.dropped(self.settings.feature_drop) @ self.target_encoder.first.weight
            target = self.target_projector(self.target_encoder(shown, self.edges))
        predicted = self.predictor(self.projector(encoded))
        return (1 - functional.cosine_similarity(predicted, target, dim=1)).mean()

    def after(self, epoch: int) -> None:
        super().after(epoch)
        update_average(self.target_encoder, self.encoder, self.settings.momentum)
        update_average(self.target_projector, self.projector, self.settings.momentum)


MAX_NORM = 1.0
"""Maximum norm of the gradient."""


@dataclass(frozen=True)
class LinkSettings(EmbedderSettings):
    """Settings of a system that learns from edges and pairs without one.

    Attributes:
        layers: of the encoder; the embedding concatenates them.
        drop: dropout of the input of each layer of the encoder.
        decoder_width, decoder_drop: of the decoder of pairs.
        held_out: fraction of validation edges, whose AUC selects the epoch; 0 for the last epoch.
        look_every: epochs between two validations.
        look_patience: stop after this many validations without improvement; 0 to train to the end.
    """

    learning_rate: float = 0.01
    weight_decay: float = 5e-5
    layers: int = 2
    drop: float = 0.8
    decoder_width: int = 32
    decoder_drop: float = 0.2
    held_out: float = 0.15
    look_every: int = 10
    look_patience: int = 0


class LinkEmbedder(Embedder):
    """Trains on most edges, and restores the epoch with the best AUC of the held-out edges.

    The encoder sees `looped`, the training edges in both directions with self-loops; `links` lacks the loops.
    """

    outputs = 1
    """Outputs of the decoder per pair; the first is large for an edge."""

    def widths(self) -> list[int]:
        return [self.settings.width] * self.settings.layers

    def build(self, graph: Graph) -> None:
        entries = adjacency(graph, self_loops=True)
        is_pair = entries.rows < entries.cols
        if not bool(is_pair.any()):
            message = f"{type(self).__name__} learns from edges, and this graph has none"
            raise InputError(message, code="no-edges")
        settings, nodes = self.settings, graph.num_nodes
        pairs = torch.stack([entries.rows[is_pair], entries.cols[is_pair]])
        pairs = pairs[:, torch.randperm(pairs.shape[1])]
        held = pairs[:, : min(int(settings.held_out * pairs.shape[1]), pairs.shape[1] - 1)]
        low, high = torch.minimum(entries.rows, entries.cols), torch.maximum(entries.rows, entries.cols)
        kept = ~torch.isin(low * nodes + high, held[0] * nodes + held[1])
        looped = SparseMatrix(entries.rows[kept], entries.cols[kept], entries.values[kept], entries.shape)
        self.looped, self.complete = looped.to(self.device), gcn_adjacency(graph, self.device)
        self.trained = symmetric(self.looped)
        self.keys = self.looped.rows * nodes + self.looped.cols  # sorted
        self.link_entries = torch.nonzero(self.looped.rows != self.looped.cols).flatten()
        self.links = torch.stack([self.looped.rows[self.link_entries], self.looped.cols[self.link_entries]])
        self.held = held.to(self.device)
        self.unheld = self.unlinked(held.shape[1])
        self.encoder = Convolutions(self.features, self.widths(), settings.drop)
        self.decoder = PairDecoder(
            self.widths()[-1], settings.decoder_width, self.outputs, settings.decoder_drop
        )

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: Any) -> int:
        pair = 4 * settings.width + 4 * settings.decoder_width + 16
        return super().bytes_for(sizes, settings) + int(4 * 2 * sizes.edges * pair * settings.layers)

    def unlinked(self, count: int) -> Tensor:
        """Sample up to `count` pairs `[2, count]` without a training edge."""
        nodes = self.looped.shape[0]
        drawn = torch.randint(nodes * nodes, (2 * count,), device=self.device)
        position = torch.searchsorted(self.keys, drawn).clamp_max(self.keys.numel() - 1)
        drawn = drawn[self.keys[position] != drawn][:count]
        return torch.stack([drawn // nodes, drawn % nodes])

    def begin(self) -> None:
        super().begin()
        parameters = self.optimizer.param_groups[0]["params"]
        clip = nn.utils.clip_grad_norm_
        self.optimizer.register_step_pre_hook(lambda *_: (clip(parameters, MAX_NORM), None)[1])
        self.best, self.worse, self.ended = 0.0, 0, False
        self.kept: dict[str, Any] | None = None
        self.last = torch.zeros(())

    def step(self, epoch: int) -> Tensor:
        if self.ended:
            return self.last
        self.last = super().step(epoch)
        if (epoch + 1) % self.settings.look_every == 0 and self.held.shape[1] and self.unheld.shape[1]:
            self.validate()
        self.ended = epoch + 1 == self.settings.epochs or 0 < self.settings.look_patience <= self.worse
        if self.ended and self.kept is not None:
            self.load_state_dict(self.kept)
        return self.last

    @torch.no_grad()
    def validate(self) -> None:
        """Keep the weights if the AUC of the held-out edges has improved."""
        self.eval()
        hidden = self.encoder([self.trained] * self.settings.layers)[-1]
        area = area_under_curve(*(self.decoder(hidden, pairs)[:, 0] for pairs in (self.held, self.unheld)))
        self.train()
        if area > self.best:
            self.best, self.kept, self.worse = area, copy.deepcopy(self.state_dict()), 0
        else:
            self.worse += 1

    def embedding(self) -> Tensor:
        """Encode the complete graph, held-out edges included."""
        return torch.cat(self.encoder([self.complete] * self.settings.layers), dim=1)


class Convolutions(nn.Module):
    """Graph convolutions over constant features, each with dropout before, batch norm and an ELU after."""

    def __init__(self, features: Features, widths: list[int], drop: float) -> None:
        super().__init__()
        self.features, self.rate = features, drop
        sizes = zip([features.shape[1], *widths], widths, strict=False)
        self.convolutions = nn.ModuleList(Convolution(rows, columns) for rows, columns in sizes)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in widths)

    def forward(self, matrices: Iterable[SparseMatrix]) -> list[Tensor]:
        """Return the output of each layer, given its matrix."""
        hidden: list[Tensor] = []
        rate = self.rate if self.training else 0.0
        for convolution, norm, matrix in zip(self.convolutions, self.norms, matrices, strict=True):
            assert isinstance(convolution, Convolution)
            shown = functional.dropout(hidden[-1], rate) if hidden else self.features.dropped(rate)
            hidden.append(functional.elu(norm(matrix @ (shown @ convolution.weight) + convolution.bias)))
        return hidden


class PairDecoder(nn.Module):
    """An MLP on the product of two embeddings."""

    def __init__(self, width: int, hidden: int, outputs: int, drop: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Dropout(drop), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, hidden: Tensor, pairs: Tensor) -> Tensor:
        """Return `[pairs, outputs]` for pairs `[2, pairs]`."""
        return self.layers(hidden.index_select(0, pairs[0]) * hidden.index_select(0, pairs[1]))


def area_under_curve(high: Tensor, low: Tensor) -> float:
    """Return the area under the ROC curve; a tie counts one half."""
    high, ranked = high.contiguous(), low.sort().values
    below = [torch.searchsorted(ranked, high, right=right).double().mean() for right in (False, True)]
    return float((below[0] + below[1]) / (2 * low.numel()))


def mean(values: Tensor) -> Tensor:
    """Return the mean; zero for an empty tensor."""
    return values.sum() / max(1, values.numel())


@dataclass(frozen=True)
class MaskGAESettings(LinkSettings):
    """Settings of MaskGAE.

    Attributes:
        width, hidden: of the last layer, and of the layers before it.
        mask: "path" masks random walks of layers + 1 steps, "edge" single edges.
        mask_ratio: fraction of start nodes of the walks, or of edges.
        whole: mask an edge if one of its directions is sampled, as in the paper; otherwise only if both are
            sampled, as in the authors' code, where the decoder predicts all sampled directions.
        degree_weight: of predicting the number of masked edges of a node.
    """

    width: int = 64
    epochs: int = 500
    hidden: int = 128
    mask: str = "path"
    mask_ratio: float = 0.7
    whole: bool = False
    degree_weight: float = 0.001


class MaskGAE(LinkEmbedder, settings=MaskGAESettings):
    r"""A masked graph autoencoder of edges or paths (Li et al., 2023).

    .. math:: \mathcal L = -\tfrac1{|E_m|} \textstyle\sum_{E_m} \log d(z_u \odot z_v)
        - \tfrac1{|E^-|} \sum_{E^-} \log(1 - d(z_u \odot z_v))
        + \alpha \tfrac1n \sum_v (g(z_v) - \deg_m(v))^2
    """

    def widths(self) -> list[int]:
        return [self.settings.hidden] * (self.settings.layers - 1) + [self.settings.width]

    def build(self, graph: Graph) -> None:
        super().build(graph)
        check_choice("MaskGAE", "mask", self.settings.mask, ("path", "edge"))
        width, hidden, drop = self.settings.width, self.settings.decoder_width, self.settings.decoder_drop
        self.degree_decoder = nn.Sequential(
            nn.Linear(width, hidden), nn.Dropout(drop), nn.ReLU(), nn.Linear(hidden, 1), nn.ReLU()
        )
        there = torch.ones(self.links.shape[1], device=self.device)
        matrix = SparseMatrix(self.links[0], self.links[1], there, self.looped.shape)
        self.neighbours = Neighbours(matrix)
        self.reverse = matrix.transposed_order()  # edges are stored in both directions

    def loss(self, epoch: int) -> Tensor:
        if self.settings.mask == "path":
            return self.errors(self.along_paths())
        return self.errors(torch.rand(self.links.shape[1], device=self.device) < self.settings.mask_ratio)

    def along_paths(self) -> Tensor:
        """Sample the directions of edges on random walks; bool `[links]`."""
        degree, nodes = self.neighbours.degree, self.neighbours.degree.numel()
        order = torch.randperm(nodes, device=self.device)[: max(1, round(self.settings.mask_ratio * nodes))]
        at = order[degree[order] > 0]
        drawn = torch.zeros(self.links.shape[1], dtype=torch.bool, device=self.device)
        for _ in range(self.settings.layers + 1):
            taken = self.neighbours.edge(at)
            drawn[taken] = True
            at = self.links[1][taken]
        return drawn

    def errors(self, drawn: Tensor) -> Tensor:
        either, both = drawn | drawn[self.reverse], drawn & drawn[self.reverse]
        gone, asked = (either, either) if self.settings.whole else (both, drawn)
        kept = torch.ones_like(self.looped.values).index_copy(0, self.link_entries, (~gone).float())
        matrix = symmetric(self.looped.with_values(self.looped.values * kept))
        embedding = self.encoder([matrix] * self.settings.layers)[-1]
        linked = self.links[:, asked]
        linked_score = self.decoder(embedding, linked)
        other_score = self.decoder(embedding, self.unlinked(linked.shape[1]))
        degrees = torch.bincount(linked[1], minlength=len(embedding)).float()
        wrong = functional.mse_loss(self.degree_decoder(embedding).squeeze(1), degrees)
        loss = mean(functional.softplus(-linked_score)) + mean(functional.softplus(other_score))
        return loss + self.settings.degree_weight * wrong


@dataclass(frozen=True)
class BandanaSettings(LinkSettings):
    """Settings of Bandana.

    Attributes:
        temperature: of the bandwidths; a small one concentrates them on one edge per node.
        own_weights: weight an edge in the loss by its own bandwidth, as in the paper; otherwise by that of
            another, fixed edge, as in the authors' code. Edges with small bandwidths then count as well.
    """

    width: int = 256
    decoder_drop: float = 0.0
    temperature: float = 0.2
    own_weights: bool = False


class Bandana(LinkEmbedder, settings=BandanaSettings):
    r"""A masked graph autoencoder with continuous edge bandwidths (Zhao et al., 2024).

    .. math:: b_{vu} = \mathrm{softmax}_{u \in N(v)}(\epsilon_{vu} / T), \quad \epsilon \sim \mathcal N(0, 1),
        \quad H_l = \mathrm{ELU}(\mathrm{BN}(\hat B_l H_{l-1} W_l)), \quad
        \mathcal L = -\tfrac1L \textstyle\sum_l \tfrac1{|E|} \sum_{E} b_{vu} \log d_1(h_v \odot h_u)
        + \tfrac1{|E^-|} \sum_{E^-} \log d_0(h_v \odot h_u)

    :math:`\hat B` has a loop of 1 at each node and is normalized as a GCN's adjacency; the two outputs of d
    add up to 1, and one decoder serves all layers. Unless `own_weights`, the b of the loss are in another,
    fixed order.
    """

    outputs = 2

    def build(self, graph: Graph) -> None:
        super().build(graph)
        count = self.links.shape[1]
        order = torch.arange(count) if self.settings.own_weights else torch.randperm(count)
        self.weighed_by = order.to(self.device)

    def loss(self, epoch: int) -> Tensor:
        bandwidths = [self.bandwidth() for _ in range(self.settings.layers)]
        return self.errors(bandwidths, self.unlinked(self.links.shape[1]))

    def bandwidth(self) -> Tensor:
        """Sample the bandwidth of each edge `[links]`; those of a node add up to 1."""
        from torch_geometric.utils import softmax

        noise = torch.randn(self.links.shape[1], device=self.device) / self.settings.temperature
        return softmax(noise, self.links[0], num_nodes=self.looped.shape[0])

    def errors(self, bandwidths: list[Tensor], others: Tensor) -> Tensor:
        """Return the loss of these bandwidths, and of pairs without an edge."""
        loops = torch.ones_like(self.looped.values)
        values = [loops.index_copy(0, self.link_entries, bandwidth) for bandwidth in bandwidths]
        layers = self.encoder([symmetric(self.looped.with_values(one)) for one in values])
        errors = []
        for hidden, bandwidth in zip(layers, bandwidths, strict=True):
            linked = functional.log_softmax(self.decoder(hidden, self.links), dim=1)[:, 0]
            unlinked = functional.log_softmax(self.decoder(hidden, others), dim=1)[:, 1]
            weight = bandwidth.index_select(0, self.weighed_by)
            errors.append(-mean(weight * linked) - mean(unlinked))
        return torch.stack(errors).mean()
