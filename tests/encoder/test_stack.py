from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from h3gnn.encoder import EncoderStack, FeatureMatrix, Support, build_support
from h3gnn.encoder.sparse import Adjacency, Pattern
from h3gnn.encoder.tokens import Projected, Unprojected, whole_graph
from h3gnn.graphs.graph import Graph

SHAPES = (2, 4, 7), (2, 1, 4), (2, 5)
"""First-layer weights of two models, mask tokens, and weights of five edges."""


def make(graph: Graph, **options: Any) -> tuple[EncoderStack, FeatureMatrix, Support]:
    support = build_support(graph.edge_index, graph.num_nodes)
    options = {"hops": 2, "heads": 2, **options}
    encoder = EncoderStack(graph.num_features, 8, support.entries, **options)
    models = options.get("models", 1)
    encoder.reset_parameters([torch.Generator().manual_seed(i) for i in range(models)], support.start)
    return encoder.eval(), FeatureMatrix(graph.dense_features()), support


def tokens_of(encoder: EncoderStack, features: FeatureMatrix, support: Support) -> Tensor:
    part = whole_graph(features, support, encoder.hops)
    return encoder.tokens(encoder.project(part), part, encoder.edges(support.factor, support.start))


def encode(encoder: EncoderStack, features: FeatureMatrix, support: Support) -> Tensor:
    part = whole_graph(features, support, encoder.hops)
    embedding: Tensor = encoder(part, encoder.edges(support.factor, support.start))
    return embedding


def reach(token: int, graph: Graph, encoder: EncoderStack, support: Support) -> list[list[int]]:
    """Return the nodes whose features this token of each node depends on."""
    features = graph.dense_features().clone()
    base = tokens_of(encoder, FeatureMatrix(features), support)[0, :, token]
    depends: list[list[int]] = [[] for _ in range(graph.num_nodes)]
    for node in range(graph.num_nodes):
        changed = features.clone()
        changed[node] += 100.0
        tokens = tokens_of(encoder, FeatureMatrix(changed), support)[0, :, token]
        for receiver in torch.nonzero((tokens - base).abs().amax(dim=1) > 1e-6).flatten().tolist():
            depends[receiver].append(node)
    return depends


def test_a_token_of_hop_k_sees_exactly_k_hops(path_graph: Graph) -> None:
    encoder, _, support = make(path_graph, hops=3)
    for own in (0, 1):
        assert reach(own, path_graph, encoder, support) == [[0], [1], [2], [3], [4]]
    assert reach(2, path_graph, encoder, support) == [[0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4]]
    assert reach(3, path_graph, encoder, support)[0] == [0, 1, 2]
    assert reach(4, path_graph, encoder, support)[0] == [0, 1, 2, 3]


def test_min_layers_widens_the_neighbourhood_of_the_first_hops(path_graph: Graph) -> None:
    encoder, _, support = make(path_graph, hops=3, min_layers=2)
    two = [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [1, 2, 3, 4], [2, 3, 4]]
    assert [reach(token, path_graph, encoder, support) for token in (2, 3)] == [two, two]
    assert reach(4, path_graph, encoder, support)[0] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"min_layers \(2\) must not be more than hops \(1\)"):
        make(path_graph, hops=1, min_layers=2)


