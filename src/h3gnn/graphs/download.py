"""Raw files of the benchmark graphs: found in a folder or fetched, and believed only by their SHA-256."""

from __future__ import annotations

import hashlib
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from h3gnn.errors import InputError

CHUNK = 1 << 20
TIMEOUT_SECONDS = 30

Advance = Callable[[int], None]


@dataclass(frozen=True)
class PinnedFile:
    """A file that is known by its sum, its size in bytes, and the address that PyG uses too."""

    name: str
    sha256: str
    bytes: int
    url: str


def cache_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder that is downloaded into: the one given, else what the platform uses for caches."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "h3gnn" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "h3gnn"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "h3gnn"


def data_folders(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders to look in: the one given alone, else `H3GNN_DATA` and the cache folder."""
    given = os.environ.get("H3GNN_DATA")
    if data_dir is not None or not given:
        return [cache_folder(data_dir)]
    return [Path(given).expanduser(), cache_folder()]


def is_complete(folder: str, files: Sequence[PinnedFile], data_dir: str | Path | None = None) -> bool:
    """Tell whether all the files lie in the data folders, by name and size."""
    return all(_find(folder, file, data_dir) is not None for file in files)


def find_files(
    name: str, folder: str, files: Sequence[PinnedFile], data_dir: str | Path | None = None
) -> list[Path]:
    """Return the path of every file, each checked; what is missing is downloaded into the cache folder.

    Args:
        name: what to call the graph in messages.
        folder: its folder under a data folder.
        files: the files that must lie in `folder/raw`.
        data_dir: the data folder, if the user chose one.
    """
    found = {file: _find(folder, file, data_dir) for file in files}
    missing = [file for file, path in found.items() if path is None]
    if missing:
        raw = cache_folder(data_dir) / folder / "raw"
        _fetch(name, missing, raw)
        found |= {file: raw / file.name for file in missing}
    paths = []
    for file, path in found.items():
        assert path is not None
        if sha256_of(path) != file.sha256:
            raise InputError(
                f"{path} is not the file that {name} is known by (its SHA-256 is not {file.sha256[:12]}…); "
                "remove it to download it again"
            )
        paths.append(path)
    return paths


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _find(folder: str, file: PinnedFile, data_dir: str | Path | None) -> Path | None:
    places = (root / folder / "raw" / file.name for root in data_folders(data_dir))
    return next((path for path in places if path.is_file()), None)


def _fetch(name: str, files: Sequence[PinnedFile], raw: Path) -> None:
    try:
        raw.mkdir(parents=True, exist_ok=True)
        with _progress(name, sum(file.bytes for file in files)) as advance:
            for file in files:
                _download(file, raw / file.name, advance)
    except OSError as error:  # urllib's errors are among them
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{name} is not cached and cannot be downloaded ({reason}); put these files into {raw}: "
            f"{', '.join(file.name for file in files)}"
        ) from None


def _download(file: PinnedFile, path: Path, advance: Advance) -> None:
    """Fetch one file beside its place, check it, and only then give it its name."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT_SECONDS) as answer, part.open("wb") as stream:
            while chunk := answer.read(CHUNK):
                digest.update(chunk)
                stream.write(chunk)
                advance(len(chunk))
        if digest.hexdigest() != file.sha256:
            raise InputError(
                f"{file.url} does not give the file that is known by its SHA-256; it was not kept"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress(name: str, total: int) -> Iterator[Advance]:
    """Show a bar on a terminal's standard error; elsewhere stay silent."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"downloading {name}", total=total)
        yield lambda size: bar.advance(task, size)
