"""Write embeddings and graphs for other programs: viewers, graph databases, vector indices.

Untrusted names are sanitized against formula injection in CSV on request.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import numpy.typing as npt

from h3gnn.answers.similarity import find_faiss
from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph
from h3gnn.storage.atomic import atomic_file, atomic_folder, write_atomically

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""First characters of cells that spreadsheets evaluate as formulas."""


def guarded(text: Any) -> Any:
    """Return a text with a leading quote if a spreadsheet would evaluate it: `=cmd|…`, `+1`, `@sum`."""
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text


Floats = npt.NDArray[np.float32]
ROWS = 1_024
"""Rows formatted at a time."""
MAX_ATTRIBUTES = 64
"""GraphML contains embeddings with at most this many columns: each is an attribute of every node."""
NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, eq=False)
class Exported:
    """Graph and embedding `[nodes, D]` to export; `safe` quotes formulas in table formats."""

    graph: Graph
    embedding: Floats
    safe: bool = False

    def classes(self) -> list[str] | None:
        """Return each node's class, "" if it is unknown; None without labels."""
        labels = self.graph.labels
        if labels is None:
            return None
        names = (*map(self._cell, self.graph.class_names), "")
        return [names[one] for one in labels.tolist()]

    def ids(self) -> list[str]:
        """Return the ids as text."""
        return [self._cell(str(one)) for one in self.graph.node_ids.tolist()]

    def _cell(self, text: str) -> str:
        return str(guarded(text)) if self.safe else text


def reduce_columns(embedding: Floats, dimensions: int) -> Floats:
    """Return the first principal components of the embedding."""
    if dimensions >= min(embedding.shape):
        raise InputError(
            f"--dimensions {dimensions}: an embedding of shape {list(embedding.shape)} has at most "
            f"{min(embedding.shape) - 1} principal components",
            code="too-many-dimensions",
        )
    from sklearn.decomposition import PCA

    return np.asarray(PCA(dimensions, random_state=0).fit_transform(embedding), dtype=np.float32)


def write_tensorboard(folder: Path, what: Exported) -> list[Path]:
    """Write a folder for TensorBoard's projector: vectors, metadata and configuration."""
    classes, ids = what.classes(), what.ids()
    nodes, width = what.embedding.shape

    def metadata() -> Iterator[str]:
        if classes is not None:
            yield "node\tclass\n"
            yield from (f"{_cell(a)}\t{_cell(b)}\n" for a, b in zip(ids, classes, strict=True))
        else:  # a single column has no heading
            yield from (f"{_cell(one)}\n" for one in ids)

    def vectors() -> Iterator[str]:
        for first in range(0, nodes, ROWS):
            text = io.StringIO()
            np.savetxt(text, what.embedding[first : first + ROWS], fmt="%.7g", delimiter="\t")
            yield text.getvalue()

    settings = (
        'embeddings {\n  tensor_name: "h3gnn"\n  tensor_path: "tensors.tsv"\n'
        '  metadata_path: "metadata.tsv"\n'
        f"  tensor_shape: {nodes}\n  tensor_shape: {width}\n}}\n"
    )
    return _write_folder(
        folder,
        "tensorboard",
        {"tensors.tsv": vectors(), "metadata.tsv": metadata(), "projector_config.pbtxt": [settings]},
    )


def write_neo4j(folder: Path, what: Exported) -> list[Path]:
    """Write `nodes.csv` and `relationships.csv` with the headings of `neo4j-admin database import`."""
    classes, ids = what.classes(), what.ids()
    weight = what.graph.edge_weight

    def nodes() -> Iterator[str]:
        labelled = ("class",) if classes is not None else ()
        yield _line(("node:ID", *labelled, "embedding:float[]", ":LABEL"))
        for at, one in enumerate(ids):
            own = (classes[at],) if classes is not None else ()
            yield _line((one, *own, ";".join(f"{x:.7g}" for x in what.embedding[at].tolist()), "Node"))

    def relationships() -> Iterator[str]:
        yield _line((":START_ID", ":END_ID", *(("weight:float",) if weight is not None else ()), ":TYPE"))
        for edge, (source, target) in enumerate(what.graph.edge_index.T.tolist()):
            own = (f"{float(weight[edge]):.7g}",) if weight is not None else ()
            yield _line((ids[source], ids[target], *own, "LINKED"))

    return _write_folder(folder, "neo4j", {"nodes.csv": nodes(), "relationships.csv": relationships()})


