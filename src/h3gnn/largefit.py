"""Mini-batch training put together: a graph in memory or in files becomes a step, and embeddings in chunks.

The estimator's arguments arrive here as plain values; what `training` and `encoder` do with batches is wired
up with a graph's features, its support, and the place where long arrays live.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from h3gnn.encoder import JointEncoder, Support
from h3gnn.encoder.fusion import FeedForward
from h3gnn.encoder.layerwise import LayerwiseEncoder
from h3gnn.encoder.rows import SupportRows, mapped_rows, rows_of
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.mapped import MappedGraph, feature_rows, support_rows
from h3gnn.graphs.scaling import FeatureScaler
from h3gnn.storage.checkpoints import Checkpoints
from h3gnn.training.batches import BatchStep, agree, dense_parameters, train_in_batches
from h3gnn.training.checkpoints import checkpointing
from h3gnn.training.clusters import PER_BATCH, find_clusters
from h3gnn.training.distributed import Ranks, together
from h3gnn.training.edges import Allocate, EdgeSteps, SparseEdges
from h3gnn.training.history import History
from h3gnn.training.models import Training
from h3gnn.training.optimizer import StackedAdam
from h3gnn.training.parts import Parts, dense_rows
from h3gnn.training.progress import Watching, both, progress_bar
from h3gnn.training.sampling import ClusterSampler, NeighbourSampler, fan_out_for
from h3gnn.training.step import Step
from h3gnn.training.targets import FeatureTarget, Target, TeacherTarget
from h3gnn.training.teacher import Teacher

INFERENCE_CHUNK = 16_384
ORDER_SALT = 0x5EED


@dataclass(frozen=True)
class Source:
    """What batches are made from: scaled rows of features, and the rows of the support."""

    features: Callable[[npt.NDArray[np.int64]], Tensor]
    rows: SupportRows
    columns: int


def source_in_memory(
    graph: Graph, scaler: FeatureScaler, support: Support, *, start: float | str, normalize: bool
) -> Source:
    """Return the source of a graph in memory."""
    return Source(dense_rows(scaler(graph.features)), rows_of(support, start, normalize), graph.num_features)


def source_in_files(
    graph: MappedGraph,
    scaler: FeatureScaler,
    *,
    undirected: bool,
    self_loops: bool,
    start: float | str,
    normalize: bool,
) -> Source:
    """Return the source of a prepared graph; its support is built beside it the first time."""
    found = support_rows(graph, undirected=undirected, self_loops=self_loops)
    rows = mapped_rows(found.crow, found.cols, found.weight, start=start, normalize=normalize)
    return Source(feature_rows(graph, scaler), rows, graph.num_features)


@dataclass(frozen=True)
class BatchSettings:
    """How batches are made and stepped."""

    batch_size: int
    fan_out: int | Sequence[int] | None
    batches: str
    learning_rate: float
    weight_decay: float
    momentum: float
    live_teacher: bool
    decoder: bool
    chunk: int


def build_step(
    student: JointEncoder,
    source: Source,
    how: BatchSettings,
    seeds: Sequence[int],
    device: torch.device,
    ranks: Ranks,
    allocate: Allocate | None = None,
) -> BatchStep:
    """Wire up an epoch of mini-batches; the student's edge weights are put at their start here.

    Args:
        student: made with no edge weights, its dense weights drawn.
        source: features and support.
        how: batches and steps.
        seeds: of each model.
        device: where the encoder works.
        ranks: the processes that share the work.
        allocate: where the edge weights and their state live; memory by default.
    """
    models = student.models
    student.to(device)
    rates = EdgeSteps([how.learning_rate] * models, [how.weight_decay] * models, [how.momentum] * models)
    make = allocate or (lambda _, shape, dtype: torch.zeros(shape, dtype=dtype, device=device))
    trained: list[nn.Module] = [dense_parameters(student)]
    if how.decoder:
        decoder = _decoder(student, source.columns, seeds).to(device)
        trained.append(decoder)
        logit = _place_edges(student, source.rows, make, "logit")
        edges = SparseEdges(logit, None, rates, allocate)
        target: Target = FeatureTarget(decoder)
    else:
        teacher = Teacher(student, rates.momentum, how.live_teacher)
        followed = _place_edges(teacher.encoder, source.rows, make, "teacher-logit")
        logit = _place_edges(student, source.rows, make, "logit")
        edges = SparseEdges(logit, followed, rates, allocate)
        target = TeacherTarget(teacher, edges)
    return BatchStep(
        student,
        target,
        StackedAdam(trained, rates.learning_rates, rates.weight_decays),
        edges,
        _parts(source, how, student.hops, device),
        [torch.Generator(device).manual_seed(seed) for seed in seeds],
        torch.Generator().manual_seed(seeds[0] ^ ORDER_SALT),
        how.chunk,
        ranks,
    )


def train_source(
    student: JointEncoder,
    source: Source,
    how: BatchSettings,
    seeds: Sequence[int],
    training: Training,
    device: torch.device,
    *,
    budget: int,
    checkpoints: Checkpoints | None,
    fingerprint: dict[str, Any],
    show: bool,
    watching: Watching | None,
) -> History:
    """Draw a stack of models and train it in mini-batches, alone or with the other processes of a job.

    Args:
        student: made with no edge weights, not yet drawn.
        source: features and support.
        how: batches and steps.
        seeds: of each model.
        training: masks, schedule and epochs.
        device: where the encoder works.
        budget: bytes of memory to plan with.
        checkpoints, fingerprint: where the state is written down, and what the result depends on.
        show: draw a progress bar.
        watching: gives what is called after each epoch.
    """
    student.reset_parameters([torch.Generator().manual_seed(seed) for seed in seeds], torch.empty(0))
    with together(device) as ranks, edge_files(source, student.models, budget) as allocate:
        step = build_step(student, source, how, seeds, device, ranks, allocate)
        first = ranks.rank == 0
        more = watching(0) if watching is not None and first else None
        place, epochs = checkpoints if first else None, training.epochs
        with (
            progress_bar(epochs, "training", show=show and first) as bar,
            checkpointing(place, cast(Step, step), fingerprint, epochs, both(bar, more)) as (recorder, watch),
        ):
            history = train_in_batches(
                step,
                epochs=epochs,
                mask_of=training.mask_of(student.models),
                learning_rate_of=training.learning_rate_of(),
                watch=watch,
                recorder=agree(step, recorder, ranks),
            )
    history.engine = {
        "device": str(device),
        "precision": "bfloat16" if student.fuse_in_bfloat16 else "float32",
        "models_at_once": student.models,
        "processes": ranks.size,
    }
    return history


def _decoder(student: JointEncoder, columns: int, seeds: Sequence[int]) -> FeedForward:
    decoder = FeedForward(student.models, student.out_channels, student.channels, columns)
    decoder.reset_parameters([torch.Generator().manual_seed(seed + 1) for seed in seeds])
    return decoder


def _place_edges(encoder: JointEncoder, rows: SupportRows, make: Allocate, name: str) -> Tensor:
    """Give an encoder its edge weights, at their start, where `make` puts them."""
    logit = make(name, (encoder.models, rows.entries), torch.float32)
    rows.fill_logit(logit)
    encoder.edges.logit = nn.Parameter(logit, requires_grad=False)
    return logit


def _parts(source: Source, how: BatchSettings, hops: int, device: torch.device) -> Parts:
    rows = source.rows
    if how.batches == "clusters":
        clusters = find_clusters(rows.crow, rows.cols, max(1, how.batch_size // PER_BATCH))
        sampler: NeighbourSampler = ClusterSampler(rows.crow, rows.cols, hops)
        return Parts(sampler, source.features, rows.factor, how.batch_size, device, clusters)
    sampler = NeighbourSampler(rows.crow, rows.cols, fan_out_for(hops, how.fan_out))
    return Parts(sampler, source.features, rows.factor, how.batch_size, device)


def embedding_chunks(
    encoder: JointEncoder, source: Source, budget: int, chunk: int = INFERENCE_CHUNK
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the embeddings of all nodes, some at a time, from layer-by-layer encoding."""
    logit = encoder.edges.logit.detach()
    long = 4 * encoder.models * source.rows.nodes * encoder.channels * (encoder.hops + 2)

    def edge_weights(first: int, last: int) -> Tensor:
        return torch.sigmoid(logit[:, first:last].cpu()) * source.rows.factor(np.arange(first, last))

    with tempfile.TemporaryDirectory(prefix="h3gnn-") as folder:
        allocate = files_in(Path(folder)) if long > budget // 2 else None
        layers = LayerwiseEncoder(encoder.eval(), source.features, source.rows, edge_weights, chunk, allocate)
        for piece in layers.chunks():
            embedding: npt.NDArray[np.float32] = piece.numpy()
            yield embedding


@contextmanager
def edge_files(source: Source, models: int, budget: int) -> Iterator[Allocate | None]:
    """Put the edge weights and their state into files while the block runs, if half the budget is less."""
    if source.rows.entries * (6 + 16 * models) <= budget // 2:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="h3gnn-") as folder:
        yield files_in(Path(folder))


def files_in(folder: Path) -> Allocate:
    """Return an allocator whose tensors of zeros are files, which the system may write out and drop."""

    def allocate(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        count = int(np.prod(shape))
        path = folder / name
        with path.open("wb") as file:
            file.truncate(count * torch.empty(0, dtype=dtype).element_size())
        mapped: Any = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
        tensor: Tensor = mapped.view(shape)
        return tensor

    return allocate


def physical_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
