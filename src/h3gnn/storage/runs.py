"""An unfinished run: its graph and settings beside its checkpoints, so that `--resume` needs nothing else.

The embedding, and the held-out scores of the last predictions, are stored beside the model of a run.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import CheckpointError, InputError, check_choice, named
from h3gnn.graphs.graph import Graph
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.resources import read_only
from h3gnn.settings import STORED, canonical, kept_for
from h3gnn.storage import schema
from h3gnn.storage.atomic import REMOTE, atomic_file, header, remove_parts, versions, write_atomically
from h3gnn.storage.checkpoint_file import (
    CHECKPOINTS,
    Checkpoints,
    check_format,
    checkpoints_in,
    clear,
    group_folders,
    make_folder,
)
from h3gnn.storage.graphs import GRAPH_DESCRIPTION, graph_description, graph_from_tensors, graph_tensors
from h3gnn.storage.models import DESCRIPTION, TEMPORARY
from h3gnn.storage.schema import DictOf, Integer, ListOf, Maybe, Number, OneOf, Record, Text
from h3gnn.storage.tensors import StoredEmbedding, read_tensor_file, write_tensor_file

FORMAT, FORMAT_VERSION = "h3gnn-run", 1
STEM = "start"
RUN = Record(
    {
        **schema.header_of(FORMAT),
        **GRAPH_DESCRIPTION.fields,
        "params": STORED,
        "every": Maybe(Integer(1)),
        "minutes": Maybe(Number(0, 1e6)),
        "keep": Integer(1),
        "embeddings": Maybe(Text("[^\0]+")),
    },
    {**GRAPH_DESCRIPTION.optional, "safe_csv": bool, "stored": Text("float32|float16|none|later")},
)
"""Schema of the description of a run."""


@dataclass(frozen=True)
class Run:
    """Settings, graph and outputs of a training."""

    params: dict[str, Any]
    graph: Graph | MappedGraph
    checkpoints: Checkpoints
    embeddings: Path | None
    safe_csv: bool = False
    stored: str = "float32"


def begin_run(out: Path, run: Run) -> None:
    """Store a run before its first epoch; a run that is already there has to be the same."""
    folder = make_folder(out / CHECKPOINTS)
    before = []
    for path in _starts(folder):
        try:
            _check_same(out, _read(path), run)
        except CheckpointError:  # it stays; reading it reports the error
            continue
        before.append(path)
    policy, where = run.checkpoints, run.embeddings and named(str(run.embeddings.resolve()))
    description = {
        **header(FORMAT, FORMAT_VERSION),
        "params": run.params,
        **graph_description(run.graph),
        "every": policy.every,
        "minutes": policy.minutes,
        "keep": policy.keep,
        "embeddings": None if not where or REMOTE.match(where) else where,  # a copy is gone by then
        "safe_csv": run.safe_csv,
        "stored": run.stored,
    }
    schema.check_values(RUN, description, folder, words="cannot be written")
    try:
        written = write_tensor_file(folder, STEM, graph_tensors(run.graph), description)
    except OSError as error:
        _remove_if_new(folder)
        message = f"{folder} cannot be written ({error.strerror or error})"
        raise InputError(message, code="not-writable") from None
    for path in before:
        if path != written:
            path.unlink(missing_ok=True)


def has_begun(out: Path) -> bool:
    """Whether a folder holds a run that can be resumed."""
    return bool(_starts(out / CHECKPOINTS))


def read_run(out: Path) -> Run:
    """Return the unfinished run in a folder."""
    starts = _starts(out / CHECKPOINTS)
    if not starts:
        reason = f"{out} holds no run that can be resumed"
        if not out.is_dir():
            reason = f"there is no folder {out}"
        elif (out / DESCRIPTION).exists():
            reason = f"{out} holds a finished model and no checkpoints: there is nothing to resume"
        raise InputError(reason, code="nothing-to-resume")
    errors = []
    for path in starts:
        try:
            return _read(path)
        except CheckpointError as error:
            errors.append(error)
    message = f"{errors[0]}: to continue, repeat the first command, with its graph and settings"
    raise CheckpointError(message, code=errors[0].code)


def finish_run(out: Path) -> None:
    """Remove the files that only an unfinished run needs: first its start, then its checkpoints."""
    folder = out / CHECKPOINTS
    for path in _starts(folder):
        path.unlink(missing_ok=True)
    remove_parts(folder, STEM)
    clear(folder)
    for path in out.iterdir():
        if TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)


def _remove_if_new(folder: Path) -> None:
    """Remove a folder without checkpoints, and the run's folder if it is then empty."""
    if not _starts(folder) and not checkpoints_in(folder) and not group_folders(folder):
        clear(folder)
        if not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def _starts(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{STEM}-*.safetensors"))


def _read(path: Path) -> Run:
    tensors, description = read_tensor_file(path)
    check_format(path, description, FORMAT, FORMAT_VERSION)
    schema.check_values(RUN, description, path, CheckpointError)
    with schema.naming(path, CheckpointError):
        graph = graph_from_tensors(tensors, description)
    policy = {name: description[name] for name in ("every", "minutes", "keep")}
    where = description["embeddings"]
    return Run(
        canonical(description["params"]),
        graph,
        Checkpoints(path.parent, **policy, keep_finished=True),
        None if where is None else Path(where),
        description.get("safe_csv", False),  # missing in old runs
        description.get("stored", "float32"),
    )


Fitted = tuple[Mapping[str, Any], Graph | MappedGraph]
"""The settings and the graph of a training."""


def difference(there: Fitted, here: Fitted) -> str:
    """Return the first difference between a stored training and one that is asked for; "" for none."""
    known, given = there[1], here[1]
    if known.provenance.sha256 != given.provenance.sha256:
        return "of another graph"
    for name in ("class_names", "feature_names", "target_name", "type_names"):
        if getattr(known, name) != getattr(given, name):
            return f"of a graph with other {name.replace('_', ' ')}"
    if known.in_memory and given.in_memory and not np.array_equal(known.node_ids, given.node_ids):
        return "of a graph with other node ids"
    stored, asked = (json.loads(json.dumps(kept_for("run", one))) for one, _ in (there, here))  # plain values
    different = (name for name, value in asked.items() if stored.get(name) != value)
    return next((f"{name} is {stored.get(name)!r} there and {asked[name]!r} here" for name in different), "")


def _check_same(out: Path, known: Run, run: Run) -> None:
    different = difference((known.params, known.graph), (run.params, run.graph))
    if different:
        raise InputError(
            f"{out} holds an unfinished run ({different}): resume it with `h3gnn fit --resume {out}`, or "
            "choose another folder",
            code="other-run",
        )


PACKAGE = Path(__file__).parent.parent
COMMIT = "H3GNN_COMMIT"
"""Environment variable with the commit of a copy of the code."""
UNKNOWN, CHANGES = "unknown", "+changes"
GIT_TIMEOUT = 10


def made_with() -> dict[str, Any]:
    """Return the `versions` and the `origin` that every stored or printed result carries."""
    return {"versions": versions(), "origin": {"commit": commit()}}


@cache
def commit() -> str:
    """Return twelve digits of the commit, with "+changes" for a modified checkout, or "unknown".

    `H3GNN_COMMIT` takes precedence over the checkout that contains the package. The result is cached: call it
    before a long computation, since files may change meanwhile.
    """
    named = re.fullmatch(r"([0-9a-f]{12})[0-9a-f]{0,28}(\+changes)?", os.environ.get(COMMIT, "").strip())
    if named is not None:
        return named[1] + (named[2] or "")
    head = _git("rev-parse", "HEAD") if _git("ls-files", "__init__.py") else None
    if not head:
        return UNKNOWN
    return head[:12] + (CHANGES if _git("status", "--porcelain", "--untracked-files=no", "..") else "")


def _git(*arguments: str) -> str | None:
    """Return the output of git in the package's folder; None if it fails or prints nothing."""
    command = ["git", "--no-optional-locks", *arguments]
    options: dict[str, Any] = {"cwd": PACKAGE, "stdin": subprocess.DEVNULL, "capture_output": True}
    try:
        done = subprocess.run(command, timeout=GIT_TIMEOUT, check=True, **options)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip() or None


PREDICTIONS = "predictions.json"
_ANY = Number(any_float=True)
_SCORES = Record(
    {
        "mean": DictOf(_ANY),
        "standard_error": DictOf(_ANY),
        "folds": Integer(1),
        "majority_share": Maybe(_ANY),
        "positive_class": Maybe(Text()),
    },
    {"tested": Integer(1)},
)
_PART = Record({"part": Text(), "score": _ANY, "error": _ANY, "gain": Maybe(_ANY), "gain_error": Maybe(_ANY)})
_COLUMN = Record({"column": Text(), "mean": _ANY, "standard_error": _ANY})
SUMMARY = Record(
    {
        "labelled": Integer(0),
        "held_out": _SCORES,
        "main_measure": Text(),
        "contributions": ListOf(_PART, most=16),
        "embedding": Maybe(Text()),
        "heads": DictOf(_ANY),
        "importance": ListOf(_COLUMN, most=1000),
        "how": Text(),
        "notes": ListOf(Text(), most=1000),
        "model": schema.SHA256,
    }
)
"""Schema of `predictions.json`."""


def store_predictions(run: Path, summary: Mapping[str, Any]) -> None:
    """Store a summary of predictions in the folder of a run."""
    found = {name: summary[name] for name in SUMMARY.fields if name != "model"} | {"model": _model(run)}
    schema.check_values(SUMMARY, found, run / PREDICTIONS, words="cannot be written")
    write_atomically(run / PREDICTIONS, json.dumps(found, indent=1, ensure_ascii=False).encode())


def read_predictions(run: Path) -> dict[str, Any] | None:
    """Return the summary of predictions from the model as it is; None if there are none."""
    path = run / PREDICTIONS
    if not path.is_file():
        return None
    found: dict[str, Any] = schema.parse_json(path.read_bytes(), path, InputError)
    schema.check_values(SUMMARY, found, path)
    return found if found["model"] == _model(run) else None


def _model(run: Path) -> str:
    return hashlib.sha256((run / DESCRIPTION).read_bytes()).hexdigest()


EMBEDDING = "embedding.json"
EMBEDDING_FORMAT, EMBEDDING_VERSION = "h3gnn-embedding", 1
STORED_AS = ("float32", "float16", "none")
"""How a run stores its embedding."""
_LARGEST_CHECKED = 1 << 30
"""Bytes up to which the content of an embedding is compared with the hash in its name."""
_EMBEDDING = Record(
    {
        **schema.header_of(EMBEDDING_FORMAT),
        "model": schema.SHA256,
        "file": Maybe(Text(r"embedding-[0-9a-f]{16}\.npy")),
        "dtype": OneOf(STORED_AS),
        "scale": Maybe(Record({"mean": ListOf(_ANY), "spread": ListOf(_ANY)})),
        "block_lengths": Maybe(ListOf(_ANY)),
    },
    {"index": Text(r"index-[0-9a-f]{16}\.faiss")},
)


def store_embedding(
    run: Path,
    dtype: str,
    shape: tuple[int, int],
    chunks: Iterable[npt.NDArray[np.float32]],
    learned: Callable[[], Mapping[str, Any]],
) -> None:
    """Store the embedding of the model in a run's folder, chunk by chunk; "none" stores that there is none.

    The array is complete before `embedding.json`, which belongs to this model alone, names it.
    """
    check_choice("stored embedding", dtype, STORED_AS)
    name, scale = None, {"scale": None, "block_lengths": None}
    if dtype != "none":
        name = _write_array(run, np.dtype(dtype), shape, chunks)
        scale = dict(learned())
    description = {**header(EMBEDDING_FORMAT, EMBEDDING_VERSION), "model": _model(run), "file": name}
    _describe_embedding(run, {**description, "dtype": dtype, **scale})


def store_index(run: Path, content: bytes) -> None:
    """Store an index of nearest neighbours beside the embedding of a run."""
    description = schema.parse_json((run / EMBEDDING).read_bytes(), run / EMBEDDING, InputError)
    name = f"index-{hashlib.sha256(content).hexdigest()[:16]}.faiss"
    write_atomically(run / name, content)
    _describe_embedding(run, {**description, "index": name})


def _describe_embedding(run: Path, description: dict[str, Any]) -> None:
    """Write the description of an embedding, and then remove the files that it does not name."""
    schema.check_values(_EMBEDDING, description, run / EMBEDDING, words="cannot be written")
    write_atomically(run / EMBEDDING, json.dumps(description).encode())
    for stale in (*run.glob("embedding-*.npy"), *run.glob("index-*.faiss")):
        if stale.name not in (description["file"], description.get("index")):
            stale.unlink(missing_ok=True)


def _write_array(
    run: Path, dtype: np.dtype[Any], shape: tuple[int, int], chunks: Iterable[npt.NDArray[np.float32]]
) -> str:
    digest, start, written = hashlib.sha256(), io.BytesIO(), 0
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(start, about)

    def name() -> str:
        return f"embedding-{digest.hexdigest()[:16]}.npy"

    with atomic_file(run, "embedding", name) as file:
        digest.update(start.getvalue())
        file.write(start.getvalue())
        for chunk in chunks:
            with np.errstate(over="ignore"):
                rows = np.ascontiguousarray(chunk, dtype)
            if dtype == np.float16 and not np.isfinite(rows).all():
                message = "the embedding has values beyond the range of float16: store it as float32"
                raise InputError(message, code="float16-range")
            digest.update(rows.data)
            file.write(rows.data)
            written += len(rows)
        if written != shape[0]:
            raise ValueError(f"{written} rows instead of {shape[0]}")
    return name()


def open_embedding(run: Path, shape: tuple[int, int]) -> StoredEmbedding | None:
    """Return the stored embedding of the model as it is; None if there is none, or if it is damaged."""
    try:
        path = run / EMBEDDING
        found = schema.parse_json(path.read_bytes(), path, InputError)
        schema.check_values(_EMBEDDING, found, path)
        if found["model"] != _model(run):
            return None
        rows = None if found["file"] is None else _open_array(run / found["file"], found["dtype"], shape)
    except (OSError, ValueError, InputError):
        return None
    index = run / found["index"] if "index" in found else None
    return StoredEmbedding(found["dtype"], rows, found["scale"], found["block_lengths"], index)


def _open_array(path: Path, dtype: str, shape: tuple[int, int]) -> npt.NDArray[Any]:
    if path.stat().st_size <= _LARGEST_CHECKED:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest()[:16] != path.stem.rpartition("-")[2]:
                raise ValueError("damaged")
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    if rows.dtype != np.dtype(dtype) or rows.shape != shape or not rows.flags.c_contiguous:
        raise ValueError("of another type or shape")
    return read_only(np.asarray(rows))
