from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from h3gnn.encoder import FeatureMatrix, JointEncoder, build_support
from h3gnn.encoder.layerwise import LayerwiseEncoder
from h3gnn.encoder.rows import mapped_rows, rows_of
from h3gnn.graphs.graph import Graph
from h3gnn.largefit import files_in
from h3gnn.training.parts import dense_rows


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("chunk", [7, 1000])
@pytest.mark.parametrize(("hops", "batch_norm"), [(1, False), (3, True)])
def test_layer_by_layer_is_the_encoder_at_once(
    small_mixed: Graph, tmp_path: Path, hops: int, batch_norm: bool, chunk: int, sparse: bool
) -> None:
    graph = small_mixed
    support = build_support(graph.edge_index, graph.num_nodes, normalize=True, self_loops=False)
    encoder = JointEncoder(
        graph.num_features, 8, support.pattern.entries, hops=hops, heads=2, batch_norm=batch_norm, models=2
    )
    encoder.reset_parameters([torch.Generator().manual_seed(i) for i in range(2)], support.start)
    features = graph.dense_features()
    with torch.no_grad():
        encoder(FeatureMatrix(features), support)  # moves batch norm's statistics off their start
        encoder.eval()
        whole = encoder(FeatureMatrix(features), support).transpose(0, 1).flatten(1)
        weights = encoder.edges(support)
    layers = LayerwiseEncoder(
        encoder,
        dense_rows(features.to_sparse_csr() if sparse else features),
        rows_of(support, "normalized", True),
        lambda first, last: weights[:, first:last],
        chunk,
        files_in(tmp_path) if chunk == 7 else None,
    )
    pieces = list(layers.chunks())
    assert max(len(piece) for piece in pieces) <= chunk
    torch.testing.assert_close(torch.cat(pieces), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("start", ["normalized", 0.3])
def test_starts_and_factors_by_entry_are_those_of_the_support(
    small_mixed: Graph, start: float | str, normalize: bool, weighted: bool
) -> None:
    graph = small_mixed
    weight = torch.rand(graph.num_edges, generator=torch.Generator().manual_seed(0)) + 0.1
    support = build_support(
        graph.edge_index,
        graph.num_nodes,
        edge_weight=weight if weighted else None,
        undirected=False,
        self_loops=False,
        start=start,
        normalize=normalize,
    )
    pattern = support.pattern
    between = graph.edge_index[0] != graph.edge_index[1]
    own = weight[between].numpy() if weighted else None
    rows = mapped_rows(pattern.crow.numpy(), pattern.cols.numpy(), own, start=start, normalize=normalize)
    some = np.arange(3, pattern.entries, 5)
    torch.testing.assert_close(rows.factor(some), support.factor[some])
    torch.testing.assert_close(rows.starts(4, 60), support.start[4:60])
    logit = torch.zeros(2, pattern.entries)
    rows.fill_logit(logit)
    torch.testing.assert_close(torch.sigmoid(logit[1]), support.start)
