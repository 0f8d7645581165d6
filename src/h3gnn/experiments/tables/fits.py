"""Training H3GNN once and scoring it under both protocols."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from h3gnn.estimator import H3GNN
from h3gnn.evaluation.candidates import Candidates
from h3gnn.evaluation.clustering import MEASURES, cluster_scores
from h3gnn.evaluation.probe import probe_candidates
from h3gnn.evaluation.protocols import PUBLISHED, VALIDATION, SplitScores, answers_of, score
from h3gnn.experiments.tables.cells import Cell
from h3gnn.experiments.tables.planes import place_in_plane, shown_nodes
from h3gnn.experiments.tables.scope import look_epochs
from h3gnn.graphs.graph import Graph
from h3gnn.training.loop import Snapshots


def run_fit(cell: Cell, graph: Graph, device: torch.device) -> dict[str, Any]:
    """Train one configuration from one seed, and return its scores under each protocol.

    The run is probed at a few epochs. `validation` has the last one, whatever the others say; `published`
    has each split's best on test nodes.
    """
    seed = cell.seeds[0]
    looked_at = look_epochs(cell.params["epochs"])
    looks = Looks(graph, cell.params["n_models"], looked_at[-1], cell.wants, seed)
    model = H3GNN(**cell.params, random_state=seed, device=str(device))
    model.fit(graph, snapshots=Snapshots(looked_at, looks.take))
    return {"epochs": looked_at, **looks.scores(), "precision": model.history_.engine["precision"]}


class Looks:
    """What is kept of a run's embeddings: of every look the classifiers, of the last also a map.

    Args:
        graph: with labels and splits.
        models: how many models' embeddings stand side by side.
        last: the last epoch.
        wants: "clusters" for k-means at every look (the probe then looks at the last alone), "map" for a map
            of the last.
        seed: of k-means and of the map.
    """

    def __init__(self, graph: Graph, models: int, last: int, wants: tuple[str, ...], seed: int) -> None:
        self.graph, self.models, self.last, self.wants, self.seed = graph, models, last, wants, seed
        self.by_epoch: dict[int, Candidates] = {}
        self.clusters: dict[int, dict[str, list[float]]] = {}
        self.map: dict[str, Any] | None = None
        self._parts: dict[int, list[Tensor]] = {}

    def take(self, epoch: int, models: range, embedding: Tensor) -> None:
        """Take the embedding of some models; when all models are there, look at it."""
        if len(models) < self.models:  # trained in groups: what comes first waits in the computer's memory
            parts = self._parts.setdefault(epoch, [])
            parts.append(embedding.cpu())
            if models.stop < self.models:
                return
            embedding = torch.cat(self._parts.pop(epoch), dim=1).to(embedding.device)
        self._look(epoch, embedding)

    def _look(self, epoch: int, embedding: Tensor) -> None:
        if epoch == self.last or "clusters" not in self.wants:
            self.by_epoch[epoch] = probe_candidates(embedding, *known(self.graph))
        if "clusters" in self.wants:
            labels = known(self.graph)[0]
            self.clusters[epoch] = cluster_scores(embedding, labels, seeds=(self.seed,))
        if "map" in self.wants and epoch == self.last:
            self.map = self._draw(embedding)

    def _draw(self, embedding: Tensor) -> dict[str, Any]:
        """Return the maps of features and embedding, with the classes to colour them by."""
        shown = torch.from_numpy(shown_nodes(self.graph.num_nodes, self.seed))
        return {
            "before": place_in_plane(self.graph.dense_features()[shown].numpy(), self.seed),
            "after": place_in_plane(embedding[shown.to(embedding.device)].cpu().numpy(), self.seed),
            "labels": known(self.graph)[0][shown].tolist(),
            "classes": list(self.graph.class_names),
        }

    def scores(self) -> dict[str, Any]:
        """Choose under each protocol, and return what was chosen with its scores."""
        labels, _, _, test = known(self.graph)
        answers = answers_of(labels, test)
        at_end = {self.last: self.by_epoch[self.last]}
        published = score(self.by_epoch, PUBLISHED.choose(self.by_epoch, answers), answers)
        validation = score(at_end, VALIDATION.choose(at_end), answers)
        return {
            "published": plain_scores(published),
            "validation": plain_scores(validation),
            "clustering": self._clustering(),
            "map": self.map,
        }

    def _clustering(self) -> dict[str, dict[str, list[float]]] | None:
        """Return k-means of the last epoch and, as the released code reports, each measure's best."""
        if not self.clusters:
            return None
        every = list(self.clusters.values())
        best = {name: max((one[name] for one in every), key=np.mean) for name in MEASURES}
        return {"published": best, "validation": self.clusters[self.last]}


def known(graph: Graph) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return labels and masks of a graph that has them."""
    found = (graph.labels, graph.train_mask, graph.val_mask, graph.test_mask)
    if any(one is None for one in found):
        raise ValueError("a benchmark has labels and splits")
    return found  # type: ignore[return-value]


def plain_scores(scores: SplitScores) -> dict[str, Any]:
    """Return scores of one run as plain values."""
    return {
        "accuracy": scores.accuracy,
        "macro_f1": scores.macro_f1,
        "roc_auc": scores.roc_auc,
        "validation": scores.validation,
        "chosen": scores.chosen,
    }


def read_scores(kept: dict[str, Any]) -> SplitScores:
    """Read what `plain_scores` returned."""
    return SplitScores(**kept)
