"""Files of tensors and matrices, and their validation by type, shape and values.

Tensors that were read are no larger than their file; code that builds something from them takes its sizes
from their shapes, never from stored numbers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
import torch
from torch import Tensor

from h3gnn.errors import CheckpointError, InputError
from h3gnn.resources import check_memory
from h3gnn.storage.atomic import atomic_file, delayed_signals
from h3gnn.storage.schema import FieldError, parse_json

NAME = re.compile(r"(?P<stem>.+)-(?P<sha256>[0-9a-f]{16})\.safetensors")
KEY = "h3gnn"
"""Name of the description in the metadata of a file."""
FOREIGN = "is not a safetensors file of h3gnn"
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


@dataclass(frozen=True)
class Spec:
    """Type and shape of a tensor; a name in the shape is any size, the same wherever it occurs.

    Floats are finite, or with `gaps` finite or NaN.
    """

    dtype: torch.dtype
    shape: tuple[int | str, ...]
    gaps: bool = False


@dataclass(frozen=True)
class StoredEmbedding:
    """The embedding of a run: memory-mapped rows, and what inference learned with them.

    `dtype` is "none" if it is not stored by choice; then there are no rows.
    """

    dtype: str
    rows: npt.NDArray[Any] | None
    scale: dict[str, Any] | None
    block_lengths: list[float] | None
    index: Path | None = None

    def index_content(self) -> bytes | None:
        """Return the stored index of nearest neighbours; None if there is none, or if it is damaged."""
        try:
            content = b"" if self.index is None else self.index.read_bytes()
        except OSError:
            return None
        named = self.index is not None and self.index.stem.rpartition("-")[2]
        return content if hashlib.sha256(content).hexdigest()[:16] == named else None


def check_tensors(
    specs: Mapping[str, Spec], tensors: Mapping[str, Tensor], sizes: dict[str, int] | None = None
) -> None:
    """Validate tensors, and store the sizes of named axes in `sizes`.

    A `FieldError` names one that is missing, unexpected, of another type or shape, or not finite.
    """
    for name in tensors:
        if name not in specs:
            raise FieldError(name[:60], "is unexpected")
    sizes = {} if sizes is None else sizes
    for name, spec in specs.items():
        check_tensor(name, tensors.get(name), spec, sizes)


def check_tensor(name: str, found: Tensor | None, spec: Spec, sizes: dict[str, int]) -> None:
    """Validate one tensor, and store the sizes of its named axes."""
    if found is None:
        raise FieldError(name, "is missing")
    if found.dtype != spec.dtype:
        raise FieldError(name, f"holds {found.dtype} instead of {spec.dtype}".replace("torch.", ""))
    wanted = [sizes.get(axis, axis) if isinstance(axis, str) else axis for axis in spec.shape]
    fits = len(wanted) == found.dim() and all(
        isinstance(axis, str) or axis == size for axis, size in zip(wanted, found.shape, strict=True)
    )
    if not fits:
        raise FieldError(name, f"has shape {list(found.shape)} instead of [{', '.join(map(str, wanted))}]")
    for axis, size in zip(spec.shape, found.shape, strict=True):
        if isinstance(axis, str):
            sizes[axis] = size
    finite = torch.isfinite(found) | (torch.isnan(found) if spec.gaps else False)
    if spec.dtype.is_floating_point and not bool(finite.all()):
        raise FieldError(name, "holds NaN or infinity")


def check_range(name: str, values: Tensor, least: float, below: float) -> None:
    """Raise an error for values outside [least, below)."""
    bad = (values < least) | (values >= below)
    if bool(bad.any()):
        worst = values[bad].flatten()[0].item()
        raise FieldError(name, f"holds {worst:g}, which is not in {least:g} to {below - 1:g}")


def text_of(name: str, encoded: Tensor) -> str:
    """Decode a text that was stored as bytes."""
    try:
        return encoded.numpy().tobytes().decode()
    except UnicodeDecodeError:
        raise FieldError(name, "is not UTF-8 text") from None


def ids_of(name: str, encoded: Tensor, count: int) -> npt.NDArray[Any]:
    """Return node ids that were stored as JSON: strings or 64-bit integers, without duplicates."""
    try:
        ids = json.loads(text_of(name, encoded))
    except (ValueError, RecursionError):
        raise FieldError(name, "is not a list in JSON") from None
    if not isinstance(ids, list) or len(ids) != count:
        raise FieldError(name, f"must be a list of {count} ids")
    kinds = set(map(type, ids))
    if not (kinds <= {int} or kinds <= {str}):
        raise FieldError(name, "must hold only strings or only integers")
    if len(set(ids)) != count:
        raise FieldError(name, "holds duplicate ids")
    try:
        return np.array(ids, dtype=object if kinds == {str} else np.int64)
    except OverflowError:
        raise FieldError(name, "holds an integer of more than 64 bits") from None


def write_tensor_file(
    folder: Path, stem: str, tensors: dict[str, Tensor], description: Any | None = None
) -> Path:
    """Write `STEM-HASH.safetensors` atomically, with a description inside if there is one."""
    digest = hashlib.sha256()

    def name() -> str:
        return f"{stem}-{digest.hexdigest()[:16]}.safetensors"

    with atomic_file(folder, stem, name) as file:
        for piece in _pieces(tensors, description):
            digest.update(piece)
            file.write(piece)
    return folder / name()


def read_tensors(path: Path, error_class: type[InputError]) -> tuple[dict[str, Tensor], str | None]:
    """Return the tensors of an undamaged file and its description as text, or raise an error."""
    from safetensors import SafetensorError, safe_open

    named = NAME.fullmatch(path.name)
    try:
        with path.open("rb") as file:
            intact = named and hashlib.file_digest(file, "sha256").hexdigest()[:16] == named["sha256"]
        if not intact:
            message = f"{path} is damaged: its content does not match the hash in its name"
            raise error_class(message, code="file-damaged")
        check_memory(2 * path.stat().st_size, f"reading {path}", error_class)
        # safetensors calls back into Python, where an exception of a signal handler would end the process
        with delayed_signals(), safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return tensors, (opened.metadata() or {}).get(KEY)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise error_class(message, code="file-unreadable") from None
    except SafetensorError as error:
        raise error_class(f"{path} {FOREIGN}: {error}", code="file-foreign") from None


def read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description of a file."""
    tensors, text = read_tensors(path, CheckpointError)
    description = None if text is None else parse_json(text, path, CheckpointError, FOREIGN)
    if not isinstance(description, dict):
        raise CheckpointError(f"{path} was not written by h3gnn", code="file-foreign")
    return tensors, description


def _pieces(tensors: dict[str, Tensor], description: Any | None) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file: length of the header, header, tensors without gaps."""
    ordered = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    if description is not None:
        header["__metadata__"] = {KEY: json.dumps(description, sort_keys=True)}
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
    text += b" " * (-len(text) % 8)  # aligns every tensor
    yield len(text).to_bytes(8, "little")
    yield text
    for name in ordered:
        plain = tensors[name].detach().cpu().contiguous()
        values = plain.as_strided((plain.numel(),), (1,))  # the stride of a single value may be 0
        yield values.view(torch.uint8).numpy().data


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
    ends = len(starts) == rows + 1 and starts[[0, -1]].tolist() == [0, len(data)]
    if not ends or bool((starts.diff() < 0).any()):
        raise FieldError(f"{name}.indptr", "does not divide the entries into rows")
    return sp.csr_array((data.numpy(), indices.numpy(), starts.numpy()), shape=(rows, columns))
