"""Benchmark graphs by name: the nine of the paper, and any class of PyG with a single graph; tables by name.

The raw files of the nine, and of the tables for `h3gnn download`, are verified by their SHA-256, whether they
are cached or downloaded.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from h3gnn.errors import InputError
from h3gnn.graphs.checks import as_masks
from h3gnn.graphs.formats import read_npz_graph
from h3gnn.graphs.graph import Graph, with_splits
from h3gnn.graphs.libraries import from_pyg, import_pyg
from h3gnn.graphs.provenance import Repair, warn_about_repairs
from h3gnn.graphs.structural import build_graph
from h3gnn.resources import progress
from h3gnn.tables.files import reading

WARNED = ("cornell",)
"""Graphs whose notes are shown as warnings, because results on them are misleading."""
CHUNK = 1 << 20
TIMEOUT_SECONDS = 30
PLANETOID_VALIDATION = 500
"""Validation nodes of Planetoid's split: those after the training nodes."""
MANY_FILES = 4
"""From so many missing files on, an error lists names instead of addresses."""

_Parts = tuple[Any, Any, Any, Any]
"""Features, edges, labels and masks."""


@dataclass(frozen=True)
class PinnedFile:
    """A raw file with its checksum, size in bytes, and address.

    With `of_rows`, checksum and size are those of the rows of an unpacked CSV file without its header, and
    `NAME.gz` may be stored as `NAME`.
    """

    name: str
    sha256: str
    bytes: int
    url: str
    of_rows: bool = False

    def is_intact(self, path: Path) -> bool:
        """Return whether a file has the checksum."""
        return (_sha256_of_rows(path, self.bytes) if self.of_rows else sha256_of(path)) == self.sha256


