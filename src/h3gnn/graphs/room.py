"""Sizes that files declare, looked at before memory is asked for: what they hold, and what it becomes.

A file may say anything about itself: an array of 10¹² rows in a hundred bytes, a megabyte that unpacks to a
gigabyte, a million rows that share one text of a megabyte. Each reader asks here before it reads.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from h3gnn.errors import GraphError
from h3gnn.resources import check_memory, format_bytes


def check_npy(stream: BinaryIO, size: int, path: Path, name: str = "") -> None:
    """Refuse an array whose header declares more than the file holds, or than there is memory for.

    Args:
        stream: at its beginning, to which it does not return.
        size: bytes of the file, or of the file in an archive.
        path: the file.
        name: of the array in an archive.
    """
    form = np.lib.format
    version = form.read_magic(stream)
    read: Any = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    if version not in ((1, 0), (2, 0)):  # 3.0 differs in the encoding of field names, which features lack
        return
    shape, _, dtype = read(stream)
    declared = math.prod(shape) * dtype.itemsize
    what = f"the array {name}" if name else "the array"
    if declared > size:
        raise GraphError(
            f"{path}: {what} says that it holds {format_bytes(declared)}, but has {size:,} bytes"
        )
    check_memory(3 * declared, f"reading {what} of {path}", GraphError)


def check_npz(path: Path) -> None:
    """Refuse an archive that unpacks to more than there is memory for, or whose arrays say so."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_memory(3 * sum(one.file_size for one in members), f"unpacking {path}", GraphError)
        for one in members:
            if one.filename.endswith(".npy"):
                with archive.open(one) as stream:
                    check_npy(stream, one.file_size, path, one.filename.removesuffix(".npy"))  # type: ignore[arg-type]


def check_archive(path: Path) -> None:
    """Refuse a `.pt` file that unpacks to more than there is memory for; an old one is no archive."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(one.file_size for one in archive.infolist())
            check_memory(3 * size, f"unpacking {path}", GraphError)


def check_matrix(rows: int, columns: int, stored: int, what: str) -> None:
    """Refuse a sparse matrix whose rows, of which each costs a number, are more than there is memory for."""
    if columns >= 2**62 or rows >= 2**62:
        raise GraphError(f"{what} of {rows:,} x {columns:,} are more than can be numbered")
    check_memory(24 * (rows + stored), f"{what} of {rows:,} rows", GraphError)
