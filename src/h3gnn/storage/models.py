"""Saved models and folders of databases: safetensors and JSON; a kill leaves the old model or the new one.

A model folder holds `model.json` and the two tensor files that it names by their hash. New tensor files are
written first, under new names; replacing `model.json` switches to the new model; then the old files are
removed. A database folder holds `database.json`, which describes the tables, their schema and the types that
were fitted, beside the models of these types.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from h3gnn.errors import InputError, ModelFolderError, as_option
from h3gnn.graphs.graph import Graph
from h3gnn.ondisk.mapped import MappedGraph
from h3gnn.settings import STORED, canonical
from h3gnn.storage import schema
from h3gnn.storage.atomic import atomic_file, check_header, header, write_atomically
from h3gnn.storage.checkpoint_file import CHECKPOINTS
from h3gnn.storage.graphs import GRAPH_DESCRIPTION, graph_description, graph_from_tensors, graph_tensors
from h3gnn.storage.schema import DictOf, FieldError, Grid, Integer, ListOf, Maybe, Number, OneOf, Record, Text
from h3gnn.storage.tensors import Spec, check_tensor, check_tensors, read_tensors, write_tensor_file
from h3gnn.tables.files import reading
from h3gnn.tables.schema import Link, Question, Schema, TableSchema

FORMAT, FORMAT_VERSION = "h3gnn-model", 1
DESCRIPTION = "model.json"
TEMPORARY = re.compile(r"\.(weights|graph|embedding|index|(model|embedding)\.json)[.-].*")
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
        message = f"there is no folder {folder}: name one that `h3gnn fit --out` wrote, or, to fit one to "
        message += "several tables, give these (--tables SOURCE)"
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


DATABASE_FORMAT, DATABASE_VERSION = "h3gnn-database", 1
DATABASE_FILE = "database.json"
UNSAFE = re.compile(r'[\x00-\x1f%/\\:*?"<>|.]')
"""Characters that names of files cannot have, and the dot that is between the parts of a name."""
_NAMES = ListOf(Text())
_LINK = Record({"columns": ListOf(Text(), least=1), "to": Text(), "share": Number(0, 1)})
_TABLE = Record(
    {
        **{"key": _NAMES, "links": ListOf(_LINK), "time": Maybe(Text()), "rows": Integer(0)},
        **{"columns": DictOf(Text()), "nodes": DictOf(_NAMES), "link_table": bool},
    }
)
_QUESTION = Record({"table": Text(), "question": Text()}, {"number": Integer(1)}, others=Any)
DATABASE = Record(
    {
        **schema.header_of(DATABASE_FORMAT),
        "source": Maybe(Text("[^\0]+")),
        "schema": Record({"tables": DictOf(_TABLE), "questions": ListOf(_QUESTION)}),
        "as_of": Maybe(Text()),
        "columns": DictOf(Text()),
        "params": STORED,
        "read": DictOf(Record({"rows": Integer(0), "sha256": schema.SHA256})),
        "fitted": ListOf(
            Record(
                {
                    **{"type": Text(), "label": Maybe(Text()), "folder": Text(r"[^/\\]+")},
                    **{"label_time": Maybe(OneOf(("row", "now"))), "task": Text()},
                }
            )
        ),
        "links": ListOf(
            Record(
                {
                    **{"table": Text(), "users": Maybe(Text()), "items": Maybe(Text())},
                    **{"weight": Maybe(Text()), "at_least": Maybe(Number(-1e300, 1e300))},
                }
            )
        ),
    }
)
"""Schema of `database.json`."""


NOT_COMPARED = ("device", "verbose")
"""Settings that may differ between the calls that use a folder."""


def check_same(known: Mapping[str, Any], given: Mapping[str, Any] | None, what: str) -> None:
    """Reject values that differ from the known ones."""
    for name, value in (given or {}).items():
        if name not in NOT_COMPARED and known.get(name) != value:
            before = (
                f"with {_as_given(name, known[name])}"
                if known.get(name) not in (None, {})
                else f"without {_as_given(name)}"
            )
            message = f"{what} was fitted {before}, not with {_as_given(name, value)}: omit it, or choose "
            message += "another folder"
            raise InputError(message, code="already-fitted")


OPTIONS = ("as_of", "columns", "task", "label_time", "users", "items", "weight", "at_least")
"""What is an option of the command line; other values are settings."""


def _as_given(name: str, value: Any = None) -> str:
    """Return an option as it is written on the command line, or a setting with its value."""
    flag = f"--{name.replace('_', '-')}" if name in OPTIONS else name
    if isinstance(value, Mapping) and name in OPTIONS:
        return " ".join(as_option(flag, f"{key}={kind}") for key, kind in value.items())
    if value is None:
        return flag
    return as_option(flag, str(value)) if name in OPTIONS else f"{name} = {value}"


@dataclass(frozen=True)
class FittedType:
    """A model of a database: its type, the column that it predicts, which is no feature, and its folder."""

    type: str
    label: str | None
    folder: str
    label_time: str | None = None
    task: str = "auto"

    @property
    def title(self) -> str:
        """The type, with the column."""
        return self.type if self.label is None else f"{self.type}.{self.label}"

    def check_same(self, given: Mapping[str, Any]) -> None:
        """Reject a task or time of labels that differs; None is not given."""
        check_same(vars(self), {key: one for key, one in given.items() if one is not None}, self.title)


@dataclass(frozen=True)
class FittedLinks:
    """A recommender of a database: the table, and the options of `answers.recommend.recommender_for`."""

    table: str
    users: str | None = None
    items: str | None = None
    weight: str | None = None
    at_least: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        return {key: one for key, one in vars(self).items() if key != "table" and one is not None}

    @property
    def title(self) -> str:
        """The table and the options, as they are given to a command."""
        flags = (
            f"--{key.replace('_', '-')} {quote(f'{one:g}' if isinstance(one, float) else str(one))}"
            for key, one in self.options.items()
        )
        return " ".join([self.table, *flags])


@dataclass(frozen=True)
class StoredDatabase:
    """What a database folder records.

    Attributes:
        source: where the tables are, an absolute path or a URL without password; None for data frames.
        schema: keys, links and times.
        as_of: the date up to which rows are used.
        columns: kinds of columns, by `table.column`.
        params: settings of the models.
        read: rows and hash of each table as it was read.
        fitted: the models, also those whose training has not ended.
        links: the recommenders.
    """

    source: str | None
    schema: Schema
    as_of: str | None
    columns: Mapping[str, str]
    params: Mapping[str, Any]
    read: Mapping[str, Mapping[str, Any]]
    fitted: tuple[FittedType, ...] = field(default=())
    links: tuple[FittedLinks, ...] = field(default=())

    def check_same(self, given: Mapping[str, Any] | None, where: str) -> None:
        """Reject a date, kinds of columns, or settings that differ."""
        check_same({**vars(self), **self.params}, given, where)

    def find(self, kind: str, label: str | None) -> FittedType | None:
        """Return the model of a type and a predicted column, if there is one."""
        return next((one for one in self.fitted if (one.type, one.label) == (kind, label)), None)


def is_database(folder: Path) -> bool:
    """Whether a folder holds a database."""
    return (folder / DATABASE_FILE).is_file()


def check_new_folder(folder: Path) -> None:
    """Reject a folder for a new database that is a file, or that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise ModelFolderError(f"{folder} is a file; a database is kept in a folder", code="not-a-folder")
    if folder.is_dir() and any(folder.iterdir()):
        what = "the model of a single graph" if (folder / DESCRIPTION).exists() else "other files"
        message = f"{folder} holds {what}; choose another folder for the models of these tables"
        raise ModelFolderError(message, code="folder-not-empty")


