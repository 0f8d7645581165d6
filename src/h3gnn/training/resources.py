r"""Devices, precision and free memory, and an estimate of the memory that training needs.

Full-graph training stores values per node and per edge, and the activations of the fusion block for one chunk
of nodes. With C channels, K hops, S = 2 + K tokens, first-layer width W (of the linear token, the MLP and the
hops together), MLP width H, d features, h heads and M models, in float32:

.. math::
    \text{node} &= 4M\,(6W + 5SC + 2H + 3K(K+1)C/2) + 4d \\
    \text{edge} &= 60 + 40M \\
    \text{chunk node} &= 4M\,(40SC + 8hS^2) \\
    \text{chunk} &= (\text{budget} - 0.4\,\text{GB} - N\,\text{node} - E\,\text{edge})\ /\ \text{chunk node}

N nodes, E entries of the support (twice the edges, if messages flow both ways). These are upper bounds of
what autograd stores; tests compare them with the measured peak.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from h3gnn.errors import InputError
from h3gnn.resources import available_memory, format_bytes

SHARE = 0.6
"""Share of the free memory that training plans with; the rest is a margin for the estimate."""
LIBRARIES = 400 * 10**6
"""Memory of Python and torch before the first tensor, on a CPU."""
SMALLEST_CHUNK = 64


def pick_device(device: str) -> torch.device:
    """Return the device to use; "auto" is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        message = f"torch does not know the device {device!r}: use auto, cpu or cuda"
        raise InputError(message, code="device-unknown") from error
    if picked.type not in ("cpu", "cuda"):  # others lack float64 and sparse products
        raise InputError(f"device {device!r} is not supported: use auto, cpu or cuda", code="device-unknown")
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if picked.type == "cuda" and (picked.index or 0) >= devices:
        message = f"there is no device {device!r}: torch finds {devices} GPU(s)"
        raise InputError(message, code="device-missing")
    return picked


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """Whether the fusion block computes in bfloat16; "auto" if the processor does so natively."""
    if precision != "auto":
        return precision == "bfloat16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return _cpu_bfloat16()


@contextmanager
def rounded_products(device: torch.device, *, allowed: bool) -> Iterator[None]:
    """Allow a GPU's tensor cores to round the factors of products to 10 bits (TF32) in the block.

    Sums stay in float32. Nothing changes on a CPU.
    """
    if device.type != "cuda" or not allowed:
        yield
        return
    products = torch.backends.cuda.matmul
    before, products.fp32_precision = products.fp32_precision, "tf32"
    try:
        yield
    finally:
        products.fp32_precision = before


@cache
def _cpu_bfloat16() -> bool:
    info = Path("/proc/cpuinfo")
    flags = info.read_text(errors="replace") if info.exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()


def peak_megabytes(device: torch.device) -> float | None:
    """Return the peak memory of this process: of the GPU if it computes there, else of the host.

    None if the system does not report it.
    """
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)


def cost_of(seconds: float, megabytes: float | None, models: int) -> dict[str, Any]:
    """Return time and memory of a fit, in total and per model."""
    return {
        "seconds": round(seconds, 3),
        "peak_megabytes": megabytes,
        "seconds_per_model": round(seconds / int(models), 3),
        "megabytes_per_model": None if megabytes is None else round(megabytes / int(models), 1),
    }


def models_at_once(models: int, parameters: int, values_per_node: int, nodes: int, free: int) -> int:
    """Return how many models fit into `free` bytes; each stores its parameters six times."""
    bytes_each = 4 * (6 * parameters + nodes * values_per_node)
    return max(1, min(models, int(SHARE * free / bytes_each)))


def physical_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def fusion_bytes(models: int, tokens: int, channels: int, heads: int) -> int:
    """Return the bytes that the fusion block stores for backward per node, in float32."""
    return 4 * models * (40 * tokens * channels + 8 * heads * tokens**2)


@dataclass(frozen=True)
class MemoryEstimate:
    """The quantities that the memory of a training depends on."""

    nodes: int
    entries: int
    features: int
    channels: int
    hops: int
    first_width: int
    mlp_width: int
    heads: int
    models: int
    fused_tokens: int

    def per_chunk_node(self) -> int:
        """Bytes per node of a chunk."""
        return fusion_bytes(self.models, self.fused_tokens, self.channels, self.heads)

    def outside_chunk(self) -> int:
        """Bytes of full-graph training besides the chunk: per node, and per entry of the support."""
        hidden = 3 * self.hops * (self.hops + 1) // 2 * self.channels
        stored = 6 * self.first_width + 5 * (2 + self.hops) * self.channels + 2 * self.mlp_width + hidden
        per_node = 4 * self.models * stored + 4 * self.features
        return self.nodes * per_node + self.entries * (60 + 40 * self.models)


def check_fits(size: MemoryEstimate, device: torch.device) -> None:
    """Raise an error if full-graph training of one model needs more memory than is free."""
    alone = replace(size, models=1, features=0)  # the features are in memory already
    needed, free = alone.outside_chunk() + SMALLEST_CHUNK * alone.per_chunk_node(), free_bytes(device)
    if needed > free:
        raise InputError(
            f"training on the full graph of {size.nodes:,} nodes needs about {format_bytes(needed)} of "
            f"memory, but {format_bytes(free)} are free; train in mini-batches (batch_size=1024, "
            "--batch-size 1024)",
            code="not-enough-memory",
        )


def pick_group(budget: int, size: MemoryEstimate, largest: int) -> tuple[int, int]:
    """Return how many of the models to train at once, and how many nodes to fuse at a time."""
    for models in range(size.models, 0, -1):
        group = replace(size, models=models)
        chunk = (budget - LIBRARIES - group.outside_chunk()) // group.per_chunk_node()
        if chunk >= min(SMALLEST_CHUNK, size.nodes):
            return models, min(chunk, max(1, largest // models))
    alone = replace(size, models=1)
    needed = LIBRARIES + alone.outside_chunk() + SMALLEST_CHUNK * alone.per_chunk_node()
    raise InputError(
        f"memory={budget / 1e9:.3g}GB is not enough for training on the full graph, which needs about "
        f"{needed / 1e9:.3g}GB; allow more, or train in mini-batches (batch_size=1024, --batch-size 1024)",
        code="not-enough-memory",
    )
