"""`JointEncoder` in a user's own training loop, loss and batches."""

from __future__ import annotations

import copy
import io
import math
import re
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

from h3gnn.encoder import FeatureMatrix, JointEncoder, build_support, joint
from h3gnn.encoder.joint import STACK_OPTIONS
from h3gnn.encoder.tokens import whole_graph
from h3gnn.graphs.graph import Graph

PATH = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4]])
"""0 → 1 → 2 → 3 → 4."""


def encoder(in_channels: int = 3, channels: int = 4, seed: int = 0, **options: Any) -> JointEncoder:
    torch.manual_seed(seed)
    return JointEncoder(in_channels, channels, heads=2, **options).double()


def features(nodes: int = 5, columns: int = 3, seed: int = 1) -> Tensor:
    return torch.randn(nodes, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def weights_of(module: JointEncoder) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def dense_weights(
    edge_index: Tensor, nodes: int, learned: Tensor, *, undirected: bool, self_loops: bool
) -> Tensor:
    """Return the weighted adjacency, row = receiver, edge by edge."""
    adjacency, factor = (torch.zeros(nodes, nodes, dtype=torch.double) for _ in range(2))
    if undirected:
        for edge, (source, target) in enumerate(edge_index.T.tolist()):
            adjacency[source, target], factor[source, target] = 1.0, learned[edge]
    for edge, (source, target) in enumerate(edge_index.T.tolist()):
        adjacency[target, source], factor[target, source] = 1.0, learned[edge]
    if self_loops:
        adjacency += torch.eye(nodes, dtype=torch.double)
        factor += torch.eye(nodes, dtype=torch.double)
    receives, sends = adjacency.sum(dim=1).clamp_min(1), adjacency.sum(dim=0).clamp_min(1)
    return factor * adjacency / (receives[:, None] * sends[None, :]).sqrt()


def test_it_is_initialised() -> None:
    module = JointEncoder(9, 8, num_edges=4)
    first = module.stack.input.weight.detach()
    assert first.abs().max() <= 1 / 3
    assert float(first.std()) == pytest.approx(1 / 3 / 3**0.5, rel=0.1)
    assert weights_of(module).isfinite().all()
    assert module.edge_logit is not None
    assert (module.edge_logit == 0).all()
    assert module.out_channels == 4 * 8
    assert module(torch.randn(5, 9), PATH).shape == (5, 32)
    assert JointEncoder(9, 8, output="first", hops=3).out_channels == 8


def test_the_seed_determines_the_initial_weights() -> None:
    module = encoder(seed=7, num_edges=4)
    start = weights_of(module)
    torch.testing.assert_close(weights_of(encoder(seed=7, num_edges=4)), start, rtol=0, atol=0)
    assert module.edge_logit is not None
    torch.nn.init.ones_(module.edge_logit)
    module.reset_parameters()
    assert (module.edge_logit == 0).all()
    assert (weights_of(module) != start).float().mean() > 0.5
    torch.manual_seed(7)
    fresh = JointEncoder(3, 4, heads=2, num_edges=4)
    torch.manual_seed(7)
    fresh.reset_parameters()
    torch.testing.assert_close(weights_of(fresh).double(), start, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"norm": "nonsense"}, "norm must be one of 'residual-post', 'post', 'pre', not 'nonsense'"),
        ({"fusion": "attn"}, "fusion must be one of 'attention', 'hierarchical', 'mlp', not 'attn'"),
        ({"output": "last"}, "output must be one of"),
        ({"mask_token": "one"}, "mask_token must be one of"),
        ({"edge_weights": "nonsense"}, "edge_weights must be one of"),
        ({"edge_weights": "learned"}, "give num_edges"),
        ({"edge_weights": "free"}, "give num_edges"),
        ({"heads": 3}, "channels .8. must be a multiple of heads .3."),
        ({"hops": 0}, "hops must be at least 1, not 0"),
        ({"token_dropout": 1.0}, "token_dropout must be at least 0 and less than 1, not 1.0"),
        ({"attention_dropout": -0.1}, "attention_dropout must be at least 0 and less than 1"),
        *(({name: 1}, name) for name in (*STACK_OPTIONS, "nonsense")),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        JointEncoder(3, 8, **options)