def write_graphml(path: Path, what: Exported) -> list[Path]:
    """Write the graph for Gephi and the like: ids, classes, coordinates, edge weights.

    `x` and `y` are the first two principal components. A narrow embedding is included.
    """
    what = replace(what, safe=False)  # no spreadsheet opens it
    ids, classes, graph = what.ids(), what.classes(), what.graph
    for text in (*ids, *graph.class_names):
        if NOT_IN_XML.search(text):
            message = f"GraphML cannot contain the name {text!r}: invalid character"
            raise InputError(message, code="not-in-xml")
    columns = {"x": "double", "y": "double"} if min(what.embedding.shape) > 2 else {}
    values = reduce_columns(what.embedding, 2) if columns else np.empty((len(ids), 0), dtype=np.float32)
    if what.embedding.shape[1] <= MAX_ATTRIBUTES:
        columns |= {f"e{i}": "double" for i in range(what.embedding.shape[1])}
        values = np.concatenate([values, what.embedding], axis=1)

    def lines() -> Iterator[str]:
        yield '<?xml version="1.0" encoding="UTF-8"?>\n'
        yield '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n'
        text = {"label": "string"} | ({} if classes is None else {"class": "string"})
        for name, kind in (text | columns).items():
            yield f'<key id="{name}" for="node" attr.name="{name}" attr.type="{kind}"/>\n'
        if graph.edge_weight is not None:
            yield '<key id="weight" for="edge" attr.name="weight" attr.type="double"/>\n'
        yield '<graph edgedefault="directed">\n'
        for at, one in enumerate(ids):
            data = f'<data key="label">{escape(one)}</data>'
            if classes is not None and classes[at]:
                data += f'<data key="class">{escape(classes[at])}</data>'
            numbers = zip(columns, values[at].tolist(), strict=True)
            data += "".join(f'<data key="{name}">{value:.7g}</data>' for name, value in numbers)
            yield f"<node id={quoteattr(one)}>{data}</node>\n"
        for edge, (source, target) in enumerate(graph.edge_index.T.tolist()):
            ends = f"source={quoteattr(ids[source])} target={quoteattr(ids[target])}"
            own = graph.edge_weight
            data = "" if own is None else f'<data key="weight">{float(own[edge]):.7g}</data>'
            yield f"<edge {ends}>{data}</edge>\n"
        yield "</graph>\n</graphml>\n"

    _write_text(path, lines())
    return [path]


def write_faiss(path: Path, what: Exported) -> list[Path]:
    """Write a FAISS index of centred unit rows (inner product is cosine), and the ids in a CSV file."""
    faiss = find_faiss("--to faiss", "--to npy needs nothing else")
    rows = what.embedding - what.embedding.mean(axis=0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(np.ascontiguousarray(rows))
    beside = path.with_suffix(".ids.csv")
    _write_text(beside, (_line((one,)) for one in ("node", *what.ids())))
    write_atomically(path, faiss.serialize_index(index).tobytes())
    return [path, beside]


WRITERS: dict[str, Callable[[Path, Exported], list[Path]]] = {
    "tensorboard": write_tensorboard,
    "graphml": write_graphml,
    "neo4j": write_neo4j,
    "faiss": write_faiss,
}
RECORD = ".h3gnn-export.json"
"""File beside an export that lists what was written, so that it can be replaced and nothing else."""
FOLDERS = ("tensorboard", "neo4j")
"""Formats that consist of several files."""


def check_folder(folder: Path, kind: str) -> None:
    """Reject a folder that contains anything but an unchanged export of the same kind."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; this format needs a folder", code="not-a-folder")
    if not folder.absolute().parent.is_dir():
        raise InputError(f"{folder}: the folder {folder.parent} does not exist", code="no-such-folder")
    if folder.is_dir() and any(folder.iterdir()) and _sizes(folder) != _recorded_sizes(folder, kind):
        message = f"{folder} contains other files; choose a new or empty folder"
        raise InputError(message, code="folder-not-empty")


def check_ids_file(path: Path) -> None:
    """Reject an array whose `NAME.ids.csv` would replace a file that is not the ids of an earlier array."""
    beside = path.with_suffix(".ids.csv")
    if not beside.exists():
        return
    if path.exists() and beside.is_file():
        with beside.open("rb") as file:
            if file.readline().strip() == b"node":
                return
    raise InputError(
        f"{beside}, where the ids of {path.name} belong, is a file that this command did not write; "
        "choose another name (--out)",
        code="file-not-ours",
    )


def _sizes(folder: Path) -> dict[str, int]:
    return {one.name: one.stat().st_size for one in folder.iterdir() if one.name != RECORD}


def _recorded_sizes(folder: Path, kind: str) -> dict[str, int] | None:
    """Return the files of an earlier export and their sizes; None without a record of this kind."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    return record.get("files") if isinstance(record, dict) and record.get("kind") == kind else None


def _write_folder(folder: Path, kind: str, files: dict[str, Iterable[str]]) -> list[Path]:
    """Write a folder of text files and a record of them; it appears when all of them are complete."""
    check_folder(folder, kind)
    with atomic_folder(folder.absolute()) as part:
        for name, pieces in files.items():
            _write_text(part / name, pieces)
        _write_text(part / RECORD, [json.dumps({"kind": kind, "files": _sizes(part)}, indent=1)])
        if folder.is_dir():
            shutil.rmtree(folder)
    return [folder / name for name in files]


def _write_text(path: Path, pieces: Iterable[str]) -> None:
    with atomic_file(path.parent, path.name, lambda: path.name) as file:
        for piece in pieces:
            file.write(piece.encode())


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(text: str) -> str:
    """Return a cell of a TSV file, which has no quoting: tabs and line breaks become spaces."""
    return re.sub(r"[\t\r\n]", " ", text)
