"""Systems that H3GNN is compared with, reimplemented from their papers, grouped by family.

A self-supervised system is an `embedder.Embedder` with layers, a loss and an embedding; see `contrastive`.
A supervised one is a `supervised.Classifier` with weights and logits for a stack of models; see
`classics.MLP`. Each has a card in `cards/GROUP.toml`; `registry.systems` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Progress = Callable[[float], None]
"""Receives the fraction of the work that is done."""


def unwatched(share: float) -> None:
    """Ignore progress."""


def __dir__() -> list[str]:
    from h3gnn.baselines.embedder import estimators

    return sorted([*globals(), *estimators()])


def __getattr__(name: str) -> Any:
    """Return a system's estimator, such as `GRACE`; see `embedder.estimators`."""
    if name.startswith("_") or not name[0].isupper():
        raise AttributeError(f"module 'h3gnn.baselines' has no attribute {name!r}")
    from h3gnn.baselines.embedder import estimators

    if name not in estimators():
        raise AttributeError(f"h3gnn.baselines has no system {name!r}; there are {', '.join(estimators())}")
    return estimators()[name]
