"""All experiments by name, in the order of the paper's tables and then its figures."""

from __future__ import annotations

from h3gnn.experiments.tables.ablation import ABLATION
from h3gnn.experiments.tables.classification import CLASSIFICATION
from h3gnn.experiments.tables.clustering import CLUSTERING
from h3gnn.experiments.tables.convergence import CONVERGENCE
from h3gnn.experiments.tables.datasets import DATASETS
from h3gnn.experiments.tables.efficiency import EFFICIENCY
from h3gnn.experiments.tables.experiment import Experiment
from h3gnn.experiments.tables.filtered import FILTERED_TABLE
from h3gnn.experiments.tables.mask_ratio import MASK_RATIO
from h3gnn.experiments.tables.radar import RADAR
from h3gnn.experiments.tables.recent import RECENT
from h3gnn.experiments.tables.tsne import TSNE

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        CLASSIFICATION,
        EFFICIENCY,
        ABLATION,
        MASK_RATIO,
        DATASETS,
        CLUSTERING,
        FILTERED_TABLE,
        RECENT,
        TSNE,
        RADAR,
        CONVERGENCE,
    )
}
