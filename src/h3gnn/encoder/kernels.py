"""Which kernels of our own serve a tensor."""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

PRECISIONS = (torch.float32, torch.bfloat16)
"""What they read and write; they add up in float32."""


def kernels_for(values: Tensor) -> ModuleType | None:
    """Return `h3gnn.encoder.cuda.kernels` for what lies on a CUDA device; None where torch's own serve."""
    return _on_cuda() if values.is_cuda and values.dtype in PRECISIONS else None


@cache
def _on_cuda() -> ModuleType | None:
    """Return the kernels, where Triton is there to compile them."""
    try:
        from h3gnn.encoder.cuda import kernels
    except ImportError:
        return None
    return kernels