@pytest.mark.parametrize(
    ("x", "edge_index", "edge_weight", "words"),
    [
        (torch.ones(5, 4), PATH, None, r"x must be \[nodes, 3\], not \[5, 4\]"),
        (torch.ones(4, 3), PATH, None, "edge_index has nodes from 0 to 4, but x has rows 0 to 3"),
        (torch.ones(5, 3), PATH - 1, None, "edge_index has nodes from -1 to 3"),
        (torch.ones(5, 3), PATH.T, None, "edge_index must be integers"),
        (torch.ones(5, 3), PATH.double(), None, "edge_index must be integers"),
        (torch.ones(5, 3), PATH, torch.ones(3), r"edge_weight must be \[4\], not \[3\]"),
        (torch.ones(5, 3), PATH, torch.tensor([1.0, 0.0, 1.0, 1.0]), "edge_weight must be positive"),
    ],
)
def test_invalid_inputs_are_rejected(
    x: Tensor, edge_index: Tensor, edge_weight: Tensor | None, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        encoder()(x.double(), edge_index, edge_weight)


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("undirected", [False, True])
def test_output_equals_a_stack_of_one_over_the_normalised_adjacency(
    undirected: bool, self_loops: bool, learned: bool
) -> None:
    edge_index = torch.tensor([[0, 1, 1, 2, 4], [1, 0, 2, 3, 3]])  # 0 – 1 is there both ways
    options: dict[str, Any] = {"undirected": undirected, "self_loops": self_loops}
    module = encoder(num_edges=5 if learned else None, **options)
    factor = torch.ones(5, dtype=torch.double)
    if module.edge_logit is not None:
        logit = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=torch.double)
        with torch.no_grad():
            module.edge_logit.copy_(logit)
        factor = 2 * torch.sigmoid(logit)
    matrix = dense_weights(edge_index, 5, factor, **options)
    support = build_support(edge_index, 5, **options)
    pattern = support.pattern
    assert torch.stack([pattern.rows, pattern.cols], dim=1).tolist() == matrix.nonzero().tolist()
    part = whole_graph(FeatureMatrix(features()), support, 2)
    mask = torch.tensor([True, False, False, True, False])
    wanted = module.stack(part, matrix[pattern.rows, pattern.cols][None], mask[None])[0]
    torch.testing.assert_close(module(features(), edge_index, mask=mask), wanted, rtol=1e-12, atol=1e-12)


def test_computed_weights_gate_each_edge() -> None:
    module, x = encoder(edge_weights="computed", num_edges=4, self_loops=False), features()
    assert module.edge_logit is not None
    torch.nn.init.normal_(module.edge_logit)
    sent, received = (x @ module.stack.input.weight[0, :, -2:].detach()).unbind(dim=1)
    learned = 2 * torch.sigmoid(module.edge_logit.detach())
    matrix = dense_weights(PATH, 5, learned, undirected=True, self_loops=False)
    matrix = matrix * torch.tanh(1 + sent[None, :] + received[:, None]) / math.tanh(1)
    state = module.stack.state_dict()
    state["input.weight"] = state["input.weight"][:, :, :-2]
    plain = encoder(self_loops=False).stack
    plain.load_state_dict(state)
    support = build_support(PATH, 5, self_loops=False)
    part = whole_graph(FeatureMatrix(x), support, 2)
    wanted = plain(part, matrix[support.pattern.rows, support.pattern.cols][None])[0]
    torch.testing.assert_close(module(x, PATH), wanted, rtol=1e-12, atol=1e-12)


def test_masked_nodes_get_the_mask_token() -> None:
    module, x = encoder(), features()
    mask = torch.tensor([False, True, False, False, True])
    replaced = torch.where(mask[:, None], module.stack.input.mask_token[0].detach(), x)
    torch.testing.assert_close(module(x, PATH, mask=mask), module(replaced, PATH))


def test_edge_weights_replace_the_ones_in_the_adjacency() -> None:
    module = encoder(self_loops=False, hops=1, num_edges=2)
    weight = torch.tensor([1.0, 4.0])
    by_hand = torch.tensor([1 / 5**0.5, 1 / 5**0.5, 4 / 20**0.5, 4 / 20**0.5], dtype=torch.double)
    support = build_support(PATH[:, :2], 3, self_loops=False)  # 0 ← 1, 1 ← 0, 1 ← 2, 2 ← 1
    part = whole_graph(FeatureMatrix(features(3)), support, 1)
    wanted = module.stack(part, by_hand[None])[0]
    torch.testing.assert_close(module(features(3), PATH[:, :2], weight), wanted)
    torch.testing.assert_close(module(features(3), PATH[:, :2], 10 * weight), wanted)


