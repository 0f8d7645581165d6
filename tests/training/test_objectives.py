from __future__ import annotations

import pytest
import torch

from h3gnn.encoder import FeatureMatrix, JointEncoder, build_support
from h3gnn.encoder.layers import Dropout
from h3gnn.graphs.graph import Graph
from h3gnn.training.objective import FeatureReconstruction, LatentPrediction, backward_by_chunks
from h3gnn.training.teacher import Teacher


def setting(graph: Graph, dropout: float = 0.0) -> tuple[JointEncoder, FeatureMatrix]:
    support = build_support(graph.edge_index, graph.num_nodes)
    encoder = JointEncoder(
        graph.num_features,
        8,
        support.pattern.entries,
        heads=2,
        token_dropout=dropout,
        attention_dropout=dropout,
        models=2,
    )
    encoder.reset_parameters([torch.Generator().manual_seed(i) for i in range(2)], support.start)
    return encoder.double(), FeatureMatrix(graph.dense_features().double())


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_change_neither_difficulty_nor_gradients(
    small_mixed: Graph, dropout: float, chunk: int
) -> None:
    encoder, features = setting(small_mixed, dropout)
    support = build_support(small_mixed.edge_index, small_mixed.num_nodes)
    mask = torch.zeros(2, small_mixed.num_nodes, dtype=torch.bool)
    mask[:, ::2] = True

    def gradients(size: int) -> list[torch.Tensor]:
        noise = Dropout([torch.Generator().manual_seed(i) for i in range(2)])
        encoder.zero_grad()
        projected = encoder.project(features)
        tokens = encoder.tokens(projected, support, mask, dropout=noise)
        kept = encoder.attention_keep(small_mixed.num_nodes, noise)
        distance = LatentPrediction(Teacher(encoder, [0.9] * 2)).distance(projected, support, None)
        difficulty = backward_by_chunks(encoder.fuse, distance, tokens, kept, size)
        return [difficulty, *(p.grad.clone() for p in encoder.parameters() if p.grad is not None)]

    for ours, whole in zip(gradients(chunk), gradients(small_mixed.num_nodes), strict=True):
        torch.testing.assert_close(ours, whole)


def test_the_loss_is_the_squared_distance_to_the_teacher(path_graph: Graph) -> None:
    encoder, features = setting(path_graph)
    support = build_support(path_graph.edge_index, path_graph.num_nodes)
    teacher = Teacher(encoder, [0.9, 0.9])
    distance = LatentPrediction(teacher).distance(encoder.project(features), support, None)
    shifted = encoder(features, support) + 2.0  # every coordinate is 2 away, D = 4 tokens · 8 channels
    torch.testing.assert_close(
        distance(shifted, slice(None)), torch.full((2, 5), 4.0 * 32, dtype=torch.double)
    )


def test_the_decoder_is_asked_for_the_raw_features(path_graph: Graph) -> None:
    encoder, features = setting(path_graph)
    support = build_support(path_graph.edge_index, path_graph.num_nodes)
    objective = FeatureReconstruction(2, encoder.out_channels, 8, features).double()
    objective.reset_parameters([torch.Generator().manual_seed(i) for i in range(2)])
    embedding = encoder(features, support)
    decoded = objective.decoder(embedding[:, 1:3])
    wanted = (decoded - path_graph.dense_features().double()[1:3]).square().sum(dim=-1)
    distance = objective.distance(encoder.project(features), support, None)
    torch.testing.assert_close(distance(embedding[:, 1:3], slice(1, 3)), wanted)
