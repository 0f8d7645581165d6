"""Benchmark graphs by name: the paper's nine, and any other single graph that PyG has a class for."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.graphs.convert import as_graph
from h3gnn.graphs.download import PinnedFile, data_folders, find_files, is_complete
from h3gnn.graphs.graph import Graph
from h3gnn.graphs.opening import reading
from h3gnn.graphs.pyg import import_pyg, load_pyg
from h3gnn.graphs.splits import with_splits

WARNED = ("cornell",)
"""Graphs whose notes are a warning: results on them do not mean what they seem to."""


@dataclass(frozen=True)
class Benchmark:
    """One of the paper's graphs: what it should hold, where it comes from, and the sums of its files.

    Attributes:
        folder: its folder under a data folder, as PyG's class lays it out; the files lie in `folder/raw`.
        loader: the dataset class.
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
        return is_complete(self.folder, self.files, data_dir)


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
    with tempfile.TemporaryDirectory(prefix="h3gnn-") as root:
        data = _process(found, paths, Path(root))
    graph = as_graph(data, source=f"{found.name} ({found.source}, {found.loader})")
    if found.name in WARNED:
        for note in found.notes:
            warnings.warn(note, UserWarning, stacklevel=2)
    return graph.with_notes(*found.notes)


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
        if benchmark.loader == "FilteredWikipedia":
            from h3gnn.graphs.filtered import FilteredWikipedia

            dataset: Any = FilteredWikipedia(str(root), benchmark.folder)
        elif benchmark.loader == "Actor":
            dataset = pyg.datasets.Actor(str(root / benchmark.folder))
        else:
            dataset = getattr(pyg.datasets, benchmark.loader)(str(root), benchmark.folder)
        return dataset[0]
