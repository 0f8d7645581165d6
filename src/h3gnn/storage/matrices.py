"""Dense and sparse matrices as tensors of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.storage.schema import FieldError
from h3gnn.storage.tensors import Spec, check_range, check_tensor

_PARTS = ("data", "indices", "indptr")


def matrix_tensors(matrices: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return float32 arrays and CSR matrices as tensors; a CSR matrix is stored in three parts."""
    found = {}
    for name, one in matrices.items():
        if not sp.issparse(one):
            found[name] = torch.from_numpy(np.ascontiguousarray(one, np.float32))
            continue
        for part in _PARTS:
            kind = np.float32 if part == "data" else np.int64
            found[f"{name}.{part}"] = torch.from_numpy(np.ascontiguousarray(getattr(one, part), kind))
    return found


def matrix_of(
    tensors: Mapping[str, Tensor], name: str, axes: Sequence[int | str], sizes: dict[str, int]
) -> Any:
    """Return an array or a CSR matrix with some axes; the sizes of named axes are stored in `sizes`."""
    if f"{name}.indptr" not in tensors:
        check_tensor(name, tensors.get(name), Spec(torch.float32, tuple(axes)), sizes)
        return tensors[name].numpy()
    entries = f"{name} entries"
    for part, kind, axis in zip(
        _PARTS, (torch.float32, *[torch.int64] * 2), (entries, entries, f"{name} rows"), strict=True
    ):
        check_tensor(f"{name}.{part}", tensors.get(f"{name}.{part}"), Spec(kind, (axis,)), sizes)
    data, indices, starts = (tensors[f"{name}.{part}"] for part in _PARTS)
    rows, columns = (sizes[one] if isinstance(one, str) else one for one in axes)
    check_range(f"{name}.indices", indices, 0, columns)
    bounds = torch.cat([torch.zeros(1, dtype=torch.int64), starts, torch.tensor([len(data)])])
    if (
        len(starts) != rows + 1
        or bool((bounds.diff() < 0).any())
        or int(starts[0])
        or starts[-1] != len(data)
    ):
        raise FieldError(f"{name}.indptr", "does not divide the entries into rows")
    return sp.csr_array((data.numpy(), indices.numpy(), starts.numpy()), shape=(rows, columns))
