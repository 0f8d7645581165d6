"""Saved models: safetensors and JSON, written so that a kill leaves the old model or the new one.

A model folder holds `model.json` and the two tensor files that it names by their hash. New tensor files are
written first, under new names; replacing `model.json` switches to the new model; then the old files are
removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from h3gnn.errors import InputError, ModelFolderError
from h3gnn.graphs.graph import Graph
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.settings import STORED, canonical
from h3gnn.storage import schema
from h3gnn.storage.atomic import check_header, header, write_atomically
from h3gnn.storage.checkpoint_file import CHECKPOINTS
from h3gnn.storage.graphs import GRAPH_DESCRIPTION, graph_description, graph_from_tensors, graph_tensors
from h3gnn.storage.schema import DictOf, FieldError, Grid, Integer, ListOf, Maybe, Number, OneOf, Record, Text
from h3gnn.storage.tensors import Spec, check_tensor, check_tensors, read_tensors, write_tensor_file

FORMAT, FORMAT_VERSION = "h3gnn-model", 1
DESCRIPTION = "model.json"
TEMPORARY = re.compile(r"\.(weights|graph|model\.json)[.-].*")
"""Files that a killed save leaves behind."""
UNFINISHED = re.compile(rf"{CHECKPOINTS}|(weights|graph)-[0-9a-f]{{16}}\.safetensors|{TEMPORARY.pattern}")
"""Files of a killed run in a folder without a model."""
TENSOR_FILE = Text(r"(weights|graph)-[0-9a-f]{16}\.safetensors")
COLUMN = Grid(Maybe(Number(any_float=True)))
MODEL = Record(
    {
        **schema.header_of(FORMAT),
        **GRAPH_DESCRIPTION.fields,
        "params": STORED,
        "seeds": ListOf(Integer(0), least=1),
        "scaling": OneOf(("none", "rows", "columns")),
        "files": Record({"weights": TENSOR_FILE, "graph": TENSOR_FILE}),
        "history": Record({"engine": DictOf(Any), "columns": DictOf(COLUMN)}),
    },
    {**GRAPH_DESCRIPTION.optional, "cost": DictOf(Maybe(Number(0))), "smoothing": Number(0, 1)},
)
"""Schema of `model.json`."""
MOMENTS = ("mean", "scale")
SCALED: dict[str, tuple[int | str, ...]] = {"rows": (1,), "columns": ("features",)}
"""Shape of both, by kind of scaling."""
BLOCKS: dict[str, dict[str, tuple[int | str, ...]]] = {
    "blocks": {
        "mean": ("features",),
        "own": ("features", "block columns"),
        "around": ("features", "block columns"),
        "walks": ("features", "walk columns"),
    },
    "reduction": {"mean": ("embedding columns",), "directions": ("embedding columns", "dimensions")},
}
"""Shapes of the blocks of input features and of the reduction to fewer columns, if a model has them."""


@dataclass(frozen=True)
class ModelState:
    """A fitted model, with its history as it is stored."""

    params: dict[str, Any]
    tensors: dict[str, Tensor]
    graph: Graph | MappedGraph
    history: dict[str, Any]
    seeds: list[int]
    scaling: str
    cost: dict[str, Any] = field(default_factory=dict)
    smoothing: float | None = None  # None for models of earlier versions, which chose it again
    weights: Path = Path()


def save_model(folder: Path, state: ModelState) -> None:
    """Write a model into a folder, replacing the one that may be there."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    named = {
        "weights": write_tensor_file(folder, "weights", state.tensors).name,
        "graph": write_tensor_file(folder, "graph", graph_tensors(state.graph)).name,
    }
    description = {
        **header(FORMAT, FORMAT_VERSION),
        "params": state.params,
        "seeds": state.seeds,
        "scaling": state.scaling,
        "cost": state.cost,
        **graph_description(state.graph),
        "files": named,
        "history": state.history,
        **({} if state.smoothing is None else {"smoothing": state.smoothing}),
    }
    schema.check_values(MODEL, description, folder / DESCRIPTION, words="cannot be written")
    write_atomically(folder / DESCRIPTION, json.dumps(description, indent=1).encode())
    for stale in folder.glob("*.safetensors"):
        if stale.name not in named.values():
            stale.unlink()


def check_folder(folder: Path) -> None:
    """Raise an error for a file, or for a folder with anything but a model."""
    if folder.exists() and not folder.is_dir():
        raise ModelFolderError(f"{folder} is a file; a model is saved as a folder", code="not-a-folder")
    if not folder.is_dir() or (folder / DESCRIPTION).exists():
        return
    if not all(UNFINISHED.fullmatch(path.name) for path in folder.iterdir()):
        message = f"{folder} is not empty and holds no model; choose another folder"
        raise ModelFolderError(message, code="folder-not-empty")


