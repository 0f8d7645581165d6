"""Benchmark graphs by name: the paper's nine, and any other single graph that PyG has a class for.

The raw files of the nine are found in a folder or fetched, and believed only by their SHA-256.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import os
import shutil
import sys
import tempfile
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.graphs.convert import from_pyg, import_pyg
from h3gnn.graphs.formats import read_npz_graph
from h3gnn.graphs.graph import Graph, with_splits
from h3gnn.graphs.provenance import Repair, warn_about_repairs
from h3gnn.resources import progress
from h3gnn.tables.files import reading

WARNED = ("cornell",)
"""Graphs whose notes are a warning: results on them do not mean what they seem to."""


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


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's graphs: what it should hold, where it comes from, and the sums of its files.

    Attributes:
        folder: its folder under a data folder, as PyG's class lays it out; the files lie in `folder/raw`.
        loader: PyG's dataset class; `FilteredWikipedia` stands for Chameleon and Squirrel as Platonov et al.
            (2023) published them, without the copies of nodes that leak test nodes into training.
        edges: directed edges, as `inspect` counts them.
        notes: what a user must be told.
    """

    name: str
    folder: str
    loader: str
    nodes: int
    edges: int
    features: int
    classes: int
    edge_homophily: float
    source: str
    licence: str
    notes: tuple[str, ...]
    files: tuple[PinnedFile, ...]

    def is_cached(self, data_dir: str | Path | None = None) -> bool:
        """Tell whether every file is there, without reading them."""
        return all(_find(self.folder, file, data_dir) is not None for file in self.files)


@cache
def benchmarks() -> dict[str, Benchmark]:
    """Return the paper's nine graphs by name, in its order."""
    stored = json.loads((files("h3gnn.graphs") / "benchmarks.json").read_text(encoding="utf-8"))
    found = {}
    for name, entry in stored.items():
        pinned = tuple(PinnedFile(file, **about) for file, about in entry.pop("files").items())
        found[name] = Benchmark(name=name, files=pinned, notes=tuple(entry.pop("notes")), **entry)
    return found


def is_benchmark(name: str) -> bool:
    """Tell whether `load` knows this name."""
    return name.lower() in benchmarks() or name.startswith("pyg:")


def load(name: str, data_dir: str | Path | None = None) -> Graph:
    """Load a benchmark graph.

    Args:
        name: one of `benchmarks()`, or `pyg:Class/Name` (`pyg:Amazon/Photo`), `pyg:Class` for PyG classes
            that hold one graph only (`pyg:WikiCS`).
        data_dir: folder to read from and to download into; else `H3GNN_DATA` is read, never written, and
            then the cache folder of the platform is read and downloaded into.

    Raises:
        InputError: when the name is unknown, or the files are neither there nor can be fetched; the
            sentence says which files to put where.
    """
    if name.startswith("pyg:"):
        return with_splits(load_pyg(name, data_folders(data_dir)))
    found = benchmarks().get(name.lower())
    if found is None:
        raise InputError(
            f"there is no graph called {name!r}; there are {', '.join(benchmarks())}, synthetic, "
            "pyg:Class/Name, and your own files"
        )
    paths = find_files(found.name, found.folder, found.files, data_dir)
    source = f"{found.name} ({found.source}, {found.loader})"
    if found.loader == "FilteredWikipedia":  # PyG has no class for them; the layout is that of our NPZ reader
        graph = read_npz_graph(paths[0], source=source, kind="dataset")
    else:
        with tempfile.TemporaryDirectory(prefix="h3gnn-") as root:
            graph = from_pyg(_process(found, paths, Path(root)), source=source, kind="dataset")
    notes = [Repair("dataset-note", note, warn=found.name in WARNED) for note in found.notes]
    warn_about_repairs(notes)
    return graph.with_repairs(*notes)


