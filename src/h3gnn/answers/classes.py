"""The classes of a graph's unlabelled nodes as a table, with the held-out scores beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from h3gnn.answers.extending import Extension
from h3gnn.answers.heldout import Scores, score_held_out
from h3gnn.answers.prediction import Decision, NodePredictor, Rule, check_labels
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.strangers import check_ids

Ids = npt.NDArray[Any]
MOST_COLUMNS = 20
"""Up to so many classes have a column of probabilities each."""


@dataclass(frozen=True, eq=False)
class Predictions:
    """What is said about nodes, and how far it can be believed.

    Attributes:
        table: one row per node: `node`, `class`, `probability`, `cannot_tell`, and `p_CLASS` for each class.
            Where labelled nodes were asked for, `label` is theirs, and what is said of them is said by models
            that had not seen it.
        scores: on held-out labelled nodes.
        how: how probabilities and marks came about, in a sentence.
        notes: what should be known of these labels.
        labelled: how many nodes it was learned from.
        names: of the classes.
    """

    table: pd.DataFrame
    scores: Scores
    how: str
    notes: tuple[str, ...]
    labelled: int
    names: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all but the table, for JSON."""
        positive = self.scores.positive
        return {
            "nodes": len(self.table),
            "cannot_tell": int(self.table["cannot_tell"].sum()),
            "classes": self.table["class"].value_counts().to_dict(),
            "labelled": self.labelled,
            "held_out": {
                "mean": self.scores.mean,
                "std": self.scores.std,
                "folds": self.scores.folds,
                "majority_share": self.scores.majority,
                "positive_class": None if positive is None else self.names[positive],
            },
            "how": self.how,
            "notes": list(self.notes),
        }


def predict_classes(
    graph: Graph | MappedGraph,
    embedding: npt.NDArray[np.float32],
    labels: npt.NDArray[np.int64],
    names: tuple[str, ...],
    rule: Rule,
    *,
    extension: Extension | None = None,
    labelled_too: bool = False,
    seed: int = 0,
    watch: Callable[[float], None] = lambda share: None,
) -> Predictions:
    """Say the class of every unlabelled node, or of the nodes that joined the graph.

    Args:
        graph: of the embedding.
        embedding: `[nodes, D]`, in memory or in a file.
        labels: `[nodes]`, -1 where unknown.
        names: of the classes.
        rule: how to decide.
        extension: embeddings of new nodes, which are then the ones that are asked about.
        labelled_too: also say what the labelled nodes would be taken for, each without its own label.
        seed: of the folds.
        watch: is told the share that is done.
    """
    check_ids(graph.node_ids if extension is None else extension.node_ids)
    notes = check_labels(labels, names)
    chosen = np.flatnonzero(labels >= 0)
    present, codes = np.unique(labels[chosen], return_inverse=True)
    names = tuple(names[one] for one in present)
    rule.check(len(names))
    asked = np.flatnonzero(labels < 0)
    if extension is None and not asked.size and not labelled_too:
        raise InputError(
            "every node has a label, so there is nothing to predict: give --labels FILE with some of them, "
            "new nodes, or --all to see what each node would be taken for without its label"
        )
    predictor = NodePredictor(embedding, chosen, codes, len(names), rule, seed)
    scores = score_held_out(predictor.span, codes, len(names), rule, seed=seed, watch=watch)
    if extension is not None:
        new = extension.embedding[-extension.new :]
        parts = [_table(extension.node_ids[-extension.new :], predictor(new), names)]
    else:
        parts = [_table(graph.node_ids[asked], predictor(embedding, asked), names)] if asked.size else []
    if labelled_too:
        own = _table(graph.node_ids[chosen], scores.held_out, names)
        own["label"] = np.array(names, dtype=object)[codes]
        parts.append(own)
    table = pd.concat(parts, ignore_index=True)
    return Predictions(table, scores, predictor.how(), notes, len(chosen), names)


def _table(ids: Ids, said: Decision, names: tuple[str, ...]) -> pd.DataFrame:
    columns: dict[str, Any] = {
        "node": ids,
        "class": np.array(names, dtype=object)[said.classes],
        "probability": said.probability,
        "cannot_tell": said.cannot_tell,
    }
    if len(names) <= MOST_COLUMNS:
        columns |= {f"p_{name}": said.every[:, at] for at, name in enumerate(names)}
    return pd.DataFrame(columns)
