"""Saved models: safetensors and JSON, written so that a kill leaves the old model or the new one.

A model folder holds `model.json` and the two tensor files that it names by their hash. New tensor files are
written first, under new names; replacing `model.json` is the one moment at which the new model takes the old
one's place; only then are the old files removed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import ModelFolderError
from h3gnn.graphs.graph import Graph, Provenance
from h3gnn.graphs.mapped import MappedGraph, open_mapped
from h3gnn.sparse import csr_tensor
from h3gnn.training.history import History

FORMAT = "h3gnn-model"
FORMAT_VERSION = 1
DESCRIPTION = "model.json"
CHECKPOINTS = "checkpoints"
"""The folder inside a model's folder in which an unfinished run has its checkpoints."""
UNFINISHED = re.compile(
    rf"{CHECKPOINTS}|(weights|graph)-[0-9a-f]{{16}}\.safetensors|\.(weights-|graph-|model\.json\.).*"
)
"""What a run that was killed leaves in a folder that has no model yet."""


@dataclass(frozen=True)
class ModelState:
    """Everything that a fitted model is."""

    params: dict[str, Any]
    tensors: dict[str, Tensor]
    graph: Graph
    history: History
    seeds: list[int]
    scaling: str
    cost: dict[str, Any] = field(default_factory=dict)


def save_model(folder: Path, state: ModelState) -> None:
    """Write a model into a folder, in place of the one that may be there."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "weights": _write_tensors(folder, "weights", state.tensors),
        "graph": _write_tensors(folder, "graph", graph_tensors(state.graph)),
    }
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "versions": versions(),
        "params": state.params,
        "seeds": state.seeds,
        "scaling": state.scaling,
        "cost": state.cost,
        "provenance": state.graph.provenance.as_dict(),
        "class_names": list(state.graph.class_names),
        "files": files,
        "history": state.history.as_dict(),
    }
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1).encode())
    for stale in folder.glob("*.safetensors"):
        if stale.name not in files.values():
            stale.unlink()


def check_folder(folder: Path) -> None:
    """Refuse a place where a model must not be written: a file, or a folder with something else in it."""
    if folder.exists() and not folder.is_dir():
        raise ModelFolderError(f"{folder} is a file; a model is saved as a folder")
    if not folder.is_dir() or (folder / DESCRIPTION).exists():
        return
    if not all(UNFINISHED.fullmatch(path.name) for path in folder.iterdir()):
        raise ModelFolderError(f"{folder} is not empty and holds no model; choose another folder")


def load_model(folder: Path) -> ModelState:
    """Read a model folder; every file is checked against the hash in its name before it is used."""
    description = _read_description(folder)
    try:
        tensors = _read_tensors(folder, description["files"]["weights"])
        provenance = Provenance(
            description["provenance"]["source"],
            description["provenance"]["sha256"],
            tuple(description["provenance"]["mended"]),
        )
        graph = graph_from_tensors(
            _read_tensors(folder, description["files"]["graph"]), provenance, description["class_names"]
        )
        return ModelState(
            description["params"],
            tensors,
            graph,
            History.from_dict(description["history"]),
            description["seeds"],
            description["scaling"],
            description.get("cost", {}),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFolderError(f"{folder / DESCRIPTION} is damaged: {error!r} is missing or wrong") from None


def restore(module: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the encoder's tensors into a module of the same shape."""
    weights = {
        name.removeprefix("encoder."): tensor
        for name, tensor in tensors.items()
        if name.startswith("encoder.")
    }
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        raise ModelFolderError(f"the saved weights do not fit the saved settings: {error}") from None


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a kill, sees all of it or none of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def versions() -> dict[str, str]:
    """Return what produced a result: this package, torch, Python."""
    from h3gnn import __version__

    return {"h3gnn": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _write_tensors(folder: Path, kind: str, tensors: dict[str, Tensor]) -> str:
    from safetensors.torch import save

    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    name = f"{kind}-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    write_atomically(folder / name, content)
    return name


def _read_tensors(folder: Path, name: str) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = folder / Path(name).name
    if not path.is_file():
        raise ModelFolderError(f"{path} is missing, although {DESCRIPTION} names it")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest()[:16] != path.stem.rpartition("-")[2]:
        raise ModelFolderError(f"{path} is damaged: its content does not match its hash")
    try:
        return load(content)
    except SafetensorError as error:
        raise ModelFolderError(f"{path} is not a safetensors file: {error}") from None


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    if not folder.is_dir():
        raise ModelFolderError(f"there is no folder {folder}: name one that `h3gnn fit --out` wrote")
    if not path.is_file():
        raise ModelFolderError(f"{folder} holds no model: {DESCRIPTION} is not there")
    try:
        description = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelFolderError(f"{path} is damaged: {error}") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise ModelFolderError(f"{path} was not written by h3gnn")
    if description.get("format_version") != FORMAT_VERSION:
        raise ModelFolderError(
            f"{path} has format version {description.get('format_version')}, "
            f"but this h3gnn reads version {FORMAT_VERSION}"
        )
    return description


def graph_tensors(graph: Graph) -> dict[str, Tensor]:
    """Return all of a graph but its provenance and the names of its classes as tensors.

    A graph in files stays there: only its folder is written down.
    """
    if isinstance(graph, MappedGraph):
        place = str(graph.folder.resolve()).encode()
        return {"mapped": torch.frombuffer(bytearray(place), dtype=torch.uint8)}
    tensors = {"edge_index": graph.edge_index, "shape": torch.tensor(graph.features.shape)}
    if graph.features.layout == torch.sparse_csr:
        tensors |= {
            "features.crow": graph.features.crow_indices(),
            "features.col": graph.features.col_indices(),
            "features.values": graph.features.values(),
        }
    else:
        tensors["features"] = graph.features
    for name in ("edge_weight", "labels", "train_mask", "val_mask", "test_mask"):
        value = getattr(graph, name)
        if value is not None:
            tensors[name] = value
    if graph.has_ids:
        text = json.dumps(graph.node_ids.tolist()).encode()
        tensors["node_ids"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return tensors


def graph_from_tensors(tensors: dict[str, Tensor], provenance: Provenance, class_names: list[str]) -> Graph:
    """Read what `graph_tensors` returned."""
    if "mapped" in tensors:
        mapped = open_mapped(bytes(tensors["mapped"].tolist()).decode())
        if mapped.provenance.sha256 != provenance.sha256:
            raise ModelFolderError(f"{mapped.folder} holds another graph than the one of this model")
        return cast(Graph, mapped)
    rows, columns = (int(size) for size in tensors["shape"])
    features = tensors.get("features")
    if features is None:
        crow, col, values = (tensors[f"features.{part}"] for part in ("crow", "col", "values"))
        features = csr_tensor(crow, col, values, (rows, columns))
    has_ids = "node_ids" in tensors
    return Graph(
        features=features,
        edge_index=tensors["edge_index"],
        provenance=provenance,
        class_names=tuple(class_names),
        node_ids=_ids(tensors["node_ids"]) if has_ids else np.arange(rows, dtype=np.int64),
        has_ids=has_ids,
        **{
            name: tensors.get(name)
            for name in ("edge_weight", "labels", "train_mask", "val_mask", "test_mask")
        },
    )


def _ids(encoded: Tensor) -> npt.NDArray[Any]:
    names = json.loads(bytes(encoded.tolist()))
    whole = all(isinstance(name, int) for name in names)
    return np.array(names, dtype=np.int64 if whole else object)
