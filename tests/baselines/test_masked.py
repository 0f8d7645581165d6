"""GraphMAE, GraphMAE2, MaskGAE and Bandana: their losses by plain loops, and no leak past a mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from h3gnn.baselines.embedder import train
from h3gnn.baselines.layers import Attention, SparseMatrix, adjacency, weighted_sum
from h3gnn.baselines.masked import (
    Bandana,
    GraphMAE,
    GraphMAE2,
    GraphMAE2Settings,
    GraphMAESettings,
    LinkEmbedder,
    MaskGAE,
    MaskGAESettings,
    area_under_curve,
)
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from tests.baselines.helpers import CPU, check_moving_average, model_on
from tests.rejects import rejects

QUIET = GraphMAESettings(width=8, heads=2, epochs=3, feature_drop=0.0, attention_drop=0.0)
QUIET2 = GraphMAE2Settings(width=8, heads=2, epochs=3, feature_drop=0.0, attention_drop=0.0)


def looped_attention(
    layer: Attention, hidden: np.ndarray[Any, Any], edges: SparseMatrix
) -> np.ndarray[Any, Any]:
    """Compute graph attention, node by node and head by head."""
    weight, bias = (part.detach().numpy().astype(float) for part in (layer.weight, layer.bias))
    sender, receiver = (end.detach().numpy()[0].astype(float) for end in layer.ends)
    heads, channels = sender.shape
    product = (hidden @ weight).reshape(-1, heads, channels)
    out = np.zeros_like(product)
    for v in range(len(hidden)):
        around = edges.cols[edges.rows == v].tolist()
        for k in range(heads):
            score = np.array([product[u, k] @ sender[k] + product[v, k] @ receiver[k] for u in around])
            share = np.exp(np.where(score > 0, score, 0.2 * score))
            out[v, k] = sum(s * product[u, k] for s, u in zip(share / share.sum(), around, strict=True))
    rows: np.ndarray[Any, Any] = out.reshape(len(hidden), -1) + bias
    return rows


def test_attention_by_loops_and_averaged_before_the_map(path_graph: Graph) -> None:
    torch.manual_seed(1)
    edges, hidden = adjacency(path_graph, self_loops=True), torch.randn(5, 4)
    layer = Attention(4, 6, 2, 0.0)
    expected = looped_attention(layer, hidden.numpy().astype(float), edges)
    np.testing.assert_allclose(layer(hidden @ layer.weight, edges).detach().numpy(), expected, atol=1e-5)
    single = Attention(4, 6, 1, 0.0)
    wanted = torch.tensor([3, 0])
    through, first = single(hidden @ single.weight, edges)[wanted], single.averaged(hidden, edges, wanted)
    torch.testing.assert_close(first, through)
    slopes = [torch.autograd.grad((rows**2).sum(), [*single.parameters()]) for rows in (first, through)]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_gradient_of_attention(path_graph: Graph) -> None:
    entries = adjacency(path_graph, self_loops=True)
    edges = entries.with_values(entries.values.double())
    hidden = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    shares = torch.rand(13, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda h, s: weighted_sum(h, s, edges), (hidden, shares))


def test_graphmae_error_by_loops(path_graph: Graph) -> None:
    torch.manual_seed(0)
    model = GraphMAE(path_graph, QUIET, CPU)
    code, masked = torch.randn(5, 8), torch.tensor([4, 1])
    decoded = looped_attention(model.decoder, code.numpy().astype(float), model.edges)
    unit = decoded / np.linalg.norm(decoded, axis=1, keepdims=True)
    errors = [(1 - unit[v] @ path_graph.features[v].numpy()) ** 3 for v in masked.tolist()]
    assert float(model.error(code, masked).detach()) == pytest.approx(np.mean(errors), abs=1e-5)


def test_masked_features_do_not_reach_the_code(path_graph: Graph) -> None:
    """With the token alone, other features of a masked node change only the target."""
    masked = torch.tensor([1, 3])
    changed = path_graph.features.clone()
    changed[masked] = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])
    codes, left = [], []
    for features in (path_graph.features, changed):
        torch.manual_seed(0)
        graph = check_graph(features, path_graph.edge_index)
        model = GraphMAE(graph, replace(QUIET, replace_ratio=0.0, scale_features="none"), CPU)
        codes.append(model.encode_masked(masked))
        left.append(model.embedding())
    torch.testing.assert_close(*codes)
    assert not torch.allclose(left[0], left[1])


def test_replaced_nodes_show_another_nodes_features(path_graph: Graph) -> None:
    """If all masked nodes are replaced, the token has no gradient."""
    for ratio in (0.0, 1.0):
        torch.manual_seed(0)
        model = GraphMAE(path_graph, replace(QUIET, replace_ratio=ratio), CPU)
        model.loss(0).backward()  # type: ignore[no-untyped-call]
        assert model.token.grad is not None
        assert bool(model.token.grad.any()) == (ratio == 0)


def test_graphmaes_learning_rate_and_loss_fall(small_mixed: Graph) -> None:
    settings = replace(QUIET, epochs=40, learning_rate=0.01)
    model = train(GraphMAE, small_mixed, 0, CPU, settings)
    assert model.optimizer.param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    torch.manual_seed(5)
    trained = float(model.loss(0).detach())
    torch.manual_seed(5)
    start = float(GraphMAE(small_mixed, settings, CPU).loss(0).detach())
    assert trained < 0.8 * start


def test_heads_must_divide_the_width(path_graph: Graph) -> None:
    with rejects("invalid-setting"):
        GraphMAE(path_graph, replace(QUIET, heads=3), CPU)


def softplus(score: float) -> float:
    return float(np.log1p(np.exp(score)))


def weight_of(convolution: torch.nn.Module) -> Any:
    weight = convolution.weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().numpy()


def decoded(model: LinkEmbedder, product: Any) -> Any:
    """Return the decoder's output for a pair, by its two layers."""
    layers = model.decoder.layers
    first, second = ([part.detach().numpy() for part in layers[place].parameters()] for place in (1, 3))
    return second[0] @ np.maximum(first[0] @ product + first[1], 0) + second[1]


