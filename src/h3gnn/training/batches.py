"""Batches of a training step: the whole graph as one batch, or seeds with sampled neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows
from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.layers import Generators
from h3gnn.encoder.noise import Noise, PerNodeNoise, SequentialNoise, keep_scale, node_randint
from h3gnn.encoder.sparse import Adjacency, Pattern, add_rows, take_rows
from h3gnn.encoder.support import Support
from h3gnn.encoder.tokens import Part, whole_graph
from h3gnn.errors import InputError
from h3gnn.training import sampling
from h3gnn.training.distributed import Ranks
from h3gnn.training.resources import free_bytes
from h3gnn.training.sampling import ClusterSampler, NeighbourSampler, NodeIds

SUPPORT_SHARE = 0.25
"""A support up to this share of a GPU's free memory is copied to the GPU and sampled there."""
EDGE_NOISE = 1 << 20
"""Stream of the noise that drops edges; streams within the encoder have small numbers."""
MIN_COMPARED = 8192
"""By default a step compares half of the nodes, but at least this many."""

Result = TypeVar("Result")
StepNoise = tuple[Noise, Generators]
"""The noise of a step, and the generators of the models' objectives."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The nodes of one step, in one process.

    Attributes:
        part: the seeds of this process and their sampled neighbourhoods.
        factor, start: fixed factor and initial value of each edge weight.
        pair_of: number of each edge weight's pair of neighbours, equal for both directions, -1 for a loop.
        pairs: positions of both ends of pairs among the seeds, `[2, pairs]`; `pair_keys` are their numbers.
        seeds: the seeds of all processes; None is all nodes.
        own: number of seeds in this process's share; further seeds only complete pairs.
        compared: positions of the nodes that are fused and compared in this step; None is all seeds.
        all_pairs: numbers of all pairs, if the batch is the whole graph.
    """

    part: Part
    factor: Tensor
    start: Tensor
    pair_of: Tensor
    pairs: Tensor
    pair_keys: Tensor
    seeds: Tensor | None = None
    own: int = 0
    compared: Tensor | None = None
    all_pairs: Tensor | None = None

    @property
    def share(self) -> float:
        """This process's share of the seeds."""
        return 1.0 if self.seeds is None else self.own / len(self.seeds)

    def chosen(self, values: Tensor) -> Tensor:
        """Select the compared nodes from values `[models, nodes of the part, …]`."""
        if self.compared is not None:
            return take_rows(values, self.compared)
        return values if values.shape[1] == self.part.counts[0] else values[:, : self.part.counts[0]]

    def pairs_kept(self, rates: Sequence[float], noise: Noise) -> tuple[Tensor, Tensor] | None:
        """Drop pairs of neighbours, both directions together; loops stay.

        Returns the factor of each edge weight `[models, weights]` and which of `pairs` are kept, bool
        `[models, pairs]`.
        """
        if not any(rates):
            return None
        if self.part.whole:
            assert self.all_pairs is not None
            every = cast(Tensor, noise.keep(rates, self.all_pairs, (), EDGE_NOISE))
            every = torch.cat([every, every.new_ones(len(every), 1)], dim=1)  # loops are number -1
            kept, seen = every[:, self.pair_of], every[:, self.pair_keys]
        else:
            keys = (self.pair_of, self.pair_keys)
            kept, seen = (cast(Tensor, noise.keep(rates, key, (), EDGE_NOISE)) for key in keys)
        scaled = kept * keep_scale(rates, self.factor)[:, None]
        return torch.where(self.pair_of < 0, 1.0, scaled), seen

    def neighbour_mean(self, values: Tensor) -> Tensor:
        """Return the mean over each seed's neighbours among the seeds, `[models, seeds, D]`."""
        if self.part.whole and self.compared is None:
            weights = self._shares.to(values.dtype).expand(len(values), -1)
            return Adjacency(self.part.blocks[0], weights) @ values
        here, there = torch.cat([self.pairs, self.pairs.flip(0)], dim=1)
        count = torch.zeros_like(values[0, :, 0]).index_add_(0, here, torch.ones_like(values[0, there, 0]))
        total = add_rows(take_rows(values, there), here, values.shape[1])
        return total / count.clamp_min(1)[:, None]

    @cached_property
    def _shares(self) -> Tensor:
        """Weight of each entry of the whole support in a mean over neighbours; 0 for loops."""
        pattern = self.part.blocks[0]
        between = (pattern.rows != pattern.cols).to(self.factor.dtype)
        count = torch.zeros(pattern.targets, dtype=between.dtype, device=between.device)
        return between / count.index_add_(0, pattern.rows, between).clamp_min(1)[pattern.rows]


