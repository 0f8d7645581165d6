"""Files that are whole or not there: tensors, named by their own hash, and finished results by key.

What one file holds together stays together. Tensors are written one after the other, which costs no second
copy of them in memory, and a write that fails raises the `OSError` that tells why. What is read is compared
with the hash first; nothing in a file is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from h3gnn.errors import CheckpointError, InputError
from h3gnn.leftovers import make_part
from h3gnn.resources import check_memory
from h3gnn.schema import parse_json
from h3gnn.signals import signals_wait

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
Record = dict[str, Any]
"""What is kept of a piece of work, as plain values."""


@contextlib.contextmanager
def whole_file(folder: Path, stem: str, name: Callable[[], str]) -> Iterator[BinaryIO]:
    """Open a file that gets its name when the block ends: a reader, or a kill, sees all of it or nothing."""
    part, handle = make_part(folder, stem)
    held = os.dup(handle) if os.name == "posix" else None  # ours until it has its name
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o644)
        part.replace(folder / name())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    finally:
        if held is not None:
            os.close(held)
    _sync_folder(folder)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with whole_file(path.parent, path.name, lambda: path.name) as file:
        file.write(content)


def write_tensor_file(
    folder: Path, stem: str, tensors: dict[str, Tensor], description: Any | None = None
) -> Path:
    """Write `STEM-HASH.safetensors`, whole or not at all, with a description inside if there is one."""
    digest = hashlib.sha256()

    def name() -> str:
        return f"{stem}-{digest.hexdigest()[:16]}.safetensors"

    with whole_file(folder, stem, name) as file:
        for piece in _pieces(tensors, description):
            digest.update(piece)
            file.write(piece)
    return folder / name()


def read_tensors(path: Path, fault: type[InputError]) -> tuple[dict[str, Tensor], str | None]:
    """Return the tensors of a file that is whole, and its description as text; else raise a `fault`."""
    from safetensors import SafetensorError, safe_open

    named = NAME.fullmatch(path.name)
    try:
        with path.open("rb") as file:
            intact = named and hashlib.file_digest(file, "sha256").hexdigest()[:16] == named["sha256"]
        if not intact:
            raise fault(f"{path} is damaged: its content does not match the hash in its name")
        check_memory(2 * path.stat().st_size, f"reading {path}", fault)
        # it calls back into Python, and an exception of a signal's handler there ends the process
        with signals_wait(), safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            return tensors, (opened.metadata() or {}).get(KEY)
    except OSError as error:
        raise fault(f"{path} cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise fault(f"{path} is not a safetensors file of h3gnn: {error}") from None


def read_tensor_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the description of a file that is whole and ours, or say what it is instead."""
    tensors, text = read_tensors(path, CheckpointError)
    words = "is not a safetensors file of h3gnn"
    description = None if text is None else parse_json(text, path, CheckpointError, words)
    if not isinstance(description, dict):
        raise CheckpointError(f"{path} was not written by h3gnn")
    return tensors, description


def remove_parts(folder: Path, stem: str) -> None:
    """Remove what a kill in the middle of a write left behind."""
    for part in folder.glob(f".{stem}*.part"):
        part.unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Return what produced a result: this package, torch, Python."""
    from h3gnn import __version__

    return {"h3gnn": __version__, "torch": torch.__version__, "python": platform.python_version()}


def heading(kind: str, version: int) -> dict[str, Any]:
    """Return how every description begins: what it is, in which version of the format, and who wrote it."""
    return {"format": kind, "format_version": version, "versions": versions()}


def check_heading(
    path: Path, description: dict[str, Any], kind: str, version: int, fault: type[InputError]
) -> None:
    """Refuse a description of another kind, or of another version of the format."""
    if description.get("format") != kind:
        raise fault(f"{path} was not written by h3gnn as {kind}")
    if description.get("format_version") != version:
        raise fault(
            f"{path} has format version {description.get('format_version')}, "
            f"but this h3gnn reads version {version}"
        )


def _sync_folder(folder: Path) -> None:
    """Make a new name in a folder outlast a loss of power; where a system knows no such thing, do nothing."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
    text += b" " * (-len(text) % 8)  # so that every tensor is aligned
    yield len(text).to_bytes(8, "little")
    yield text
    for name in ordered:
        plain = tensors[name].detach().cpu().contiguous().flatten()
        yield plain.view(torch.uint8).numpy().data


def fingerprint(about: dict[str, Any]) -> str:
    """Return a short key that is the same only if everything named is that an outcome depends on."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


class ResultStore:
    """Records by key, in files `GROUP.json` of a folder, each rewritten whole after every addition.

    A kill leaves each file as it was before or after an addition. What depends on something that has changed
    has another key: the old record stays and is not looked at.

    Args:
        folder: where the files lie.
        check: raises an `InputError` for the content of a file that is not what was written.
    """

    def __init__(self, folder: Path, check: Callable[[Any, Path], None]) -> None:
        self.folder, self.check = folder, check
        self.groups: dict[str, dict[str, Record]] = {}
        for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            try:
                content = read_json(path)
            except OSError as error:
                raise InputError(
                    f"{path} cannot be read ({error}): remove it, and its cells run again"
                ) from None
            check(content, path)
            self.groups[path.stem] = content

    def get(self, key: str) -> Record | None:
        """Return the record under a key, None where there is none."""
        return next((records[key] for records in self.groups.values() if key in records), None)

    def add(self, group: str, key: str, record: Record) -> None:
        """Keep a record."""
        self.groups.setdefault(group, {})[key] = record
        path = self.folder / f"{group}.json"
        self.check(json.loads(json.dumps({key: record})), path)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, self.groups[group])


def read_json(path: Path) -> dict[str, Any]:
    """Read what `write_json` wrote."""
    content: dict[str, Any] = parse_json(path.read_bytes(), path, InputError)
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON with one line for each entry, or for each item of an entry that is a list of objects."""
    parts = []
    for name, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_plain(item) for item in value)
            parts.append(f" {json.dumps(name)}: [\n  {items}\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {_plain(value)}")
    write_atomically(path, ("{\n" + ",\n".join(parts) + "\n}\n").encode(errors="backslashreplace"))


def _plain(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def rounded(value: Any, digits: int = 5) -> Any:
    """Return plain values with all their floats rounded, so that files stay small."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {name: rounded(one, digits) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one, digits) for one in value]
    return value