def test_maskgae_loss_by_loops(path_graph: Graph) -> None:
    """Both directions of 1 – 2 and one of 3 – 4 are drawn: the first is masked, and three are predicted."""
    torch.manual_seed(0)
    quiet = {"drop": 0.0, "decoder_drop": 0.0, "held_out": 0.0}
    model = model_on(MaskGAE, path_graph, width=4, hidden=6, degree_weight=0.5, **quiet)
    model.eval()
    asked = [(1, 2), (2, 1), (3, 4)]
    drawn = torch.tensor([(u, v) in asked for u, v in model.links.t().tolist()])
    adjacent = np.eye(5)
    for u, v in ((0, 1), (2, 3), (3, 4)):
        adjacent[u, v] = adjacent[v, u] = 1
    degree = adjacent.sum(axis=1)
    matrix = adjacent / np.sqrt(np.outer(degree, degree))
    hidden = path_graph.features.numpy()
    for convolution in model.encoder.convolutions:
        spread = matrix @ hidden @ weight_of(convolution) / np.sqrt(1 + 1e-5)  # a fresh norm
        hidden = np.where(spread > 0, spread, np.expm1(spread))

    def score(u: int, v: int) -> float:
        return float(decoded(model, hidden[u] * hidden[v])[0])

    degrees = model.degree_decoder(torch.tensor(hidden, dtype=torch.float32)).detach().numpy()[:, 0]
    torch.manual_seed(3)
    others = model.unlinked(3).t().tolist()
    expected = np.mean([softplus(-score(*pair)) for pair in asked])
    expected += np.mean([softplus(score(*pair)) for pair in others])
    expected += 0.5 * np.mean((degrees - np.array([0, 1, 1, 0, 1])) ** 2)
    torch.manual_seed(3)
    assert float(model.errors(drawn).detach()) == pytest.approx(expected, abs=1e-5)


