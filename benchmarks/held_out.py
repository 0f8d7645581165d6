"""Are the scores and intervals of `h3gnn predict` honest? Generated tables, of which the truth is known.

`python -m benchmarks.held_out [--tables 20]` generates tables with edges, labels 50, 200 and 1,000 of their
nodes, predicts the others with each head, and compares the printed held-out score with the score of the other
nodes. It also predicts numbers on five tables and counts how many lie inside their 90 % intervals. Results
are stored in `benchmarks/results/held_out.json`; `--table` prints what is stored as Markdown.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.answers.learning import HEADS
from h3gnn.answers.prediction import predict_nodes
from h3gnn.estimator import H3GNN
from h3gnn.graphs.checks import check_graph
from h3gnn.graphs.graph import Graph
from reproduction.files import read_json, rounded, write_json
from reproduction.origin import made_with

RESULTS = Path(__file__).parent / "results" / "held_out.json"
NODES, LABELS, NUMBER_TABLES = 3000, (50, 200, 1000), 5
SETTINGS: dict[str, Any] = {"n_models": 1, "channels": 16, "epochs": 3}
"""A small embedding: the question is whether scores are honest, not whether they are high."""
Cell = dict[str, Any]


def generated(seed: int) -> tuple[Graph, npt.NDArray[np.float64]]:
    """Return a graph with columns, and a number per node that depends on columns, neighbours and noise."""
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(NODES, 6)).astype(np.float32)
    place = rng.random(NODES)
    near = np.argsort(place)
    ends = [np.stack([near[:-step], near[step:]]) for step in (1, 2)]
    ends.append(rng.integers(0, NODES, (2, NODES // 2)))
    index = np.concatenate(ends, axis=1)
    index = np.unique(np.concatenate([index, index[::-1]], axis=1), axis=1)
    graph = check_graph(columns, index[:, index[0] != index[1]], source=f"table {seed}", kind="files")
    around = graph.adjacency(undirected=True, self_loops=False).mean(columns)
    share, noise = rng.random(), rng.uniform(0.3, 1.5)
    signal = share * (columns[:, 0] + columns[:, 1] * columns[:, 2]) + 2 * (1 - share) * around[:, 3]
    return graph, np.asarray(signal + noise * rng.normal(size=NODES), dtype=np.float64)


def of_classes(seed: int, labelled: int, head: str, graph: Graph, values: Any, embedding: Any) -> Cell:
    """Return the printed score, its stated standard error, and the score of the other nodes."""
    rng = np.random.default_rng([seed, labelled])
    classes = 2 + seed % 3
    limits = np.quantile(values, np.sort(rng.uniform(0.1, 0.9, classes - 1)))
    truth = np.searchsorted(limits, values)
    labels = np.full(NODES, -1)
    chosen = rng.permutation(NODES)[:labelled]
    labels[chosen] = truth[chosen]
    names = tuple(f"c{at}" for at in range(classes))
    found = predict_nodes(graph, embedding, labels, names, head=head, measure_importance=False)
    table = found.table
    right = table["class"].to_numpy() == np.array(names)[truth[table["node"].to_numpy()]]
    scores = found.scores
    return {
        "printed": scores.mean["accuracy"],
        "stated": scores.error["accuracy"],
        "true": float(right.mean()),
    }


def of_numbers(seed: int, labelled: int, graph: Graph, values: Any, embedding: Any) -> Cell:
    """Return the share of the other nodes whose number lies inside its interval."""
    values = np.exp(values) if seed % 2 else values
    labels = np.full(NODES, np.nan)
    chosen = np.random.default_rng([seed, labelled]).permutation(NODES)[:labelled]
    labels[chosen] = values[chosen]
    table = predict_nodes(graph, embedding, labels, (), measure_importance=False).table
    truth = values[table["node"].to_numpy()]
    return {"coverage": float(((table["low"] <= truth) & (truth <= table["high"])).mean())}


def run(tables: int, out: Path) -> dict[str, Any]:
    """Compute all cells that are not stored, and store each."""
    stored = read_json(out) if out.is_file() else {"cells": []}
    cells = {(one["table"], one["labelled"], one["head"]): one for one in stored["cells"]}
    for seed in range(tables):
        wanted = [(labelled, head) for labelled in LABELS for head in HEADS]
        wanted += [(labelled, "numbers") for labelled in LABELS[1:] if seed < NUMBER_TABLES]
        wanted = [one for one in wanted if (seed, *one) not in cells]
        if not wanted:
            continue
        graph, values = generated(seed)
        embedding = H3GNN(**SETTINGS, random_state=0).fit(graph).embedding_
        for labelled, head in wanted:
            given = seed, labelled
            if head == "numbers":
                found = of_numbers(*given, graph, values, embedding)
            else:
                found = of_classes(*given, head, graph, values, embedding)
            cells[seed, labelled, head] = {
                "table": seed,
                "labelled": labelled,
                "head": head,
                **rounded(found),
            }
            write_json(out, {**made_with(), "cells": list(cells.values())})
            print(json.dumps(cells[seed, labelled, head]), flush=True)
    return {"cells": list(cells.values())}


def markdown(stored: dict[str, Any]) -> str:
    """Return the mean error beside the stated standard error, and the coverage of intervals."""
    lines = [
        "| head | labels | mean error | mean stated standard error | mean absolute error |",
        "|---|---|---|---|---|",
    ]
    for head in HEADS:
        for labelled in LABELS:
            own = [one for one in stored["cells"] if (one["head"], one["labelled"]) == (head, labelled)]
            if own:
                error = np.array([one["printed"] - one["true"] for one in own])
                stated = float(np.mean([one["stated"] for one in own]))
                figures = (error.mean(), stated, np.abs(error).mean())
                lines.append(
                    f"| {head} | {labelled:,} | " + " | ".join(f"{one:.3f}" for one in figures) + " |"
                )
    lines += ["", "| labels | share inside 90 % intervals, by table |", "|---|---|"]
    for labelled in LABELS[1:]:
        own = [one for one in stored["cells"] if (one["head"], one["labelled"]) == ("numbers", labelled)]
        lines.append(f"| {labelled:,} | {', '.join(format(one['coverage'], '.3f') for one in own)} |")
    return "\n".join(lines)


def main() -> None:
    """Run, or print what is stored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    with warnings.catch_warnings(action="ignore"):
        print(markdown(read_json(given.out) if given.table else run(given.tables, given.out)))


if __name__ == "__main__":
    main()
