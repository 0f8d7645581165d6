"""Where a step's batches come from: the whole graph as one batch, or seeds with sampled neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from h3gnn.encoder.encode import GraphRows, gather_rows
from h3gnn.encoder.features import FeatureMatrix
from h3gnn.encoder.noise import DrawnNoise, NodeNoise, Noise, keep_scale, node_below
from h3gnn.encoder.sparse import Adjacency, Pattern, add_rows, csr_tensor, take_rows
from h3gnn.encoder.support import Support
from h3gnn.encoder.tokens import Part, whole_graph
from h3gnn.errors import InputError
from h3gnn.training.distributed import Ranks
from h3gnn.training.resources import free_bytes
from h3gnn.training.sampling import (
    CLUSTERS_PER_BATCH,
    ClusterSampler,
    NeighbourSampler,
    NodeIds,
    cluster_batches,
    fan_out_for,
    find_clusters,
    node_batches,
)

SUPPORT_SHARE = 0.25
"""A support that takes no more than this share of a GPU's free memory lies there, and is sampled there."""
EDGE_PLACE = 1 << 20
"""Where the noise that drops edges is drawn; places within the encoder have small numbers."""
FEWEST_COMPARED = 8192
"""A step compares half of the nodes, but not fewer than this, where nobody says how many."""

Made = TypeVar("Made")


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's nodes, as one process sees them.

    Attributes:
        part: this process's seeds and what they hear.
        factor: the fixed factor of each of the batch's edge weights.
        start: where each of them starts.
        pair_of: for each edge weight the pair of neighbours that it joins, one number for both directions and
            -1 for a loop; of the whole graph a position in `pairs`, of a part of it any number.
        pairs: positions of the two ends of pairs of neighbours among the seeds, `[2, pairs]`.
        pair_keys: what `pair_of` calls these pairs.
        seeds: the seeds of all processes; None is all nodes.
        own: how many of this process's seeds are its share of those; the others are there to make pairs.
        compared: positions of the part's nodes that are fused and compared in this step; None is all seeds.
        pairs_in_all: the numbers of all pairs, of the whole graph.
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
    pairs_in_all: Tensor | None = None

    @property
    def share(self) -> float:
        """This process's share of the seeds."""
        return 1.0 if self.seeds is None else self.own / len(self.seeds)

    def chosen(self, values: Tensor) -> Tensor:
        """Return the values `[models, nodes of the part, …]` of the nodes that are compared."""
        if self.compared is not None:
            return take_rows(values, self.compared)
        return values if values.shape[1] == self.part.counts[0] else values[:, : self.part.counts[0]]

    def pairs_kept(self, rates: Sequence[float], noise: Noise) -> tuple[Tensor, Tensor] | None:
        """Drop pairs of neighbours, both directions alike; loops always stay.

        Returns:
            What each edge weight is multiplied with `[models, weights]`, and which of `pairs` are kept, bool
            `[models, pairs]`; None where nothing is dropped.
        """
        if not any(rates):
            return None
        if self.part.whole:
            each = cast(Tensor, noise.keep(rates, self.every_pair, (), EDGE_PLACE))
            each = torch.cat([each, each.new_ones(len(each), 1)], dim=1)  # loops are number -1
            kept, seen = each[:, self.pair_of], each[:, self.pair_keys]
        else:
            kept, seen = (
                cast(Tensor, noise.keep(rates, keys, (), EDGE_PLACE))
                for keys in (self.pair_of, self.pair_keys)
            )
        scaled = kept * keep_scale(rates, self.factor)[:, None]
        return torch.where(self.pair_of < 0, 1.0, scaled), seen

    @property
    def every_pair(self) -> Tensor:
        """One number for each pair of neighbours in the whole graph."""
        assert self.pairs_in_all is not None
        return self.pairs_in_all

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
        """What each entry of the whole support adds to a mean over neighbours; a loop adds nothing."""
        pattern = self.part.blocks[0]
        between = (pattern.rows != pattern.cols).to(self.factor.dtype)
        count = torch.zeros(pattern.targets, dtype=between.dtype, device=between.device)
        return between / count.index_add_(0, pattern.rows, between).clamp_min(1)[pattern.rows]


