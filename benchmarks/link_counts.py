"""What numbers of links are worth as columns of plain graphs, on validation nodes.

`python -m benchmarks.link_counts --data FOLDER` compares, on each benchmark graph, two heads on each node's
columns and their means over one and two hops: with and without the number of links and of distinct partners,
out and in, among the columns. Heads are fitted to the training nodes of the first splits and scored on their
validation nodes; test nodes are never looked at. FOLDER holds the files of the benchmarks.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from h3gnn.answers.learning import LINKS, NEIGHBOURS, OWN, NodeColumns
from h3gnn.graphs.datasets import load
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.link_columns import DIRECTIONS, LinkColumns, LinkTable
from reproduction.files import rounded, write_json
from reproduction.origin import made_with

RESULTS = Path(__file__).parent / "results" / "link_counts.json"
GRAPHS = ("texas", "cora", "citeseer", "actor", "chameleon-filtered", "squirrel-filtered")
SPLITS = 3
HEADS: dict[str, Callable[[], Any]] = {
    "logistic": lambda: make_pipeline(
        StandardScaler(), LogisticRegressionCV(Cs=np.logspace(-4, -1, 4), cv=3, max_iter=100)
    ),
    "boosting": lambda: HistGradientBoostingClassifier(max_iter=50, random_state=0),
}
Record = dict[str, Any]


def columns_of(graph: Graph, *, counts: bool) -> npt.NDArray[np.float32]:
    """Return the columns of nodes for a head, with the numbers of links or without."""
    if counts:
        table = LinkTable("edges", DIRECTIONS, ())
        summaries = table.summarize(graph.edge_index.numpy(), {}, graph.num_nodes)
        graph = replace(graph, link_columns=LinkColumns.fit([table], [summaries]))
    found = NodeColumns.fit(graph, np.zeros((graph.num_nodes, 1), dtype=np.float32))
    return found.values[:, found.positions(OWN, LINKS, NEIGHBOURS)]


def compare(graph: Graph, splits: int = SPLITS) -> list[Record]:
    """Return the accuracy of each head on validation nodes, and what the numbers of links add to it."""
    assert graph.labels is not None
    assert graph.train_mask is not None
    assert graph.val_mask is not None
    labels, rows = graph.labels.numpy(), []
    both = [columns_of(graph, counts=counts) for counts in (False, True)]
    for head, make in HEADS.items():
        scores = np.zeros((min(splits, graph.num_splits), 2))
        for split, at in np.ndindex(scores.shape):
            train, val = (mask[:, split].numpy() for mask in (graph.train_mask, graph.val_mask))
            fitted = make().fit(both[at][train], labels[train])
            scores[split, at] = 100 * fitted.score(both[at][val], labels[val])
        added = scores[:, 1] - scores[:, 0]
        error = None if len(added) < 2 else float(added.std(ddof=1) / len(added) ** 0.5)
        without, counted = scores.mean(axis=0).tolist()
        row = {"head": head, "splits": len(added), "without": without, "with": counted}
        rows.append({**row, "added": float(added.mean()), "error": error})
    return rows


def table(stored: Record) -> str:
    """Return the stored results as a Markdown table."""
    lines = ["| graph | head | splits | without | with | added |", "| --- | --- | --- | --- | --- | --- |"]
    for row in stored["rows"]:
        error = "" if row["error"] is None else f" ± {row['error']:.1f}"
        figures = f"{row['without']:.1f} | {row['with']:.1f} | {row['added']:+.1f}{error}"
        lines.append(f"| {row['graph']} | {row['head']} | {row['splits']} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    """Measure all graphs and store the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="folder of the files of the benchmarks")
    given, rows = parser.parse_args(), list[Record]()
    warnings.simplefilter("ignore")
    for name in GRAPHS:
        rows += [{"graph": name, **row} for row in compare(load(name, given.data))]
        write_json(RESULTS, rounded({**made_with(), "rows": rows}, 2))
        print(table({"rows": rows[-len(HEADS) :]}))


if __name__ == "__main__":
    main()
