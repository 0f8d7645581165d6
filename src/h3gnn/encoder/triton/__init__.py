"""Triton kernels for CUDA devices, and the choice between them and torch."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import torch
from torch import Tensor

PRECISIONS = (torch.float32, torch.bfloat16)
"""Types of the kernels' inputs and outputs; sums are float32."""


def kernels_for(values: Tensor) -> SimpleNamespace | None:
    """Return the kernels for a tensor on a CUDA device; None where torch is used."""
    return _kernels() if _runs_kernels(values) and values.dtype in PRECISIONS else None


def _runs_kernels(values: Tensor) -> bool:
    return values.is_cuda


@cache
def _kernels() -> SimpleNamespace | None:
    """Import the kernels; None where Triton is not installed."""
    try:
        from h3gnn.encoder.triton import rows, sparse
    except ImportError:
        return None
    return SimpleNamespace(**{**vars(sparse), **vars(rows)})
