"""Tensors and a description in one safetensors file that is named by its own hash.

One file is either whole or not there, so what it holds together stays together. The tensors are written one
after the other, which costs no second copy of them in memory, and a write that fails raises the `OSError`
that tells why. What is read is compared with the hash first; nothing in a file is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from h3gnn.errors import CheckpointError

ENDING = ".safetensors"
NAME = re.compile(r"(?P<stem>.+)-(?P<sha256>[0-9a-f]{16})\.safetensors")
KEY = "h3gnn"
"""Under which name of the file's metadata the description lies."""
TYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensor_file(folder: Path, stem: str, tensors: dict[str, Tensor], description: Any) -> Path:
    """Write `STEM-HASH.safetensors` so that a reader, or a kill, sees all of it or none of it."""
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{stem}.", suffix=".part")
    try:
        digest = hashlib.sha256()
        with os.fdopen(handle, "wb") as file:
            for piece in _pieces(tensors, description):
                digest.update(piece)
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        path = folder / f"{stem}-{digest.hexdigest()[:16]}{ENDING}"
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return path


def read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description of a file that is whole and ours, or say what it is instead."""
    from safetensors import SafetensorError, safe_open

    named = NAME.fullmatch(path.name)
    try:
        with path.open("rb") as file:
            if named is None or hashlib.file_digest(file, "sha256").hexdigest()[:16] != named["sha256"]:
                raise CheckpointError(f"{path} is damaged: its content does not match the hash in its name")
        with safe_open(path, framework="pt") as opened:
            text = (opened.metadata() or {}).get(KEY)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        description = json.loads(text) if text is not None else None
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is not a safetensors file of h3gnn: {error}") from None
    if not isinstance(description, dict):
        raise CheckpointError(f"{path} was not written by h3gnn")
    return tensors, description


def remove_parts(folder: Path, stem: str) -> None:
    """Remove what a kill in the middle of a write left behind."""
    for part in folder.glob(f".{stem}*.part"):
        part.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make a new name in a folder outlast a loss of power; where a system knows no such thing, do nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _pieces(tensors: dict[str, Tensor], description: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file: length of the header, header, tensors without gaps."""
    ordered = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {KEY: json.dumps(description, sort_keys=True)}}
    end = 0
    for name in ordered:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that every tensor is aligned
    yield len(text).to_bytes(8, "little")
    yield text
    for name in ordered:
        plain = tensors[name].detach().cpu().contiguous().flatten()
        yield plain.view(torch.uint8).numpy().data
