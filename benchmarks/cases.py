"""Compare `h3gnn predict` in a worked case with what users would write instead, given the same labels.

`python -m benchmarks.cases predictions.csv --truth truth.csv --edges edges.csv --features nodes.csv` prints
one row for the file that `h3gnn predict` wrote and one for each method of `benchmarks.rivals`: the scores of
those nodes of the file whose truth is known. Options that are given twice append tables, such as those of
new nodes.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import metrics

from benchmarks.prediction_cases import unlabelled
from benchmarks.rivals import RIVALS, Table
from h3gnn.evaluation.heads import Target
from h3gnn.graphs.graph import Graph
from h3gnn.tables.read import read_graph

RESAMPLES = 200


def appended(files: list[Path], folder: Path, name: str) -> Path:
    """Return one table with the rows of all files."""
    if len(files) == 1:
        return files[0]
    path = folder / f"{name}.csv"
    pd.concat([pd.read_csv(one, dtype=str) for one in files]).to_csv(path, index=False)
    return path


def read(given: argparse.Namespace) -> Graph:
    """Read the graph with its labels."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        return read_graph(
            appended(given.edges, folder, given.edges[0].stem),
            features=appended(given.features, folder, given.features[0].stem) if given.features else None,
            labels=given.labels,
            label_column=given.label_column,
        )


def scores(truth: Any, p: pd.DataFrame, positive: str | None) -> tuple[float, float]:
    """Return average precision and AUC of one of two classes, else accuracy and balanced accuracy."""
    if positive is not None:
        hit, chance = truth == positive, p[positive]
        return metrics.average_precision_score(hit, chance), metrics.roc_auc_score(hit, chance)
    classes = p.columns.to_numpy()[p.to_numpy().argmax(axis=1)]
    return metrics.accuracy_score(truth, classes), metrics.balanced_accuracy_score(truth, classes)


def row(title: str, truth: Any, p: pd.DataFrame, positive: str | None) -> str:
    """Return the scores of a method, with standard errors of resamples of the nodes within each class."""
    rng = np.random.default_rng(0)
    members = [np.flatnonzero(truth == one) for one in np.unique(truth)]
    found = []
    for _ in range(RESAMPLES):
        drawn = np.concatenate([rng.choice(one, len(one)) for one in members])
        found.append(scores(truth[drawn], p.iloc[drawn], positive))
    both = zip(scores(truth, p, positive), np.std(found, axis=0), strict=True)
    return f"| {title} | {' | '.join(f'{mean:.3f} ± {error:.3f}' for mean, error in both)} |"


def compare(given: argparse.Namespace) -> str:
    """Return the scores of all methods as a table."""
    written = pd.read_csv(given.predictions, dtype={"node": str}).set_index("node")
    known = pd.read_csv(given.truth, dtype=str)
    truth = known.set_index(known.columns[0])[known.columns[1]].reindex(written.index).dropna()
    graph = read(given)
    assert graph.labels is not None
    labels, classes = graph.labels.numpy(), list(graph.class_names)
    ids = pd.Index(graph.node_ids).astype(str)
    nodes = np.setdiff1d(np.flatnonzero(labels >= 0), np.flatnonzero(ids.isin(truth.index)))
    columns = [f"p_{one}" for one in classes]
    rows = {"`h3gnn predict`": written.loc[truth.index, columns].set_axis(classes, axis=1)}
    table, target = Table(unlabelled(graph)), Target(labels[nodes], len(classes))
    for title, predict in RIVALS.values():
        found = pd.DataFrame(np.exp(predict(table, nodes, target)), index=ids, columns=classes)
        rows[title] = found.loc[truth.index]
    two, rare = len(classes) == 2, truth.value_counts().index[-1]
    positive = (given.of or rare) if two else None
    heads = (f"average precision of {positive}", "ROC AUC") if two else ("accuracy", "balanced accuracy")
    lines = [f"| method | {' | '.join(heads)} |", "| --- | --- | --- |"]
    return "\n".join([*lines, *(row(title, truth.to_numpy(), p, positive) for title, p in rows.items())])


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("--edges", type=Path, action="append", required=True)
    parser.add_argument("--features", type=Path, action="append", default=[])
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--label-column")
    parser.add_argument("--truth", type=Path, required=True)
    parser.add_argument(
        "--of", help="the class whose average precision is printed; default: the rarer of two"
    )
    given = parser.parse_args(arguments)
    with warnings.catch_warnings(action="ignore"):
        print(compare(given))


if __name__ == "__main__":
    main()
