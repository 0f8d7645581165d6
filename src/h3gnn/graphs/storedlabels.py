"""Labels and splits of a graph in files: a few bytes a node, read as a whole when somebody asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from h3gnn.errors import GraphError
from h3gnn.graphs.graph import DRAWN, SEED, random_splits
from h3gnn.graphs.labelfile import LabelFile
from h3gnn.graphs.names import NodeIndex

LABELS, SPLITS = "labels.bin", "splits.bin"
"""int32 `[nodes]`, -1 where unknown; int8 `[nodes, splits]`, -1 none, 0 training, 1 validation, 2 test."""


def write_labels(
    folder: Path,
    labels: LabelFile,
    nodes: NodeIndex,
    ids: npt.NDArray[Any] | None,
    count: int,
    known_by: Path,
) -> tuple[dict[str, Any], list[str]]:
    """Write the labels of a table for the nodes of a graph; one without splits gets the usual random ones.

    Args:
        folder: of the graph.
        labels: in any order; nodes that they do not speak of stay unknown.
        nodes: which nodes there are.
        ids: their ids, None for positions.
        count: how many there are.
        known_by: the file that names them.

    Returns:
        What the graph's description says of them, and what was done.
    """
    found = nodes.find(labels.ids)
    if (found < 0).any():
        assert labels.table is not None
        labels.table.list_problems(np.arange(count) if ids is None else ids, known_by)
    known = labels.for_nodes(found, count)
    about: dict[str, Any] = {}
    masks, notes = known["masks"], list[str]()
    if known["labels"] is not None:
        known["labels"].astype(np.int32).tofile(folder / LABELS)
        about["class_names"] = list(known["class_names"])
    if masks is None and (known["labels"] >= 0).any():
        draw = torch.Generator().manual_seed(SEED)
        masks = tuple(one.numpy() for one in random_splits(torch.from_numpy(known["labels"]), generator=draw))
        notes.append(DRAWN.format(seed=SEED))
    if masks is not None:
        codes = np.full(masks[0].shape, -1, dtype=np.int8)
        for code, mask in enumerate(masks):
            codes[mask] = code
        codes.tofile(folder / SPLITS)
        about["splits"] = codes.shape[1]
    return about, notes


def read_labels(folder: Path, nodes: int, classes: int) -> Tensor:
    """Return int64 `[nodes]`."""
    labels = torch.from_numpy(np.fromfile(folder / LABELS, dtype=np.int32)).long()
    return _checked(folder / LABELS, labels, (nodes,), classes)


def read_splits(folder: Path, nodes: int, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the training, validation and test nodes, bool `[nodes, splits]` each."""
    codes = torch.from_numpy(np.fromfile(folder / SPLITS, dtype=np.int8))
    found = _checked(folder / SPLITS, codes, (nodes, splits), 3)
    return found == 0, found == 1, found == 2


def _checked(path: Path, values: Tensor, shape: tuple[int, ...], below: int) -> Tensor:
    """Return values between -1 and what they stay below, in their shape, or say that the file is damaged."""
    sized = values.numel() == torch.Size(shape).numel()
    if not sized or bool(((values < -1) | (values >= below)).any()):
        what = f"it holds other numbers than -1 to {below - 1}" if sized else "its length is another"
        raise GraphError(f"{path} is damaged: {what}; prepare the graph again")
    return values.view(shape)
