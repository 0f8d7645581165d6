"""Attributes of nodes, as networkx, GraphML and GML have them: which are features, which is the class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from h3gnn.errors import GraphError
from h3gnn.graphs.checks import DATES, holds_dates
from h3gnn.graphs.names import as_classes, quoted, split_masks
from h3gnn.graphs.provenance import Repair
from h3gnn.tables.roles import LABEL_NAMES

FEATURES, LABEL, SPLIT = "x", "y", "split"
"""The attributes that are used where nothing else is said."""

Values = dict[Any, Any]


class NodeAttributes:
    """What the nodes of a graph carry, and what of it has been asked for.

    Args:
        names: the nodes.
        values: for each node its attributes.
    """

    def __init__(self, names: Sequence[Any], values: Sequence[Values]) -> None:
        self._names, self._values = names, values
        self._keys = list(dict.fromkeys(key for one in values for key in one))
        self._used = {SPLIT}

    def features(self, wanted: str | Sequence[str] | None) -> tuple[npt.NDArray[Any] | None, tuple[str, ...]]:
        """Return the numbers of some attributes side by side, and a name for each column.

        Without `wanted` it is `x`, which has no names; and nothing where no node has that.
        """
        if wanted is None:
            if FEATURES not in self._keys:
                return None, ()
            self._used.add(FEATURES)
            return self._numbers(FEATURES), ()
        chosen = [wanted] if isinstance(wanted, str) else list(wanted)
        if not chosen or len(set(chosen)) < len(chosen):
            raise GraphError("features= needs the names of node attributes, each of them once")
        columns: list[npt.NDArray[Any]] = []
        titles: list[str] = []
        for key in chosen:
            self._check(key, "features")
            columns.append(self._numbers(key))
            width = columns[-1].shape[1]
            titles += [str(key)] if width == 1 else [f"{key}[{place}]" for place in range(width)]
        return np.concatenate(columns, axis=1), tuple(titles)

    def labels(self, wanted: str | None) -> dict[str, Any]:
        """Return labels, the names of the classes and the masks, as far as the nodes have them."""
        found: dict[str, Any] = {}
        if wanted is not None:
            self._check(wanted, "labels")
        if wanted is not None or LABEL in self._keys:
            key = LABEL if wanted is None else wanted
            self._used.add(key)
            found["labels"], found["class_names"] = as_classes([one.get(key) for one in self._values])
        if SPLIT in self._keys:
            words = [one.get(SPLIT) for one in self._values]
            found["masks"] = split_masks(words, lambda row: f"the node attribute 'split', row {row}")
        return found

    def unused(self) -> tuple[Repair, ...]:
        """Return the repair that names unused attributes and how to use them."""
        left = [key for key in self._keys if key not in self._used]
        label = self._likely_label(left)
        numeric = [
            key for key in left if key != label and all(_is_number(one.get(key)) for one in self._values)
        ]
        python = [f"features={[str(key) for key in numeric]}"] if numeric else []
        command = [f"--feature-columns {','.join(map(str, numeric))}"] if numeric else []
        if label is not None:
            python.append(f"labels={str(label)!r}")
            command.append(f"--label-column {label}")
        hint = (
            f"; use them by {', '.join(python)} of as_graph or read_graph_file ({' '.join(command)})"
            if python
            else ""
        )
        return unused_of("node", left, hint)

    def _likely_label(self, keys: Sequence[Any]) -> Any:
        """Return the attribute that has a usual name of a class, or else few words for many nodes."""
        usual = [key for key in keys if str(key).lower() in LABEL_NAMES]
        for key in [] if usual else keys:
            words = [one[key] for one in self._values if isinstance(one.get(key), str)]
            if len({*words}) <= len(words) / 2:
                usual += [key] if words else []
        return usual[0] if usual else None

    def _check(self, key: str, role: str) -> None:
        if key not in self._keys:
            known = ", ".join(str(one) for one in self._keys[:8]) or "none at all"
            raise GraphError(f"no node has the attribute {key!r}, named as {role}; there are: {known}")
        self._used.add(key)

    def _numbers(self, key: str) -> npt.NDArray[np.float64]:
        """Return one attribute as `[nodes, values]`: a number, or a list of as many numbers at every node."""
        rows: list[npt.NDArray[np.float64]] = []
        for name, one in zip(self._names, self._values, strict=True):
            if key not in one:
                raise GraphError(f"node {name!r} has no attribute {key!r} although other nodes have it")
            if holds_dates(np.array([one[key], None], dtype=object)):
                raise GraphError(f"node {name!r}: the attribute {key!r} holds {DATES}")
            try:
                rows.append(np.atleast_1d(np.asarray(one[key], dtype=np.float64)))
            except (TypeError, ValueError):
                raise GraphError(_no_numbers(name, key, one[key])) from None
            if rows[-1].shape != rows[0].shape or rows[-1].ndim != 1:
                raise GraphError(
                    f"node {name!r}: the attribute {key!r} has another length than that of the first node"
                )
        return np.stack(rows)


def unused_of(part: str, keys: Sequence[Any], hint: str = "") -> tuple[Repair, ...]:
    """Return the repair that names unused attributes of nodes or edges, if there are any."""
    if not keys:
        return ()
    more = f" and {len(keys) - 8} more" if len(keys) > 8 else ""
    names = tuple(str(key) for key in keys)
    message = f"{part} attributes not used: {', '.join(names[:8])}{more}{hint}"
    return (Repair(f"{part}-attributes-unused", message, fields=names, warn=True),)


def _no_numbers(name: Any, key: str, value: Any) -> str:
    if key == FEATURES or not isinstance(value, str):
        return f"node {name!r}: the attribute {key!r} is not a list of numbers"
    return f"node {name!r}: the attribute {key!r} is not a number but {quoted(value)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number)
