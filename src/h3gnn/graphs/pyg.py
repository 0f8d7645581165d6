"""PyTorch Geometric, imported quietly, and its dataset classes by name."""

from __future__ import annotations

import contextlib
import inspect
import io
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from h3gnn.errors import InputError
from h3gnn.graphs.graph import Graph


def import_pyg() -> Any:
    """Return `torch_geometric`, without the deprecation notes that its own import gives out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric
        import torch_geometric.data
        import torch_geometric.datasets
        import torch_geometric.utils
    return torch_geometric


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
    from h3gnn.graphs.convert import as_graph

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
    return as_graph(data, source=name).with_notes("the raw files of this graph are not pinned by a sum")


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