def test_sparse_features_equal_dense_ones() -> None:
    x = features() * (features(seed=2) > 0)
    sparse = x.to_sparse_csr()
    module = encoder()
    found = []
    for given_features in (x, sparse):
        module.zero_grad()
        embedding = module(given_features, PATH, mask=torch.tensor([True, False, False, False, True]))
        embedding.square().sum().backward()
        found.append([embedding, *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
    torch.testing.assert_close(found[1], found[0])
    sparse.values().mul_(2)
    torch.testing.assert_close(module(sparse, PATH), module(2 * x, PATH))


def test_isolated_nodes_and_graphs_without_edges() -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    for self_loops in (True, False):
        assert encoder(self_loops=self_loops, num_edges=0)(features(), none).isfinite().all()
    loops = torch.tensor([[1], [1]])
    assert encoder(self_loops=False, num_edges=1)(features(), loops).isfinite().all()
    isolated = encoder()(features(), PATH[:, :1])[4:]
    torch.testing.assert_close(isolated, encoder()(features()[4:], none))


@pytest.mark.parametrize("rates", [{"token_dropout": 0.5}, {"attention_dropout": 0.5}])
def test_dropout_applies_in_training_only(rates: dict[str, Any]) -> None:
    module, plain, x = encoder(**rates), encoder(), features()
    torch.manual_seed(3)
    first, second = module(x, PATH), module(x, PATH)
    assert not torch.allclose(first, second)
    torch.manual_seed(3)
    torch.testing.assert_close(module(x, PATH), first, rtol=0, atol=0)
    module.eval()
    torch.testing.assert_close(module(x, PATH), plain(x, PATH), rtol=0, atol=0)
    state = torch.get_rng_state()
    module(x, PATH)
    assert (torch.get_rng_state() == state).all()


def test_gradients_reach_every_parameter_and_the_features() -> None:
    module = encoder(num_edges=4, batch_norm=True)
    x = features().requires_grad_()
    mask = torch.tensor([True, False, False, False, False])
    module(x, PATH, mask=mask).square().sum().backward()
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        assert parameter.numel() == 0 or (gradient is not None and gradient.abs().sum() > 0), name
    assert x.grad is not None
    assert (x.grad[1:].abs().sum(dim=1) > 0).all()
    assert (x.grad[0] == 0).all()  # it is masked


@pytest.mark.parametrize(
    "options",
    [{"fusion": "attention", "undirected": False}, {"fusion": "mlp"}, {"edge_weights": "computed"}],
)
def test_gradients_equal_finite_differences(options: dict[str, Any]) -> None:
    module = encoder(num_edges=4, hops=3, **options)
    assert module.edge_logit is not None
    inputs = (features().requires_grad_(), module.edge_logit.detach().clone().requires_grad_())

    def embed(x: Tensor, logit: Tensor) -> Tensor:
        found = torch.func.functional_call(module, {"edge_logit": logit}, (x, PATH))
        assert isinstance(found, Tensor)
        return found

    assert torch.autograd.gradcheck(embed, inputs)


def test_gradients_reach_the_edge_weights_of_the_data() -> None:
    module, x = encoder(), features()
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    for _ in range(2):  # nothing of the first graph of gradients is used again
        weight.grad = None
        module(x, PATH, weight).square().sum().backward()
        assert weight.grad is not None
        assert (weight.grad != 0).all()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_encoder_is_permutation_equivariant(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 7))
    pairs = st.tuples(st.integers(0, nodes - 1), st.integers(0, nodes - 1))
    edges = data.draw(st.lists(pairs, unique=True, max_size=12))
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    place = torch.tensor(data.draw(st.permutations(range(nodes))))
    order = torch.tensor(data.draw(st.permutations(range(len(edges)))), dtype=torch.int64)
    module = encoder(num_edges=len(edges), undirected=data.draw(st.booleans()))
    assert module.edge_logit is not None
    torch.nn.init.normal_(module.edge_logit)
    x = features(nodes)
    moved = torch.empty_like(x)
    moved[place] = x
    found = module(moved, place[edge_index][:, order], e_id=order)
    torch.testing.assert_close(found[place], module(x, edge_index))


def batch_around(seeds: list[int], edge_index: Tensor, x: Tensor, hops: int) -> Data:
    """Return a batch as PyG's `NeighborLoader` with all neighbours."""
    near, _, _, mask = k_hop_subgraph(seeds, hops, edge_index, num_nodes=len(x), directed=False)
    nodes = torch.tensor(seeds + [node for node in near.tolist() if node not in seeds])
    position = torch.full((len(x),), -1)
    position[nodes] = torch.arange(len(nodes))
    e_id = mask.nonzero().squeeze(1)
    batch = Data(x=x[nodes], edge_index=position[edge_index[:, e_id]], e_id=e_id, n_id=nodes)
    batch.batch_size = len(seeds)
    return batch


def test_a_batch_with_all_neighbours_gives_the_embeddings_of_the_whole_graph(small_mixed: Graph) -> None:
    x, edge_index = small_mixed.dense_features().double(), small_mixed.edge_index
    near = edge_index.diff(dim=0)[0].abs() <= 6  # fewer edges, so that the batch is a part of the graph
    edge_index = edge_index[:, near]
    module = encoder(x.shape[1], 4, num_edges=edge_index.shape[1])
    assert module.edge_logit is not None
    torch.nn.init.normal_(module.edge_logit)
    seeds = [70, 3, 31]
    batch = batch_around(seeds, edge_index, x, hops=3)
    assert len(batch.x) < len(x)

    def gradients(embedding: Tensor) -> list[Tensor]:
        module.zero_grad()
        embedding.square().sum().backward()  # type: ignore[no-untyped-call]
        return [embedding, *(p.grad.clone() for p in module.parameters() if p.grad is not None)]

    whole = gradients(module(x, edge_index)[seeds])
    part = gradients(module(batch.x, batch.edge_index, e_id=batch.e_id)[: batch.batch_size])
    torch.testing.assert_close(part, whole)
    with pytest.raises(ValueError, match="give e_id"):
        module(batch.x, batch.edge_index)


@pytest.mark.parametrize("parts", [1, 4])
def test_it_trains_on_the_whole_graph_and_on_batches(small_mixed: Graph, parts: int) -> None:
    x, edge_index = small_mixed.dense_features(), small_mixed.edge_index
    torch.manual_seed(0)
    module = JointEncoder(x.shape[1], 8, num_edges=edge_index.shape[1], token_dropout=0.2)
    head = torch.nn.Linear(module.out_channels, x.shape[1])
    before = weights_of(module)
    adam = torch.optim.Adam([*module.parameters(), *head.parameters()], lr=0.01)
    batches = [batch_around(part.tolist(), edge_index, x, 1) for part in torch.arange(len(x)).chunk(parts)]
    losses = []
    for batch in batches * (60 // parts):
        adam.zero_grad()
        mask = torch.rand(len(batch.x)) < 0.3
        embedding = module(batch.x, batch.edge_index, mask=mask, e_id=batch.e_id)[: batch.batch_size]
        loss = (head(embedding) - batch.x[: batch.batch_size]).square().mean()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-parts:]) < 0.5 * sum(losses[:parts])
    assert (weights_of(module) != before).float().mean() > 0.9


