"""Where batches come from: which nodes, what they hear, and the numbers that go with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.encoder.blocks import Block, Part
from h3gnn.sparse import csr_tensor
from h3gnn.training.clusters import cluster_batches, node_batches
from h3gnn.training.distributed import Ranks
from h3gnn.training.sampling import ClusterSampler, NeighbourSampler, Sample, Whole

BATCHES = ("neighbours", "clusters")


@dataclass(frozen=True)
class Piece:
    """One batch, as one process sees it.

    Attributes:
        part: this process's seeds and what they hear.
        entries: which entries of the support the part touches, each once, ascending.
        factor: the fixed factor of each `[entries]`.
        batch: the seeds of all processes.
    """

    part: Part
    entries: Tensor
    factor: Tensor
    batch: Whole


class Parts:
    """All nodes of a graph, a batch at a time.

    Args:
        sampler: finds what seeds hear.
        rows: from node numbers to their features, dense or CSR.
        factor: from entries of the support to their fixed factors.
        batch_size: seeds per batch, over all processes.
        device: where the encoder works.
        clusters: nodes that lie close together; batches are then made of these.
        workers: processes that sample ahead.
    """

    def __init__(
        self,
        sampler: NeighbourSampler,
        rows: Callable[[Whole], Tensor],
        factor: Callable[[Whole], Tensor],
        batch_size: int,
        device: torch.device,
        clusters: Sequence[Whole] | None = None,
        workers: int = 0,
    ) -> None:
        self.sampler, self.rows, self.factor = sampler, rows, factor
        self.batch_size, self.device, self.workers = batch_size, device, workers
        self.clusters = None if clusters is None else list(clusters)
        self.nodes = len(sampler.crow) - 1

    def epoch(self, generator: torch.Generator, ranks: Ranks) -> Iterator[Piece]:
        """Yield every node once as a seed, in an order and with neighbours drawn from the generator."""
        if self.clusters is None:
            batches = node_batches(self.nodes, self.batch_size, generator)
        else:
            batches = cluster_batches(self.clusters, generator)
        seed = int(torch.randint(2**62, (), generator=generator))
        for batch, sample in zip(batches, self._samples(batches, seed, ranks), strict=True):
            yield self._piece(sample, batch)

    def piece_of(self, seeds: Whole, seed: int = 0) -> Piece:
        """Return a piece for given seeds."""
        self.sampler.begin(seed)
        return self._piece(self.sampler.sample(seeds), seeds)

    def _samples(self, batches: list[Whole], seed: int, ranks: Ranks) -> Iterator[Sample]:
        if isinstance(self.sampler, ClusterSampler):
            for batch in batches:
                self.sampler.begin(seed, batch)
                yield self.sampler.sample(ranks.share(batch))
            return
        from h3gnn.training.loaders import has_pyg_samplers, node_loader, samples

        self.sampler.begin(seed)
        shares: list[Any] = [ranks.share(batch).tolist() for batch in batches]
        loader = node_loader(self.sampler, shares, self.workers)
        if not has_pyg_samplers(self.sampler):
            yield from samples(loader, len(self.sampler.fan_out))
            return
        with torch.random.fork_rng(devices=[]):  # PyG's own samplers draw from the global generator
            torch.manual_seed(seed)
            yield from samples(loader, len(self.sampler.fan_out))

    def _piece(self, sample: Sample, batch: Whole) -> Piece:
        every = np.concatenate([hop.entries for hop in sample.hops])
        entries, weight_of = np.unique(every, return_inverse=True)
        ends = np.cumsum([len(hop.entries) for hop in sample.hops])[:-1]
        blocks = [
            Block(
                torch.from_numpy(hop.crow), torch.from_numpy(hop.cols), torch.from_numpy(place), sources
            ).to(self.device)
            for hop, place, sources in zip(
                sample.hops, np.split(weight_of, ends), sample.counts[1:], strict=True
            )
        ]
        part = Part(
            torch.from_numpy(sample.nodes).to(self.device),
            sample.counts,
            blocks,
            self.rows(sample.nodes).to(self.device),
        )
        factor = self.factor(entries).to(self.device)
        return Piece(part, torch.from_numpy(entries), factor, batch)


def dense_rows(features: Any) -> Callable[[Whole], Tensor]:
    """Return a reader of rows from a dense tensor or CSR tensor in memory."""
    if features.layout != torch.sparse_csr:
        return lambda nodes: features.index_select(0, torch.from_numpy(nodes))
    crow, cols, values = features.crow_indices(), features.col_indices(), features.values()

    def sparse_rows(nodes: Whole) -> Tensor:
        chosen = torch.from_numpy(nodes)
        counts = crow[chosen + 1] - crow[chosen]
        pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        place = torch.repeat_interleave(crow[chosen] - pointers[:-1], counts) + torch.arange(
            int(pointers[-1])
        )
        return csr_tensor(pointers, cols[place], values[place], (len(nodes), features.shape[1]))

    return sparse_rows
