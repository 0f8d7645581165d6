"""Arrays and words in a few bytes: what a page carries inside itself.

One gzip stream holds a length, a JSON description, and the arrays one after another, each at a multiple of
eight bytes. As base64 it contains no character that HTML reads, so nothing in it can be mistaken for markup.
"""

from __future__ import annotations

import base64
import gzip
import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

FINE, COARSE = "uint16", "uint8"
"""How finely numbers are kept: in 65,535 steps or in 255; the step after the last one means "not known"."""

WORD = 8


class Packer:
    """Collects arrays and returns, for each, what the page needs to find it again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0

    def whole(self, values: npt.NDArray[Any]) -> dict[str, Any]:
        """Keep non-negative whole numbers in as few bytes as their largest needs."""
        largest = int(values.max(initial=0))
        kind = "uint8" if largest < 2**8 else "uint16" if largest < 2**16 else "uint32"
        return self._keep(np.asarray(values).astype(kind), kind)

    def scaled(self, values: npt.NDArray[Any], low: float | None = None, kind: str = FINE) -> dict[str, Any]:
        """Keep numbers as steps between their smallest (or `low`) and largest; NaN stays unknown."""
        unknown = int(np.iinfo(kind).max)
        numbers = np.asarray(values, dtype=np.float64)
        known = np.isfinite(numbers)
        smallest = (float(numbers[known].min()) if known.any() else 0.0) if low is None else low
        largest = float(numbers[known].max()) if known.any() else smallest
        step = (largest - smallest) / (unknown - 1) or 1.0
        steps = np.where(known, np.round((np.where(known, numbers, smallest) - smallest) / step), unknown)
        return self._keep(steps.astype(kind), kind) | {"low": smallest, "step": step}

    def _keep(self, values: npt.NDArray[Any], kind: str) -> dict[str, Any]:
        content = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<")).tobytes()
        told = {"at": self._length, "length": int(values.size), "kind": kind}
        self._parts += [content, bytes(-len(content) % WORD)]
        self._length += len(content) + (-len(content) % WORD)
        return told

    def pack(self, description: dict[str, Any]) -> str:
        """Return the description and all arrays as base64."""
        text = json.dumps(description, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
        text += b" " * (-(len(text) + WORD) % WORD)
        content = struct.pack("<II", len(text), 0) + text + b"".join(self._parts)
        return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")