def test_a_whole_edge_is_masked_if_one_direction_is_drawn(path_graph: Graph) -> None:
    """The encoder then sees the same as if both are drawn."""
    seen = []
    for whole, directions in ((True, [(1, 2)]), (False, [(1, 2), (2, 1)]), (False, [(1, 2)])):
        torch.manual_seed(0)
        model = model_on(MaskGAE, path_graph, width=4, held_out=0.0, drop=0.0, whole=whole)
        matrices: list[torch.Tensor] = []
        model.encoder.register_forward_pre_hook(
            lambda _, given, kept=matrices: kept.append(given[0][0].csr().to_dense())
        )
        model.errors(torch.tensor([(u, v) in directions for u, v in model.links.t().tolist()]))
        seen.append(matrices[0])
    torch.testing.assert_close(seen[0], seen[1])
    assert seen[0][1, 2] == 0
    assert seen[2][1, 2] > 0


def test_masked_paths_are_connected(path_graph: Graph) -> None:
    """A walk of three steps from one node draws adjacent directions."""
    torch.manual_seed(0)
    model = model_on(MaskGAE, path_graph, width=4, held_out=0.0, mask_ratio=0.2)
    for _ in range(20):
        steps = model.links[:, model.along_paths()].t().tolist()
        assert 1 < len(steps) <= 3
        for u, v in steps:
            assert any([u, v] != other and ({u, v} & set(other)) for other in steps)


def test_negative_pairs_have_no_edge(small_mixed: Graph) -> None:
    torch.manual_seed(0)
    model = model_on(MaskGAE, small_mixed)
    linked = set(zip(model.looped.rows.tolist(), model.looped.cols.tolist(), strict=True))
    drawn = [(u, v) for u, v in model.unlinked(500).t().tolist()]
    assert len(drawn) == 500
    assert not linked & set(drawn)


def test_area_under_the_curve_by_pairs() -> None:
    high, low = [0.3, 0.5, 0.5, 0.9], [0.1, 0.5, 0.7]
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in high for b in low]
    assert area_under_curve(torch.tensor(high), torch.tensor(low)) == pytest.approx(np.mean(wins))


