"""Saved models: safetensors and JSON, written so that a kill leaves the old model or the new one.

A model folder holds `model.json` and the two tensor files that it names by their hash. New tensor files are
written first, under new names; replacing `model.json` is the one moment at which the new model takes the old
one's place; only then are the old files removed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import ModelFolderError
from h3gnn.graphs.graph import Graph, Provenance, csr_features
from h3gnn.graphs.mapped import MappedGraph, open_mapped
from h3gnn.graphs.plan import TablePlan
from h3gnn.storage.checkpoints import CHECKPOINTS
from h3gnn.storage.files import check_heading, heading, read_tensors, write_atomically, write_tensor_file

FORMAT, FORMAT_VERSION = "h3gnn-model", 1
DESCRIPTION = "model.json"
LEFT_BY_A_KILL = re.compile(r"\.(weights|graph|model\.json)[.-].*")
"""What a kill in the middle of saving leaves beside the files themselves."""
UNFINISHED = re.compile(
    rf"{CHECKPOINTS}|(weights|graph)-[0-9a-f]{{16}}\.safetensors|{LEFT_BY_A_KILL.pattern}"
)
"""What a run that was killed leaves in a folder that has no model yet."""
OPTIONAL = ("edge_weight", "labels", "train_mask", "val_mask", "test_mask")


@dataclass(frozen=True)
class ModelState:
    """Everything that a fitted model is; the history as it is written down."""

    params: dict[str, Any]
    tensors: dict[str, Tensor]
    graph: Graph | MappedGraph
    history: dict[str, Any]
    seeds: list[int]
    scaling: str
    cost: dict[str, Any] = field(default_factory=dict)


def save_model(folder: Path, state: ModelState) -> None:
    """Write a model into a folder, in place of the one that may be there."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    named = {
        "weights": write_tensor_file(folder, "weights", state.tensors).name,
        "graph": write_tensor_file(folder, "graph", graph_tensors(state.graph)).name,
    }
    description = {
        **heading(FORMAT, FORMAT_VERSION),
        "params": state.params,
        "seeds": state.seeds,
        "scaling": state.scaling,
        "cost": state.cost,
        **graph_words(state.graph),
        "files": named,
        "history": state.history,
    }
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1).encode())
    for stale in folder.glob("*.safetensors"):
        if stale.name not in named.values():
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
        return ModelState(
            description["params"],
            _read_named(folder, description["files"]["weights"]),
            graph_from_tensors(_read_named(folder, description["files"]["graph"]), description),
            {**description["history"]},
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


def _read_named(folder: Path, name: str) -> dict[str, Tensor]:
    path = folder / Path(name).name
    if not path.is_file():
        raise ModelFolderError(f"{path} is missing, although {DESCRIPTION} names it")
    return read_tensors(path, ModelFolderError)[0]


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
    if not isinstance(description, dict):
        raise ModelFolderError(f"{path} was not written by h3gnn")
    check_heading(path, description, FORMAT, FORMAT_VERSION, ModelFolderError)
    return description


def graph_words(graph: Graph | MappedGraph) -> dict[str, Any]:
    """Return what a description says of a graph: its source, its classes, its columns and their plan."""
    plan = graph.plan if isinstance(graph, Graph) else None
    words = {"provenance": graph.provenance.as_dict(), "class_names": list(graph.class_names)}
    words |= {"feature_names": list(graph.feature_names)}
    return words if plan is None else {**words, "plan": plan.as_dict()}


def graph_tensors(graph: Graph | MappedGraph) -> dict[str, Tensor]:
    """Return all else of a graph as tensors; one in files stays there, and its folder is written down."""
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
    tensors |= {name: value for name in OPTIONAL if (value := getattr(graph, name)) is not None}
    if graph.has_ids:
        text = json.dumps(graph.node_ids.tolist()).encode()
        tensors["node_ids"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return tensors if graph.plan is None else {**tensors, **graph.plan.tensors()}


def graph_from_tensors(tensors: dict[str, Tensor], description: dict[str, Any]) -> Graph | MappedGraph:
    """Read what `graph_tensors` and `graph_words` returned."""
    told = description["provenance"]
    provenance = Provenance(told["source"], told["sha256"], tuple(told["mended"]))
    if "mapped" in tensors:
        mapped = open_mapped(bytes(tensors["mapped"].tolist()).decode())
        if mapped.provenance.sha256 != provenance.sha256:
            raise ModelFolderError(f"{mapped.folder} holds another graph than the one of this model")
        return mapped
    rows, columns = (int(size) for size in tensors["shape"])
    features = tensors.get("features")
    if features is None:
        crow, col, values = (tensors[f"features.{part}"] for part in ("crow", "col", "values"))
        features = csr_features(crow, col, values, (rows, columns))
    has_ids = "node_ids" in tensors
    return Graph(
        features=features,
        edge_index=tensors["edge_index"],
        provenance=provenance,
        class_names=tuple(description["class_names"]),
        feature_names=tuple(description.get("feature_names", ())),  # not in models of old
        node_ids=_ids(tensors["node_ids"]) if has_ids else np.arange(rows, dtype=np.int64),
        has_ids=has_ids,
        plan=TablePlan.from_dict(description["plan"], tensors) if "plan" in description else None,
        **{name: tensors.get(name) for name in OPTIONAL},
    )


def _ids(encoded: Tensor) -> npt.NDArray[Any]:
    names = json.loads(bytes(encoded.tolist()))
    whole = all(isinstance(name, int) for name in names)
    return np.array(names, dtype=np.int64 if whole else object)