def _process(benchmark: Benchmark, paths: list[Path], root: Path) -> Any:
    """Let the dataset class read copies of the raw files in a folder of their own.

    PyG keeps its result in a pickle beside the raw files and trusts it later. Here that pickle lives for as
    long as this call: nothing is written beside the user's files, and none is ever read from there.
    """
    raw = root / benchmark.folder / "raw"
    raw.mkdir(parents=True)
    for path in paths:
        shutil.copyfile(path, raw / path.name)
    pyg = import_pyg()
    with reading(paths[0].parent, f"the raw files of {benchmark.name}"), redirect_stderr(io.StringIO()):
        if benchmark.loader == "Actor":
            dataset: Any = pyg.datasets.Actor(str(root / benchmark.folder))
        else:
            dataset = getattr(pyg.datasets, benchmark.loader)(str(root), benchmark.folder)
        return dataset[0]


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
    """Show a bar on a terminal's standard error."""
    with progress() as add_bar:
        bar = add_bar(f"downloading {name}", total)
        yield lambda size: bar(advance=size)


def load_pyg(name: str, folders: Sequence[Path]) -> Graph:
    """Load `pyg:Class/Name` or `pyg:Class` through PyG, which downloads it where it is not cached.

    PyG's processed pickle is made anew each time in a folder of its own, for a pickle that lies in a cache
    could have come from anywhere.

    Args:
        name: the name with its prefix.
        folders: data folders, in which raw files lie under `pyg/Class/Name`; what is downloaded is kept in
            the last of them, and the others are never written.

    Raises:
        InputError: when there is no such class or graph, or it cannot be fetched.
    """
    class_name, _, graph_name = name.removeprefix("pyg:").partition("/")
    if not all(part.replace("-", "").replace("_", "").isalnum() for part in (class_name, graph_name or "x")):
        raise InputError(f"{name!r} is not the name of a graph")
    arguments = _arguments(name, class_name, graph_name)
    places = [folder / "pyg" / class_name / (graph_name or class_name) for folder in folders]
    raw_only = shutil.ignore_patterns("processed")
    found = next((place for place in places if place.is_dir()), None)
    with tempfile.TemporaryDirectory(prefix="h3gnn-") as root:
        if found is not None:
            shutil.copytree(found, root, dirs_exist_ok=True, ignore=raw_only)
        given = {**arguments, "root": root} if "root" in arguments else arguments
        data = _single_graph(name, class_name, given, places[-1])
        if found is None and any(Path(root).rglob("raw")):
            shutil.copytree(root, places[-1], dirs_exist_ok=True, ignore=raw_only)
    graph = from_pyg(data, source=name, kind="dataset")
    return graph.with_repairs(Repair("files-not-pinned", "the raw files have no pinned checksum"))


def _arguments(name: str, class_name: str, graph_name: str) -> dict[str, str]:
    pyg = import_pyg()
    dataset_class = getattr(pyg.datasets, class_name, None)
    if not (isinstance(dataset_class, type) and issubclass(dataset_class, pyg.data.Dataset)):
        raise InputError(
            f"PyG has no dataset class {class_name!r}; write pyg:Class/Name, as in pyg:Amazon/Photo"
        )
    parameters = inspect.signature(dataset_class).parameters
    if "name" in parameters and not graph_name:
        raise InputError(f"{name} needs the name of a graph as well, as in pyg:Amazon/Photo")
    if graph_name and "name" not in parameters:
        raise InputError(f"PyG's {class_name} holds one graph without a name; write pyg:{class_name}")
    return {
        **({"root": ""} if "root" in parameters else {}),
        **({"name": graph_name} if graph_name else {}),
    }


def _single_graph(name: str, class_name: str, arguments: dict[str, str], kept: Path) -> Any:
    pyg = import_pyg()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            dataset = getattr(pyg.datasets, class_name)(**arguments)
            count = len(dataset)
            data = dataset[0] if count else None
    except Exception as error:  # a dataset class may fail in any way: wrong name, no network, damaged file
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"PyG could not load {name} ({detail}); check the name, or put its raw files under {kept}"
        ) from None
    if count != 1 or not isinstance(data, pyg.data.Data):
        raise InputError(f"{name} is not one graph with one kind of node: it holds {count} graph(s)")
    return data