class Source(Protocol):
    """Yields every node of a graph once per epoch, as a seed of some batch.

    `in_a_step` is the maximum number of nodes that a step compares; `whole`: the whole graph is the only
    batch.
    """

    nodes: int
    in_a_step: int
    device: torch.device
    whole: bool
    support: Support

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield the batches of an epoch."""

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return a batch whose seeds include these nodes."""

    def noise(self, generators: Generators, order: torch.Generator, ranks: Ranks) -> StepNoise:
        """Return the noise of a step, and the generators of the models' objectives."""


class WholeGraph:
    """The graph as one batch: every node is a seed with all of its neighbours.

    Tokens are computed for all nodes. With `compared`, the fusion block and the loss, which cost more, run on
    a new sample of that many nodes in each step: half of them random nodes, half neighbours of these.
    """

    whole = True

    def __init__(
        self,
        features: FeatureMatrix,
        support: Support,
        hops: int,
        compared: int | None = None,
        paths: Tensor | None = None,
    ) -> None:
        self.features, self.support, self.paths = features, support, paths
        self.nodes, self.device = support.nodes, features.device
        self.half = None if compared is None or compared >= self.nodes else max(1, compared // 2)
        self.in_a_step = self.nodes if self.half is None else 2 * self.half
        every, pair_of = torch.unique(support.pair_keys(None), return_inverse=True)
        loops = int((every < 0).any())
        every = every[loops:]
        pairs = torch.stack([every // max(1, self.nodes), every % max(1, self.nodes)])
        part = whole_graph(features, support, hops, paths)
        each = torch.arange(len(every), device=self.device)
        self._batch = Batch(
            part, support.factor, support.start, pair_of - loops, pairs, each, own=self.nodes, all_pairs=each
        )

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield the one batch."""
        yield self._batch if self.half is None else self._sample(self.half, order)

    def _sample(self, half: int, order: torch.Generator) -> Batch:
        """Return the batch that compares random nodes and a random neighbour of each.

        All shapes are the same in every step, so that the step can be captured; a node may occur twice.
        """
        drawn = torch.rand(2, self.nodes, generator=order, device=self.device)
        own = drawn[0].topk(half).indices
        crow = self.support.pattern.crow
        degree = (crow[1:] - crow[:-1])[own]
        last = max(0, self.support.entries - 1)
        entry = (crow[own] + (drawn[1, own] * degree).long()).clamp_max(last)
        alone = degree == 0
        partner, key = own, torch.full_like(own, -1)
        if self.support.entries:
            partner = torch.where(alone, own, self.support.pattern.cols[entry])
            key = torch.where(alone, -1, self._batch.pair_of[entry])
        each = torch.arange(half, device=self.device)
        return replace(
            self._batch,
            pairs=torch.stack([each, each + half]),
            pair_keys=key,
            seeds=own,
            own=half,
            compared=torch.cat([own, partner]),
        )

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return the one batch."""
        return self._batch

    def noise(self, generators: Generators, order: torch.Generator, ranks: Ranks) -> StepNoise:
        """Draw from each model's own generator, as a captured step does."""
        return SequentialNoise(generators), generators

    def rows(self) -> GraphRows:
        """Return the graph as the encoder reads it."""
        return GraphRows.in_memory(self.features, self.support, self.paths)


class SampledBatches:
    """All nodes of a graph in batches of seeds, with sampled "neighbours", or as METIS "clusters".

    `batch_size` is the number of seeds over all processes; `num_neighbors` is per hop, and None is 10, then
    5. `paired` adds a random neighbour of each seed to the seeds, for objectives on pairs. `device` is that
    of the encoder.
    """

    whole = False

    def __init__(
        self,
        graph: GraphRows,
        hops: int,
        device: torch.device,
        *,
        batch_size: int,
        num_neighbors: int | Sequence[int] | None = None,
        batches: str = "neighbours",
        paired: bool = False,
    ) -> None:
        self.support = _move_support(graph.support, device)
        self.graph = GraphRows(graph.read, self.support, graph.columns, paths=graph.paths)
        self.batch_size, self.device, self.paired = batch_size, device, paired
        self.nodes, self.clusters = self.support.nodes, list[NodeIds]()
        crow, cols, seeds = self.support.pattern.crow, self.support.pattern.cols, batch_size
        if batches == "clusters":
            size = max(1, batch_size // sampling.CLUSTERS_PER_BATCH)
            self.clusters = sampling.find_clusters(crow.cpu().numpy(), cols.cpu().numpy(), size)
            seeds = sampling.CLUSTERS_PER_BATCH * max(map(len, self.clusters))
            self.sampler: NeighbourSampler = ClusterSampler(crow, cols, hops)
        else:
            self.sampler = NeighbourSampler(crow, cols, sampling.neighbors_per_hop(hops, num_neighbors))
        self.in_a_step = min(self.nodes, seeds) * (2 if paired else 1)

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield every node once as a seed, in an order and with neighbours drawn from the generator."""
        if self.clusters:
            batches = sampling.cluster_batches(self.clusters, order)
        else:
            batches = sampling.node_batches(self.nodes, self.batch_size, order)
        if min(map(len, batches)) < ranks.size:
            raise InputError(
                f"a batch of {min(map(len, batches))} node(s) is too small for {ranks.size} processes: "
                "use a larger batch_size or fewer processes",
                code="batch-too-small",
            )
        seed, stream = int(torch.randint(2**62, (), generator=order)), PrefetchStream(self.device)

        def make(batch: NodeIds) -> tuple[Batch, torch.cuda.Event | None]:
            with stream.context():
                every = self._to_sampler(batch)
                self.sampler.begin(seed, every)
                return self._batch(self._to_sampler(ranks.share(batch)), every, seed), stream.record()

        for batch, ready in prefetch(make, batches):
            stream.wait_for(ready)
            yield batch
            stream.mark_used()

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return a batch of these seeds; its neighbours are the same in every call."""
        self.sampler.begin(0)
        nodes = seeds.to(self.sampler.device)
        return self._batch(nodes, nodes, None)

    def _to_sampler(self, nodes: NodeIds) -> Tensor:
        return torch.from_numpy(nodes).to(self.sampler.device)

    def noise(self, generators: Generators, order: torch.Generator, ranks: Ranks) -> StepNoise:
        """Draw a seed for each model: its noise then belongs to nodes, not to batches or processes.

        Objectives draw from generators of this process, so that the models' generators stay equal in all
        processes.
        """
        seeds = torch.randint(2**62, (len(generators),), generator=order).tolist()
        own = [torch.Generator(self.device).manual_seed(seed ^ ranks.rank) for seed in seeds]
        return PerNodeNoise(seeds), own

    def _batch(self, mine: Tensor, batch: Tensor, seed: int | None) -> Batch:
        seeds, pairs = self._partners(mine, seed) if self.paired and seed is not None else (mine, None)
        sample = self.sampler.sample(seeds)
        entries, places, ends = sample.unique_entries()
        blocks = [
            Pattern(hop.crow, hop.cols, sources, place).to(self.device)
            for hop, place, sources in zip(sample.hops, places, sample.counts[1:], strict=True)
        ]
        nodes = sample.nodes
        features = FeatureMatrix.as_stored(self.graph.read(nodes).to(self.device))
        relations = self.support.relations
        if relations is not None:
            relations = relations[:, entries].to(self.device, features.dtype)
        paths = self.graph.paths
        if paths is not None:
            paths = paths[nodes[: sample.counts[0]].to(paths.device)].to(self.device)
        part = Part(nodes.to(self.device), sample.counts, blocks, features, relations=relations, paths=paths)
        factor = self.support.factors(entries, ends).to(self.device, features.dtype)
        pair_of = self.support.pair_keys(entries, ends).to(self.device)
        at = nodes.new_empty(2, 0) if pairs is None else pairs
        first, last = nodes[at].sort(dim=0).values
        keys = (first * self.nodes + last).to(self.device)
        start = self.support.starts(entries, ends).to(self.device, features.dtype)
        shared = batch.to(self.device)
        return Batch(part, factor, start, pair_of, at.to(self.device), keys, shared, len(mine))

    def _partners(self, seeds: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return the seeds followed by a random neighbour of each that is not among them, and the pairs."""
        begin = self.sampler.crow[seeds]
        degree = self.sampler.crow[seeds + 1] - begin
        drawn = node_randint(seed, seeds, degree[:, None])[:, 0]
        at = (degree > 0).nonzero().flatten()
        partner = self.sampler.cols.index_select(0, (begin + drawn)[at]).long()
        other = partner != seeds[at]
        at, partner = at[other], partner[other]
        found = torch.unique(partner)
        extended = torch.cat([seeds, found[~torch.isin(found, seeds)]])
        ordered, place = extended.sort()
        return extended, torch.stack([at, place[torch.searchsorted(ordered, partner)]])


class PrefetchStream:
    """Prepares the next batch during training: on a GPU in a separate stream, else in order.

    Memory of a finished batch is reused by a later one, which therefore waits for the end of that training
    step.
    """

    def __init__(self, device: torch.device) -> None:
        stream: Any = torch.cuda.Stream
        self._stream: torch.cuda.Stream | None = stream(device) if device.type == "cuda" else None
        self._used: torch.cuda.Event | None = None
        self.mark_used()

    def mark_used(self) -> None:
        """Record that the training has used the current batch."""
        if self._stream is not None:
            self._used = torch.cuda.current_stream(self._stream.device).record_event()

    @contextmanager
    def context(self) -> Iterator[None]:
        """Run the GPU work of the block in the stream."""
        if self._stream is None or self._used is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._used)
            yield

    def record(self) -> torch.cuda.Event | None:
        """Return an event that follows all work in the stream so far."""
        return None if self._stream is None else self._stream.record_event()

    def wait_for(self, ready: torch.cuda.Event | None) -> None:
        """Let the training wait for an event."""
        if self._stream is not None and ready is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(ready)


def prefetch(make: Callable[[NodeIds], Result], seeds: Sequence[NodeIds]) -> Iterator[Result]:
    """Yield the results in order; a thread computes the next one while the caller uses the last one."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(make, seeds[0])
        for following in seeds[1:]:
            result, upcoming = upcoming.result(), thread.submit(make, following)
            yield result
        yield upcoming.result()


def compared_nodes(requested: int | str | None, nodes: int) -> int | None:
    """Return the number of nodes that a step compares; None is all."""
    return max(MIN_COMPARED, nodes // 2) if isinstance(requested, str) else requested


def _move_support(support: Support, device: torch.device) -> Support:
    """Move the support to the device if it is small enough; batches are then drawn there as well."""
    if device.type == "cpu":
        return support
    arrays = (
        support.pattern.crow,
        support.pattern.cols,
        support.weight,
        support.in_degree,
        support.out_degree,
    )
    size = sum(array.nbytes for array in arrays if array is not None)
    return support if size > SUPPORT_SHARE * free_bytes(device) else support.to(device)
