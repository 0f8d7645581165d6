"""AERO-GNN against its equations in plain loops, and what its attention must not depend on."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from h3gnn.baselines.heterophilous import AEROGNN, AEROGNNSettings
from h3gnn.baselines.registry import Sizes
from h3gnn.baselines.stacks import GridPoint, Member
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph

CPU = torch.device("cpu")
POINT = GridPoint(width=6, dropout=0.5, learning_rate=0.01, weight_decay=0.001)
MEMBERS = [Member(seed, 0, POINT) for seed in (3, 4)]
SETTINGS = AEROGNNSettings(iterations=3, fading=0.7, scale_features="none")


def stack_on(graph: Graph, settings: AEROGNNSettings = SETTINGS) -> AEROGNN:
    return AEROGNN(AEROGNN.on(graph, CPU, settings), MEMBERS, CPU)


def by_hand(stack: AEROGNN, graph: Graph, model: int) -> Tensor:
    """The paper's equations, an edge at a time."""
    own = {name: tensor[:, model].detach() for name, tensor in stack.weights.tensors.items()}
    elu = functional.elu
    hidden = elu(graph.dense_features() @ own["map 0"] + own["map 0 bias"]) @ own["map 1"] + own["map 1 bias"]
    found = hidden * ((elu(hidden) @ own["first hop"][0]) + own["hop start"][0])[:, None]
    nodes = graph.num_nodes
    linked = torch.eye(nodes, dtype=torch.bool)
    linked[graph.edge_index[0], graph.edge_index[1]] = linked[graph.edge_index[1], graph.edge_index[0]] = True
    for k in range(1, 4):
        faded = math.log(0.7 / k + 1 + 1e-6) * found
        alpha = torch.zeros(nodes, nodes)
        for i in range(nodes):
            for j in range(nodes):
                if linked[i, j]:
                    score = elu(faded[i] + faded[j]) @ own["edge"][k - 1]
                    alpha[i, j] = functional.softplus(score) + 1e-6
        degree = alpha.sum(1)
        hidden = (alpha / (degree[:, None] * degree[None]).sqrt()) @ hidden
        gamma = elu(torch.cat([hidden, faded], 1)) @ own["hop"][k - 1] + own["hop start"][k]
        found = found + gamma[:, None] * hidden
    return elu(found) @ own["classify"] + own["bias"]


def test_aerognn_by_hand(path_graph: Graph) -> None:
    stack = stack_on(path_graph)
    for model in range(2):
        torch.testing.assert_close(stack.logits(None)[:, model], by_hand(stack, path_graph, model))


def test_a_loop_in_the_data_and_a_lone_node_change_nothing_else() -> None:
    features = torch.eye(4)
    plain = check_graph(features, torch.tensor([[0, 1], [1, 2]]), labels=[0, 1, 0, 1])
    looped = check_graph(features, torch.tensor([[0, 1, 1, 0], [1, 2, 0, 0]]), labels=[0, 1, 0, 1])
    stack = stack_on(plain)
    torch.testing.assert_close(stack.logits(None), stack_on(looped).logits(None))
    torch.testing.assert_close(stack.logits(None)[:, 0], by_hand(stack, plain, 0))


def test_attention_decays_at_its_own_rate(path_graph: Graph) -> None:
    stack = stack_on(path_graph, AEROGNNSettings(attention_decay=0.1))
    for name in stack.weights.tensors:
        apart = name in ("edge", "first hop", "hop", "hop start")
        assert stack.weights.factors[name].decay == (0.1 if apart else 1.0), name


def test_depth_costs_memory() -> None:
    sizes = Sizes(1000, 5000, 100)
    shallow, deep = (AEROGNN.bytes_for(sizes, AEROGNNSettings(iterations=k)) for k in (4, 32))
    assert deep > 3 * shallow