def test_held_out_edges_are_not_trained_on_and_select_the_epoch(
    small_mixed: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of four validations is the best: with a patience of two, training restores it."""
    areas = iter([0.6, 0.9, 0.8, 0.7])
    monkeypatch.setattr("h3gnn.baselines.masked.area_under_curve", lambda *_: next(areas))
    weights: list[Any] = []

    class Watched(MaskGAE):
        def step(self, epoch: int) -> torch.Tensor:
            loss = super().step(epoch)
            weights.append(weight_of(self.encoder.convolutions[0]).copy())
            return loss

    settings = MaskGAESettings(width=8, epochs=60, look_every=5, look_patience=2)
    model = train(Watched, small_mixed, 0, CPU, settings)
    assert isinstance(model, LinkEmbedder)
    np.testing.assert_array_equal(weight_of(model.encoder.convolutions[0]), weights[9])
    np.testing.assert_array_equal(weights[19], weights[59])
    assert not np.allclose(weights[18], weights[9])
    held = {tuple(pair) for pair in model.held.t().tolist()}
    assert len(held) == int(0.15 * (len(held) + model.links.shape[1] // 2))
    assert not held & {tuple(pair) for pair in model.links.t().tolist()}


@pytest.mark.parametrize("own_weights", [True, False])
def test_bandana_loss_by_loops(path_graph: Graph, own_weights: bool) -> None:
    torch.manual_seed(0)
    model = model_on(Bandana, path_graph, width=4, drop=0.0, held_out=0.0, own_weights=own_weights)
    model.eval()
    bandwidths, others = [model.bandwidth(), model.bandwidth()], torch.tensor([[0, 1, 4], [2, 4, 0]])
    hidden, errors = path_graph.features.numpy().astype(float), []
    for convolution, bandwidth in zip(model.encoder.convolutions, bandwidths, strict=True):
        carried = np.eye(5)
        for (v, u), share in zip(model.links.t().tolist(), bandwidth.tolist(), strict=True):
            carried[v, u] = share
        np.testing.assert_allclose(carried.sum(axis=1), 2, atol=1e-6)
        spread = carried / 2 @ hidden @ weight_of(convolution) / np.sqrt(1 + 1e-5)
        hidden = np.where(spread > 0, spread, np.expm1(spread))

        def chance(u: int, v: int, rows: Any = hidden) -> Any:
            scores = np.exp(decoded(model, rows[u] * rows[v]))
            return scores / scores.sum()

        weights = bandwidth.tolist() if own_weights else bandwidth[model.weighed_by].tolist()
        pairs = zip(model.links.t().tolist(), weights, strict=True)
        linked = np.mean([-share * np.log(chance(*pair)[0]) for pair, share in pairs])
        unlinked = np.mean([-np.log(chance(*pair)[1]) for pair in others.t().tolist()])
        errors.append(linked + unlinked)
    assert float(model.errors(bandwidths, others).detach()) == pytest.approx(np.mean(errors), abs=1e-5)


def test_bandana_weights_edges_by_other_edges_bandwidths(small_mixed: Graph) -> None:
    """Each edge weights one edge by its bandwidth, and few themselves unless `own_weights`."""
    for own_weights in (True, False):
        torch.manual_seed(0)
        order = model_on(Bandana, small_mixed, width=4, own_weights=own_weights).weighed_by
        places = torch.arange(len(order))
        assert torch.equal(order.sort().values, places)
        share = float((order == places).float().mean())
        assert share == 1 if own_weights else share < 0.1


def test_a_small_temperature_concentrates_bandwidths_on_one_edge(small_mixed: Graph) -> None:
    torch.manual_seed(0)
    share = model_on(Bandana, small_mixed, width=4, temperature=1e-4).bandwidth()
    assert float(share.minimum(1 - share).min()) >= 0
    assert float((share.round() - share).abs().mean()) < 0.01


def test_graphmae2_is_graphmae_with_one_decoding_and_no_latent_part(path_graph: Graph) -> None:
    torch.manual_seed(0)
    plain = GraphMAE(path_graph, replace(QUIET, replace_ratio=0.0), CPU)
    second = GraphMAE2(path_graph, replace(QUIET2, decodings=0, latent_weight=0.0), CPU)
    second.load_state_dict(plain.state_dict(), strict=False)
    losses = []
    for model in (plain, second):
        torch.manual_seed(4)
        losses.append(float(model.loss(0).detach()))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def test_tokens_start_at_zero(small_mixed: Graph) -> None:
    """A token longer than the features would dominate them."""
    first, second = GraphMAE(small_mixed, QUIET, CPU), GraphMAE2(small_mixed, QUIET2, CPU)
    for token in (first.token, second.token, second.second_token):
        assert not token.any()


def test_graphmae2_predicts_a_moving_average(path_graph: Graph) -> None:
    torch.manual_seed(0)
    model = GraphMAE2(path_graph, replace(QUIET2, momentum=0.75), CPU)
    model.predictor = torch.nn.Sequential()
    assert float(model.disagreement(model.embedding()).detach()) < 1e-5  # a prediction by itself
    model.begin()
    check_moving_average(model.target_encoder, model.encoder, lambda: model.after(0))


def test_remasked_nodes_enter_the_decoder_as_the_second_token(path_graph: Graph) -> None:
    torch.manual_seed(0)
    model = GraphMAE2(path_graph, replace(QUIET2, hidden_ratio=0.6), CPU)
    torch.nn.init.ones_(model.second_token)
    shown = model.hide(torch.zeros(5, 8))
    tokens = (shown == model.second_token).all(dim=1)
    assert int(tokens.sum()) == 3
    assert not shown[~tokens].any()
