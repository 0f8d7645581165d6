"""Speed of mini-batches on a graph with five node types: `python -m benchmarks.node_types [--nodes 1000000]`.

Random tables: 40 % of the nodes are of the type that is embedded, and four other types share the rest; its
links to each of them are a quarter of all links. The graph of that type (`type_view`) is compared with one of
a single type and as many nodes, links and columns, by the time of an epoch of mini-batches: once with as
many tokens, of which those beyond the second hop see one neighbour of each node, since a deeper sample grows
fast; and once with the tokens of two hops, fewer than the typed graph has. All take steps in turn, and an
epoch has one step for each batch of the nodes of the embedded type, or of all.
The results, of one model with fixed edge weights, are stored in `benchmarks/results/node_types.json`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.scale import BATCH, CHANNELS, machine
from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.relational import NodeTable, Relation, RelationalGraph
from h3gnn.graphs.type_view import type_view
from h3gnn.preprocessing import Preprocessing, path_counts, stack_builder
from h3gnn.training.distributed import Ranks
from h3gnn.training.models import Training, derive_seeds, stack_step
from reproduction.files import rounded, write_json
from reproduction.origin import made_with

RESULTS = Path(__file__).parent / "results" / "node_types.json"
COLUMNS, OTHERS, SHARE = 64, 4, 0.4
FAN_OUT, WARM_UP = (10, 5), 3


def tables(nodes: int, links: int) -> RelationalGraph:
    """Return five random tables; each link of the first is to a random row of another."""
    draw, own, rest = np.random.default_rng(0), int(SHARE * nodes), int((1 - SHARE) * nodes) // OTHERS
    types, relations = {}, []
    for at in range(OTHERS + 1):
        rows, columns = (rest, COLUMNS // 4) if at else (own, COLUMNS)
        values = draw.normal(size=(rows, columns)).astype(np.float32)
        types[f"t{at}"] = NodeTable(f"t{at}", np.arange(rows), values)
    for at in range(1, OTHERS + 1):
        ends = np.stack([draw.integers(0, own, links // OTHERS), draw.integers(0, rest, links // OTHERS)])
        relations.append(Relation(f"r{at}", "t0", f"t{at}", np.unique(ends, axis=1)))
    return RelationalGraph(types, tuple(relations))


def one_type(nodes: int, links: int) -> Graph:
    """Return a random graph of one type, every link in both directions."""
    draw = np.random.default_rng(1)
    ends = draw.integers(0, nodes, (2, links // 2))
    features = draw.normal(size=(nodes, COLUMNS)).astype(np.float32)
    return check_graph(features, np.unique(np.concatenate([ends, ends[::-1]], axis=1), axis=1))


def stepper(graph: Graph, hops: int, device: torch.device) -> tuple[Callable[[], float], int]:
    """Return a function that takes one step and returns its seconds, and the number of tokens."""
    fan_out = [*FAN_OUT, *[1] * hops][:hops]
    how = {"channels": CHANNELS, "batch_size": BATCH, "num_neighbors": fan_out, "edge_weights": "fixed"}
    model = H3GNN.from_preset("single", device=device.type, hops=hops, **how)
    settings = model.get_settings()
    prepared = Preprocessing.of(settings).fit(graph)
    source, training = prepared.source(settings, device), Training.of(settings)
    stack = stack_builder(settings, prepared, device)(1)
    step = stack_step(stack, source, derive_seeds(0, 1), training)
    mask = training.mask_of(1)(0)(step.difficulty, step.generators)
    batches = (batch for _ in cycle([0]) for batch in source.epoch(step.order, Ranks()))

    def take() -> float:
        started = time.perf_counter()
        step.train_on(next(batches), mask)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return take, stack.num_tokens


def measure(nodes: int, links: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Return the seconds of an epoch on both graphs, and of the preparation of the first."""
    given = tables(nodes, links)
    started = time.perf_counter()
    view = type_view(given, "t0")
    prepared = time.perf_counter() - started
    counts = path_counts(view)
    typed, tokens = stepper(view, 2, device)
    alone = one_type(nodes, links)
    (deep, same), (plain, fewer) = (stepper(alone, hops, device) for hops in (tokens - 2, 2))
    rounds = [(typed(), deep(), plain()) for _ in range(WARM_UP + steps)][WARM_UP:]
    seconds = np.median(np.array(rounds), axis=0)
    epochs = seconds * np.ceil(np.array([view.num_nodes, nodes, nodes]) / BATCH)
    return {
        "nodes": nodes,
        "links": links,
        "device": device.type,
        "tokens": [tokens, same, fewer],
        "relations": counts.relations,
        "prepare_seconds": prepared,
        "batch_seconds": seconds.tolist(),
        "epoch_seconds": epochs.tolist(),
        "ratios_of_batches": (seconds[0] / seconds[1:]).tolist(),
    }


def main() -> None:
    """Measure and store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10**6)
    parser.add_argument("--links", type=int, default=10**7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    found = rounded(measure(asked.nodes, asked.links, asked.steps, asked.device))
    write_json(asked.out, {"machine": machine(), **made_with(), **found})
    print("\n".join(f"{key}: {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
