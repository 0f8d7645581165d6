"""Opening a user's file: what can go wrong is said in one sentence that names the file."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from h3gnn.errors import GraphError, InputError


def check_file(path: str | Path, suffixes: tuple[str, ...] = (), role: str = "file") -> Path:
    """Return the path of a file that is there, is not empty, can be read and has one of the suffixes."""
    path = Path(path)
    try:
        if path.is_dir():
            raise GraphError(f"{path} is a directory; a {role} is needed")
        if not path.exists():
            raise GraphError(f"{path} does not exist; a {role} is needed")
        if suffixes and path.suffix.lower() not in suffixes:
            raise GraphError(f"{path}: a {role} ends in one of {', '.join(suffixes)}")
        with path.open("rb") as file:
            if not file.read(1):
                raise GraphError(f"{path} is empty: it has 0 bytes")
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise GraphError(f"{path} cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    return path


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever another library raises over a damaged file into one sentence.

    Parsers of foreign formats fail in any way at all (`KeyError`, `struct.error`, `MemoryError`, ...), so
    every exception is caught here, and only here. Their warnings about a damaged file are held back: the
    checks that follow decide. A sentence of ours that does not name the file yet gets its name.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from None
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        reason = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
        raise GraphError(f"{path} cannot be read as {kind} ({reason})") from None