class Source(Protocol):
    """Hands out every node of a graph once per epoch, as a seed of some batch.

    Attributes:
        nodes: how many there are.
        device: where the encoder works.
        in_a_step: how many nodes a step compares, at the most.
        whole: the whole graph is the only batch.
        support: where messages may flow.
    """

    nodes: int
    in_a_step: int
    device: torch.device
    whole: bool
    support: Support

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield the batches of an epoch."""

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return a batch in which these nodes are seeds, perhaps among others."""

    def noise(
        self, generators: Sequence[torch.Generator], order: torch.Generator, ranks: Ranks
    ) -> tuple[Noise, Sequence[torch.Generator]]:
        """Return the noise of a step, and what each model's objective draws from."""


class WholeGraph:
    """The graph as one batch: every node is a seed and hears all of its neighbours.

    Tokens are made for all nodes. The fusion block and the comparison, which cost more, may be left to a
    sample of them that is drawn anew in each step, half of it at random and half neighbours of these.

    Args:
        features: of all nodes, on the device to train on.
        support: on the same device.
        hops: of the encoder.
        compared: on how many nodes the student is compared in each step; None is all.
    """

    whole = True

    def __init__(
        self, features: FeatureMatrix, support: Support, hops: int, compared: int | None = None
    ) -> None:
        self.features, self.support = features, support
        self.nodes, self.device = support.nodes, features.device
        self.half = None if compared is None or compared >= self.nodes else max(1, compared // 2)
        self.in_a_step = self.nodes if self.half is None else 2 * self.half
        every, pair_of = torch.unique(support.pair_keys(None), return_inverse=True)
        loops = int((every < 0).any())
        every = every[loops:]
        pairs = torch.stack([every // max(1, self.nodes), every % max(1, self.nodes)])
        part = whole_graph(features, support, hops)
        each = torch.arange(len(every), device=self.device)
        self._batch = Batch(
            part,
            support.factor,
            support.start,
            pair_of - loops,
            pairs,
            each,
            own=self.nodes,
            pairs_in_all=each,
        )

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield the one batch."""
        yield self._batch if self.half is None else self._sample(self.half, order)

    def _sample(self, half: int, order: torch.Generator) -> Batch:
        """Return the batch in which random nodes and a random neighbour of each are compared.

        All shapes are the same in every step, so that it can be captured; a node may be there twice.
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

    def noise(
        self, generators: Sequence[torch.Generator], order: torch.Generator, ranks: Ranks
    ) -> tuple[Noise, Sequence[torch.Generator]]:
        """Draw from each model's own generator, which a captured step goes on to do."""
        return DrawnNoise(generators), generators

    def rows(self) -> GraphRows:
        """Return the graph as an encoder reads it."""
        return GraphRows.at_hand(self.features, self.support)


class SampledBatches:
    """All nodes of a graph, a batch of seeds at a time, with the neighbours that a sampler draws.

    Args:
        graph: rows of features, and the support, on the device where the sampler draws.
        sampler: finds what seeds hear.
        batch_size: seeds per batch, over all processes.
        device: where the encoder works.
        clusters: nodes that lie close together; batches are then made of these.
        paired: put a random neighbour of each seed among the seeds, for objectives that look at pairs.
    """

    whole = False

    def __init__(
        self,
        graph: GraphRows,
        sampler: NeighbourSampler,
        batch_size: int,
        device: torch.device,
        clusters: Sequence[NodeIds] | None = None,
        *,
        paired: bool = False,
    ) -> None:
        self.graph, self.sampler, self.batch_size, self.device = graph, sampler, batch_size, device
        self.support, self.nodes, self.paired = graph.support, graph.support.nodes, paired
        self.clusters = None if clusters is None else list(clusters)
        seeds = batch_size
        if self.clusters is not None:
            seeds = CLUSTERS_PER_BATCH * max(map(len, self.clusters), default=0)
        self.in_a_step = min(self.nodes, seeds) * (2 if paired else 1)

    def epoch(self, order: torch.Generator, ranks: Ranks) -> Iterator[Batch]:
        """Yield every node once as a seed, in an order and with neighbours drawn from the generator."""
        if self.clusters is None:
            batches = node_batches(self.nodes, self.batch_size, order)
        else:
            batches = cluster_batches(self.clusters, order)
        if min(map(len, batches)) < ranks.size:
            raise InputError(
                f"a batch of {min(map(len, batches))} node(s) cannot be shared by {ranks.size} processes: "
                "give a larger batch_size, or fewer processes"
            )
        seed, lane = int(torch.randint(2**62, (), generator=order)), PrefetchStream(self.device)

        def make(batch: NodeIds) -> tuple[Batch, torch.cuda.Event | None]:
            with lane.beside():
                every = self._there(batch)
                self.sampler.begin(seed, every)
                return self._batch(self._there(ranks.share(batch)), every, seed), lane.reached()

        for batch, ready in one_ahead(make, batches):
            lane.wait_for(ready)
            yield batch
            lane.pass_by()

    def batch_of(self, seeds: Tensor) -> Batch:
        """Return a batch of just these seeds; what they hear is the same whenever it is asked for."""
        self.sampler.begin(0)
        nodes = seeds.to(self.sampler.device)
        return self._batch(nodes, nodes, None)

    def _there(self, nodes: NodeIds) -> Tensor:
        """Return node numbers where the sampler draws."""
        return torch.from_numpy(nodes).to(self.sampler.device)

    def noise(
        self, generators: Sequence[torch.Generator], order: torch.Generator, ranks: Ranks
    ) -> tuple[Noise, Sequence[torch.Generator]]:
        """Draw a seed for each model: its noise then belongs to nodes, not to batches or processes.

        What objectives draw is each process's own, so that the models' generators stay the same everywhere.
        """
        seeds = torch.randint(2**62, (len(generators),), generator=order).tolist()
        own = [torch.Generator(self.device).manual_seed(seed ^ ranks.rank) for seed in seeds]
        return NodeNoise(seeds), own

    def _batch(self, mine: Tensor, batch: Tensor, seed: int | None) -> Batch:
        seeds, pairs = self._partners(mine, seed) if self.paired and seed is not None else (mine, None)
        sample = self.sampler.sample(seeds)
        touched, places, ends = sample.touched()
        blocks = [
            Pattern(hop.crow, hop.cols, sources, place).to(self.device)
            for hop, place, sources in zip(sample.hops, places, sample.counts[1:], strict=True)
        ]
        nodes = sample.nodes
        features = FeatureMatrix.as_stored(self.graph.read(nodes).to(self.device))
        part = Part(nodes.to(self.device), sample.counts, blocks, features)
        factor = self.support.factors(touched, ends).to(self.device, features.dtype)
        pair_of = self.support.pair_keys(touched, ends).to(self.device)
        at = nodes.new_empty(2, 0) if pairs is None else pairs
        first, last = nodes[at].sort(dim=0).values
        keys = (first * self.nodes + last).to(self.device)
        start = self.support.starts(touched, ends).to(self.device, features.dtype)
        shared = batch.to(self.device)
        return Batch(part, factor, start, pair_of, at.to(self.device), keys, shared, len(mine))

    def _partners(self, seeds: Tensor, seed: int) -> tuple[Tensor, Tensor]:
        """Return the seeds, followed by a random neighbour of each that is not among them, and the pairs."""
        begin = self.sampler.crow[seeds]
        degree = self.sampler.crow[seeds + 1] - begin
        drawn = node_below(seed, seeds, degree[:, None])[:, 0]
        at = (degree > 0).nonzero().flatten()
        partner = self.sampler.cols.index_select(0, (begin + drawn)[at]).long()
        other = partner != seeds[at]
        at, partner = at[other], partner[other]
        found = torch.unique(partner)
        extended = torch.cat([seeds, found[~torch.isin(found, seeds)]])
        ordered, place = extended.sort()
        return extended, torch.stack([at, place[torch.searchsorted(ordered, partner)]])


class PrefetchStream:
    """Where the next batch is made while one trains: on a GPU a stream of its own, else nothing special.

    Memory of a batch that has been trained on is used again by a batch to come, which therefore waits until
    the GPU has passed by the end of that training.
    """

    def __init__(self, device: torch.device) -> None:
        stream: Any = torch.cuda.Stream
        self._stream: torch.cuda.Stream | None = stream(device) if device.type == "cuda" else None
        self._passed: torch.cuda.Event | None = None
        self.pass_by()

    def pass_by(self) -> None:
        """Note how far the training has come."""
        if self._stream is not None:
            self._passed = torch.cuda.current_stream(self._stream.device).record_event()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Let what the block asks of the GPU run beside the training."""
        if self._stream is None or self._passed is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._passed)
            yield

    def reached(self) -> torch.cuda.Event | None:
        """Return what tells when all that was asked for so far is there."""
        return None if self._stream is None else self._stream.record_event()

    def wait_for(self, ready: torch.cuda.Event | None) -> None:
        """Let the training wait for it."""
        if self._stream is not None and ready is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(ready)


def one_ahead(make: Callable[[NodeIds], Made], seeds: Sequence[NodeIds]) -> Iterator[Made]:
    """Yield what is made of these seeds, in order; a thread makes the next one while the last one trains."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(make, seeds[0])
        for following in seeds[1:]:
            made, coming = coming.result(), thread.submit(make, following)
            yield made
        yield coming.result()


def compared_nodes(asked: int | str | None, nodes: int) -> int | None:
    """Return on how many nodes a step compares; None is all."""
    return max(FEWEST_COMPARED, nodes // 2) if isinstance(asked, str) else asked


def sampled_batches(
    graph: GraphRows,
    hops: int,
    device: torch.device,
    *,
    batch_size: int,
    num_neighbors: int | Sequence[int] | None = None,
    batches: str = "neighbours",
    paired: bool = False,
) -> SampledBatches:
    """Return mini-batches of a graph.

    Args:
        graph: rows of features, and the support.
        hops: of the encoder.
        device: where the encoder works.
        batch_size: seeds per batch, over all processes.
        num_neighbors: neighbours per node and hop; None is 10, then 5.
        batches: "neighbours", or "clusters" for METIS clusters.
        paired: put a random neighbour of each seed among the seeds.
    """
    graph = GraphRows(graph.read, _nearer(graph.support, device), graph.columns)
    crow, cols = graph.support.pattern.crow, graph.support.pattern.cols
    if batches == "clusters":
        size = max(1, batch_size // CLUSTERS_PER_BATCH)
        clusters = find_clusters(crow.cpu().numpy(), cols.cpu().numpy(), size)
        cluster = ClusterSampler(crow, cols, hops)
        return SampledBatches(graph, cluster, batch_size, device, clusters, paired=paired)
    sampler = NeighbourSampler(crow, cols, fan_out_for(hops, num_neighbors))
    return SampledBatches(graph, sampler, batch_size, device, paired=paired)


def _nearer(support: Support, device: torch.device) -> Support:
    """Return the support on the device where it leaves room there; batches are then drawn there as well."""
    held = (support.pattern.crow, support.pattern.cols, support.weight, support.receives, support.sends)
    size = sum(one.nbytes for one in held if one is not None)
    return (
        support if device.type == "cpu" or size > SUPPORT_SHARE * free_bytes(device) else support.to(device)
    )


def rows_in_memory(features: Tensor, support: Support) -> GraphRows:
    """Return a graph whose rows are read from a dense or CSR tensor in memory, to where the numbers are."""
    if features.layout != torch.sparse_csr:
        return GraphRows(lambda nodes: gather_rows(features, nodes), support, features.shape[1])
    crow, cols, values = features.crow_indices(), features.col_indices(), features.values()

    def sparse_rows(nodes: Tensor) -> Tensor:
        device, nodes = nodes.device, nodes.cpu()
        counts = crow[nodes + 1] - crow[nodes]
        pointers = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        begin = torch.repeat_interleave(crow[nodes] - pointers[:-1], counts)
        place = begin + torch.arange(int(pointers[-1]))
        found = csr_tensor(pointers, cols[place], values[place], (len(nodes), features.shape[1]))
        return found.to(device)

    return GraphRows(sparse_rows, support, features.shape[1])