def folder_of(kind: str, label: str | None) -> str:
    """Return the name of the folder of a model; characters that files cannot have are percent-encoded."""
    name = ".".join(UNSAFE.sub(lambda one: f"%{ord(one[0]):02X}", one) for one in (kind, label) if one)
    return name if name != DATABASE_FILE else name.replace(".", "%2E")


def links_folder_of(one: FittedLinks, others: Sequence[FittedLinks]) -> str:
    """Return the name of the folder of a recommender; the first one of a table has a plain name."""
    first = next((other for other in others if other.table == one.table), one)
    options = json.dumps(one.options, sort_keys=True).encode()
    mark = "" if first == one else f"-{hashlib.sha256(options).hexdigest()[:8]}"
    return f"{folder_of(one.table, None)}.links{mark}.model"


def write_rows(folder: Path, kind: str, rows: pd.DataFrame) -> None:
    """Write names and times of the rows of a type: columns `node`, `name` and `time`."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(folder, _rows_file(kind), lambda: _rows_file(kind)) as file:
        rows.to_parquet(file, index=False)


def read_rows(folder: Path, kind: str) -> pd.DataFrame | None:
    """Return names and times of the rows of a type; None if they are not there."""
    path = folder / _rows_file(kind)
    if not path.is_file():
        return None
    with reading(path, "a table"):
        return pd.read_parquet(path)


def _rows_file(kind: str) -> str:
    return f"{folder_of(kind, None)}.rows.parquet"


def write_database(folder: Path, stored: StoredDatabase) -> None:
    """Write the description of a database."""
    content = {
        **header(DATABASE_FORMAT, DATABASE_VERSION),
        **{name: value for name, value in vars(stored).items() if name not in ("schema", "fitted", "links")},
        "schema": stored.schema.as_dict(),
        "fitted": [asdict(one) for one in stored.fitted],
        "links": [asdict(one) for one in stored.links],
    }
    questions = stored.schema.numbered.items()
    content["schema"]["questions"] = [
        {"number": at, "table": one.table, "question": one.text} for at, one in questions
    ]
    schema.check_values(DATABASE, content, folder / DATABASE_FILE, words="cannot be written")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / DATABASE_FILE, json.dumps(content, indent=1, ensure_ascii=False).encode())


def read_stored(folder: Path) -> StoredDatabase:
    """Read the description of a database."""
    path = folder / DATABASE_FILE
    if not path.is_file():
        message = f"{folder} holds no database: {DATABASE_FILE} is missing"
        raise ModelFolderError(message, code="database-missing")
    parsed = schema.parse_json(path.read_bytes(), path, InputError)
    content = check_header(path, parsed, DATABASE_FORMAT, DATABASE_VERSION, ModelFolderError)
    schema.check_values(DATABASE, content, path, ModelFolderError)
    tables = {name: _table(name, one) for name, one in content["schema"]["tables"].items()}
    asked = content["schema"]["questions"]
    questions = tuple(Question(one["table"], one["question"], number=one.get("number", 0)) for one in asked)
    kept = {name: content[name] for name in ("source", "as_of", "columns", "read")}
    return StoredDatabase(
        schema=Schema(tables, questions),
        params=canonical(content["params"]),
        fitted=tuple(FittedType(**one) for one in content["fitted"]),
        links=tuple(FittedLinks(**one) for one in content["links"]),
        **kept,
    )


def _table(name: str, stored: Mapping[str, Any]) -> TableSchema:
    links = tuple(Link(tuple(one["columns"]), one["to"], one["share"]) for one in stored["links"])
    nodes = {kind: tuple(columns) for kind, columns in stored["nodes"].items()}
    return TableSchema(
        name, tuple(stored["key"]), links, stored["time"], stored["rows"], stored["columns"], nodes
    )