def through_a_file(module: JointEncoder) -> JointEncoder:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    read: JointEncoder = torch.load(file, weights_only=False)
    return read


def through_its_state(module: JointEncoder) -> JointEncoder:
    other = encoder(seed=99, num_edges=4, batch_norm=True)
    assert not torch.allclose(other(features(), PATH), module(features(), PATH))
    other.load_state_dict(module.state_dict())
    return other


@pytest.mark.parametrize("copied", [through_a_file, through_its_state, copy.deepcopy])
def test_copies_are_equal_and_independent(copied: Callable[[JointEncoder], JointEncoder]) -> None:
    module, x = encoder(num_edges=4, batch_norm=True), features()
    module(x, PATH)  # batch norm has seen something
    other = copied(module)
    torch.testing.assert_close(other.eval()(x, PATH), module.eval()(x, PATH), rtol=0, atol=0)
    with torch.no_grad():
        other.stack.linear_bias.add_(1)
    assert not torch.allclose(other(x, PATH), module(x, PATH))


def test_the_code_in_the_documentation_runs(small_mixed: Graph) -> None:
    page = (Path(__file__).parents[2] / "docs" / "modules.md").read_text(encoding="utf-8")
    loop, batches = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = {}
    exec(compile(loop + batches, "docs/modules.md", "exec"), found)
    assert len(loop.strip().splitlines()) <= 25
    assert len(found["losses"]) == 60
    assert sum(found["losses"][-5:]) < 0.8 * sum(found["losses"][:5])
    embedding, x, edge_index = found["embedding"], found["x"], found["edge_index"]
    assert embedding.shape == (300, 4 * 32)
    assert embedding.isfinite().all()
    seeds = [5, 250, 31]
    batch = batch_around(seeds, edge_index, x, hops=3)
    of_seeds = found["embed_seeds"](found["encoder"], batch).detach()
    torch.testing.assert_close(of_seeds, embedding[seeds], rtol=1e-4, atol=1e-4)


