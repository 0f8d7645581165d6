"""What H3GNN is compared with: other ways from a graph to embeddings, and classifiers that see labels.

One module for each system, with its `systems.System`, and its name in `registry.MODULES`. One that learns
without labels is an `embedder.Embedder`: what it is made of, its loss, its embedding, see `dgi`. A supervised
one is a `classifiers.Classifier`: its weights and its logits, for a whole stack of models, see `mlp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[float], None]
"""Told the share of the work that is done."""


def unwatched(share: float) -> None:
    """Tell nobody."""


def __dir__() -> list[str]:
    from h3gnn.baselines.estimators import estimators

    return sorted([*globals(), *estimators()])


def __getattr__(name: str) -> Any:
    """Return a system's estimator, such as `GRACE`; see `estimators`."""
    if name.startswith("_") or not name[0].isupper():
        raise AttributeError(f"module 'h3gnn.baselines' has no attribute {name!r}")
    from h3gnn.baselines.estimators import estimators

    if name not in estimators():
        raise AttributeError(f"h3gnn.baselines has no system {name!r}; there are {', '.join(estimators())}")
    return estimators()[name]
