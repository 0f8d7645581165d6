"""How well new nodes are embedded by `H3GNN.extend`, compared with embedding or fitting all nodes again.

`python -m benchmarks.new_nodes [GRAPH …] [--seeds 3]` takes a tenth of a graph's nodes away, fits the rest
with the preset `quick`, and lets the nodes come back with their edges, in three ways: `extend` (only the new
rows; fitted ones stay), `refresh` (all rows by the fitted model in the extended graph), `refit` (a new fit of
the whole graph). For each, a classifier learns from half of the fitted nodes and predicts the new
ones; the rows also hold the cosine of `extend` with `refresh` for the new nodes, and how much `refresh` moves
the old ones.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.heads import Basis, LinearHead, Pool, Rows, Target
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.datasets import load
from h3gnn.graphs.graph import Graph
from reproduction.files import read_json, rounded, write_json
from reproduction.origin import made_with, origin

RESULTS = Path(__file__).parent / "results" / "new_nodes.json"
GRAPHS = ("texas", "wisconsin", "chameleon-filtered", "cora")
PRESET = "quick"
SHARE = 0.1
Floats = npt.NDArray[np.float32]


def part(graph: Graph, nodes: npt.NDArray[np.int64]) -> Graph:
    """Return the graph of some nodes, numbered in this order, and the edges among them."""
    place = np.full(graph.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    ends = place[graph.edge_index.numpy()]
    return check_graph(graph.dense_features().numpy()[nodes], ends[:, (ends >= 0).all(axis=0)])


def accuracy(embedding: Floats, labels: npt.NDArray[np.int64], old: int, asked: Floats) -> float:
    """Return the share of new nodes whose class a classifier of half of the old ones predicts."""
    chosen = np.arange(0, old, 2)
    target = Target(labels[chosen], int(labels.max()) + 1)
    head = LinearHead(Basis(embedding, chosen), target, "logistic regression")
    folds = [np.arange(at, len(chosen), 3) for at in range(3)]
    trains = [np.setdiff1d(np.arange(len(chosen)), fold) for fold in folds]
    held_out = np.concatenate(head.held_out(trains, folds), axis=1)
    variant = Pool.fit([held_out], target.of(np.concatenate(folds))).variants[0]
    predicted = head.fit(variant)(Rows(asked, asked[:, :0], np.arange(len(asked))))
    return float((predicted.argmax(axis=1) == labels[old:]).mean())


def cosine(left: Floats, right: Floats) -> float:
    """Return the mean cosine of rows."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())


def once(graph: Graph, seed: int) -> dict[str, float]:
    """Return what one draw of new nodes gives."""
    assert graph.labels is not None
    order = np.random.default_rng(seed).permutation(graph.num_nodes)
    old = graph.num_nodes - round(SHARE * graph.num_nodes)
    whole, labels = part(graph, order), graph.labels.numpy()[order]
    fitted = part(graph, order[:old])
    model = H3GNN.from_preset(PRESET, random_state=seed).fit(fitted)
    ends = whole.edge_index.numpy()
    edges = ends[:, (ends >= old).any(axis=0)]
    started = time.perf_counter()
    new = model.extend(whole.dense_features().numpy()[old:], edges).embedding
    took = time.perf_counter() - started
    started = time.perf_counter()
    refreshed = model.transform(whole)
    whole_took = time.perf_counter() - started
    refit = H3GNN.from_preset(PRESET, random_state=seed).fit(whole).embedding_
    return {
        "accuracy_extend": accuracy(model.embedding_, labels, old, new),
        "accuracy_refresh": accuracy(refreshed[:old], labels, old, refreshed[old:]),
        "accuracy_refit": accuracy(refit[:old], labels, old, refit[old:]),
        "cosine_new": cosine(new, refreshed[old:]),
        "cosine_old": cosine(model.embedding_, refreshed[:old]),
        "seconds_extend": took,
        "seconds_refresh": whole_took,
        "new": float(graph.num_nodes - old),
    }


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of docs/embeddings.md."""
    lines = [
        "| graph | new nodes | accuracy, extend | refresh | refit | cosine of new rows | of old rows |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        mean, std = row["mean"], row["std"]
        ways = ("accuracy_extend", "accuracy_refresh", "accuracy_refit")
        scores = " | ".join(f"{100 * mean[way]:.1f} ± {100 * std[way]:.1f}" for way in ways)
        near = f"{mean['cosine_new']:.3f} | {mean['cosine_old']:.3f}"
        lines.append(f"| {row['graph']} | {mean['new']:.0f} | {scores} | {near} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=list(GRAPHS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    asked = parser.parse_args()
    rows: list[dict[str, Any]] = read_json(asked.out)["rows"] if asked.out.exists() else []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name in asked.graphs:
        each = [once(load(name), seed) for seed in range(asked.seeds)]
        mean = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
        std = {key: float(np.std([one[key] for one in each])) for key in each[0]}
        rows = [row for row in rows if row["graph"] != name]
        rows.append({"graph": name, "mean": mean, "std": std, "seeds": asked.seeds, "origin": origin()})
        print(name, json.dumps(rounded(mean, 3)), flush=True)
        write_json(asked.out, {"device": device, "preset": PRESET, **made_with(), "rows": rounded(rows, 4)})
    print(json.dumps({"written": str(asked.out)}))


if __name__ == "__main__":
    main()
