"""GraphMAE's objective: the error by hand, no look at masked nodes, and that it learns."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from h3gnn.baselines.matrices import gcn_adjacency
from h3gnn.estimator import H3GNN
from h3gnn.experiments.graphmae import GraphMAE, RemaskDecoder, graphmae_embedding, scaled_cosine_error
from h3gnn.graphs.graph import Graph

SMALL = H3GNN(epochs=3, channels=8, heads=2, n_models=2, learning_rate=0.01, device="cpu")


def test_the_error_by_hand() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    rebuilt = torch.tensor([[[0.0, 3.0], [0.0, 1.0], [-1.0, -1.0]]])
    mask = torch.tensor([[True, True, False]])
    assert scaled_cosine_error(rebuilt, features, mask).tolist() == pytest.approx([(1 + 0) / 2])
    assert scaled_cosine_error(rebuilt, features, ~mask).tolist() == pytest.approx([4.0])


def test_the_decoder_cannot_see_masked_nodes(path_graph: Graph) -> None:
    decoder = RemaskDecoder(1, 4, 3, 5, gcn_adjacency(path_graph, torch.device("cpu")))
    decoder.reset_parameters([torch.Generator().manual_seed(0)])
    mask = torch.tensor([[False, True, False, False, False]])
    embedding = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1))
    other = embedding.clone()
    other[:, 1] += 1
    assert torch.equal(decoder(embedding, mask), decoder(other, mask))
    other[:, 2] += 1
    assert not torch.equal(decoder(embedding, mask)[:, 1], decoder(other, mask)[:, 1])


def test_it_learns_and_repeats_by_seed(small_mixed: Graph) -> None:
    training = GraphMAE(SMALL, small_mixed)
    losses = torch.stack([training.step() for _ in range(30)])
    assert bool((losses[-5:].mean(dim=0) < 0.8 * losses[:2].mean(dim=0)).all())
    one, again = (graphmae_embedding(SMALL, small_mixed) for _ in range(2))
    assert one.shape == (100, 2 * 4 * 8)
    np.testing.assert_array_equal(one, again)
    untrained = H3GNN(**{**SMALL.get_params(), "epochs": 0}).fit_transform(small_mixed)
    assert not np.allclose(one, untrained)