def test_the_support_of_an_edge_index_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    built = MagicMock(wraps=build_support)
    monkeypatch.setattr(joint, "build_support", built)
    module, x, edge_index = encoder(), features(), PATH.clone()
    first = module(x, edge_index)
    torch.testing.assert_close(module(x, edge_index), first, rtol=0, atol=0)
    module(2 * x, edge_index).sum().backward()
    assert built.call_count == 1
    torch.testing.assert_close(module(x, edge_index.clone()), first, rtol=0, atol=0)
    assert built.call_count == 2


def test_a_changed_graph_is_not_served_from_the_cache() -> None:
    module, x = encoder(), features()
    edge_index, weight = PATH.clone(), torch.ones(4)

    def uncached() -> Tensor:
        found: Tensor = encoder()(x, edge_index.clone(), weight.clone())
        return found

    before = module(x, edge_index, weight)
    another = torch.tensor([[0, 1, 2, 3], [2, 3, 4, 0]])  # of the same shape and version
    assert another._version == edge_index._version
    torch.testing.assert_close(module(x, another, weight), encoder()(x, another))
    module(x, edge_index, weight)
    edge_index[1, 0] = 4
    after = module(x, edge_index, weight)
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, uncached())
    weight[2] = 5.0
    torch.testing.assert_close(module(x, edge_index, weight), uncached())
    torch.testing.assert_close(module(x, edge_index), encoder()(x, edge_index))
    more = features(6)
    torch.testing.assert_close(module(more, edge_index), encoder()(more, edge_index))
    edge_index.resize_(2, 3)
    torch.testing.assert_close(module(x, edge_index), encoder()(x, edge_index.clone()))
    assert module.float()(x.float(), edge_index).dtype == torch.float32


def test_the_cache_does_not_keep_a_graph_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []

    def watched(*args: Any, **options: Any) -> Any:
        support = build_support(*args, **options)
        made.append(weakref.ref(support.pattern.cols))
        return support

    monkeypatch.setattr(joint, "build_support", watched)
    module, edge_index = encoder(), PATH.clone()
    module(features(), edge_index)
    assert made[0]() is not None
    freed = weakref.ref(edge_index)
    del edge_index
    assert freed() is None
    assert made[0]() is None


def test_a_cache_filled_in_inference_mode_can_be_trained_with() -> None:
    module, edge_index, x = encoder(num_edges=4), PATH.clone(), features()
    sparse = x.to_sparse_csr()
    with torch.inference_mode():
        module(sparse, edge_index)
    module(sparse, edge_index).sum().backward()
    with torch.inference_mode():
        inner = PATH.clone()
        first = module(x, inner).clone()
        inner[1, 0] = 4
        assert not torch.allclose(module(x, inner), first)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_gives_the_same_embeddings() -> None:
    module, x = encoder(num_edges=4), features()
    wanted = module(x, PATH)
    torch.testing.assert_close(module.cuda()(x.cuda(), PATH.cuda()).cpu(), wanted)
    torch.testing.assert_close(module(x.cuda(), PATH).cpu(), wanted)
    module.reset_parameters()
    assert module(x.cuda(), PATH.cuda()).isfinite().all()
    torch.manual_seed(0)
    noisy = JointEncoder(3, 4, heads=2, token_dropout=0.5).cuda()
    torch.manual_seed(1)
    first = noisy(x.cuda().float(), PATH.cuda())
    torch.manual_seed(1)
    torch.testing.assert_close(noisy(x.cuda().float(), PATH.cuda()), first)
