"""What the machine offers: a device, fast bfloat16, and room for how many models."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

import torch

from h3gnn.errors import InputError

SHARE = 0.6
"""Share of the free memory that training may plan with; the rest is for what an estimate forgets."""


def pick_device(device: str) -> torch.device:
    """Return the device to use; "auto" is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"device {device!r} is not known to torch: use auto, cpu or cuda") from error
    if picked.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch finds no CUDA device here")
    return picked


def use_bfloat16(precision: str, device: torch.device) -> bool:
    """Decide whether the fusion block computes in bfloat16; "auto" does where the processor does natively."""
    if precision != "auto":
        return precision == "bfloat16"
    return (
        torch.cuda.is_bf16_supported(including_emulation=False) if device.type == "cuda" else _cpu_bfloat16()
    )


@cache
def _cpu_bfloat16() -> bool:
    info = Path("/proc/cpuinfo")
    flags = info.read_text(errors="replace") if info.exists() else ""
    return "avx512_bf16" in flags or "amx_bf16" in flags


def free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 4 * 2**30


def peak_megabytes(device: torch.device) -> float | None:
    """Return the most memory this process has held so far: on the GPU if it computes there, else of the host.

    None where the system does not tell.
    """
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 2**20, 1)
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (2**20 if sys.platform == "darwin" else 2**10), 1)


def models_at_once(models: int, parameters: int, values_per_node: int, nodes: int, free: int) -> int:
    """Return how many models may train as one program.

    Args:
        models: how many are asked for.
        parameters: of one model; kept six times (weights, gradient, two moments, teacher, one in passing).
        values_per_node: activations that one model keeps for each node.
        nodes: number of nodes.
        free: bytes to plan with.
    """
    bytes_each = 4 * (6 * parameters + nodes * values_per_node)
    return max(1, min(models, int(SHARE * free / bytes_each)))