@dataclass(frozen=True)
class Benchmark:
    """A graph of the paper: its expected sizes, origin and files in `folder/raw` of a data folder.

    `loader` is PyG's name of the format; `FilteredWikipedia` for Chameleon and Squirrel as in Platonov et
    al. (2023), without the duplicate nodes that leak test nodes into training. `edges` counts directed edges.
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
        """Return whether every file exists, without reading them."""
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
    """Return whether `load` knows this name."""
    return name.lower() in benchmarks() or name.startswith("pyg:")


def load(name: str, data_dir: str | Path | None = None) -> Graph:
    """Load a benchmark graph.

    Args:
        name: one of `benchmarks()`, `pyg:Class/Name` (`pyg:Amazon/Photo`), or `pyg:Class` for classes that
            hold a single graph (`pyg:WikiCS`).
        data_dir: folder to read from and to download into. By default `H3GNN_DATA`, which is never written,
            and then the cache folder of the platform.
    """
    if name.startswith("pyg:"):
        return with_splits(load_pyg(name, data_folders(data_dir)))
    benchmark = benchmarks().get(name.lower())
    if benchmark is None:
        raise InputError(
            f"there is no graph called {name!r}; known graphs: {', '.join(benchmarks())}, synthetic, "
            "pyg:Class/Name, and your own files",
            code="graph-unknown",
        )
    paths = find_files(benchmark.name, benchmark.folder, benchmark.files, data_dir)
    source = f"{benchmark.name} ({benchmark.source}, {benchmark.loader})"
    with reading(paths[0].parent, f"the raw files of {benchmark.name}"):
        if benchmark.loader == "FilteredWikipedia":
            graph = read_npz_graph(paths[0], source=source, kind="dataset")
        else:
            read = _read_planetoid if benchmark.loader == "Planetoid" else _read_geom_gcn
            features, edges, labels, masks = read({path.name: path for path in paths})
            graph = build_graph(
                features, edges, nodes=len(labels), labels=labels, masks=masks, source=source, kind="dataset"
            )
    notes = [Repair("dataset-note", note, warn=benchmark.name in WARNED) for note in benchmark.notes]
    warn_about_repairs(notes)
    return graph.with_repairs(*notes)


def _read_planetoid(paths: Mapping[str, Path]) -> _Parts:
    """Read Planetoid's files: pickles with verified checksums, which older versions of Python wrote.

    The test nodes are the last ones, in the order of `test.index`, which leaves out nodes without features.
    """
    stored: dict[str, Any] = {}
    for name, path in paths.items():
        if not name.endswith(".index"):
            with path.open("rb") as stream, warnings.catch_warnings(action="ignore"):
                stored[name.rpartition(".")[2]] = pickle.load(stream, encoding="latin1")
    test = np.loadtxt(next(path for name, path in paths.items() if name.endswith(".index")), dtype=np.int64)
    first, train = len(stored["ally"]), len(stored["y"])
    nodes = max(int(test.max()) + 1, first + len(test))
    features = np.zeros((nodes, stored["allx"].shape[1]), dtype=np.float32)
    classes = np.zeros((nodes, stored["ally"].shape[1]), dtype=np.float32)
    for part, known, rest in ((features, "allx", "tx"), (classes, "ally", "ty")):
        for rows, values in ((slice(first), stored[known]), (test, stored[rest])):
            part[rows] = values.toarray() if hasattr(values, "toarray") else values
    masks = np.zeros((3, nodes), dtype=bool)
    masks[0, :train], masks[1, train : train + PLANETOID_VALIDATION], masks[2, test] = True, True, True
    pairs = [(node, other) for node, others in stored["graph"].items() for other in others if other != node]
    edges = np.unique(np.array(pairs)[:, ::-1], axis=0)[:, ::-1].T  # by target, then source
    return features, edges.copy(), classes.argmax(axis=1), as_masks(*masks)


def _read_geom_gcn(paths: Mapping[str, Path]) -> _Parts:
    """Read Geom-GCN's files: each node's 0 and 1 or, of Actor, its columns that are 1; edges; splits."""
    lines = paths["out1_node_feature_label.txt"].read_text(encoding="ascii").splitlines()
    rows = [line.split("\t") for line in lines[1:]]
    order = np.argsort([int(row[0]) for row in rows])
    values = [np.array(rows[at][1].split(","), dtype=np.int64) for at in order]
    labels = np.array([int(rows[at][2]) for at in order])
    if "feature_amount" in lines[0]:
        features = np.zeros((len(rows), max(map(np.max, values)) + 1), dtype=np.float32)
        for row, columns in zip(features, values, strict=True):
            row[columns] = 1.0
    else:
        features = np.stack(values).astype(np.float32)
    edges = np.loadtxt(paths["out1_graph_edges.txt"], dtype=np.int64, skiprows=1, ndmin=2)
    splits = [np.load(path) for name, path in sorted(paths.items()) if name.endswith(".npz")]
    masks = (
        np.stack([one[f"{part}_mask"] for one in splits], axis=1) > 0 for part in ("train", "val", "test")
    )
    return features, np.unique(edges, axis=0).T.copy(), labels, as_masks(*masks)


def cache_folder(data_dir: str | Path | None = None) -> Path:
    """Return the folder to download into: the given one, else the cache folder of the platform."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "h3gnn" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "h3gnn"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "h3gnn"


def data_folders(data_dir: str | Path | None = None) -> list[Path]:
    """Return the folders to search: the given one alone, else `H3GNN_DATA` and the cache folder."""
    given = os.environ.get("H3GNN_DATA")
    if data_dir is not None or not given:
        return [cache_folder(data_dir)]
    return [Path(given).expanduser(), cache_folder()]


def find_files(
    name: str, folder: str, files: Sequence[PinnedFile], data_dir: str | Path | None = None
) -> list[Path]:
    """Return the verified path of every file of `folder/raw`; missing files are downloaded into the cache."""
    found = {file: _find(folder, file, data_dir) for file in files}
    missing = [file for file, path in found.items() if path is None]
    if missing:
        raw = cache_folder(data_dir) / folder / "raw"
        _fetch(name, missing, raw)
        found |= {file: raw / file.name for file in missing}
    paths = [path for path in found.values() if path is not None]
    for file, path in zip(files, paths, strict=True):
        if not file.is_intact(path):
            expected = f"not the expected file of {name} (its SHA-256 is not {file.sha256[:12]}…)"
            message = f"{path} is {expected}; remove it to download it again"
            raise InputError(message, code="checksum-mismatch")
    return paths


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def csv_rows(path: Path, size: int) -> list[str]:
    """Return the rows of a CSV file of about `size` bytes, packed or not, without a header."""
    with path.open("rb") as stream:
        packed = stream.read(2) == b"\x1f\x8b"
    with gzip.open(path) if packed else path.open("rb") as stream:
        lines = stream.read(2 * size + CHUNK).decode("ascii").splitlines()
    return lines[bool(lines) and not lines[0][:1].isdigit() :]


