"""Splits for a labelled graph that has none."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from h3gnn.graphs.graph import Graph, content_hash

SPLITS = 10
TRAIN_SHARE = 0.48
VAL_SHARE = 0.32
SEED = 0


def random_splits(
    labels: Tensor,
    *,
    generator: torch.Generator,
    splits: int = SPLITS,
    train_share: float = TRAIN_SHARE,
    val_share: float = VAL_SHARE,
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw train, validation and test nodes at random within each class, as Geom-GCN did: 48, 32, 20 %.

    The shares are rounded class by class; a class that is too small for them has its first node in train.
    Nodes without label (negative) are in none.

    Args:
        labels: int64 `[nodes]`.
        generator: the source of chance; the same state gives the same splits.
        splits: how many to draw.
        train_share, val_share: shares of each class; what is left is test.

    Returns:
        Three bool masks `[nodes, splits]`.
    """
    codes = torch.full((labels.numel(), splits), -1, dtype=torch.int8)  # 0 train, 1 validation, 2 test
    for split in range(splits):
        for one in torch.unique(labels[labels >= 0]).tolist():
            members = torch.nonzero(labels == one).flatten()
            shuffled = members[torch.randperm(members.numel(), generator=generator)]
            train = max(1, round(train_share * members.numel()))
            val = round(val_share * members.numel())
            codes[shuffled[:train], split] = 0
            codes[shuffled[train : train + val], split] = 1
            codes[shuffled[train + val :], split] = 2
    return codes == 0, codes == 1, codes == 2


def with_splits(graph: Graph, seed: int = SEED) -> Graph:
    """Return the graph with ten random splits where it has labels and no splits; otherwise as it is."""
    if graph.labels is None or graph.train_mask is not None or not bool((graph.labels >= 0).any()):
        return graph
    masks = random_splits(graph.labels, generator=torch.Generator().manual_seed(seed))
    digest = content_hash(graph.features, graph.edge_index, graph.edge_weight, graph.labels, *masks)
    train, val, test = masks
    provenance = replace(graph.provenance, sha256=digest)
    split = replace(graph, train_mask=train, val_mask=val, test_mask=test, provenance=provenance)
    return split.with_notes(
        f"no splits in the data: {SPLITS} were drawn, stratified 48/32/20 % with seed {seed}"
    )
