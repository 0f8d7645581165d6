"""GREET: contrastive learning with edge heterophily discrimination."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from h3gnn.baselines.allpairs import LeftOut, blocks_of, bytes_for_pairs, mean_log_sums, nearest_others
from h3gnn.baselines.embedder import Embedder, EmbedderSettings, minimize, shuffled_batches
from h3gnn.baselines.layers import Features, SparseMatrix, adjacency, linear_layers, neighbour_mean, symmetric
from h3gnn.baselines.registry import Sizes
from h3gnn.graphs.graph import Graph

STEPS = 16
"""Length of the random walks of the structural encoding."""
EDGE = 1e-4
"""Distance of the uniform random numbers from 0 and 1."""


@dataclass(frozen=True)
class GREETSettings(EmbedderSettings):
    """Settings of GREET; the defaults are the authors' most frequent values.

    Attributes:
        width: of each of the two halves of the embedding, of the projections, and of the discriminator.
        rounds: steps of the encoders in an epoch, for one step of the discriminator.
        neighbours: number of nodes with the most similar features that are positives.
        sharpening: α, weight of the neighbours in the high-pass filter.
        margins: γ₁ and γ₂ of the ranking loss.
        hops: how often each filter is applied.
        head_layers: of the projections, 1 or 2.
        feature_drop, edge_drop: drop probabilities of the low-pass and of the high-pass view.
        temperature: τ of the cosines.
        batch: nodes per batch of the contrastive loss; 0 for all.
    """

    width: int = 128
    epochs: int = 200
    rounds: int = 2
    neighbours: int = 20
    sharpening: float = 0.5
    margins: tuple[float, float] = (0.5, 0.5)
    hops: int = 2
    head_layers: int = 2
    feature_drop: tuple[float, float] = (0.1, 0.5)
    edge_drop: tuple[float, float] = (0.5, 0.1)
    temperature: float = 0.2
    batch: int = 0


class GREET(Embedder, settings=GREETSettings):
    r"""An edge heterophily discriminator and a dual-channel encoder, trained alternately (Liu et al., 2023).

    The discriminator samples the weight of an edge, with :math:`s_v = [x_v, \text{16 return probabilities}]`:

    .. math:: w_{uv} = \sigma(\theta_{uv} + \operatorname{logit} \epsilon), \quad
        \theta_{uv} = a^\top (\mathrm{ReLU}(W s_u) + \mathrm{ReLU}(W s_v)) + b

    The encoders smooth over :math:`w` and sharpen over :math:`1 - w`, each applied twice, N the symmetric
    normalisation with loops:

    .. math:: H_1 = N(w)^2 \, \mathrm{ReLU}(X W_1), \quad
        H_2 = (I - \alpha N(1 - w))^2 \, \mathrm{ReLU}(X W_2), \quad Z = [H_1, H_2]

    Their projections are contrasted, :math:`P_i` being node i and those of the most similar features:

    .. math:: \ell(a, b) = -\tfrac1n \sum_i \tfrac1{|P_i|} \sum_{j \in P_i} \log
        \frac{e^{\cos(a_i, b_j)/\tau}}{\sum_{k \notin P_i} e^{\cos(a_i, b_k)/\tau}}, \quad
        \mathcal L = \tfrac12 (\ell(p_1, p_2) + \ell(p_2, p_1))

    The discriminator learns from a pivot, the cosine c of a random pair of nodes for each edge:

    .. math:: \mathcal R = \tfrac12 \operatorname{mean}_{uv} \big(
        [w - \tfrac12]_+ [c - \cos(z_u, z_v) + \gamma_1]_+ +
        [\tfrac12 - w]_+ [\cos(z_u, z_v) - c + \gamma_2]_+ \big)
    """

    @classmethod
    def bytes_for(cls, sizes: Sizes, settings: GREETSettings) -> int:
        contrasted = min(sizes.nodes, settings.batch or sizes.nodes)
        messages = 4 * sizes.edges * (2 * settings.width + 24)
        positives = 4 * sizes.nodes * (settings.neighbours + 1) * 24
        pairs = max(bytes_for_pairs(contrasted), bytes_for_pairs(sizes.nodes, 0))
        return super().bytes_for(sizes, settings) + messages + positives + pairs

    def build(self, graph: Graph) -> None:
        settings, features = self.settings, graph.num_features
        self.entries = adjacency(graph, self_loops=True).to(self.device)
        self.is_loop = self.entries.rows == self.entries.cols
        self.edges = (~self.is_loop).nonzero().squeeze(1)
        self.ends = self.entries.rows[self.edges], self.entries.cols[self.edges]
        self.return_probabilities = return_probabilities(adjacency(graph, self_loops=False).to(self.device))
        self.positives = positives_of(self.features, settings.neighbours)
        self.negatives = LeftOut.of(self.positives)
        self.discriminator = Discriminator(features, settings.width)
        self.low, self.high = nn.Linear(features, settings.width), nn.Linear(features, settings.width)
        widths = [settings.width] * (settings.head_layers + 1)
        self.heads = nn.ModuleList([linear_layers(*widths) for _ in range(2)])

    def begin(self) -> None:
        encoders = (self.low, self.high, self.heads)
        self.optimizer = self.adam_of(one for part in encoders for one in part.parameters())
        self.discriminator_optimizer = self.adam_of(self.discriminator.parameters())

    def step(self, epoch: int) -> Tensor:
        scores = self.scores()
        for _ in range(self.settings.rounds):
            loss = minimize(self.contrast(*self.projections(scores.detach())), self.optimizer)
        if self.edges.numel() == 0:
            return loss
        return loss + minimize(self.ranking(scores), self.discriminator_optimizer)

    def scores(self) -> Tensor:
        """Return the discriminator's logits θ of each entry."""
        score: Tensor = self.discriminator(self.features, self.return_probabilities)
        return score[self.entries.rows] + score[self.entries.cols]

    def filters(self, weights: Tensor) -> tuple[SparseMatrix, SparseMatrix]:
        """Return the low-pass and the high-pass filter of weights `[entries]`; loops weigh 1 in both."""
        smooth = torch.where(self.is_loop, 1.0, weights) * self.entries.values
        sharp = torch.where(self.is_loop, 1.0, 1 - weights) * self.entries.values
        low, high = (symmetric(self.entries.with_values(values)) for values in (smooth, sharp))
        return low, high.with_values(torch.where(self.is_loop, 1.0, -self.settings.sharpening * high.values))

    def encode(self, hidden: Tensor, filters: tuple[SparseMatrix, SparseMatrix]) -> list[Tensor]:
        """Filter the hidden values of both encoders, `[nodes, 2, width]`."""
        views = []
        for start, matrix in zip(hidden.unbind(dim=1), filters, strict=True):
            view = start
            for _ in range(self.settings.hops):
                view = matrix @ view
            views.append(view)
        return views

    def hidden(self, kept: Tensor | None = None) -> Tensor:
        """Return both encoders' hidden values; columns that are not kept, `[2, features]`, count as zero."""
        weight = torch.stack([self.low.weight.t(), self.high.weight.t()], dim=1)
        bias = torch.stack([self.low.bias, self.high.bias])
        weight = weight if kept is None else weight * kept.t()[:, :, None]
        return torch.relu(self.features.product(weight) + bias)

    def projections(self, scores: Tensor) -> list[Tensor]:
        """Draw both views and return their projections."""
        coins = torch.rand(2, self.features.shape[1], device=self.device)
        kept = coins >= torch.tensor(self.settings.feature_drop, device=self.device)[:, None]
        filters = self.filters(sample_edge_weights(scores))
        dropped = [
            matrix.with_values(functional.dropout(matrix.values, rate))
            for matrix, rate in zip(filters, self.settings.edge_drop, strict=True)
        ]
        views = self.encode(self.hidden(kept), (dropped[0], dropped[1]))
        return [head(view) for head, view in zip(self.heads, views, strict=True)]

    def contrast(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the loss of two projections, over all nodes or over batches of them."""
        nodes, size, temperature = len(first), self.settings.batch, self.settings.temperature
        if not 0 < size < nodes:
            return contrast(first, second, self.positives, self.negatives, temperature)
        loss = first.new_zeros(())
        for batch in shuffled_batches(nodes, size, self.device):
            chosen = batch.sort().values
            positives = among(self.positives, chosen)
            part = contrast(first[chosen], second[chosen], positives, LeftOut.of(positives), temperature)
            loss = loss + part * (len(chosen) / nodes)
        return loss

    def ranking(self, scores: Tensor) -> Tensor:
        """Return the ranking loss of the discriminator against random pairs."""
        with torch.no_grad():
            hidden = self.hidden()
        weights = sample_edge_weights(scores)
        unit = functional.normalize(torch.cat(self.encode(hidden, self.filters(weights)), dim=1))
        nodes, count = len(unit), self.edges.numel()
        one = torch.randint(nodes, (count,), device=self.device)
        other = (one + torch.randint(1, nodes, (count,), device=self.device)) % nodes
        pivot = (unit[one] * unit[other]).sum(dim=1)
        alike = (unit[self.ends[0]] * unit[self.ends[1]]).sum(dim=1)
        return pivot_ranking(weights[self.edges], alike, pivot, self.settings.margins)

    def embedding(self) -> Tensor:
        return torch.cat(self.encode(self.hidden(), self.filters(torch.sigmoid(self.scores()))), dim=1)


class Discriminator(nn.Module):
    """Scores nodes; the logit of an edge, a mean over both orders of its ends, is the sum of their scores."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.described, self.scored = nn.Linear(features + STEPS, width), nn.Linear(2 * width, 1)

    def forward(self, features: Features, walks: Tensor) -> Tensor:
        """Return scores `[nodes]` for features and return probabilities `[nodes, STEPS]`."""
        of_features, of_walks = torch.split(self.described.weight.t(), [features.shape[1], STEPS])
        hidden = torch.relu(features @ of_features + walks @ of_walks + self.described.bias)
        both_ends = self.scored.weight.view(2, -1).mean(dim=0)
        return hidden @ both_ends + self.scored.bias / 2


def sample_edge_weights(scores: Tensor) -> Tensor:
    """Sample a relaxed Bernoulli variable (Gumbel–sigmoid) for each logit."""
    return torch.sigmoid(scores + torch.logit(torch.rand_like(scores) * (1 - 2 * EDGE) + EDGE))


def contrast(
    first: Tensor, second: Tensor, positives: SparseMatrix, negatives: LeftOut, temperature: float
) -> Tensor:
    """Return the contrastive loss; `positives` has rows that add up to 1, `negatives` leaves them out."""
    one, two = functional.normalize(first), functional.normalize(second)
    alike = (one * (positives @ two)).sum() + (two * (positives @ one)).sum()
    sums = mean_log_sums(first, second, temperature, left_out=negatives)
    return sums - alike / (2 * len(first) * temperature)


def pivot_ranking(weights: Tensor, alike: Tensor, pivot: Tensor, margins: tuple[float, float]) -> Tensor:
    """Return the ranking loss of edges by their weights, the cosines of their ends, and their pivots'."""
    near = torch.relu(weights - 0.5) * torch.relu(pivot - alike + margins[0])
    far = torch.relu(0.5 - weights) * torch.relu(alike - pivot + margins[1])
    return (near + far).mean() / 2


def return_probabilities(matrix: SparseMatrix) -> Tensor:
    """Return the probability that a walk from each node returns after 1, 2, … steps, `[nodes, STEPS]`.

    With S the symmetric normalization, that after a + b steps is `(S^a e) · (S^b e)`: half the steps suffice.
    """
    walk, nodes = symmetric(matrix), matrix.shape[0]
    found = []
    for block in blocks_of(nodes):
        here = torch.zeros(nodes, block.stop - block.start, device=walk.values.device)
        here[block] = torch.eye(block.stop - block.start, device=here.device)
        chances = []
        for _ in range(STEPS // 2):
            further = walk @ here
            chances += [(here * further).sum(dim=0), further.square().sum(dim=0)]
            here = further
        found.append(torch.stack(chances, dim=1))
    return torch.cat(found)


def positives_of(features: Features, count: int) -> SparseMatrix:
    """Return each node and those of the most similar features, with rows that sum to 1; one is left out."""
    nodes, device = features.shape[0], features.device
    itself = torch.arange(nodes, device=device)[:, None]
    count = min(count, max(0, nodes - 2))
    if count:
        itself = torch.cat([itself, nearest_others(features.dense(), count)], dim=1)
    cols = itself.sort(dim=1).values
    rows = torch.arange(nodes, device=device).repeat_interleave(cols.shape[1])
    ones = torch.ones(rows.numel(), device=device)
    return neighbour_mean(SparseMatrix(rows, cols.flatten(), ones, (nodes, nodes)))


def among(pairs: SparseMatrix, chosen: Tensor) -> SparseMatrix:
    """Return the submatrix of some nodes, in order, with rows that sum to 1."""
    number = torch.full((pairs.shape[0],), -1, device=chosen.device)
    number[chosen] = torch.arange(len(chosen), device=chosen.device)
    rows, cols = number[pairs.rows], number[pairs.cols]
    kept = (rows >= 0) & (cols >= 0)
    size = (len(chosen), len(chosen))
    return neighbour_mean(SparseMatrix(rows[kept], cols[kept], pairs.values[kept], size))
