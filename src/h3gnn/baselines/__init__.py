"""What H3GNN is compared with: other ways from a graph to embeddings, and classifiers that see labels.

One module for each system, with its `systems.System`, and its name in `registry.MODULES`. One that learns
without labels is an `embedder.Embedder`: what it is made of, its loss, its embedding, see `dgi`. A supervised
one is a `classifiers.Classifier`: its weights and its logits, for a whole stack of models, see `mlp`.
"""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float], None]
"""Told the share of the work that is done."""


def unwatched(share: float) -> None:
    """Tell nobody."""