@pytest.mark.parametrize("edge_weights", ["free", "computed"])
def test_swapping_rows_of_the_product_equals_swapping_features(path_graph: Graph, edge_weights: str) -> None:
    encoder, features, support = make(path_graph, edge_weights=edge_weights, min_layers=2)
    part, donors = whole_graph(features, support, 2), torch.tensor([[0, 3, 2, 0, 4]])
    mask = torch.tensor([[False, False, True, False, False]])
    weights = encoder.edges(support.factor, support.start)
    found = encoder.tokens(encoder.project(part), part, weights, mask, donors=donors)
    swapped = whole_graph(FeatureMatrix(path_graph.dense_features()[donors[0]]), support, 2)
    torch.testing.assert_close(found, encoder.tokens(encoder.project(swapped), swapped, weights, mask))


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_summing_before_the_product_equals_summing_after(hidden: bool, swapped: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    pattern = Pattern(torch.tensor([0, 3, 3, 5]), torch.tensor([0, 1, 5, 2, 3]), 6, torch.arange(5))
    features = torch.randn(6, 4, generator=generator, dtype=torch.double)
    learned = [torch.randn(shape, generator=generator, dtype=torch.double) for shape in SHAPES]
    mask = torch.tensor([[0, 1, 0, 0, 1, 1], [1, 1, 0, 1, 0, 0]]).bool() if hidden else None
    donors = torch.tensor([[0, 1, 0, 2, 4, 5], [2, 1, 2, 3, 0, 0]]) if swapped else None
    slope = torch.randn(2, 3, 7, generator=generator, dtype=torch.double)

    def gradients(sum_first: bool) -> list[Tensor]:
        weight, token, values = (one.clone().requires_grad_() for one in learned)
        adjacency = Adjacency(pattern, values)
        if sum_first:
            rows = Unprojected(FeatureMatrix(features, "dense"), weight, token)
            summed = rows.aggregate(adjacency, mask, donors)
        else:
            summed = adjacency @ Projected(features @ weight, token @ weight).masked(mask, donors)
        inputs = [weight, token, values] if hidden else [weight, values]  # the token is not used
        return [summed.detach(), *torch.autograd.grad((summed * slope).sum(), inputs)]

    torch.testing.assert_close(gradients(True), gradients(False))


def test_outputs_are_all_tokens_the_first_or_the_maximum(path_graph: Graph) -> None:
    encoders = {output: make(path_graph, output=output) for output in ("flatten", "first", "max")}
    found = {output: encode(*made) for output, made in encoders.items()}
    tokens = found["flatten"].view(1, 5, 4, 8)
    torch.testing.assert_close(found["first"], tokens[:, :, 0])
    torch.testing.assert_close(found["max"], tokens.max(dim=2).values)
    assert [encoders[output][0].out_channels for output in found] == [32, 8, 8]


def test_free_weights_are_the_entries_of_the_adjacency(path_graph: Graph) -> None:
    encoder, features, support = make(path_graph, edge_weights="free", hops=1)
    drawn = torch.randn(support.entries, generator=torch.Generator().manual_seed(3))
    encoder.edges.logit.data.copy_(drawn)
    adjacency = torch.zeros(5, 5)
    adjacency[support.pattern.rows, support.pattern.cols] = drawn
    wanted = torch.relu(adjacency @ path_graph.dense_features() @ encoder.input.weight[0, :, 40:])
    torch.testing.assert_close(tokens_of(encoder, features, support)[0, :, 2], wanted)


@pytest.mark.parametrize("edge_weights", ["learned", "free"])
def test_gradients_of_edge_weights_equal_finite_differences(path_graph: Graph, edge_weights: str) -> None:
    encoder, _, support = make(path_graph, edge_weights=edge_weights)
    support = support.to(torch.device("cpu"), torch.double)
    part = whole_graph(FeatureMatrix(path_graph.dense_features().double()), support, 2)

    def embed(logit: Tensor) -> Tensor:
        embedding: Tensor = encoder(part, encoder.edges.to_weight(logit) * support.factor)
        return embedding

    assert torch.autograd.gradcheck(embed, encoder.double().edges.logit.detach().requires_grad_())


@pytest.mark.parametrize("norm", ["residual-post", "post", "pre"])
@pytest.mark.parametrize("fusion", ["attention", "mlp"])
@pytest.mark.parametrize("output", ["flatten", "first"])
def test_shapes(path_graph: Graph, norm: str, fusion: str, output: str) -> None:
    encoder, features, support = make(path_graph, norm=norm, fusion=fusion, output=output, models=3, hops=3)
    embedding = encode(encoder, features, support)
    assert embedding.shape == (3, 5, 40 if output == "flatten" else 8)
    assert encoder.out_channels == embedding.shape[-1]


def test_attention_is_a_distribution_over_tokens(path_graph: Graph) -> None:
    encoder, features, support = make(path_graph)
    attention = encoder.attention(tokens_of(encoder, features, support))
    assert attention is not None
    assert attention.shape == (1, 5, 4, 4, 2)
    torch.testing.assert_close(attention.sum(dim=3), torch.ones(1, 5, 4, 2))
    without, features, support = make(path_graph, fusion="mlp")
    assert without.attention(tokens_of(without, features, support)) is None


@pytest.mark.parametrize("batch_norm", [False, True])
def test_a_model_in_a_stack_equals_the_model_alone(path_graph: Graph, batch_norm: bool) -> None:
    stacked, features, support = make(path_graph, models=3, batch_norm=batch_norm)
    alone, _, _ = make(path_graph, batch_norm=batch_norm)  # seed 0, as the first of the stack
    stacked.train()
    alone.train()
    torch.testing.assert_close(encode(stacked, features, support)[:1], encode(alone, features, support))


def test_the_mask_token_can_start_at_zero(path_graph: Graph) -> None:
    assert make(path_graph, mask_token="zero")[0].input.mask_token.abs().sum() == 0
    assert make(path_graph)[0].input.mask_token.abs().sum() > 0
