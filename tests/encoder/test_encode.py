from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from h3gnn.encoder import EncoderStack, FeatureMatrix, Support, build_support
from h3gnn.encoder.encode import GraphRows, LayerwiseEncoder, concat_models, embed_models
from h3gnn.encoder.support import support_from_rows
from h3gnn.encoder.tokens import whole_graph
from h3gnn.graphs.graph import Graph
from h3gnn.training.distributed import rows_in_memory
from h3gnn.training.models import files_in

MODELS = 2


def trained(graph: Graph, support: Support, **options: Any) -> EncoderStack:
    """An encoder in evaluation mode with batch-norm statistics."""
    encoder = EncoderStack(graph.num_features, 8, support.entries, heads=2, models=MODELS, **options)
    encoder.reset_parameters([torch.Generator().manual_seed(i) for i in range(MODELS)], support.start)
    with torch.no_grad():
        at_once(encoder, graph, support)
    return encoder.eval()


@torch.no_grad()
def at_once(encoder: EncoderStack, graph: Graph, support: Support) -> torch.Tensor:
    part = whole_graph(FeatureMatrix(graph.dense_features()), support, encoder.hops)
    embedding: torch.Tensor = encoder(part, encoder.edges(support.factor, support.start))
    return embedding


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"hops": 1},
        {"hops": 3, "batch_norm": True},
        {"hops": 2, "edge_weights": "fixed", "min_layers": 2, "output": "max"},
        {"hops": 3, "edge_weights": "computed"},
    ],
    ids=str,
)
def test_layerwise_encoding_equals_the_encoder(
    small_mixed: Graph, tmp_path: Path, options: dict[str, Any], given: bool, chunk: int, sparse: bool
) -> None:
    graph = small_mixed
    support = build_support(graph.edge_index, graph.num_nodes, normalize=True, self_loops=False)
    encoder = trained(graph, support, **options)
    whole = at_once(encoder, graph, support)
    weights = encoder.edges(support.factor, support.start).detach() if given else None
    if given:
        encoder.edges.logit.data.fill_(float("nan"))  # the learned ones are not used
    features = graph.dense_features()
    rows = rows_in_memory(features.to_sparse_csr() if sparse else features, support)
    allocate = files_in(tmp_path) if chunk == 7 else None
    pieces = list(LayerwiseEncoder(encoder, rows, weights, chunk, allocate).chunks())
    assert max(piece.shape[1] for piece in pieces) <= chunk
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-4)


def test_embedding_uses_full_precision_and_restores_the_encoder(small_mixed: Graph) -> None:
    support = build_support(small_mixed.edge_index, small_mixed.num_nodes)
    encoder = trained(small_mixed, support)
    whole = at_once(encoder, small_mixed, support)
    encoder.fuse_in_bfloat16 = True
    graph = GraphRows.in_memory(FeatureMatrix(small_mixed.dense_features()), support)
    for training in (True, False):
        encoder.train(training)
        torch.testing.assert_close(embed_models(encoder, graph), whole, atol=1e-5, rtol=1e-4)
        assert encoder.training == training
        assert encoder.fuse_in_bfloat16
    side_by_side = concat_models(embed_models(encoder, graph))
    assert torch.equal(side_by_side[:, encoder.out_channels :], embed_models(encoder, graph)[1])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("start", ["normalized", 0.3])
def test_starts_and_factors_by_entry_equal_those_of_the_whole_support(
    small_mixed: Graph, start: float | str, normalize: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small_mixed
    weight = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(0)) + 0.1
    how: dict[str, Any] = {"start": start, "normalize": normalize}
    directed: dict[str, Any] = {"undirected": False, "self_loops": False}
    given = weight if weighted else None
    support = build_support(graph.edge_index, graph.num_nodes, edge_weight=given, **directed, **how)
    monkeypatch.setattr("h3gnn.encoder.support.ENTRIES_AT_A_TIME", 50)
    pattern = support.pattern
    between = graph.edge_index[0] != graph.edge_index[1]
    own = weight[between].numpy() if weighted else None
    rows = support_from_rows(pattern.crow.numpy(), pattern.cols.numpy(), own, **how)
    some, span = torch.arange(3, pattern.entries, 5), torch.arange(4, 60)
    torch.testing.assert_close(rows.factors(some), support.factor[some])
    torch.testing.assert_close(rows.starts(span), support.start[4:60])
    torch.testing.assert_close(rows.factor, support.factor)
