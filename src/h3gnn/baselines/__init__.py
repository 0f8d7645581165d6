"""What H3GNN is compared with: other ways from a graph to embeddings, and classifiers that see labels.

One module for each system, and one line for it in `h3gnn.experiments.methods`. An embedding is a function
`(graph, seed, device, settings, watch)` to `[nodes, D]`, with a frozen dataclass of settings, see `infomax`;
a supervised one is a `classifiers.Classifier`, its weights and its logits.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float], None]
"""Told the share of the work that is done."""


def unwatched(share: float) -> None:
    """Tell nobody."""
