"""Many models at once: each one's result is the one that it has alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn.encoder import EncoderStack, FeatureMatrix, Support, build_support
from h3gnn.encoder.encode import embed_models
from h3gnn.encoder.sparse import DENSE_NODES
from h3gnn.encoder.tokens import whole_graph
from h3gnn.estimator import H3GNN
from h3gnn.graphs.graph import Graph
from h3gnn.training.batches import WholeGraph
from h3gnn.training.masking import DifficultyMask
from h3gnn.training.models import Training, stack_step, train_models
from h3gnn.training.step import MaskStrategy, Step

OPTIONS: dict[str, Any] = H3GNN.from_preset(
    "single", momentum=0.9, mask_ratio=0.5, mask_warmup=2, epochs=12, learning_rate=0.005, warmup_epochs=2
).get_settings()


def source_of(graph: Graph) -> WholeGraph:
    support = build_support(graph.edge_index, graph.num_nodes)
    return WholeGraph(FeatureMatrix(graph.dense_features()), support, 2)


def builder(graph: Graph, support: Support, dropout: float = 0.2) -> Callable[[int], EncoderStack]:
    return lambda models: EncoderStack(
        graph.num_features,
        8,
        support.entries,
        heads=2,
        token_dropout=dropout,
        attention_dropout=dropout,
        batch_norm=True,
        models=models,
    )


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_groups_give_what_all_at_once_give(small_mixed: Graph, at_once: int) -> None:
    source, how = source_of(small_mixed), Training.of(OPTIONS | {"n_models": 3})
    build = builder(small_mixed, source.support)
    seeds = [11, 22, 33]
    together, history = train_models(build, source, seeds, how, at_once=3)
    grouped, parts = train_models(build, source, seeds, how, at_once=at_once)
    assert not grouped.training
    torch.testing.assert_close(
        embed_models(grouped, source.rows()), embed_models(together, source.rows()), rtol=1e-3, atol=1e-3
    )
    np.testing.assert_allclose(parts["loss"], history["loss"], rtol=1e-3)
    assert parts.engine["models_at_once"] == at_once
    assert history.engine["feature_storage"] in ("csr", "dense")


def stack(graph: Graph, seeds: list[int], **own: Any) -> tuple[Step, MaskStrategy]:
    """A stack in which every model has settings of its own."""
    source, how = source_of(graph), Training.of(OPTIONS | own | {"n_models": len(seeds)})
    step = stack_step(builder(graph, source.support, 0.0)(len(seeds)), source, seeds, how, chunk=40)
    step.student.train()
    return step, how.mask_of(len(seeds))(how.mask_warmup)


OWN: dict[str, dict[str, list[Any]]] = {
    "numbers": {
        "learning_rate": [0.001, 0.01, 0.003],
        "mask_ratio": [0.3, 0.5, 0.8],
        "momentum": [0.9, 0.99, 0.5],
    },
    "views": {"feature_drop": [0.0, 0.2, 0.5], "edge_drop": [0.3, 0.0, 0.1]},
    "objectives": {"objective": ["teacher", "decorrelation", "features"], "weight_decay": [0.0, 0.1, 0.2]},
    "teachers": {"objective": ["neighbours", "edges", "edges"], "edge_drop": [0.2, 0.5, 0.5]},
}


@pytest.mark.parametrize("case", OWN)
def test_every_model_has_its_own_settings_and_equals_itself_alone(small_mixed: Graph, case: str) -> None:
    own, seeds = OWN[case], [1, 2, 3]
    together, masks = stack(small_mixed, seeds, **own)
    losses = [together(masks)[0] for _ in range(8)]
    for model in range(3):
        pick = slice(model, model + 1)
        alone, mask = stack(small_mixed, seeds[pick], **{name: values[pick] for name, values in own.items()})
        for loss in losses:
            torch.testing.assert_close(alone(mask)[0], loss[pick], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dense", [True, False])
def test_a_model_that_diverges_disturbs_no_other(
    small_mixed: Graph, dense: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DENSE_NODES, "cpu", 256 if dense else 0)
    good, masks = stack(small_mixed, [1, 2], learning_rate=0.001)
    wanted = [good(masks)[0, 0] for _ in range(6)]
    torn, masks = stack(small_mixed, [1, 2], learning_rate=0.001)
    with torch.no_grad():
        torn.student.input.weight[1] = float("nan")
    found = [torn(masks)[0] for _ in range(6)]
    assert found[-1][1].isnan()
    torch.testing.assert_close(torch.stack([loss[0] for loss in found]), torch.stack(wanted))


def test_bfloat16_in_the_fusion_block_stays_close(small_mixed: Graph) -> None:
    source = source_of(small_mixed)
    encoder = builder(small_mixed, source.support, 0.0)(1).eval()
    encoder.reset_parameters([torch.Generator().manual_seed(0)], source.support.start)
    part = whole_graph(source.features, source.support, 2)
    exact = encoder(part, encoder.edges(source.support.factor, source.support.start))
    encoder.fuse_in_bfloat16 = True
    rough = encoder(part, encoder.edges(source.support.factor, source.support.start))
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    assert (rough - exact).abs().max() < 0.1


def test_difficulty_masks_train_too(small_mixed: Graph) -> None:
    step, _ = stack(small_mixed, [1])
    _, masked = step(DifficultyMask([0.5], [0.5]))
    assert masked.item() == 50
    assert (step.difficulty > 0).any()
