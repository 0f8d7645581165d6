"""The graph that everything else trusts: checked once, in `checks.py`, then never again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


@dataclass(frozen=True)
class Provenance:
    """Where a graph came from; it travels into every saved model and every result."""

    source: str
    sha256: str
    mended: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"source": self.source, "sha256": self.sha256, "mended": list(self.mended)}


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with features, directed edges, and what is known about the nodes.

    Build one with `check_graph` (arrays), `as_graph` (other libraries' objects) or a reader; the fields
    are then known to fit together. An undirected graph holds each edge in both directions.

    Attributes:
        features: float32 `[nodes, features]`, dense or `torch.sparse_csr`.
        edge_index: int64 `[2, edges]`, source above target, sorted by target and without duplicates.
            Self-loops of the data stay in.
        provenance: source, content hash, and what was mended.
        edge_weight: float32 `[edges]`, positive, or None where the data has no weights.
        labels: int64 `[nodes]`, -1 where unknown, or None.
        class_names: the class that each label stands for.
        train_mask, val_mask, test_mask: bool `[nodes, splits]`, or None without splits.
        node_ids: int64 or object (str) `[nodes]`; the position where the user gave no ids.
        has_ids: whether the user named the nodes.
    """

    features: Tensor
    edge_index: Tensor
    provenance: Provenance
    edge_weight: Tensor | None = None
    labels: Tensor | None = None
    class_names: tuple[str, ...] = ()
    train_mask: Tensor | None = None
    val_mask: Tensor | None = None
    test_mask: Tensor | None = None
    node_ids: npt.NDArray[Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    has_ids: bool = False

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.features.shape[0]

    @property
    def num_edges(self) -> int:
        """Number of directed edges, self-loops of the data included."""
        return self.edge_index.shape[1]

    @property
    def num_features(self) -> int:
        """Number of feature columns."""
        return self.features.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of classes, 0 without labels."""
        return len(self.class_names)

    @property
    def num_splits(self) -> int:
        """Number of train/validation/test splits."""
        return 0 if self.train_mask is None else self.train_mask.shape[1]

    def dense_features(self) -> Tensor:
        """Return the features as a dense tensor, whatever their storage."""
        return self.features if self.features.layout == torch.strided else self.features.to_dense()

    def with_notes(self, *notes: str) -> Graph:
        """Return the same graph with more lines in `provenance.mended`."""
        mended = (*self.provenance.mended, *notes)
        return replace(self, provenance=replace(self.provenance, mended=mended))


def content_hash(features: Tensor, edge_index: Tensor, *others: Tensor | None) -> str:
    """Return the SHA-256 of what a result depends on; the same arrays give the same text on every machine.

    Sparse features are hashed as they are stored (row pointers, columns, values).
    """
    digest = hashlib.sha256()
    stored = [features]
    if features.layout == torch.sparse_csr:
        stored = [features.crow_indices(), features.col_indices(), features.values()]
    for part in (*stored, edge_index, *others):
        if part is None:
            digest.update(b"none")
            continue
        array = np.ascontiguousarray(part.detach().cpu().numpy())
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
