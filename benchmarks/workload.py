"""What is measured: graphs of the benchmark's shapes, and the engine and the reference set up on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.reference import ReferenceEncoder, ReferenceTrainer, probability_mask, random_mask
from h3gnn.encoder import EncoderStack, FeatureMatrix, build_support
from h3gnn.errors import InputError
from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.datasets import load
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import WholeGraph
from h3gnn.training.masking import ProbabilityMask, RandomMask
from h3gnn.training.models import Shape as EncoderShape
from h3gnn.training.models import Training, stack_step
from h3gnn.training.step import Step

MASK_RATIO, EXPLOIT_RATIO, LEARNING_RATE, MOMENTUM = 0.5, 0.5, 0.001, 0.9


@dataclass(frozen=True)
class Shape:
    """Size of a graph; edges are directed, density is the share of non-zero features."""

    nodes: int
    edges: int
    features: int
    density: float


SHAPES = {
    "texas": Shape(183, 325, 1703, 0.049),
    "cora": Shape(2708, 10556, 1433, 0.0127),
    "citeseer": Shape(3327, 9104, 3703, 0.0085),
    "actor": Shape(7600, 30019, 932, 0.0058),
    "pubmed": Shape(19717, 88648, 500, 0.10),
}


def graph_of(name: str) -> Graph:
    """Return the real graph where its files are at hand, else a random one of the same shape."""
    try:
        return load(name)
    except InputError:
        return random_graph(SHAPES[name])


def random_graph(shape: Shape, seed: int = 0) -> Graph:
    """Return a graph of this shape with random edges and features."""
    random = np.random.default_rng(seed)
    features = (random.random((shape.nodes, shape.features)) < shape.density).astype(np.float32)
    return check_graph(features, random.integers(shape.nodes, size=(2, shape.edges)), source="random")


def engine_step(
    graph: Graph,
    channels: int,
    models: int = 1,
    *,
    device: str = "cpu",
    bfloat16: bool = False,
) -> Step:
    """Return one epoch of the engine."""
    where = torch.device(device)
    support = build_support(graph.edge_index, graph.num_nodes)
    student = EncoderStack(
        graph.num_features,
        channels,
        support.entries,
        fuse_in_bfloat16=bfloat16,
        side_by_side=where.type == "cuda",
        models=models,
    )
    source = WholeGraph(FeatureMatrix(graph.features.to(where)), support.to(where), student.hops)
    # the paper's objective, which the reference has, too
    paper = H3GNN.from_preset(
        "single", n_models=models, learning_rate=LEARNING_RATE, momentum=MOMENTUM, targets="plain"
    )
    step = stack_step(student, source, list(range(models)), Training.of(paper.get_settings()))
    step.student.train()
    return step


def engine_masks(models: int = 1) -> tuple[RandomMask, ProbabilityMask]:
    """Return the masks of the warm-up and those after it."""
    ratios, exploits = [MASK_RATIO] * models, [EXPLOIT_RATIO] * models
    return RandomMask(ratios), ProbabilityMask(ratios, exploits)


def engine_epoch(
    graph: Graph, channels: int, models: int = 1, bfloat16: bool = False
) -> Callable[[], object]:
    """Return a function that runs one epoch of the engine on the CPU."""
    step = engine_step(graph, channels, models, bfloat16=bfloat16)
    warming, masks = engine_masks(models)
    step(warming)
    return lambda: step(masks)


def ensemble_epoch(graph: Graph, bfloat16: bool) -> Callable[[], object]:
    """Return a function that runs one epoch of the default ensemble on the CPU, as `H3GNN()` trains it."""
    params = H3GNN(device="cpu").get_settings()
    models, training = params["n_models"], Training.of(params)
    support = build_support(graph.edge_index, graph.num_nodes)
    student = EncoderShape.of(params).build(graph.num_features, support.entries, models, torch.device("cpu"))
    student.fuse_in_bfloat16 = bfloat16
    source = WholeGraph(FeatureMatrix(graph.features), support, student.hops)
    step = stack_step(student, source, list(range(models)), training)
    step.student.train()
    masks = training.mask_of(models)
    step(masks(0))
    return lambda: step(masks(training.epochs - 1))


def reference_epoch(graph: Graph, channels: int, device: str = "cpu") -> Callable[[], object]:
    """Return a function that runs one epoch of the plain reference."""
    support = build_support(graph.edge_index, graph.num_nodes)
    edge_index = torch.stack([support.pattern.cols, support.pattern.rows]).to(device)
    encoder = ReferenceEncoder(graph.num_features, channels, edge_index, support.start.to(device)).to(device)
    features = graph.dense_features().to(device)
    trainer = ReferenceTrainer(encoder, features, learning_rate=LEARNING_RATE, momentum=MOMENTUM)
    difficulty: Tensor = trainer.step(random_mask(graph.num_nodes, MASK_RATIO).to(device))

    def epoch() -> None:
        nonlocal difficulty
        difficulty = trainer.step(probability_mask(difficulty, MASK_RATIO, EXPLOIT_RATIO))

    return epoch
