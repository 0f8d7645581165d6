"""Where a step's batches come from: the whole graph as one batch, or seeds with sampled neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.noise import DrawnNoise, NodeNoise, Noise
from h3gnn.encoder.sparse import Pattern, csr_tensor
from h3gnn.encoder.support import Support
from h3gnn.encoder.tokens import Part, whole_graph
from h3gnn.training.distributed import Ranks
from h3gnn.training.sampling import ClusterSampler, NeighbourSampler, Sample, Whole, cluster_batches, node_batches

BATCHES = ("neighbours", "clusters")


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's nodes, as one process sees them.

    Attributes:
        part: this process's seeds and what they hear.
        factor: the fixed factor of each of the batch's edge weights.
        entries: which entries of the support these are, each once, ascending; None is all of them.
        seeds: the seeds of all processes; None is all nodes.
    """

    part: Part
    factor: Tensor
    entries: Tensor | None = None
    seeds: Tensor | None = None

    @property
    def share(self) -> float:
        """This process's share of the seeds."""
        return 1.0 if self.seeds is None else self.part.counts[0] / len(self.seeds)


class Source(Protocol):
    """Hands out every node of a graph once per epoch, as a seed of some batch.

    Attributes:
        nodes: how many there are.
        device: where the encoder works.
        whole: the whole graph is the only batch.
        support: where messages may flow.
    """

    nodes: int
    device: torch.device
    whole: bool
    support: Support

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield the batches of an epoch."""

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return a batch in which these nodes are seeds, perhaps among others."""

    def noise(self, generators: Sequence[torch.Generator], order: torch.Generator) -> Noise:
        """Return the noise of a step."""


class WholeGraph:
    """The graph as one batch: every node is a seed and hears all of its neighbours.

    Args:
        features: of all nodes, on the device to train on.
        support: on the same device.
        hops: of the encoder.
    """

    whole = True

    def __init__(self, features: FeatureMatrix, support: Support, hops: int) -> None:
        self.features, self.support = features, support
        self.nodes, self.device = support.nodes, features.device
        self._batch = Batch(whole_graph(features, support, hops), support.factor)

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield the one batch."""
        yield self._batch

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return the one batch."""
        return self._batch

    def noise(self, generators: Sequence[torch.Generator], order: torch.Generator) -> Noise:
        """Draw from each model's own generator, which a captured step goes on to do."""
        return DrawnNoise(generators)

    def rows(self) -> GraphRows:
        """Return the graph as an encoder reads it."""
        return GraphRows.at_hand(self.features, self.support)


class SampledBatches:
    """All nodes of a graph, a batch of seeds at a time, with the neighbours that a sampler draws.

    Args:
        graph: rows of features, and the support.
        sampler: finds what seeds hear.
        batch_size: seeds per batch, over all processes.
        device: where the encoder works.
        clusters: nodes that lie close together; batches are then made of these.
    """

    whole = False

    def __init__(
        self,
        graph: GraphRows,
        sampler: NeighbourSampler,
        batch_size: int,
        device: torch.device,
        clusters: Sequence[Whole] | None = None,
    ) -> None:
        self.graph, self.sampler, self.batch_size, self.device = graph, sampler, batch_size, device
        self.support, self.nodes = graph.support, graph.support.nodes
        self.clusters = None if clusters is None else list(clusters)

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield every node once as a seed, in an order and with neighbours drawn from the generator."""
        if self.clusters is None:
            batches = node_batches(self.nodes, self.batch_size, order)
        else:
            batches = cluster_batches(self.clusters, order)
        seed = int(torch.randint(2**62, (), generator=order))
        for batch in batches:
            self.sampler.begin(seed, batch)
            yield self._batch(self.sampler.sample(ranks.share(batch)), batch)

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return a batch of just these seeds; what they hear is the same whenever it is asked for."""
        self.sampler.begin(0)
        nodes = seeds.cpu().numpy()
        return self._batch(self.sampler.sample(nodes), nodes)

    def noise(self, generators: Sequence[torch.Generator], order: torch.Generator) -> Noise:
        """Draw a seed for each model; its numbers then belong to nodes, not to batches or processes."""
        return NodeNoise(torch.randint(2**62, (len(generators),), generator=order).tolist())

    def _batch(self, sample: Sample, batch: Whole) -> Batch:
        every = np.concatenate([hop.entries for hop in sample.hops])
        entries, weight_of = np.unique(every, return_inverse=True)
        ends = np.cumsum([len(hop.entries) for hop in sample.hops])[:-1]
        blocks = [
            Pattern(*map(torch.from_numpy, (hop.crow, hop.cols)), sources, torch.from_numpy(place)).to(self.device)
            for hop, place, sources in zip(
                sample.hops, np.split(weight_of, ends), sample.counts[1:], strict=True
            )
        ]
        nodes, touched = torch.from_numpy(sample.nodes), torch.from_numpy(entries)
        features = FeatureMatrix.as_stored(self.graph.read(nodes).to(self.device))
        part = Part(nodes.to(self.device), sample.counts, blocks, features)
        factor = self.support.factors(touched).to(self.device, features.dtype)
        return Batch(part, factor, touched, torch.from_numpy(batch).to(self.device))


def sampled_batches(
    graph: GraphRows,
    hops: int,
    device: torch.device,
    *,
    batch_size: int,
    fan_out: int | Sequence[int] | None = None,
    batches: str = "neighbours",
) -> SampledBatches:
    """Return mini-batches of a graph.

    Args:
        graph: rows of features, and the support.
        hops: of the encoder.
        device: where the encoder works.
        batch_size: seeds per batch, over all processes.
        fan_out: neighbours per node and hop; None is 10, then 5.
        batches: "neighbours", or "clusters" for METIS clusters.
    """
    from h3gnn.training.sampling import CLUSTERS_PER_BATCH, fan_out_for, find_clusters

    crow, cols = graph.support.pattern.crow.numpy(), graph.support.pattern.cols.numpy()
    if batches == "clusters":
        clusters = find_clusters(crow, cols, max(1, batch_size // CLUSTERS_PER_BATCH))
        return SampledBatches(graph, ClusterSampler(crow, cols, hops), batch_size, device, clusters)
    sampler = NeighbourSampler(crow, cols, fan_out_for(hops, fan_out))
    return SampledBatches(graph, sampler, batch_size, device)


def rows_in_memory(features: Tensor, support: Support) -> GraphRows:
    """Return a graph whose rows are read from a dense or CSR tensor in memory."""
    if features.layout != torch.sparse_csr:
        return GraphRows(lambda nodes: features.index_select(0, nodes), support, features.shape[1])
    crow, cols, values = features.crow_indices(), features.col_indices(), features.values()

    def sparse_rows(nodes: Tensor) -> Tensor:
        counts = crow[nodes + 1] - crow[nodes]
        pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        begin = torch.repeat_interleave(crow[nodes] - pointers[:-1], counts)
        place = begin + torch.arange(int(pointers[-1]))
        return csr_tensor(pointers, cols[place], values[place], (len(nodes), features.shape[1]))

    return GraphRows(sparse_rows, support, features.shape[1])
