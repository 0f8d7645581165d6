"""PyG's loader interface around our sampler, and our batches from PyG's own samplers where installed.

PyG's `NeighborLoader` needs `pyg-lib` or `torch-sparse`. Without them `PyGSampler` stands behind the same
`NodeLoader`, so that code written for PyG gets the same kind of batches (`n_id`, `e_id`, `edge_index`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from h3gnn.training.sampling import Hop, NeighbourSampler, Sample, Whole


class PyGSampler(BaseSampler):  # type: ignore[misc]
    """Our sampler as PyG's `BaseSampler`; the edges of all hops stand one hop after the other."""

    def __init__(self, sampler: NeighbourSampler) -> None:
        self.sampler = sampler

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Return what the seeds hear; `edge` is the position of each edge in the whole support."""
        sample = self.sampler.sample(index.node.numpy())
        targets = [np.repeat(np.arange(len(hop.crow) - 1), np.diff(hop.crow)) for hop in sample.hops]
        return SamplerOutput(
            node=torch.from_numpy(sample.nodes),
            row=_joined([hop.cols for hop in sample.hops]),
            col=_joined(targets),
            edge=_joined([hop.entries for hop in sample.hops]),
            num_sampled_nodes=[sample.counts[0], *np.diff(sample.counts).tolist()],
            num_sampled_edges=[len(hop.cols) for hop in sample.hops],
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        """Refuse: nothing here starts from edges."""
        raise NotImplementedError("this sampler starts from nodes")

    @property
    def edge_permutation(self) -> None:
        """Entries are numbered as they are stored."""
        return


def _joined(pieces: Sequence[Whole]) -> Tensor:
    return torch.from_numpy(np.concatenate(pieces))


def has_pyg_samplers(sampler: NeighbourSampler) -> bool:
    """Tell whether PyG's own neighbour sampling can run here; it needs the edges in memory."""
    from torch_geometric import typing

    return bool(typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE) and not isinstance(sampler.cols, np.memmap)


def node_loader(sampler: NeighbourSampler, batches: Iterable[Sequence[int]], workers: int = 0) -> NodeLoader:
    """Return a PyG `NodeLoader` over given batches of seeds.

    PyG's own `NeighborLoader` takes our sampler's place where its libraries are installed. Drawing then is
    theirs: what a node hears depends on the batch that it stands in.

    Args:
        sampler: knows the support and the fan-out.
        batches: the seeds of each batch.
        workers: processes that sample ahead.
    """
    nodes = len(sampler.crow) - 1
    options = {"batch_sampler": batches, "num_workers": workers, "generator": torch.Generator()}
    if not has_pyg_samplers(sampler):
        empty = torch.empty(2, 0, dtype=torch.int64)  # PyG fills in a batch's edges where there is the field
        return NodeLoader(Data(edge_index=empty, num_nodes=nodes), PyGSampler(sampler), **options)
    targets = np.repeat(np.arange(nodes), np.diff(sampler.crow))
    edge_index = torch.from_numpy(np.stack([np.asarray(sampler.cols, dtype=np.int64), targets]))
    data = Data(edge_index=edge_index, num_nodes=nodes)
    return NeighborLoader(data, num_neighbors=sampler.fan_out, is_sorted=True, **options)


def samples(loader: Iterable[Data], hops: int) -> Iterator[Sample]:
    """Yield what a PyG loader yields, as our own samples."""
    for data in loader:
        yield to_sample(data, hops, once=isinstance(loader, NeighborLoader))


def to_sample(data: Data, hops: int, *, once: bool) -> Sample:
    """Return a PyG batch as a sample.

    Args:
        data: with `n_id`, `e_id`, `edge_index`, and as many seeds as `batch_size`, first.
        hops: how many hops were drawn.
        once: each node was drawn for once, when it was first met, as PyG does; a hop then takes all edges
            towards the nodes that it may reach. Else the edges of each hop stand one after the other.
    """
    sources, targets = (end.numpy() for end in data.edge_index)
    entries = data.e_id.numpy()
    if not once:
        counts = np.cumsum(data.num_sampled_nodes).tolist()
        ends = np.cumsum([0, *data.num_sampled_edges])
        spans = [slice(begin, end) for begin, end in pairwise(ends)]
    else:
        counts = _counts(sources, targets, int(data.batch_size), hops)
        order = np.argsort(targets, kind="stable")
        sources, targets, entries = sources[order], targets[order], entries[order]
        spans = [slice(0, int(np.searchsorted(targets, reached))) for reached in counts[:-1]]
    found = [
        Hop(_pointers(targets[span], reached), sources[span], entries[span])
        for span, reached in zip(spans, counts[:-1], strict=True)
    ]
    return Sample(data.n_id.numpy(), counts, found)


def _counts(sources: Whole, targets: Whole, seeds: int, hops: int) -> list[int]:
    """Return how many nodes lie within 0, 1, … hops, where nodes are numbered as they were met."""
    counts = [seeds]
    for _ in range(hops):
        reached = sources[targets < counts[-1]]
        counts.append(max(counts[-1], int(reached.max(initial=-1)) + 1))
    return counts


def _pointers(targets: Whole, count: int) -> Whole:
    return np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=count))]).astype(np.int64)
