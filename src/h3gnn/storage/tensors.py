"""Tensors from a file, against what their names promise: type, shape, and values that can be worked with.

A file holds no more than its own bytes, so tensors that were read are no danger to memory; what is built from
them takes its sizes from their shapes, never from a number beside them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.schema import FieldError, Whole


@dataclass(frozen=True)
class Spec:
    """What a tensor must be.

    Attributes:
        dtype: its type.
        shape: a size for each axis; a name stands for any size, the same wherever it stands.
    """

    dtype: torch.dtype
    shape: tuple[int | str, ...]


def check_tensors(
    specs: Mapping[str, Spec], tensors: Mapping[str, Tensor], sizes: dict[str, int] | None = None
) -> None:
    """Compare tensors with what they must be; sizes of named axes that are not known yet are noted.

    Raises:
        FieldError: for one that is missing, too many, of another type or shape, or holds NaN or infinity.
    """
    strange = next((name for name in tensors if name not in specs), None)
    if strange is not None:
        raise FieldError(strange[:60], "does not belong there")
    known: dict[str, int] = {} if sizes is None else sizes
    for name, spec in specs.items():
        check_tensor(name, tensors.get(name), spec, known)


def check_tensor(name: str, found: Tensor | None, spec: Spec, sizes: dict[str, int]) -> None:
    """Compare one tensor; sizes that are not known yet are noted."""
    if found is None:
        raise FieldError(name, "is missing")
    if found.dtype != spec.dtype:
        raise FieldError(name, f"holds {_word(found.dtype)} instead of {_word(spec.dtype)}")
    wanted = [sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in spec.shape]
    fits = len(wanted) == found.dim() and all(
        isinstance(axis, str) or axis == size for axis, size in zip(wanted, found.shape, strict=True)
    )
    if not fits:
        shown = ", ".join(map(str, wanted))
        raise FieldError(name, f"has shape {list(found.shape)} instead of [{shown}]")
    for axis, size in zip(spec.shape, found.shape, strict=True):
        if isinstance(axis, str):
            sizes[axis] = size
    if spec.dtype.is_floating_point and not bool(torch.isfinite(found).all()):
        raise FieldError(name, "holds NaN or infinity")


def check_range(name: str, values: Tensor, least: float, below: float) -> None:
    """Refuse values outside [least, below)."""
    bad = (values < least) | (values >= below)
    if bool(bad.any()):
        worst = values[bad].flatten()[0].item()
        raise FieldError(name, f"holds {worst:g}, which is not in {least:g} to {below - 1:g}")


def text_of(name: str, encoded: Tensor) -> str:
    """Return a text that was stored as bytes."""
    try:
        return encoded.numpy().tobytes().decode()
    except UnicodeDecodeError:
        raise FieldError(name, "is not UTF-8 text") from None


def ids_of(name: str, encoded: Tensor, count: int) -> npt.NDArray[Any]:
    """Return node ids that were stored as JSON: texts, or whole numbers, each once."""
    try:
        ids = json.loads(text_of(name, encoded))
    except (ValueError, RecursionError):
        raise FieldError(name, "is not a list in JSON") from None
    if not isinstance(ids, list) or len(ids) != count:
        raise FieldError(name, f"must be a list of {count} ids")
    whole = all(isinstance(one, int) for one in ids)
    for place, one in enumerate(ids):
        if whole:
            Whole().check(one, f"{name}[{place}]")
        elif not isinstance(one, str):
            raise FieldError(f"{name}[{place}]", "must be a text, as other ids are")
    if len(set(ids)) != count:
        raise FieldError(name, "holds an id twice")
    return np.array(ids, dtype=np.int64 if whole else object)


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