def _sha256_of_rows(path: Path, size: int) -> str:
    try:
        content = "".join(f"{row}\n" for row in csv_rows(path, size))
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError):
        return ""
    return hashlib.sha256(content.encode()).hexdigest()


def _find(folder: str, file: PinnedFile, data_dir: str | Path | None) -> Path | None:
    names = dict.fromkeys([file.name, file.name.removesuffix(".gz")] if file.of_rows else [file.name])
    paths = (root / folder / "raw" / name for root in data_folders(data_dir) for name in names)
    return next((path for path in paths if path.is_file()), None)


def _fetch(name: str, files: Sequence[PinnedFile], raw: Path) -> None:
    try:
        raw.mkdir(parents=True, exist_ok=True)
        with progress() as add_bar:
            bar = add_bar(f"downloading {name}", sum(file.bytes for file in files))
            for file in files:
                _download(file, raw / file.name, lambda size: bar(advance=size))
    except OSError as error:  # includes the errors of urllib
        reason = getattr(error, "reason", None) or error
        few = len(files) < MANY_FILES
        raise InputError(
            f"{name} is not cached and cannot be downloaded ({reason}); put these files into {raw}: "
            f"{', '.join(file.url if few else file.name for file in files)}",
            code="download-failed",
        ) from None


def _download(file: PinnedFile, path: Path, advance: Callable[[int], object]) -> None:
    """Download to a temporary name, verify, and rename."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT_SECONDS) as answer, part.open("wb") as stream:
            while chunk := answer.read(CHUNK):
                stream.write(chunk)
                advance(len(chunk))
        if not file.is_intact(part):
            message = f"the download of {file.url} does not have the expected SHA-256"
            raise InputError(message, code="checksum-mismatch")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_pyg(name: str, folders: Sequence[Path]) -> Graph:
    """Load `pyg:Class/Name` or `pyg:Class` through PyG; raw files are in `pyg/Class/Name` of the folders.

    PyG's processed pickle is written to a temporary folder each time, because a cached pickle is not safe.
    Downloads are stored in the last folder.
    """
    class_name, _, graph_name = name.removeprefix("pyg:").partition("/")
    if not all(part.replace("-", "").replace("_", "").isalnum() for part in (class_name, graph_name or "x")):
        raise InputError(f"{name!r} is not the name of a graph", code="graph-unknown")
    arguments = _pyg_arguments(name, class_name, graph_name)
    caches = [folder / "pyg" / class_name / (graph_name or class_name) for folder in folders]
    raw_only = shutil.ignore_patterns("processed")
    cached = next((folder for folder in caches if folder.is_dir()), None)
    with tempfile.TemporaryDirectory(prefix="h3gnn-") as root:
        if cached is not None:
            shutil.copytree(cached, root, dirs_exist_ok=True, ignore=raw_only)
        arguments |= {"root": root} if "root" in arguments else {}
        data = _single_graph(name, class_name, arguments, caches[-1])
        if cached is None and any(Path(root).rglob("raw")):
            shutil.copytree(root, caches[-1], dirs_exist_ok=True, ignore=raw_only)
    graph = from_pyg(data, source=name, kind="dataset")
    return graph.with_repairs(Repair("files-not-pinned", "the raw files have no pinned checksum"))


def _pyg_arguments(name: str, class_name: str, graph_name: str) -> dict[str, str]:
    pyg = import_pyg()
    dataset_class = getattr(pyg.datasets, class_name, None)
    if not (isinstance(dataset_class, type) and issubclass(dataset_class, pyg.data.Dataset)):
        message = f"PyG has no dataset class {class_name!r}; write pyg:Class/Name, as in pyg:Amazon/Photo"
        raise InputError(message, code="graph-unknown")
    parameters = inspect.signature(dataset_class).parameters
    if ("name" in parameters) != bool(graph_name):
        problem = f"PyG's {class_name} holds one graph without a name; write pyg:{class_name}"
        if not graph_name:
            problem = f"{name} needs the name of a graph as well, as in pyg:Amazon/Photo"
        raise InputError(problem, code="graph-unknown")
    return ({"root": ""} if "root" in parameters else {}) | ({"name": graph_name} if graph_name else {})


def _single_graph(name: str, class_name: str, arguments: dict[str, str], folder: Path) -> Any:
    pyg = import_pyg()
    try:
        with warnings.catch_warnings(action="ignore"), redirect_stderr(io.StringIO()):
            graphs = list(getattr(pyg.datasets, class_name)(**arguments)[:2])
    except Exception as error:  # dataset classes raise anything: unknown name, no network, damaged file
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        message = f"PyG could not load {name} ({detail}); check the name, or put its raw files into {folder}"
        raise InputError(message, code="download-failed") from None
    if len(graphs) != 1 or not isinstance(graphs[0], pyg.data.Data):
        raise InputError(f"{name} is not a single graph with one node type", code="graph-unknown")
    return graphs[0]


@dataclass(frozen=True)
class NamedTable:
    """One CSV file that is written.

    Attributes:
        name: of the file.
        columns: its header; the raw file has none.
        values: what replaces the values of the last column, if anything does.
        raw: the file to download.
    """

    name: str
    columns: tuple[str, ...]
    raw: PinnedFile
    values: Mapping[str, str]

    def text(self, path: Path) -> str:
        """Return the content of the CSV file, from the raw file."""
        rows = [row.rsplit(",", 1) for row in csv_rows(path, self.raw.bytes)]
        lines = [f"{first},{self.values.get(last, last)}" for first, last in rows]
        return "\n".join([",".join(self.columns), *lines, ""])


@dataclass(frozen=True)
class NamedTables:
    """A data set: what it contains, where it comes from, its licence, and its tables."""

    about: str
    source: str
    licence: str
    tables: tuple[NamedTable, ...]


NAMED_TABLES = {
    "bitcoin-otc": NamedTables(
        "35,592 ratings (-10 to 10) with times among 5,881 users of Bitcoin-OTC; 180 are labelled as "
        "fraudulent and 136 as benign. The labels were derived from ratings by the founder and by users he "
        "trusts",
        "SNAP, soc-sign-bitcoin-otc (Kumar et al., 2016); labels of REV2 (Kumar et al., 2018) in "
        "github.com/fpour/TGBase",
        "ratings: none stated; repository with the labels: MIT",
        (
            NamedTable(
                "ratings.csv",
                ("source", "target", "rating", "time"),
                PinnedFile(
                    "soc-sign-bitcoinotc.csv.gz",
                    "76bd9d8f1d3ff9a1813d9fc8e6902a0ee4d0a2f8c1003842dbc9ec79149ab60c",
                    1_011_180,
                    "https://snap.stanford.edu/data/soc-sign-bitcoinotc.csv.gz",
                    of_rows=True,
                ),
                {},
            ),
            NamedTable(
                "labels.csv",
                ("id", "label"),
                PinnedFile(
                    "otc_gt.csv",
                    "73dab2edf3004b112cedaf75cbc4c953981798bfaa83eac3fa5bac2d59a3d040",
                    2_408,
                    "https://raw.githubusercontent.com/fpour/TGBase/"
                    "5d3a79d822b7332061b39515f1449da8ce25a372/data/otc_gt.csv",
                    of_rows=True,
                ),
                {"+1": "benign", "-1": "fraud"},
            ),
        ),
    )
}


def read_named_tables(name: str, data_dir: str | Path | None = None) -> dict[str, str]:
    """Return the contents of the CSV files of a data set, by file name.

    Args:
        name: one of `NAMED_TABLES`.
        data_dir: folder of raw files, as for `h3gnn.graphs.datasets.load`.
    """
    found = NAMED_TABLES.get(name.lower())
    if found is None:
        message = f"there are no tables called {name!r}; known names: {', '.join(NAMED_TABLES)}"
        raise InputError(message, code="tables-unknown")
    paths = find_files(name.lower(), name.lower(), [table.raw for table in found.tables], data_dir)
    return {table.name: table.text(path) for table, path in zip(found.tables, paths, strict=True)}
