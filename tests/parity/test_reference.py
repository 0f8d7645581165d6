"""The engine against the plain reference, in float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.reference import ReferenceEncoder, ReferenceTrainer
from h3gnn.encoder import EncoderStack, FeatureMatrix, build_support
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import WholeGraph
from h3gnn.training.masking import RandomMask
from h3gnn.training.models import Training, stack_step
from h3gnn.training.optimizer import warmup_cosine
from h3gnn.training.step import Step

CHANNELS, HOPS = 8, 3
CASES = [
    ("residual-post", "flatten", True), ("post", "first", True), ("pre", "flatten", False),
    ("residual-post", "first", False), ("post", "flatten", False), ("pre", "first", True),
]  # fmt: skip
"""Norm, output and batch norm; every pair of values occurs."""
TRAINING = Training.of(
    H3GNN.from_preset(
        "single", objective="teacher", targets="plain", momentum=0.9, learning_rate=0.001, weight_decay=1e-4
    ).get_settings()
)


def copy_into_reference(ours: EncoderStack, theirs: ReferenceEncoder) -> None:
    """Copy the first model's weights; ours are `[in, out]`, torch's `[out, in]`."""
    encoder: Any = ours
    reference: Any = theirs
    linear, hidden, *hops = torch.split(encoder.input.weight[0], encoder.input.widths, dim=-1)
    block, fusion = reference.block, encoder.fusion
    pairs: list[tuple[Tensor, Tensor]] = [
        (reference.edge_logit, encoder.edges.logit[0]),
        (reference.mask_token, encoder.input.mask_token[0, 0]),
        (reference.linear.weight, linear.t()),
        (reference.linear.bias, encoder.linear_bias[0, 0]),
        (reference.mlp[0].weight, hidden.t()),
        (reference.mlp[0].bias, encoder.mlp.bias[0, 0]),
        (reference.mlp[2].weight, encoder.mlp.output.weight[0].t()),
        (reference.mlp[2].bias, encoder.mlp.output.bias[0, 0]),
        (block.attention.in_proj_weight, fusion.qkv.weight[0].t()),
        (block.attention.in_proj_bias, fusion.qkv.bias[0, 0]),
        (block.attention.out_proj.weight, fusion.projection.weight[0].t()),
        (block.attention.out_proj.bias, fusion.projection.bias[0, 0]),
        (block.norm1.weight, fusion.attention_norm.weight[0]),
        (block.norm1.bias, fusion.attention_norm.bias[0]),
        (block.norm2.weight, fusion.mlp_norm.weight[0]),
        (block.norm2.bias, fusion.mlp_norm.bias[0]),
        (block.mlp[0].weight, fusion.mlp.input.weight[0].t()),
        (block.mlp[0].bias, fusion.mlp.input.bias[0, 0]),
        (block.mlp[2].weight, fusion.mlp.output.weight[0].t()),
        (block.mlp[2].bias, fusion.mlp.output.bias[0, 0]),
    ]
    for convs, first, token in zip(reference.hops, hops, encoder.hop_tokens, strict=True):
        pairs.append((convs[0].linear.weight, first.t()))
        pairs += [
            (conv.linear.weight, layer.weight[0].t())
            for conv, layer in zip(list(convs)[1:], token.linears, strict=True)
        ]
    for norms, token in zip(reference.norms, encoder.hop_tokens, strict=True):
        for norm, mine in zip(norms, token.norms, strict=False):
            pairs += [(norm.weight, mine.weight[0, 0]), (norm.bias, mine.bias[0, 0])]
            pairs += [
                (norm.running_mean, mine.running_mean[0, 0]),
                (norm.running_var, mine.running_var[0, 0]),
            ]
    with torch.no_grad():
        for target, value in pairs:
            target.copy_(value)


def build(graph: Graph, norm: str, output: str, batch_norm: bool) -> tuple[Step, ReferenceEncoder]:
    """Return a training step and a reference with the same initial weights."""
    options: dict[str, Any] = {"hops": HOPS, "heads": 2}
    options |= {"norm": norm, "output": output, "batch_norm": batch_norm}
    support = build_support(graph.edge_index, graph.num_nodes).to(torch.device("cpu"), torch.double)
    encoder = EncoderStack(graph.num_features, CHANNELS, support.entries, **options).double()
    features = FeatureMatrix(graph.dense_features().double(), storage="csr")
    step = stack_step(encoder, WholeGraph(features, support, HOPS), [0], TRAINING, chunk=33)
    edge_index = torch.stack([support.pattern.cols, support.pattern.rows])
    reference = ReferenceEncoder(
        graph.num_features,
        CHANNELS,
        edge_index,
        support.start,
        **options,
    ).double()
    copy_into_reference(encoder, reference)
    return step, reference


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["residual-post", "post", "pre"])
@pytest.mark.parametrize("output", ["flatten", "first"])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_fifty_epochs_give_the_same_parameters(
    small_mixed: Graph, norm: str, output: str, batch_norm: bool
) -> None:
    compare_training(small_mixed, norm, output, batch_norm, epochs=50)


@pytest.mark.parametrize(("norm", "output", "batch_norm"), CASES)
def test_fifteen_epochs_give_the_same_parameters(
    small_mixed: Graph, norm: str, output: str, batch_norm: bool
) -> None:
    compare_training(small_mixed, norm, output, batch_norm, epochs=15)


def compare_training(graph: Graph, norm: str, output: str, batch_norm: bool, epochs: int) -> None:
    step, reference = build(graph, norm, output, batch_norm)
    schedule = partial(warmup_cosine, steps=epochs, warmup=5)
    plain = ReferenceTrainer(
        reference,
        graph.dense_features().double(),
        learning_rate=0.001,
        momentum=0.9,
        weight_decay=1e-4,
        schedule=schedule,
    )
    drawing = [torch.Generator().manual_seed(1)]
    step.student.train()
    for epoch in range(epochs):
        mask = RandomMask([0.5])(torch.zeros(1, graph.num_nodes), drawing)
        step.optimizer.set_learning_rate(schedule(epoch))
        loss, masked = step(lambda *_, mask=mask: mask)
        theirs = plain.step(mask[0])
        torch.testing.assert_close(step.difficulty[0], theirs, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(loss[0], theirs.mean(), rtol=1e-8, atol=1e-10)
        assert int(masked) == int(mask.sum())

    copied = build(graph, norm, output, batch_norm)[1]
    copy_into_reference(step.student, copied)
    for name, ours in copied.named_parameters():
        assert (ours - reference.get_parameter(name)).abs().max() < 1e-10, name
    assert step.teacher is not None
    teacher = build(graph, norm, output, batch_norm)[1]
    copy_into_reference(step.teacher.encoder, teacher)
    for name, ours in teacher.named_parameters():
        assert (ours - plain.teacher.get_parameter(name)).abs().max() < 1e-10, name