def load_model(folder: Path) -> ModelState:
    """Read a model folder; every file is checked against the hash in its name and its schema."""
    description = _read_description(folder)
    path, named = folder / DESCRIPTION, description["files"]
    tensors, stored = (_read_named(folder, named[part]) for part in ("weights", "graph"))
    with schema.naming(folder / named["graph"], ModelFolderError):
        graph = graph_from_tensors(stored, description)
    with schema.naming(folder / named["weights"], ModelFolderError):
        sizes = _check_learned(tensors, description["scaling"], graph)
    with schema.naming(path, ModelFolderError):
        _check_sizes(description, sizes, tensors)
    return ModelState(
        canonical(description["params"]),
        tensors,
        graph,
        {**description["history"]},
        description["seeds"],
        description["scaling"],
        description.get("cost", {}),
        description.get("smoothing"),
        folder / named["weights"],
    )


def _check_learned(tensors: dict[str, Tensor], scaling: str, graph: Graph | MappedGraph) -> dict[str, int]:
    """Check the tensors besides the encoder's weights, and return the sizes that all of them share."""
    sizes = {"nodes": graph.num_nodes, "features": graph.num_features}
    bias, spec = "encoder.linear_bias", Spec(torch.float32, ("models", 1, "channels"))
    check_tensor(bias, tensors.get(bias), spec, sizes)
    beside = {name: one for name, one in tensors.items() if not name.startswith("encoder.")}
    scaled = () if scaling == "none" else MOMENTS
    specs = {name: Spec(torch.float32, SCALED[scaling]) for name in scaled}
    for part, shapes in BLOCKS.items():
        if any(name.startswith(f"{part}.") for name in beside):
            specs |= {f"{part}.{name}": Spec(torch.float32, shape) for name, shape in shapes.items()}
    if "difficulty" in beside:
        specs["difficulty"] = Spec(torch.float32, ("models", "nodes"))
    check_tensors(specs, beside, sizes)
    if "scale" in specs and not bool((beside["scale"] > 0).all()):
        raise FieldError("scale", "has a value that is not positive")
    return sizes


def _check_sizes(description: dict[str, Any], sizes: dict[str, int], tensors: dict[str, Tensor]) -> None:
    """Compare the description with the shapes of the tensors, which bound what is built from it."""
    params = description["params"]
    for name, found in {"channels": sizes["channels"], "n_models": sizes["models"]}.items():
        if params.get(name) != found:
            raise FieldError(f"params.{name}", f"is {params.get(name)}, but {found} in the weights")
    if not 1 <= params.get("hops", 0) <= len(tensors):  # each hop has its own weights
        raise FieldError("params.hops", f"is {params.get('hops')}, more than in the weights")
    if len(description["seeds"]) != sizes["models"]:
        raise FieldError("seeds", f"must have {sizes['models']} value(s), not {len(description['seeds'])}")
    columns = description["history"]["columns"]
    epochs = {len(rows) for rows in columns.values()}
    if len(epochs) > 1 or (columns and not {"loss", "effective_rank"} <= columns.keys()):
        raise FieldError("history.columns", "must have the loss and the effective rank of the same epochs")
    for name, rows in columns.items():
        if rows and len(rows[0]) != sizes["models"]:
            raise FieldError(f"history.columns.{name}", f"must have {sizes['models']} value(s) per epoch")


def check_weights(state: ModelState, module: torch.nn.Module) -> None:
    """Compare the saved weights with an encoder on `meta`, before one is built in memory."""
    weights = module.state_dict()
    specs = {f"encoder.{name}": Spec(one.dtype, tuple(one.shape)) for name, one in weights.items()}
    own = {name: value for name, value in state.tensors.items() if name.startswith("encoder.")}
    with schema.naming(state.weights, ModelFolderError, "holds weights that do not fit the saved settings"):
        check_tensors(specs, own)


@contextmanager
def naming_settings(folder: str | Path) -> Iterator[None]:
    """Name the file in errors about its settings."""
    try:
        yield
    except InputError as error:
        message = f"{Path(folder) / DESCRIPTION} is damaged: in params, {error}"
        raise ModelFolderError(message, code="file-damaged") from None


def restore(module: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the encoder's tensors, which are already checked, into a module."""
    named = {name.removeprefix("encoder."): tensor for name, tensor in tensors.items()}
    module.load_state_dict({name: named[name] for name in module.state_dict()})


def _read_named(folder: Path, name: str) -> dict[str, Tensor]:
    path = folder / Path(name).name
    if not path.is_file():
        raise ModelFolderError(f"{path}, which {DESCRIPTION} names, is missing", code="file-missing")
    return read_tensors(path, ModelFolderError)[0]


def _read_description(folder: Path) -> dict[str, Any]:
    path = folder / DESCRIPTION
    if not folder.is_dir():
        message = f"there is no folder {folder}: name one that `h3gnn fit --out` wrote"
        raise ModelFolderError(message, code="folder-missing")
    if not path.is_file():
        raise ModelFolderError(f"{folder} holds no model: {DESCRIPTION} is missing", code="model-missing")
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise ModelFolderError(message, code="file-unreadable") from None
    parsed = schema.parse_json(content, path, ModelFolderError)
    description = check_header(path, parsed, FORMAT, FORMAT_VERSION, ModelFolderError)
    schema.check_values(MODEL, description, path, ModelFolderError)
    return description
