"""Systems for typed graphs, by formulas on five nodes and by graphs whose answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from h3gnn.baselines.typed import (
    Edges,
    RelationalConvolution,
    TransformerConvolution,
)
from h3gnn.graphs.relational import NodeTable, Relation, RelationalGraph

WIDTH = 4


def nodes(name: str, count: int, features: Any = None) -> NodeTable:
    rows = np.zeros((count, 0), np.float32) if features is None else np.asarray(features, np.float32)
    return NodeTable(name, np.arange(count), rows)


def relation(source: str, target: str, *pairs: tuple[int, int]) -> Relation:
    return Relation(f"{source}.{target}", source, target, np.array(pairs, dtype=np.int64).reshape(-1, 2).T)


@pytest.fixture
def five() -> RelationalGraph:
    """Two orders, two clients and a town: both orders and the second's gift are of clients 0, 0 and 1."""
    types = {
        "order": nodes("order", 2, [[3, 0], [0, 4]]),
        "client": nodes("client", 2, [[1, 0], [5, 2]]),
        "town": nodes("town", 1),
    }
    links = (relation("order", "client", (0, 0), (1, 0), (1, 1)), relation("client", "town", (1, 0)))
    return RelationalGraph(types, links)


def hidden_of(graph: RelationalGraph) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(one.nodes, WIDTH, generator=generator) for name, one in graph.types.items()}


def randomized(layer: nn.Module) -> None:
    generator = torch.Generator().manual_seed(2)
    for weight in layer.parameters():
        nn.init.normal_(weight, generator=generator)


def test_a_layer_of_r_gcn_by_its_formula(five: RelationalGraph) -> None:
    hidden, layer = hidden_of(five), RelationalConvolution(WIDTH, Edges.of(five))
    randomized(layer)
    to_client, from_client, to_town, from_town = layer.layer.weight
    root, bias = layer.layer.root, layer.layer.bias
    order, client, town = hidden["order"], hidden["client"], hidden["town"]
    expected = {
        "order": torch.stack([client[0], client.mean(dim=0)]) @ from_client,
        "client": torch.stack([order.mean(dim=0) @ to_client, order[1] @ to_client + town[0] @ from_town]),
        "town": client[1:] @ to_town,
    }
    found = layer(hidden)
    for name, messages in expected.items():
        torch.testing.assert_close(found[name], hidden[name] @ root + messages + bias)


def test_a_layer_of_hgt_by_its_formula(five: RelationalGraph) -> None:
    """Every link one by one: attention over all links that end at a node, whatever their relation."""
    heads, hidden, edges = 2, hidden_of(five), Edges.of(five)
    layer = TransformerConvolution(WIDTH, heads, edges)
    randomized(layer)
    inner, size, relations = layer.layer, WIDTH // heads, len(edges.links)
    found = layer(hidden)
    for target, rows in hidden.items():
        for v in range(len(rows)):
            query = projected(inner, target, rows[v], 1).view(heads, size)
            out = torch.zeros(heads, size)
            for head in range(heads):
                scores, messages = [], []
                for at, ((source, name, end), links) in enumerate(edges.links.items()):
                    for u in links[0, links[1] == v].tolist() if end == target else []:
                        sent = hidden[source][u]
                        key, value = (
                            projected(inner, source, sent, part).view(heads, size)[head] for part in (0, 2)
                        )
                        weights = [one.weight[head * relations + at] for one in (inner.k_rel, inner.v_rel)]
                        strength = inner.p_rel["__".join((source, name, end))][0, head]
                        scores.append((key @ weights[0]) @ query[head] * strength / size**0.5)
                        messages.append(value @ weights[1])
                if scores:
                    out[head] = torch.stack(scores).softmax(dim=0) @ torch.stack(messages)
            gate = inner.skip[target].sigmoid()
            last = inner.out_lin.lins[target]
            expected = gate * (last.weight @ gelu(out.flatten()) + last.bias) + (1 - gate) * rows[v]
            torch.testing.assert_close(found[target][v], expected)


def projected(inner: Any, name: str, row: Tensor, part: int) -> Any:
    linear = inner.kqv_lin.lins[name]
    return (linear.weight @ row + linear.bias).view(3, WIDTH)[part]
